"""Our own processes in a landscape: one table of the processes, their places and their configurations."""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from api.constants import ADMISSION_AUTHORITY
from landscape import cloud, garden, pki
from landscape.cluster import Credentials
from landscape.code import ROOMS, code_digest
from landscape.files import write_if_changed
from landscape.network import POD_BRIDGE
from landscape.pki import KeyPair, TemporalAuthority, write_kubeconfig
from landscape.plan import SHOOT_PODS, SHOOT_SERVICES, SUBRESOURCES_PORTS, VPN_NETWORK, ClusterPlan, NodePlan, Plan
from landscape.processes import ProcessSpec
from workers.admission import api_server_files
from workers.lib.codec import derived_keys, write_key_file

Config = dict[str, Any]

_SUBRESOURCES = ("subresources-1", "subresources-2")
OF_THE_LANDSCAPE = ("garden/codec-server", *(f"garden/{name}" for name in _SUBRESOURCES))
"""Processes that the landscape needs in any case: for its UI and commands, and behind its front door."""

NETWORK_POLICY_AGENT = "network-policy-agent"
_WEBHOOKS_PORT = 9443
_AUTHORIZER_PORT = 9444


@dataclass(frozen=True)
class Ours:
    """One of our processes, and the URL of its readiness check."""

    spec: ProcessSpec
    ready_url: str


def of_garden(plan: Plan) -> list[Ours]:
    """Write the configurations of the garden's processes; returns the processes to start."""
    replicas = [(name, _subresources(plan, number)) for number, name in enumerate(_SUBRESOURCES, start=1)]
    return [
        *(_spec(plan, f"garden/{worker}", worker, made(plan), plan.garden.netns) for worker, made in _GARDEN.items()),
        *(_spec(plan, f"garden/{name}", "subresources", config, plan.garden.netns) for name, config in replicas),
    ]


def of_seed(plan: Plan, seed: ClusterPlan) -> list[Ours]:
    """Write the configurations of the processes of a seed; returns the processes to start."""
    return [
        _spec(plan, f"{seed.name}/{worker}", worker, config(plan, seed), seed.netns) for worker, config in _SEED.items()
    ]


def of_node(plan: Plan, seed: ClusterPlan, node: NodePlan) -> Ours:
    """Write the configuration of the agent that enforces NetworkPolicies on a node of a seed."""
    authority = Credentials.of(seed)
    config = {
        "clientConnection": {"kubeconfig": str(authority.kubeconfig(seed, NETWORK_POLICY_AGENT, NETWORK_POLICY_AGENT))},
        "node": node.name,
        "pods": node.pods,
        "bridge": POD_BRIDGE,
        "socket": str(node.network_policies_socket),
        "health": _health(node.address, 2730),
    }
    return _spec(plan, f"{node.name}/{NETWORK_POLICY_AGENT}", NETWORK_POLICY_AGENT, config, node.netns)


def rights_of_node_agents() -> list[dict[str, Any]]:
    """Rights of these agents in their seed."""
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NETWORK_POLICY_AGENT},
            "rules": [
                {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"]},
                {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
                {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NETWORK_POLICY_AGENT},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": NETWORK_POLICY_AGENT,
            },
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": NETWORK_POLICY_AGENT}],
        },
    ]


def write_codec_keys(plan: Plan) -> None:
    """Create root keys if there are none, and derive keys from them for each process of a seed and for operators."""
    write_key_file(plan.codec_key)
    contents = {"operators": derived_keys(plan.codec_key, operators=True)}
    for seed in plan.seeds:
        contents[f"{seed.name}-gardenlet"] = derived_keys(plan.codec_key, gardenlet=seed.name)
        contents[f"{seed.name}-provider-local"] = derived_keys(plan.codec_key, provider_local=seed.name)
    for name, content in contents.items():
        write_if_changed(plan.derived_key(name), content, mode=0o600)


def _spec(plan: Plan, name: str, worker: str, config: Config, netns: str) -> Ours:
    file = plan.configs / f"{name.replace('/', '-')}.yaml"
    content = yaml.safe_dump(config, sort_keys=False)
    write_if_changed(file, content)
    gardener = Path(sys.executable).parent / "gardener"
    argv = (str(gardener), "worker", worker, "--config", str(file))
    # A digest of code and configuration is part of the arguments: ``up`` restarts the process if one has changed.
    version = f"{code_digest(*ROOMS)}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    spec = ProcessSpec(name, argv, netns, {"GARDENER_VERSION": version, "MALLOC_ARENA_MAX": "2"})
    if health := config.get("health"):
        return Ours(spec, f"http://{health['address']}:{health['port']}/readyz")
    # These processes have no readiness check: they are ready when they answer.
    return Ours(spec, f"http://{config['address']}:{config['port']}/healthz")


def _temporal(plan: Plan, process: str, certificate: KeyPair, key: Path) -> Config:
    return {
        "address": plan.temporal_address,
        "codecKeyFile": str(key),
        "journalDirectory": str(plan.journal(process)),
        **_shared_key(plan),
        "tls": {
            "caFile": str(TemporalAuthority(plan.temporal_authority).of_servers),
            "certificateFile": str(certificate.certificate),
            "privateKeyFile": str(certificate.key),
        },
    }


def _shared_key(plan: Plan) -> Config:
    """Configuration of the key of all processes, for a landscape that an earlier version has made: its histories and
    ShootStates need that key."""
    return {"sharedKeyFile": str(plan.shared_key)} if plan.shared_key.exists() else {}


def _garden_connection(plan: Plan, process: str) -> Config:
    path = plan.directory / "garden" / "processes" / f"{process}.kubeconfig"
    return {"kubeconfig": str(write_kubeconfig(path, garden.process_kubeconfig(plan, process)))}


def _controller_manager(plan: Plan) -> Config:
    connection = _garden_connection(plan, "controller-manager")
    authority = TemporalAuthority(plan.temporal_authority)
    certificate = authority.for_process("controller-manager")
    return {
        "gardenClientConnection": connection,
        "temporal": _temporal(plan, "controller-manager", certificate, plan.codec_key),
        "auditLog": str(plan.logs / "operations.jsonl"),
        # Tests wait for it. A gardenlet that tests kill on a busy machine comes back after a minute.
        "gardenletLifecycle": {"lostSourcePatience": 150},
        # Tests wait for it. The cloud's API server reads the keys again when its copy is a minute old.
        "workloadIdentities": {"publishedBeforeUse": 90},
        "managedSeeds": {
            "temporalAuthorityCertificateFile": str(authority.client_authority.certificate),
            "temporalAuthorityKeyFile": str(authority.client_authority.key),
        },
        "health": _health(plan.central_address, 2718),
    }


def asking_admission(plan: Plan, webhooks_url: str = "", authorizer_url: str = "") -> dict[str, str]:
    """Write the files with which the garden's API server calls admission; returns its flags that name them.

    The urls are those of admission's ports; by default of the landscape's own admission.
    """
    directory = plan.garden.directory / "admission"
    authority = pki.Authority(plan.garden.directory, ADMISSION_AUTHORITY)
    client = authority.issue("admission-client", "kube-apiserver")
    for name, path in ((api_server_files.CERTIFICATE, client.certificate), (api_server_files.KEY, client.key)):
        pki.write_secret(directory / name, path.read_bytes())
    contents = api_server_files.files(
        str(directory),
        webhooks_url=webhooks_url or _webhooks_url(plan),
        authorizer_url=authorizer_url or _authorizer_url(plan),
        authority=authority.files.certificate.read_bytes(),
    )
    for name, content in contents.items():
        write_if_changed(directory / name, json.dumps(content, indent=2))
    return api_server_files.flags(str(directory))


def _webhooks_url(plan: Plan) -> str:
    return f"https://{plan.central_address}:{_WEBHOOKS_PORT}"


def _authorizer_url(plan: Plan) -> str:
    return f"https://{plan.central_address}:{_AUTHORIZER_PORT}"


def _admission(plan: Plan) -> Config:
    return {
        "gardenClientConnection": _garden_connection(plan, "admission"),
        "server": {"address": plan.central_address, "port": _WEBHOOKS_PORT},
        "seedAuthorizer": {
            "address": plan.central_address,
            "port": _AUTHORIZER_PORT,
            "url": _authorizer_url(plan),
        },
        "certificates": {"url": _webhooks_url(plan)},
        "clientAuthentication": {"commonNames": ["kube-apiserver"]},
        "health": _health(plan.central_address, 2719),
    }


def _discovery_server(plan: Plan) -> Config:
    certificate = Credentials.of(plan.garden).ca.issue(
        "discovery-server", "discovery-server", names=[plan.discovery_host]
    )
    return {
        "gardenClientConnection": _garden_connection(plan, "discovery-server"),
        "server": {
            "address": plan.central_address,
            "port": cloud.DISCOVERY_PORT,
            "certificateFile": str(certificate.certificate),
            "privateKeyFile": str(certificate.key),
        },
        "health": _health(plan.central_address, 2720),
    }


def _subresources(plan: Plan, replica: int) -> Config:
    """The front door sends requests to both replicas, and presents a certificate of the request-header CA."""
    credentials = Credentials.of(plan.garden)
    certificate = credentials.ca.issue("subresources", "subresources", names=[plan.central_address])
    return {
        "gardenClientConnection": _garden_connection(plan, "subresources"),
        "server": {
            "address": plan.central_address,
            "port": SUBRESOURCES_PORTS[replica - 1],
            "certificateFile": str(certificate.certificate),
            "privateKeyFile": str(certificate.key),
        },
        "requestHeader": {"caFile": str(credentials.front_proxy_ca.files.certificate)},
        "health": _health(plan.central_address, 2721 + replica),
    }


def _scheduler(plan: Plan) -> Config:
    connection = _garden_connection(plan, "scheduler")
    return {"gardenClientConnection": connection, "health": _health(plan.central_address, 10251)}


def _codec_server(plan: Plan) -> Config:
    authority = Credentials.of(plan.garden).ca
    certificate = authority.issue("codec-server", "codec-server", names=[plan.central_address])
    return {
        "codecKeyFile": str(plan.codec_key),
        "gardenClientConnection": _garden_connection(plan, "codec-server"),
        **_shared_key(plan),
        "address": plan.central_address,
        "port": 8234,
        "certificateFile": str(certificate.certificate),
        "privateKeyFile": str(certificate.key),
        # Users of the landscape have client certificates of the garden's authority.
        "clientCaFile": str(authority.files.certificate),
        "allowedOrigins": [plan.temporal_ui],
        "health": _health(plan.central_address, 2721),
    }


def _gardenlet(plan: Plan, seed: ClusterPlan) -> Config:
    certificate = TemporalAuthority(plan.temporal_authority).for_gardenlet(seed.name)
    return {
        "gardenClientConnection": {
            "bootstrapKubeconfig": _garden_connection(plan, seed.name)["kubeconfig"],
            "kubeconfigSecret": {"name": "gardenlet-kubeconfig", "namespace": garden.GARDEN_NAMESPACE},
            "kubeconfigValidity": {"validity": "12h"},
        },
        "seedClientConnection": {"kubeconfig": str(plan.kubeconfig(seed.name))},
        "temporal": _temporal(plan, f"{seed.name}-gardenlet", certificate, plan.derived_key(f"{seed.name}-gardenlet")),
        "seedConfig": seed_config(plan, seed),
        "vpn": {"network": VPN_NETWORK},
        "networkPolicies": {"enabled": plan.closed},
        **_logging(plan),
        "etcd": {
            # Tests kill seeds, and then read backups that were written before.
            "deltaSnapshotPeriod": 10,
            "takeoverTolerance": 15,
            "imageDigest": code_digest(*ROOMS),
        },
        # Backups that tests read after the deletion of their Shoot.
        "backupEntry": {"deletionGracePeriodHours": 24, "deletionGracePeriodShootPurposes": ["production"]},
        # Tests wait for it.
        "watchdog": {"probeInterval": 5, "failures": 2},
        "health": _health(seed.address, 2728),
    }


def _logging(plan: Plan) -> Config:
    """Part of a gardenlet's configuration: the nodes of all Shoots that can have a store of logs send theirs."""
    purposes = ["evaluation", "development", "production", "infrastructure"]
    return {"logging": {"enabled": True, "shootNodeLogging": {"shootPurposes": purposes}}} if plan.node_logs else {}


def _health(address: str, port: int) -> Config:
    return {"address": address, "port": port}


def seed_config(plan: Plan, seed: ClusterPlan) -> Config:
    """The Seed that the gardenlet registers."""

    def secret(name: str) -> Config:
        return {"apiVersion": "v1", "kind": "Secret", "name": name, "namespace": garden.GARDEN_NAMESPACE}

    def domain(name: str, reference: str) -> Config:
        return {
            "type": garden.PROVIDER,
            "domain": name,
            "zone": plan.dns_zone,
            "credentialsRef": secret(reference),
        }

    return {
        "metadata": {"name": seed.name},
        "spec": {
            "provider": {
                "type": garden.PROVIDER,
                "region": garden.PROVIDER,
                "zones": [node.zone for node in seed.nodes],
            },
            "networks": {
                "nodes": seed.node_network,
                "pods": seed.pods,
                "services": seed.services,
                "shootDefaults": {"pods": SHOOT_PODS, "services": SHOOT_SERVICES},
                # Temporal, the garden and our own processes: their address is no private one.
                **({"blockCIDRs": [f"{plan.central_address}/32"]} if plan.closed else {}),
            },
            "dns": {
                "internal": domain(plan.internal_domain, garden.INTERNAL_DOMAIN_SECRET),
                "defaults": [domain(plan.default_domain, garden.DEFAULT_DOMAIN_SECRET)],
                "provider": {"type": garden.PROVIDER, "credentialsRef": secret(garden.INTERNAL_DOMAIN_SECRET)},
            },
            "ingress": {"domain": f"ingress.{seed.name}.{plan.dns_zone}", "controller": {"kind": "nginx"}},
            "backup": {
                "provider": garden.PROVIDER,
                "region": garden.PROVIDER,
                "credentialsRef": secret(garden.BACKUP_SECRET),
            },
            "settings": {
                "scheduling": {"visible": True},
                # By default a seed reserves more than a small machine has.
                "excessCapacityReservation": {
                    "enabled": True,
                    "configs": [{"resources": {"cpu": "10m", "memory": "20Mi"}}],
                },
            },
        },
    }


_GARDEN: dict[str, Callable[[Plan], Config]] = {
    "admission": _admission,
    "codec-server": _codec_server,
    "controller-manager": _controller_manager,
    "discovery-server": _discovery_server,
    "scheduler": _scheduler,
}
"""Processes of the garden, by their names in ``gardener worker NAME``."""

_SEED: dict[str, Callable[[Plan, ClusterPlan], Config]] = {"gardenlet": _gardenlet}
"""Processes in the network namespace of each seed."""
