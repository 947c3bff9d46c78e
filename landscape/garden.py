"""Setup of the garden, which is an operator's work elsewhere: kinds, cloud profile, project, credentials, roles."""

import json
import secrets
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from api.access import (
    CODEC_SERVERS,
    CONTROLLER_MANAGERS,
    DISCOVERY_SERVERS,
    OPERATORS,
    SUBRESOURCE_SERVERS,
    access,
    bootstrap_secret,
    bound_role,
    rule,
)
from api.constants import ADMISSION_AUTHORITY, SEED_NAME_PREFIX
from api.crds import crds
from api.decisions import issuer
from api.decisions.conditions import find_condition
from api.labels import pod_security
from api.policies import deletion_protection
from api.resources import CUSTOM_RESOURCE_DEFINITION, DISK, SEED
from kube.client import KubeClient, Object
from landscape import cloud, disks, dns, extensions, kernel, object_store, pki
from landscape.cluster import Credentials
from landscape.kube import apply, connected
from landscape.plan import SEEDS as SEED_NAMES
from landscape.plan import ZONES, Plan
from landscape.waiting import until
from workers.provider_local import access as provider_access

PROVIDER = "local"
PROJECT = "local"
PROJECT_NAMESPACE = "garden-local"
GARDEN_NAMESPACE = "garden"
BACKUP_SECRET = "backup-local"
INTERNAL_DOMAIN_SECRET = "internal-domain"
DEFAULT_DOMAIN_SECRET = "default-domain"
IDENTITY_BINDING = "local-identity"

_TOKEN_LIFE = timedelta(hours=1)
_CORE = "core.gardener.cloud/v1beta1"
_SECURITY = "security.gardener.cloud/v1alpha1"

# Types of extension objects that provider-local serves in every seed. Source: spec/extensions.md 5.
_EXTENSIONS = (
    ("BackupBucket", PROVIDER),
    ("BackupEntry", PROVIDER),
    ("Bastion", PROVIDER),
    ("ControlPlane", PROVIDER),
    ("DNSRecord", PROVIDER),
    ("Infrastructure", PROVIDER),
    ("Network", "flannel"),
    ("OperatingSystemConfig", PROVIDER),
    ("SelfHostedShootExposure", PROVIDER),
    ("Worker", PROVIDER),
)


async def deploy_kinds(plan: Plan, *, unrestricted_gardenlets: bool) -> None:
    """Apply the CustomResourceDefinitions, wait until the API server serves them; apply roles and admission's keys."""
    definitions = crds("garden")
    async with connected(plan.kubeconfig("garden")) as client:
        granted = access(unrestricted_gardenlets=unrestricted_gardenlets)
        await apply(client, *namespaces(), *(each for each in granted if each["kind"] == "Namespace"))
        await apply(client, *definitions, *deletion_protection("garden"), *granted, admission_authority(plan))
        for definition in definitions:
            name = definition["metadata"]["name"]
            await until(partial(_established, client, name), f"kind {name} in the garden", 60)


async def deploy(plan: Plan, cloud_kubeconfig: dict[str, Any], *, admission: bool) -> None:
    """Apply the garden's objects. Seeds are not among them: their gardenlets register them.

    ``admission``: whether it answers. Without it, the API server does not serve the ControllerDeployment's version, and
    ``extensions.offer`` applies it later.
    """
    if admission:
        await extensions.offer(plan)
    async with connected(plan.kubeconfig("garden")) as client:
        await apply(
            client, cloud_profile(plan), project(), controller_registration(), *credentials(plan, cloud_kubeconfig)
        )
        await apply(client, *bootstrap_tokens(plan, datetime.now(UTC)))
        await apply(client, workload_identity(plan))
        await apply(client, cloud_binding(), identity_binding())


async def seed_ready(plan: Plan, name: str) -> bool:
    """Whether the gardenlet has registered and reconciled its seed."""
    async with connected(plan.kubeconfig("garden")) as client:
        seed = await client.find(SEED, name)
    status = (seed or {}).get("status") or {}
    conditions = status.get("conditions") or []
    operation = status.get("lastOperation") or {}
    return (
        operation.get("state") == "Succeeded"
        and any(each["type"] == "GardenletReady" for each in conditions)
        and all(each["status"] == "True" for each in conditions)
    )


def namespaces() -> list[Object]:
    labels = {
        GARDEN_NAMESPACE: {"gardener.cloud/role": "garden", **pod_security("baseline")},
        PROJECT_NAMESPACE: {"gardener.cloud/role": "project", "project.gardener.cloud/name": PROJECT},
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": content}}
        for name, content in labels.items()
    ]


def project() -> Object:
    return {
        "apiVersion": _CORE,
        "kind": "Project",
        "metadata": {"name": PROJECT},
        "spec": {"description": "The landscape's own project", "namespace": PROJECT_NAMESPACE},
    }


def cloud_profile(plan: Plan) -> Object:
    """CloudProfile of the cloud."""
    return {
        "apiVersion": _CORE,
        "kind": "CloudProfile",
        "metadata": {"name": PROVIDER},
        "spec": {
            "type": PROVIDER,
            "kubernetes": {
                "versions": [{"version": version, "classification": "supported"} for version in plan.shoot_versions]
            },
            "machineImages": [
                {
                    "name": PROVIDER,
                    "versions": [
                        {
                            "version": "1.0.0",
                            "classification": "supported",
                            "cri": [{"name": "containerd"}],
                            "architectures": ["amd64"],
                            "inPlaceUpdates": {"supported": True},
                        }
                    ],
                }
            ],
            "machineTypes": [
                {"name": PROVIDER, "cpu": "2", "gpu": "0", "memory": "4Gi", "architecture": "amd64", "usable": True}
            ],
            "regions": [{"name": PROVIDER, "zones": [{"name": ZONES[0]}]}],
            "controlPlane": {"allowZonePinning": True},
            "providerConfig": {
                "apiVersion": "local.provider.extensions.gardener.cloud/v1alpha1",
                "kind": "CloudProfileConfig",
                "machineNetwork": plan.machine_network,
                "machineNetworkIPv6": plan.machine_network_ipv6 if kernel.has_ipv6() else "",
                "imagesDirectory": str(plan.machine_images),
                "disksDirectory": str(disks.attached_directory(plan)),
            },
        },
    }


def controller_registration() -> Object:
    resources = [{"kind": kind, "type": type_, "primary": True} for kind, type_ in _EXTENSIONS]
    return {
        "apiVersion": _CORE,
        "kind": "ControllerRegistration",
        "metadata": {"name": extensions.PROVIDER_LOCAL},
        "spec": {"resources": resources, "deployment": {"deploymentRefs": [{"name": extensions.PROVIDER_LOCAL}]}},
    }


def credentials(plan: Plan, cloud_kubeconfig: dict[str, Any]) -> list[Object]:
    """Secrets for cloud, DNS and backups."""
    domain = {
        "server": plan.central_address,
        "port": "53",
        "zone": plan.dns_zone,
        "tsigKeyName": dns.TSIG_NAME,
        "tsigSecret": dns.tsig_secret(plan),
        "tsigAlgorithm": dns.TSIG_ALGORITHM,
    }
    annotations = {"dns.gardener.cloud/provider": PROVIDER}
    internal = annotations | {"dns.gardener.cloud/domain": plan.internal_domain}
    default = annotations | {"dns.gardener.cloud/domain": plan.default_domain}
    # The store answers on addresses of this machine alone.
    plain = {"allowPlainHTTP": "true"}
    key = object_store.administrator(plan)
    backup = {
        "accessKeyID": key.id,
        "secretAccessKey": key.secret,
        "region": object_store.REGION,
        "endpoint": plan.object_store_endpoint,
        "iamEndpoint": plan.iam_endpoint,
        "s3ForcePathStyle": "true",
        **plain,
    }
    role = "gardener.cloud/role"
    # Gardenlets may read these, and name them in their Seeds.
    readers = {f"{SEED_NAME_PREFIX}{seed.name}": "true" for seed in plan.seeds}
    issuer_host = {issuer.HOSTNAME: f"{cloud.issuer_host(plan)}"}
    return [
        _secret(PROJECT_NAMESPACE, PROVIDER, {"kubeconfig": json.dumps(cloud_kubeconfig)}),
        _secret(GARDEN_NAMESPACE, BACKUP_SECRET, backup, readers),
        _secret(GARDEN_NAMESPACE, INTERNAL_DOMAIN_SECRET, domain, readers | {role: "internal-domain"}, internal),
        _secret(GARDEN_NAMESPACE, DEFAULT_DOMAIN_SECRET, domain, readers | {role: "default-domain"}, default),
        _secret(GARDEN_NAMESPACE, "shoot-issuer", issuer_host, {role: issuer.ISSUER_ROLE}),
    ]


def admission_authority(plan: Plan) -> Object:
    """CA of admission and the API server. The API server needs it at its start, before admission runs."""
    files = pki.Authority(plan.garden.directory, ADMISSION_AUTHORITY).files
    content = {"ca.crt": files.certificate.read_text(), "ca.key": files.key.read_text()}
    return _secret(GARDEN_NAMESPACE, ADMISSION_AUTHORITY, content)


def cloud_binding() -> Object:
    """Binding of the project to the cloud's credentials. Admission refuses it until its Secret exists."""
    return {
        "apiVersion": _SECURITY,
        "kind": "CredentialsBinding",
        "metadata": {"name": PROVIDER, "namespace": PROJECT_NAMESPACE},
        "provider": {"type": PROVIDER},
        "credentialsRef": {
            "apiVersion": "v1",
            "kind": "Secret",
            "namespace": PROJECT_NAMESPACE,
            "name": PROVIDER,
        },
    }


def workload_identity(plan: Plan) -> Object:
    """Identity of the project at the cloud, which trusts the garden's tokens: see ``landscape.cloud``."""
    authority = Credentials.of(plan.cloud).ca.files.certificate.read_bytes()
    return {
        "apiVersion": _SECURITY,
        "kind": "WorkloadIdentity",
        "metadata": {"name": PROVIDER, "namespace": PROJECT_NAMESPACE},
        "spec": {
            "audiences": [cloud.audience(plan)],
            "targetSystem": {
                "type": PROVIDER,
                "providerConfig": {
                    "apiVersion": "local.provider.extensions.gardener.cloud/v1alpha1",
                    "kind": "WorkloadIdentityConfig",
                    "server": plan.cloud.server,
                    "certificateAuthorityData": b64encode(authority).decode(),
                },
            },
        },
    }


def identity_binding() -> Object:
    """Binding of the project to its identity at the cloud, in place of a kubeconfig."""
    reference = {
        "apiVersion": _SECURITY,
        "kind": "WorkloadIdentity",
        "namespace": PROJECT_NAMESPACE,
        "name": PROVIDER,
    }
    return {
        "apiVersion": _SECURITY,
        "kind": "CredentialsBinding",
        "metadata": {"name": IDENTITY_BINDING, "namespace": PROJECT_NAMESPACE},
        "provider": {"type": PROVIDER},
        "credentialsRef": reference,
    }


def process_kubeconfig(plan: Plan, process: str) -> dict[str, Any]:
    """Kubeconfig of one of our processes for the garden, with a certificate; that of a gardenlet has a token."""
    garden = plan.garden
    authority = Credentials.of(garden).ca
    if process in SEED_NAMES:
        return pki.token_kubeconfig(garden.server, authority, ".".join(bootstrap_token(plan, process)), "garden")
    user = f"gardener.cloud:system:{process}"
    groups = {
        "codec-server": CODEC_SERVERS,
        "discovery-server": DISCOVERY_SERVERS,
        "subresources": SUBRESOURCE_SERVERS,
    }
    of_process = [groups.get(process, OPERATORS), *([CONTROLLER_MANAGERS] if process == "controller-manager" else [])]
    client = authority.issue(f"process-{process}", user, of_process)
    return pki.kubeconfig(garden.server, authority, client, "garden")


def bootstrap_token(plan: Plan, seed: str) -> tuple[str, str]:
    """Id and secret of the token by which a seed's gardenlet gets its first certificate; created at the first call."""
    file = plan.bootstrap_token(seed)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        pki.write_secret(file, f"{secrets.token_hex(3)}.{secrets.token_hex(8)}".encode())
    identifier, secret = file.read_text().split(".")
    return identifier, secret


def bootstrap_tokens(plan: Plan, now: datetime) -> list[Object]:
    """Secrets of the bootstrap tokens: each token is for one seed, and valid for an hour after each ``up``."""
    until = now + _TOKEN_LIFE
    return [bootstrap_secret(seed.name, *bootstrap_token(plan, seed.name), until) for seed in plan.seeds]


def tenants() -> list[Object]:
    """Role of the tenants of the cloud. The cloud alone writes addresses, backends, and the status of disks."""
    rules = [
        rule([""], ["namespaces", "pods", "secrets", "configmaps", "services", "events"], ["*"]),
        rule([""], ["pods/log", "pods/exec", "nodes"], ["get", "list", "watch", "create"]),
        rule(["networking.k8s.io"], ["networkpolicies"], ["*"]),
        rule([DISK.group], [DISK.plural], ["*"]),
        # provider-local deletes namespaces with all their objects, and must read whether objects are left.
        rule([""], ["namespaces/finalize"], ["update"]),
        rule(["*"], ["*"], ["list", "watch", "deletecollection"]),
    ]
    return bound_role(cloud.TENANTS, rules, cloud.TENANTS)


async def cloud_account(plan: Plan) -> dict[str, Any]:
    """Access of a tenant of the cloud: it can run machines, but has no rights of an administrator."""
    authority = Credentials.of(plan.cloud).ca
    client = authority.issue("tenant", "tenant", [cloud.TENANTS])
    async with connected(plan.kubeconfig("cloud")) as client_of_cloud:
        # Machines and bastions are pods of the cloud, and name this class.
        await apply(client_of_cloud, *tenants(), provider_access.priority_class())
        await apply(client_of_cloud, disks.definition())
        name = str(DISK)
        await until(partial(_established, client_of_cloud, name), f"kind {name} in the cloud", 60)
    return pki.kubeconfig(plan.cloud.server, authority, client, "cloud")


def _secret(
    namespace: str,
    name: str,
    data: dict[str, str],
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Object:
    metadata: Object = {"name": name, "namespace": namespace}
    if labels:
        metadata["labels"] = labels
    if annotations:
        metadata["annotations"] = annotations
    encoded = {key: b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded}


async def _established(client: KubeClient, name: str) -> bool:
    return find_condition(await client.find(CUSTOM_RESOURCE_DEFINITION, name), "Established").get("status") == "True"
