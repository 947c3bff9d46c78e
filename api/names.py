"""Names: those of hosts, and those that one object gives to others. Source: spec/api.md 3, spec/extensions.md 3."""

import hashlib
import ipaddress
import json
from collections.abc import Mapping
from typing import Any

from api.constants import KUBE_RESERVED
from api.operations import ShootTask

_FIXED_KUBELET_SETTINGS = ("cpuManagerPolicy", "evictionHard")
"""Beside what is reserved, what scheduled pods count on: a node that had less for them after a restart of its kubelet
would throw some out."""


def plain(domain: str) -> str:
    """A domain as the DNS compares it: in lower case, without the dot at its end and the ``*`` at its beginning."""
    return domain.lower().rstrip(".").removeprefix("*.")


def same_or_below(domain: str, other: str) -> bool:
    """Whether a domain is another one, or a part of it."""
    domain, other = plain(domain), plain(other)
    return domain == other or domain.endswith(f".{other}")


def overlap(domain: str, other: str) -> bool:
    """Whether two domains are the same, or one is a part of the other."""
    return same_or_below(domain, other) or same_or_below(other, domain)


def is_ip_address(host: str) -> bool:
    """Whether a host is given by its address, and not by a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def dns_record_type(address: str) -> str:
    """Of a record that leads to an address: ``A`` or ``AAAA``, or ``CNAME`` if that is a host name."""
    try:
        return "A" if ipaddress.ip_address(address).version == 4 else "AAAA"
    except ValueError:
        return "CNAME"


def technical_id(project: str, shoot: str) -> str:
    """Control-plane namespace in the seed."""
    return f"shoot--{project}--{shoot}"


def project_and_shoot(technical_id: str) -> tuple[str, str]:
    """The inverse of ``technical_id``; neither name may hold ``--``."""
    _, project, shoot = technical_id.split("--")
    return project, shoot


def internal_api_domain(technical_id: str, internal_domain: str) -> str:
    """``api.<shoot>.<project>.<internal domain>``."""
    project, shoot = project_and_shoot(technical_id)
    return f"api.{shoot}.{project}.{internal_domain}"


def owner_of(host: str, internal_domain: str) -> str:
    """Technical ID of the control plane whose internal name a host is; empty if it is no such name."""
    name = plain(host).removesuffix(f".{plain(internal_domain)}")
    match name.split("."):
        case ["api", shoot, project] if internal_domain and name != plain(host):
            return technical_id(project, shoot)
    return ""


def ingress_host(prefix: str, project: str, shoot: str, domain: str) -> str:
    """``<prefix>-<project>--<shoot>.<domain>``: something of a control plane, by its seed's ingress domain.

    One label before the domain, so that the seed's wildcard record and a wildcard certificate cover it. The prefix
    says what it is: ``p`` is Prometheus.
    """
    return f"{prefix}-{project}--{shoot}.{domain}"


def dns_record_name(shoot: str, role: str) -> str:
    """DNSRecord of a Shoot; role is ``internal``, ``external`` or ``ingress``."""
    return f"{shoot}-{role}"


def backup_entry_name(task: ShootTask) -> str:
    """BackupEntry of a Shoot, the same in garden and seed, and its prefix in the bucket."""
    return backup_entry_names(task.technical_id, task.shoot.uid)[1]


def issued_kubeconfigs(shoot: str) -> str:
    """ConfigMap in the project's namespace: who got a kubeconfig of a Shoot, and until when it is valid."""
    return f"{shoot}.issued-kubeconfigs"


def source_backup_entry_name(task: ShootTask) -> str:
    """BackupEntry on the bucket that a control plane's backups come from, while it moves."""
    return backup_entry_names(task.technical_id, task.shoot.uid)[0]


def backup_entry_names(technical_id: str, uid: str) -> tuple[str, str]:
    """Both of a Shoot's: the one that it has while it moves, which tells of its destination first, and its own."""
    own = f"{technical_id}--{uid}"
    return f"source-{own}", own


def node_agent_secret_name(shoot: Mapping[str, Any], pool: Mapping[str, Any]) -> str:
    """Key of a pool's node configuration: a new key means new machines.

    ``gardener-node-agent-<pool>-<16 hex>`` over what a running node cannot take over: the Kubernetes
    minor, machine type, image, volumes, container runtime, what the kubelet reserves, and the start times of
    CA and service account key rotations. Other settings of the kubelet reach running nodes by their node agents.
    Source: spec/extensions.md 3; which settings: Gardener docs/usage/shoot-operations/shoot_updates.md.
    """
    kubernetes = pool.get("kubernetes") or {}
    version = kubernetes.get("version") or shoot["spec"]["kubernetes"]["version"]
    kubelet = kubernetes.get("kubelet") or shoot["spec"]["kubernetes"].get("kubelet") or {}
    rotation = (shoot.get("status", {}).get("credentials") or {}).get("rotation") or {}
    started = {
        kind: _rotation_of_pool(rotation.get(kind) or {}, pool["name"])
        for kind in ("certificateAuthorities", "serviceAccountKey")
    }
    facts = {
        "minor": ".".join(version.split(".")[:2]),
        "machine": pool["machine"],
        "volumes": [pool.get("volume"), pool.get("dataVolumes")],
        "cri": (pool.get("cri") or {}).get("name"),
        "kubelet": {
            **{name: kubelet.get(name) for name in _FIXED_KUBELET_SETTINGS},
            "kubeReserved": KUBE_RESERVED | (kubelet.get("kubeReserved") or {}),
        },
        "rotation": started,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return f"gardener-node-agent-{pool['name']}-{digest}"


def operating_system_config_names(shoot: Mapping[str, Any], pool: Mapping[str, Any]) -> tuple[str, str]:
    """OperatingSystemConfigs of a pool, with purpose ``provision`` and ``reconcile``."""
    key = node_agent_secret_name(shoot, pool)
    return f"{key}-init", f"{key}-original"


def _rotation_of_pool(rotation: Mapping[str, Any], pool: str) -> str | None:
    """Start of the rotation that a pool's machines are of: a pool that is still to be rolled is of the one before."""
    for pending in rotation.get("pendingWorkersRollouts") or ():
        if pending["name"] == pool:
            before: str | None = pending.get("lastInitiationTime")
            return before
    started: str | None = rotation.get("lastInitiationTime")
    return started
