"""Which connections NetworkPolicies allow: their rules, as the Kubernetes API defines them, for tests.

An address without a pod stands for a client or server outside of the cluster.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from api.labels import matches
from api.meta import LabelSelector

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Pod:
    namespace: str
    name: str
    labels: Mapping[str, str]
    address: str
    ports: Mapping[str, int]
    """Ports of its containers, by name."""


@dataclass(frozen=True)
class Cluster:
    """Policies, and the labels of the namespaces."""

    policies: tuple[Object, ...]
    namespaces: Mapping[str, Mapping[str, str]]

    def allows(self, source: Pod | str, target: Pod | str, port: int, protocol: str = "TCP") -> bool:
        """Whether a connection is allowed at both of its ends."""
        return self.allows_egress(source, target, port, protocol) and self.allows_ingress(
            source, target, port, protocol
        )

    def allows_egress(self, source: Pod | str, target: Pod | str, port: int, protocol: str = "TCP") -> bool:
        return isinstance(source, str) or self._passes(source, "Egress", "to", target, target, port, protocol)

    def allows_ingress(self, source: Pod | str, target: Pod | str, port: int, protocol: str = "TCP") -> bool:
        return isinstance(target, str) or self._passes(target, "Ingress", "from", source, target, port, protocol)

    def _passes(
        self, pod: Pod, direction: str, field: str, peer: Pod | str, server: Pod | str, port: int, protocol: str
    ) -> bool:
        chosen = [each for each in self._of(pod) if direction in each["spec"]["policyTypes"]]
        rules = [rule for each in chosen for rule in each["spec"].get(direction.lower()) or ()]
        return not chosen or any(
            self._is_peer(rule.get(field), peer, pod.namespace) and _is_port(rule.get("ports"), server, port, protocol)
            for rule in rules
        )

    def _of(self, pod: Pod) -> Iterable[Object]:
        for each in self.policies:
            if each["metadata"]["namespace"] == pod.namespace and _selects(each["spec"]["podSelector"], pod.labels):
                yield each

    def _is_peer(self, peers: Iterable[Object] | None, other: Pod | str, namespace: str) -> bool:
        return not peers or any(self._is(each, other, namespace) for each in peers)

    def _is(self, peer: Object, other: Pod | str, namespace: str) -> bool:
        if block := peer.get("ipBlock"):
            address = ipaddress.ip_address(other if isinstance(other, str) else other.address)
            inside = [address in ipaddress.ip_network(each) for each in (block["cidr"], *block.get("except", ()))]
            return inside[0] and not any(inside[1:])
        if isinstance(other, str):
            return False
        if "namespaceSelector" in peer:
            if not _selects(peer["namespaceSelector"], self.namespaces[other.namespace]):
                return False
        elif other.namespace != namespace:
            return False
        return _selects(peer.get("podSelector") or {}, other.labels)


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    return matches(LabelSelector.model_validate(dict(selector)), labels)


def _is_port(ports: Iterable[Object] | None, server: Pod | str, port: int, protocol: str) -> bool:
    if not ports:
        return True
    for each in ports:
        wanted = each.get("port")
        if isinstance(wanted, str):
            wanted = server.ports.get(wanted) if isinstance(server, Pod) else None
            if wanted is None:
                continue
        if each.get("protocol", "TCP") == protocol and (
            wanted is None or wanted <= port <= each.get("endPort", wanted)
        ):
            return True
    return False
