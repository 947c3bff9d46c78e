"""The charts as releases in a cluster of a landscape that runs none of our processes itself."""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import helm_python as helm

from landscape import extensions, lifecycle, relay, workers
from landscape import plan as plans
from landscape.cluster import Credentials
from landscape.kube import connected, is_ready
from landscape.pki import TemporalAuthority
from landscape.plan import VPN_NETWORK, Plan
from landscape.waiting import until
from tests.landscape.conftest import Landscape

CHARTS = Path(__file__).parents[2] / "charts"
CLUSTER = "seed-1"
"""All releases are here: it is the seed, and has the nodes that the garden lacks."""
NAMESPACE = "garden"
ADMISSION_PORT = 30943
AUTHORIZER_PORT = 30944
API_SERVER_PORT = 16443
"""Port of the garden's kube-apiserver for pods. On a landscape it listens for the landscape's own front door alone."""
_INSTALL_SECONDS = 600
REPLICAS = int(os.environ.get("GARDENER_TEST_REPLICAS", "2"))
"""Replicas of each worker. 1 on a machine too small for 2 of each: the Deployment then replaces a killed one."""
_PATIENT = {"leaderElection": {"leaseDuration": "30s", "renewDeadline": "20s"}}
"""On a busy machine a leader is slow before it is dead."""

RELEASES = ("gardener", "gardenlet")
"""The gardenlet installs provider-local."""
DEPLOYMENTS = {
    "gardener-admission",
    "gardener-codec-server",
    "gardener-controller-manager",
    "gardener-front-door",
    "gardener-scheduler",
    "gardener-subresources",
    "gardenlet",
}


def install(landscape: Landscape) -> None:
    """All charts, by Helm; returns when all pods are ready."""
    plan = plans.load(landscape.name)
    assert plan is not None
    _secrets(landscape, plan)
    _have_api_server_ask_admission(plan)
    _relay_to_api_server(plan)
    values = _values(plan)
    with helm.Config(kubeconfig_path=plan.kubeconfig(CLUSTER), namespace=NAMESPACE) as config:
        for name in RELEASES:
            config.install(CHARTS / name, name, values[name], wait="watcher", timeout=_INSTALL_SECONDS)
            if name == "gardener":
                asyncio.run(extensions.offer(plan))
    asyncio.run(extensions.install(plan, plan.cluster(CLUSTER)))


def uninstall(landscape: Landscape) -> None:
    with helm.Config(
        kubeconfig_path=landscape.directory / f"kubeconfigs/{CLUSTER}.yaml", namespace=NAMESPACE
    ) as config:
        for name in reversed(RELEASES):
            config.uninstall(name, ignore_not_found=True)


def _values(plan: Plan) -> dict[str, dict[str, Any]]:
    seed = plan.cluster(CLUSTER)
    temporal = {"address": plan.temporal_address}
    return {
        "gardener": {
            "temporal": temporal,
            "garden": {"kubeconfigSecret": "garden-admin"},
            "controllerManager": {
                "replicas": REPLICAS,
                "kubeconfigSecret": "garden-controller-manager",
                "config": _PATIENT,
            },
            "scheduler": {"replicas": REPLICAS, "kubeconfigSecret": "garden-scheduler", "config": _PATIENT},
            "admission": {
                "replicas": REPLICAS,
                "kubeconfigSecret": "garden-admission",
                "url": _webhooks_url(plan),
                "service": {"type": "NodePort", "nodePort": ADMISSION_PORT},
                "seedAuthorizer": {"url": _authorizer_url(plan), "nodePort": AUTHORIZER_PORT},
                "clientAuthentication": {"enabled": True},
            },
            "codecServer": {
                "enabled": True,
                "replicas": REPLICAS,
                "kubeconfigSecret": "garden-codec-server",
                "tlsSecret": "codec-server-tls",
                "clientCA": True,
                "allowedOrigins": [plan.temporal_ui],
            },
            "subresources": {
                "enabled": True,
                "replicas": REPLICAS,
                "kubeconfigSecret": "garden-subresources",
                "tlsSecret": "subresources-tls",
                "requestHeader": {"caSecret": "request-header-ca"},
            },
            "frontDoor": {
                "enabled": True,
                "replicas": REPLICAS,
                "tlsSecret": "front-door-tls",
                "clientCASecret": "garden-ca",
                "identitySecret": "front-proxy-client",
                "apiServer": {"endpoints": [f"{plan.central_address}:{API_SERVER_PORT}"], "caSecret": "garden-ca"},
                "subresources": {"caSecret": "garden-ca"},
                "service": {"type": "NodePort"},
            },
            "networkPolicy": {"egressPorts": [443, 6443, 7233, API_SERVER_PORT]},
        },
        "gardenlet": {
            "temporal": temporal,
            "garden": {"bootstrapKubeconfigSecret": f"garden-{seed.name}"},
            "seedConfig": workers.seed_config(plan, seed),
            "replicas": REPLICAS,
            "config": {"vpn": {"network": VPN_NETWORK}} | _PATIENT,
        },
    }


def _have_api_server_ask_admission(plan: Plan) -> None:
    """Start the garden's API server as docs/operations/install.md says; it does not wait for admission."""
    flags = workers.asking_admission(plan, _webhooks_url(plan), _authorizer_url(plan))
    processes = lifecycle.processes_of(plan)
    running = processes.find("garden/kube-apiserver")
    assert running is not None
    argv = [each for each in running.spec.argv if not each.startswith(("--authorization-mode=", *_options(flags)))]
    processes.start(replace(running.spec, argv=(*argv, *(f"--{name}={value}" for name, value in flags.items()))))
    asyncio.run(_garden_ready(plan))


def _relay_to_api_server(plan: Plan) -> None:
    """Make the garden's kube-apiserver reachable for the pods of the front door, as it is in a real garden."""
    listen, target = f"{plan.central_address}:{API_SERVER_PORT}", f"{plan.garden.api_server_address}:6443"
    made = relay.process("garden/kube-apiserver-for-pods", plan.garden.netns, listen, target)
    lifecycle.processes_of(plan).start(replace(made, netns=plan.garden.netns))


def _options(flags: Mapping[str, str]) -> list[str]:
    return [f"--{name}=" for name in flags]


async def _garden_ready(plan: Plan) -> None:
    async with connected(plan.kubeconfig("garden")) as client:
        await until(lambda: is_ready(client), "the garden's API server", 60)


def front_door_address(plan: Plan) -> str:
    """Address at which the garden's network reaches ports of the seed's node."""
    return plan.garden_link(CLUSTER).right_address


def _admission_address(plan: Plan) -> str:
    """The garden has a link to each seed, and reaches nothing else of it."""
    return plan.garden_link(CLUSTER).right_address


def _webhooks_url(plan: Plan) -> str:
    return f"https://{_admission_address(plan)}:{ADMISSION_PORT}"


def _authorizer_url(plan: Plan) -> str:
    return f"https://{_admission_address(plan)}:{AUTHORIZER_PORT}"


def _secrets(landscape: Landscape, plan: Plan) -> None:
    """Create what an operator prepares: kubeconfigs, certificates, and keys of the codec."""
    processes = plan.directory / "garden/processes"
    credentials = Credentials.of(plan.garden)
    authority = credentials.ca
    door = authority.issue("front-door-pods", "front-door", names=[front_door_address(plan)])
    servers = authority.issue("subresources-pods", "subresources", names=[f"gardener-subresources.{NAMESPACE}.svc"])
    identity = credentials.front_proxy_ca.issue("front-door-pods-identity", "front-proxy-client")
    codec = authority.issue("codec-server-pods", "codec-server", names=["gardener-codec-server"])
    secrets = {
        "garden-admin": {"kubeconfig": plan.kubeconfig("garden")},
        **{
            f"garden-{name}": {"kubeconfig": processes / f"{name}.kubeconfig"}
            for name in ("controller-manager", "scheduler", "admission", "codec-server", "subresources", CLUSTER)
        },
        "gardener-codec-key": {"key": plan.codec_key},
        "gardenlet-codec-key": {"key": plan.derived_key(f"{CLUSTER}-gardenlet")},
        "codec-server-tls": {
            "tls.crt": codec.certificate,
            "tls.key": codec.key,
            "ca.crt": authority.files.certificate,
        },
        "garden-ca": {"ca.crt": authority.files.certificate},
        "request-header-ca": {"ca.crt": credentials.front_proxy_ca.files.certificate},
        "front-door-tls": {"tls.crt": door.certificate, "tls.key": door.key},
        "front-proxy-client": {"tls.crt": identity.certificate, "tls.key": identity.key},
        "subresources-tls": {"tls.crt": servers.certificate, "tls.key": servers.key},
        **_temporal_secrets(plan),
    }
    objects = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
    objects += [_secret(name, files) for name, files in secrets.items()]
    listing = {"apiVersion": "v1", "kind": "List", "items": objects}
    landscape.kubectl(CLUSTER, "apply", "--server-side", "-f", "-", stdin=json.dumps(listing))


def _temporal_secrets(plan: Plan) -> dict[str, dict[str, Path]]:
    """The client certificates for Temporal, by the charts' names."""
    authority = TemporalAuthority(plan.temporal_authority)
    certificates = {
        "gardener": authority.for_process("controller-manager"),
        "gardenlet": authority.for_gardenlet(CLUSTER),
    }
    return {
        f"{chart}-temporal-tls": {"ca.crt": authority.of_servers, "tls.crt": pair.certificate, "tls.key": pair.key}
        for chart, pair in certificates.items()
    }


def _secret(name: str, files: Mapping[str, Path]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "stringData": {key: file.read_text() for key, file in files.items()},
    }
