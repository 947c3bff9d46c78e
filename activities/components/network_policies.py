"""The general NetworkPolicies of a seed's namespaces: no traffic is allowed, but what pods with labels need.

Names, labels and networks: as Gardener's. What is different: public networks never include those of the seed, or
link-local addresses, so an API server that a tenant directs to an address reaches no pod, Service or node of the seed.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from activities.components import base
from activities.components.base import Manifest
from api import network_policies as names
from api.constants import GARDEN_NAMESPACE, ROLE, ROLE_EXPOSURE_CLASS_HANDLER, ROLE_EXTENSION, ROLE_SHOOT

ROLES = (GARDEN_NAMESPACE, ROLE_SHOOT, ROLE_EXTENSION, "istio-system", "istio-ingress", ROLE_EXPOSURE_CLASS_HANDLER)
"""Roles of the namespaces that have NetworkPolicies."""

DENY_ALL = "deny-all"
_SHOOT_NETWORKS = "allow-to-shoot-networks"
NAMES = (
    DENY_ALL,
    "allow-to-dns",
    "allow-to-runtime-apiserver",
    "allow-to-public-networks",
    "allow-to-private-networks",
    "allow-to-blocked-cidrs",
    _SHOOT_NETWORKS,
)
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
"""Private networks (RFC 1918) and carrier-grade NAT (RFC 6598)."""
_LOCAL = ("127.0.0.0/8", "169.254.0.0/16")
_NODE_LOCAL_DNS = "169.254.20.10/32"
_DNS_PORTS = (53, 8053)


@dataclass(frozen=True)
class Networks:
    """Addresses of a seed."""

    own: Sequence[str]
    """Networks of its nodes, pods and Services."""
    blocked: Sequence[str]
    """``spec.networks.blockCIDRs`` of its Seed."""
    api_servers: Sequence[tuple[str, int]]
    """Addresses of its API server, with their ports."""
    dns: str = ""
    """Address of its DNS: where it has a DNS on each node, that one answers at this address, and no pod does."""


def is_closed(namespace: Mapping[str, Any]) -> bool:
    """Whether a namespace has the general policies."""
    return (namespace["metadata"].get("labels") or {}).get(ROLE) in ROLES


def selectors() -> list[Manifest]:
    """Selectors of the namespaces for which ``is_closed`` is true."""
    return [{"matchLabels": {ROLE: role}} for role in ROLES]


def policies(namespace: Mapping[str, Any], networks: Networks, shoot: Sequence[str] = ()) -> list[Manifest]:
    """The policies of one namespace. ``shoot``: networks of the Shoot whose control plane it holds."""
    name, is_shoot = namespace["metadata"]["name"], namespace["metadata"]["labels"][ROLE] == ROLE_SHOOT
    made = {
        "allow-to-dns": (names.TO_DNS, "the DNS of the seed", _to_dns(networks)),
        "allow-to-runtime-apiserver": (names.TO_API_SERVER, "the API server of the seed", _to_servers(networks)),
        "allow-to-public-networks": (
            names.TO_PUBLIC,
            "public networks, but not to private ones, to those of the seed, to link-local and to blocked addresses",
            [_to(["0.0.0.0/0"], [*_PRIVATE, *_LOCAL, *networks.own, *networks.blocked])],
        ),
        "allow-to-private-networks": (
            names.TO_PRIVATE,
            "private networks, but not to those of the seed and of its shoots, and to blocked addresses",
            [_to(_PRIVATE, [*networks.own, *networks.blocked, *shoot])],
        ),
        "allow-to-blocked-cidrs": (names.TO_BLOCKED, "blocked addresses", _some(networks.blocked)),
        _SHOOT_NETWORKS: (names.TO_SHOOT, "the networks of the Shoot", _some(shoot)),
    }
    deny = _policy(
        DENY_ALL,
        name,
        "Denies all traffic of pods in this namespace that no other policy allows.",
        {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
    )
    others = [
        _policy(
            each,
            name,
            f"Allows egress from pods labeled with {label}=allowed to {target}.",
            {
                "podSelector": {"matchLabels": names.allowed(label)},
                **({"egress": egress} if egress else {}),
                "policyTypes": ["Egress"],
            },
        )
        for each, (label, target, egress) in made.items()
        if is_shoot or each != _SHOOT_NETWORKS
    ]
    # The policy that denies comes last: a new namespace has no moment in which allowed traffic is denied.
    return [*others, deny]


def _policy(name: str, namespace: str, description: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": base.metadata(name, namespace, annotations={"gardener.cloud/description": description}),
        "spec": spec,
    }


def _to_dns(networks: Networks) -> list[Manifest]:
    servers = {"key": "k8s-app", "operator": "In", "values": ["kube-dns", "node-local-dns"]}
    pods = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchExpressions": [servers]},
    }
    ports = [{"port": port, "protocol": protocol} for port in _DNS_PORTS for protocol in ("UDP", "TCP")]
    addresses = [_NODE_LOCAL_DNS, *([_single(networks.dns)] if networks.dns else [])]
    return [{"to": [pods, *({"ipBlock": {"cidr": each}} for each in addresses)], "ports": ports}]


def _to_servers(networks: Networks) -> list[Manifest]:
    return [
        {"to": [{"ipBlock": {"cidr": _single(address)}}], "ports": [{"port": port, "protocol": "TCP"}]}
        for address, port in sorted(networks.api_servers)
    ]


def _single(address: str) -> str:
    return str(ipaddress.ip_network(address))


def _some(networks: Iterable[str]) -> list[Manifest]:
    """A rule for these networks; no rule if there are none: a rule without targets would allow all."""
    blocks = [{"ipBlock": {"cidr": each}} for each in sorted(set(networks))]
    return [{"to": blocks}] if blocks else []


def _to(allowed: Iterable[str], excepted: Iterable[str]) -> Manifest:
    """A rule for networks without others. An exception must be a part of the network that it is taken from."""
    parsed = [ipaddress.ip_network(each) for each in excepted]
    blocks = []
    for each in map(ipaddress.ip_network, allowed):
        if any(other.version == each.version and each.subnet_of(other) for other in parsed):  # type: ignore[arg-type]
            continue
        inside = {other for other in parsed if other.version == each.version and other.subnet_of(each)}  # type: ignore[arg-type]
        parts = sorted(map(str, ipaddress.collapse_addresses(inside)))  # type: ignore[type-var]
        blocks.append({"ipBlock": {"cidr": str(each), **({"except": parts} if parts else {})}})
    return {"to": blocks}
