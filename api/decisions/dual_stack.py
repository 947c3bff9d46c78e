"""IP families that a Shoot's components use, and the steps from IPv4 to both families.

A Shoot that is created with IPv6, alone or as second family, uses its families from its start. A Shoot that has run
with IPv4 changes to both in steps, since a node keeps the networks of pods that it has:

1. The infrastructure and the kube-controller-manager get both families, and all machines are replaced. Constraint
   DualStackNodesMigrationReady is Progressing until each node has a network of pods of each family, then True.
2. The next reconciliation gives both families to the API server, the pod network and kube-proxy. The constraint goes,
   and constraint DNSServiceMigrationReady comes.
3. The next one replaces the pods of CoreDNS. That constraint is True once each of them has an address of each family.
4. The next one gives the Service ``kube-dns`` both families, and the constraint goes.

Source: Gardener docs/usage/networking/dual-stack-networking-migration.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from api.decisions.conditions import Finding
from api.resources import ObjectView

NODES_READY = "DualStackNodesMigrationReady"
DNS_READY = "DNSServiceMigrationReady"
CONSTRAINTS = (NODES_READY, DNS_READY)
"""Constraints that the reconciliation of a Shoot writes, and no check."""
BOTH = ("IPv4", "IPv6")
_NAMED = 5
"""Maximum number of nodes that a message names."""


def families(shoot: Mapping[str, Any]) -> tuple[str, ...]:
    """IP families that the Shoot's spec wants."""
    networking = shoot["spec"].get("networking") or {}
    return tuple(networking.get("ipFamilies") or ("IPv4",))


def is_wanted(shoot: Mapping[str, Any]) -> bool:
    """Whether the Shoot's spec wants both families."""
    return len(families(shoot)) > 1


def has_ipv6(shoot: Mapping[str, Any]) -> bool:
    """Whether the Shoot's spec wants IPv6: the Infrastructure names the networks of IPv6, and the spec does not."""
    return "IPv6" in families(shoot)


def is_ipv6_alone(shoot: Mapping[str, Any]) -> bool:
    """Whether nodes, pods and Services of the Shoot have addresses of IPv6 alone."""
    return families(shoot) == ("IPv6",)


def begins(shoot: Mapping[str, Any]) -> bool:
    """Whether this reconciliation is the first one that gives IPv6 to a Shoot that has run with IPv4."""
    networking = (shoot.get("status") or {}).get("networking") or {}
    known = networking.get("pods") or ()
    return is_wanted(shoot) and bool(known) and not any(map(_is_ipv6, known)) and status_of(shoot, NODES_READY) == ""


def in_use(shoot: Mapping[str, Any]) -> tuple[str, ...]:
    """IP families of the Shoot's API server, Services and pods: IPv4 alone until all nodes are ready for both."""
    wanted = families(shoot)
    return wanted if status_of(shoot, NODES_READY) in ("", "True") else wanted[:1]


def of_families(cidrs: Sequence[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Networks of these families, in the order of the families."""
    return tuple(cidr for family in wanted for cidr in cidrs if _is_ipv6(cidr) == (family == "IPv6"))


def dns_families(shoot: Mapping[str, Any]) -> tuple[str, ...]:
    """IP families of the Service of the cluster's DNS."""
    wanted = families(shoot)
    ready = status_of(shoot, NODES_READY) == "" and status_of(shoot, DNS_READY) in ("", "True")
    return wanted if ready else wanted[:1]


def restarts_dns(shoot: Mapping[str, Any], pods: Iterable[ObjectView]) -> bool:
    """Whether the pods of CoreDNS are to be replaced: one of them has no address of IPv6, and could get one."""
    return status_of(shoot, NODES_READY) == "" and status_of(shoot, DNS_READY) == "Progressing" and not _have_both(pods)


def status_of(shoot: Mapping[str, Any], constraint: str) -> str:
    """Status of a constraint; empty if the Shoot does not have it."""
    found = (shoot.get("status") or {}).get("constraints") or ()
    return next((str(each["status"]) for each in found if each["type"] == constraint), "")


def nodes_finding(nodes: Iterable[ObjectView]) -> Finding:
    """Constraint DualStackNodesMigrationReady, from the networks of pods that nodes have."""
    found = list(nodes)
    missing = sorted(each["metadata"]["name"] for each in found if len(each["spec"].get("podCIDRs") or ()) < len(BOTH))
    if found and not missing:
        return Finding(NODES_READY, "True", "NodesMigrated", "All nodes have networks of pods of both IP families.")
    if not found:
        text = "No node has joined yet with networks of pods of both IP families."
    else:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        text = (
            f"These nodes have no network of pods of IPv6: {', '.join(missing[:_NAMED])}{more}. "
            "They must be replaced before the Shoot can use both IP families."
        )
    return Finding(NODES_READY, "Progressing", "NodesNotMigrated", text)


def dns_finding(pods: Iterable[ObjectView]) -> Finding:
    """Constraint DNSServiceMigrationReady, from the addresses of CoreDNS's pods."""
    if _have_both(pods):
        text = "All pods of CoreDNS have addresses of both IP families: the next reconciliation gives both to kube-dns."
        return Finding(DNS_READY, "True", "DNSServiceMigration", text)
    text = "The next reconciliation replaces pods of CoreDNS that have no address of IPv6."
    return Finding(DNS_READY, "Progressing", "DNSServiceMigration", text)


def findings_after(
    shoot: Mapping[str, Any],
    network_families: Sequence[str],
    nodes: Iterable[ObjectView],
    dns_pods: Iterable[ObjectView],
    dns_addresses: Sequence[str],
) -> list[Finding] | None:
    """Constraints of the migration at the end of a reconciliation; None if no migration is in progress.

    ``network_families``: those that the Network's status reports; ``dns_addresses``: addresses of Service ``kube-dns``.
    """
    if status_of(shoot, NODES_READY):
        if status_of(shoot, NODES_READY) == "True" and len(network_families) == len(BOTH):
            return [dns_finding(())]
        return [nodes_finding(nodes)]
    if status_of(shoot, DNS_READY):
        return [] if len(dns_addresses) == len(BOTH) else [dns_finding(dns_pods)]
    return None


def _have_both(pods: Iterable[ObjectView]) -> bool:
    running = [each for each in pods if not each["metadata"].get("deletionTimestamp")]
    addresses = [(each.get("status") or {}).get("podIPs") or () for each in running]
    return bool(running) and all(len(each) == len(BOTH) for each in addresses)


def _is_ipv6(cidr: str) -> bool:
    return ":" in cidr
