"""Small functions on objects that many modules use: label selectors, conditions, networks."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Literal

from api.meta import Condition, LabelSelector

ZONE = "topology.kubernetes.io/zone"
"""Label of nodes with their zone."""

_RESERVED = [ipaddress.ip_network(f"{first}.0.0.0/8") for first in range(240, 245)]


def matches(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether labels match a selector. All labels match an empty selector, or None."""
    if selector is None:
        return True
    if any(labels.get(key) != value for key, value in (selector.match_labels or {}).items()):
        return False
    for each in selector.match_expressions or []:
        value, values = labels.get(each.key), each.values or []
        holds = {
            "In": value is not None and value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not holds[each.operator]:
            return False
    return True


def pod_security(level: Literal["privileged", "baseline", "restricted"]) -> dict[str, str]:
    """Labels of a namespace: the API server refuses pods above this level, and audits pods above ``restricted``."""
    prefix = "pod-security.kubernetes.io"
    return {f"{prefix}/enforce": level, f"{prefix}/audit": "restricted", f"{prefix}/warn": "restricted"}


def condition_status(conditions: Iterable[Condition] | None, kind: str) -> str | None:
    """Status of the condition of this type; None if there is none."""
    return next((each.status for each in conditions or () if each.type == kind), None)


TRUE = ("1", "t", "T", "true", "TRUE", "True")
"""Values that are true for Go's ``strconv.ParseBool``, by which Gardener reads annotations and labels."""


def is_true(value: str | None) -> bool:
    """Whether the value of an annotation or label is one of ``TRUE``."""
    return value in TRUE


def overlapping(networks: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Pairs of names whose networks share addresses; unset and malformed networks are skipped."""
    parsed = {name: network for name, cidr in networks.items() if (network := parse_network(cidr)) is not None}
    return [
        (one, other)
        for one, other in combinations(parsed, 2)
        if parsed[one].version == parsed[other].version and parsed[one].overlaps(parsed[other])
    ]


def parse_network(cidr: str | None) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(cidr) if cidr else None
    except ValueError:
        return None


def is_reserved(cidr: str) -> bool:
    """Whether a network overlaps with the ranges that Gardener reserves (240.0.0.0/8 to 244.0.0.0/8)."""
    network = parse_network(cidr)
    return network is not None and network.version == 4 and any(network.overlaps(each) for each in _RESERVED)
