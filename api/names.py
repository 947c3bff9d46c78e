"""Names of hosts, and names of objects that follow from other objects. Source: spec/api.md 3, spec/extensions.md 3."""

import hashlib
import ipaddress
import json
from collections.abc import Mapping
from typing import Any

from api.constants import CONTAINER_RUNTIME_PREFIX, KUBE_RESERVED, SEED_NAMESPACE_PREFIX

_FIXED_KUBELET_SETTINGS = ("cpuManagerPolicy", "evictionHard")
"""Settings of the kubelet, in addition to reservations, that change the resources for scheduled pods: a running node
whose kubelet restarts with others would evict pods."""


def plain(domain: str) -> str:
    """A domain in lower case, without the dot at its end and the ``*`` at its beginning, for comparison."""
    return domain.lower().rstrip(".").removeprefix("*.")


def same_or_below(domain: str, other: str) -> bool:
    """Whether a domain is equal to another one, or a subdomain of it."""
    domain, other = plain(domain), plain(other)
    return domain == other or domain.endswith(f".{other}")


def overlap(domain: str, other: str) -> bool:
    """Whether two domains are equal, or one is a subdomain of the other."""
    return same_or_below(domain, other) or same_or_below(other, domain)


def domains_above(domain: str) -> list[str]:
    """A domain as ``plain`` returns it, and all domains of which it is a subdomain."""
    labels = plain(domain).split(".")
    return [".".join(labels[first:]) for first in range(len(labels))]


def is_ip_address(host: str) -> bool:
    """Whether a host is an IP address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def in_url(host: str) -> str:
    """Host as a URL has it: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host else host


def dns_record_type(address: str) -> str:
    """Type of a DNS record for an address: ``A`` or ``AAAA``, or ``CNAME`` if the address is a host name."""
    try:
        return "A" if ipaddress.ip_address(address).version == 4 else "AAAA"
    except ValueError:
        return "CNAME"


def technical_id(project: str, shoot: str) -> str:
    """Name of the control-plane namespace in the seed."""
    return f"shoot--{project}--{shoot}"


def project_and_shoot(technical_id: str) -> tuple[str, str]:
    """Inverse of ``technical_id``: names of project and shoot, which must not contain ``--``."""
    _, project, shoot = technical_id.split("--")
    return project, shoot


def internal_api_domain(technical_id: str, internal_domain: str) -> str:
    """Internal host name of the API server: ``api.<shoot>.<project>.<internal domain>``."""
    project, shoot = project_and_shoot(technical_id)
    return f"api.{shoot}.{project}.{internal_domain}"


def owner_of(host: str, internal_domain: str) -> str:
    """Technical ID of the control plane with this internal host name; empty if the host is not such a name."""
    name = plain(host).removesuffix(f".{plain(internal_domain)}")
    match name.split("."):
        case ["api", shoot, project] if internal_domain and name != plain(host):
            return technical_id(project, shoot)
    return ""


def ingress_host(prefix: str, project: str, shoot: str, domain: str) -> str:
    """Host of a component of a control plane below its seed's ingress domain: ``<prefix>-<project>--<shoot>.<domain>``.

    It adds only one label to the domain, so that the seed's wildcard record and a wildcard certificate cover it. The
    prefix names the component: ``p`` is Prometheus.
    """
    return f"{prefix}-{project}--{shoot}.{domain}"


def dns_record_name(shoot: str, role: str) -> str:
    """Name of a DNSRecord of a Shoot; role is ``internal``, ``external`` or ``ingress``."""
    return f"{shoot}-{role}"


def issued_kubeconfigs(shoot: str) -> str:
    """Name of the ConfigMap in the project's namespace with the users and expiration times of a Shoot's kubeconfigs."""
    return f"{shoot}.issued-kubeconfigs"


def backup_entry_names(technical_id: str, uid: str) -> tuple[str, str]:
    """Names of a Shoot's BackupEntries: the one for the source seed's bucket during a move, and its own.

    During a move the first one names the destination seed earlier than the second.
    """
    own = f"{technical_id}--{uid}"
    return f"source-{own}", own


def shoot_of_backup_entry(name: str) -> tuple[str, str]:
    """Name and uid of the Shoot in the name of a BackupEntry; two empty strings if it is not such a name."""
    technical, _, uid = name.rpartition("--")
    try:
        _, shoot = project_and_shoot(technical)
    except ValueError:
        return "", ""
    return shoot, uid


def node_agent_secret_name(shoot: Mapping[str, Any], pool: Mapping[str, Any]) -> str:
    """Key of a pool's node configuration: a new key means new machines.

    ``gardener-node-agent-<pool>-<16 hex>``, a digest of the settings that cannot change on a running node: Kubernetes
    minor, machine type, image, volumes, container runtime, reservations of the kubelet, a second IP family, and the
    start times of CA and service account key rotations. Node agents apply other settings on running nodes.

    A pool that is updated in place keeps its machines through all of these changes, so its key is
    ``gardener-node-agent-<pool>`` at all times.

    Source: spec/extensions.md 3; which settings: Gardener docs/usage/shoot-operations/shoot_updates.md.
    """
    if is_updated_in_place(pool):
        return f"gardener-node-agent-{pool['name']}"
    kubernetes = pool.get("kubernetes") or {}
    version = kubernetes.get("version") or shoot["spec"]["kubernetes"]["version"]
    kubelet = kubernetes.get("kubelet") or shoot["spec"]["kubernetes"].get("kubelet") or {}
    facts = {
        "minor": ".".join(version.split(".")[:2]),
        "machine": pool["machine"],
        "volumes": [pool.get("volume"), pool.get("dataVolumes")],
        "cri": (pool.get("cri") or {}).get("name"),
        "kubelet": _fixed_settings(kubelet),
        "rotation": rotations_of_pool(shoot, pool["name"]),
    }
    families = (shoot["spec"].get("networking") or {}).get("ipFamilies") or ()
    if len(families) > 1:
        # A node keeps the networks that it got for its pods when it joined.
        facts["families"] = families
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return f"gardener-node-agent-{pool['name']}-{digest}"


def is_updated_in_place(pool: Mapping[str, Any]) -> bool:
    """Whether a pool's machines are updated, automatically or by hand, and not replaced."""
    return pool.get("updateStrategy") in ("AutoInPlaceUpdate", "ManualInPlaceUpdate")


def in_place_hash(version: str, kubelet: Mapping[str, Any], image: str, rotations: Mapping[str, str | None]) -> str:
    """Digest of the settings of a pool whose change is an in-place update: each machine is drained for it.

    These are the settings for which other pools get new machines, as far as they may change in a pool with in-place
    updates: Kubernetes minor, reservations of the kubelet, version of the machine image, and rotations
    (``rotations_of_pool``). Node agents apply other settings at once.
    """
    facts = {
        "minor": ".".join(version.split(".")[:2]),
        "image": image,
        "kubelet": _fixed_settings(kubelet),
        "rotation": dict(rotations),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def in_place_hash_of(shoot: Mapping[str, Any], pool: Mapping[str, Any]) -> str:
    """``in_place_hash`` of a pool in the spec of a Shoot."""
    kubernetes = pool.get("kubernetes") or {}
    return in_place_hash(
        kubernetes.get("version") or shoot["spec"]["kubernetes"]["version"],
        kubernetes.get("kubelet") or shoot["spec"]["kubernetes"].get("kubelet") or {},
        str(pool["machine"]["image"]["version"]),
        rotations_of_pool(shoot, pool["name"]),
    )


def rotations_of_pool(shoot: Mapping[str, Any], pool: str) -> dict[str, str | None]:
    """Starts of the last rotations of CAs and service account key that have reached the machines of a pool."""
    rotation = (shoot.get("status", {}).get("credentials") or {}).get("rotation") or {}
    return {
        kind: _rotation_of_pool(rotation.get(kind) or {}, pool)
        for kind in ("certificateAuthorities", "serviceAccountKey")
    }


def seed_namespace(seed: str) -> str:
    """Namespace of a Seed in the garden."""
    return f"{SEED_NAMESPACE_PREFIX}{seed}"


def container_runtime_labels(pool: Mapping[str, Any]) -> dict[str, str]:
    """Labels of a pool's Nodes and OperatingSystemConfigs: one for each container runtime beside containerd's own."""
    runtimes = (pool.get("cri") or {}).get("containerRuntimes") or ()
    return {f"{CONTAINER_RUNTIME_PREFIX}{each['type']}": "true" for each in runtimes}


def operating_system_config_names(shoot: Mapping[str, Any], pool: Mapping[str, Any]) -> tuple[str, str]:
    """Names of a pool's OperatingSystemConfigs with purpose ``provision`` and ``reconcile``."""
    key = node_agent_secret_name(shoot, pool)
    return f"{key}-init", f"{key}-original"


def _fixed_settings(kubelet: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: kubelet.get(name) for name in _FIXED_KUBELET_SETTINGS},
        "kubeReserved": KUBE_RESERVED | (kubelet.get("kubeReserved") or {}),
    }


def _rotation_of_pool(rotation: Mapping[str, Any], pool: str) -> str | None:
    """Start of the last rotation that has reached the machines of a pool.

    For a pool whose rollout is pending, that is the rotation before the present one.
    """
    for pending in rotation.get("pendingWorkersRollouts") or ():
        if pending["name"] == pool:
            before: str | None = pending.get("lastInitiationTime")
            return before
    started: str | None = rotation.get("lastInitiationTime")
    return started
