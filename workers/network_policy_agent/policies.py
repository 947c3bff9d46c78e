"""Which rules the NetworkPolicies of a cluster make for the pods of one node. Pure functions.

The rules are those of the Kubernetes API: a pod that a policy selects for a direction may open, or accept, only the
connections that one of its policies allows. Policies that this module cannot read allow nothing.
"""

import hashlib
import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from pydantic import ValidationError

from api.labels import matches
from api.meta import LabelSelector

Object = Mapping[str, Any]
Direction = Literal["ingress", "egress"]
Family = Literal["IPv4", "IPv6"]

DIRECTIONS: tuple[Direction, Direction] = ("ingress", "egress")
_PEERS = {"ingress": "from", "egress": "to"}
_PROTOCOLS = {"TCP": "tcp", "UDP": "udp", "SCTP": "sctp"}
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_EVERY_LABEL = LabelSelector()


@dataclass(frozen=True)
class Pod:
    """A pod with addresses of its own: not one of the host's network, and none that has ended."""

    namespace: str
    name: str
    addresses: tuple[str, ...]
    """At most one of each family."""
    labels: Mapping[str, str]
    ports: Mapping[tuple[str, str], int]
    """Ports of its containers, by name and protocol of nftables."""
    is_local: bool
    """Whether it is on the node whose rules are made."""


@dataclass(frozen=True)
class Match:
    """Connections that one rule allows. All conditions that are set must hold."""

    policy: str
    """``<namespace>/<name>``: shown beside the rule."""
    peers: str = ""
    """Set with the addresses of the other ends."""
    protocol: str = ""
    ports: tuple[tuple[int, int], ...] = ()
    """First and last ports of the pod that accepts the connection."""
    servers: str = ""
    """Set with the addresses, protocols and ports of the pods that accept it: of named ports."""


Address = str
Server = tuple[Address, str, int]
"""Address, protocol and port."""
Range = tuple[Address, Address]
"""First and last address."""


@dataclass
class Rules:
    """Wanted content of nftables. A chain or set of networks never changes: its name is a digest of its content."""

    pods: dict[str, frozenset[Address]] = field(default_factory=dict)
    """Sets of pods, by name."""
    networks: dict[str, tuple[Range, ...]] = field(default_factory=dict)
    servers: dict[str, frozenset[Server]] = field(default_factory=dict)
    chains: dict[str, tuple[Match, ...]] = field(default_factory=dict)
    ingress: dict[Address, str] = field(default_factory=dict)
    """Chain of each local pod that a policy isolates in this direction."""
    egress: dict[Address, str] = field(default_factory=dict)
    local: frozenset[Address] = frozenset()
    """All pods of the node."""

    def closed(self, direction: Direction) -> dict[Address, str]:
        return self.ingress if direction == "ingress" else self.egress

    def of(self, family: Family) -> "Rules":
        """The part of one family: the same sets and chains, with its addresses alone.

        A set of which no address is left stays, so that its rule allows nothing.
        """

        def ours(address: Address) -> bool:
            return (":" in address) == (family == "IPv6")

        return Rules(
            pods={name: frozenset(filter(ours, found)) for name, found in self.pods.items()},
            networks={name: tuple(each for each in found if ours(each[0])) for name, found in self.networks.items()},
            servers={name: frozenset(each for each in found if ours(each[0])) for name, found in self.servers.items()},
            chains=dict(self.chains),
            ingress={address: chain for address, chain in self.ingress.items() if ours(address)},
            egress={address: chain for address, chain in self.egress.items() if ours(address)},
            local=frozenset(filter(ours, self.local)),
        )


@dataclass(frozen=True)
class _Peer:
    namespaces: LabelSelector | None
    """None: the namespace of the policy."""
    pods: LabelSelector
    networks: tuple[Range, ...] | None
    """None: pods."""


@dataclass(frozen=True)
class _Port:
    protocol: str
    ports: tuple[int, int] | str | None
    """First and last one, or the name of one; None: all ports."""


@dataclass(frozen=True)
class _Rule:
    peers: tuple[_Peer, ...]
    """Empty: all."""
    ports: tuple[_Port, ...]
    """Empty: all."""


@dataclass(frozen=True)
class Policy:
    """A NetworkPolicy that has been read."""

    namespace: str
    name: str
    selector: LabelSelector
    rules: Mapping[Direction, tuple[_Rule, ...]]
    """Rules by direction; a direction that is absent is not restricted."""
    faults: tuple[str, ...]
    """Parts that cannot be read, and so allow nothing."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class _Fault(Exception):
    pass


def read(policy: Object) -> Policy:
    """Read a NetworkPolicy. A rule that cannot be read allows nothing; ``faults`` says why."""
    metadata, spec = policy["metadata"], policy["spec"]
    faults: list[str] = []
    namespace, name = metadata["namespace"], metadata["name"]
    try:
        selector = _selector(spec.get("podSelector"), "podSelector")
    except _Fault as fault:
        faults.append(f"spec.{fault}: this policy isolates all pods of its namespace")
        return Policy(namespace, name, _EVERY_LABEL, dict.fromkeys(DIRECTIONS, ()), tuple(faults))
    # The API server fills policyTypes in.
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    rules: dict[Direction, tuple[_Rule, ...]] = {}
    for direction in DIRECTIONS:
        if direction.capitalize() not in types:
            continue
        found = []
        for number, rule in enumerate(spec.get(direction) or ()):
            try:
                found.append(_rule(rule, direction))
            except _Fault as fault:
                faults.append(f"spec.{direction}[{number}].{fault}: this rule allows nothing")
        rules[direction] = tuple(found)
    return Policy(namespace, name, selector, rules, tuple(faults))


def compute(policies: Iterable[Policy], namespaces: Mapping[str, Mapping[str, str]], pods: Sequence[Pod]) -> Rules:
    """The rules for the local ones of these pods. ``namespaces``: labels of each namespace."""
    return _Computation(policies, namespaces, pods).rules


class _Computation:
    def __init__(
        self, policies: Iterable[Policy], namespaces: Mapping[str, Mapping[str, str]], pods: Sequence[Pod]
    ) -> None:
        self._namespaces = namespaces
        self._pods: dict[str, list[Pod]] = {}
        for pod in pods:
            self._pods.setdefault(pod.namespace, []).append(pod)
        self._selected: dict[str, list[Pod]] = {}
        """Pods of each set."""
        by_namespace: dict[str, list[Policy]] = {}
        for policy in sorted(policies, key=str):
            by_namespace.setdefault(policy.namespace, []).append(policy)
        self.rules = Rules(local=frozenset(_addresses(pod for pod in pods if pod.is_local)))
        matches_of: dict[tuple[str, str, Direction], tuple[Match, ...]] = {}
        for pod in pods:
            if not pod.is_local:
                continue
            chosen = [each for each in by_namespace.get(pod.namespace, ()) if matches(each.selector, pod.labels)]
            for direction in DIRECTIONS:
                isolating = [each for each in chosen if direction in each.rules]
                if not isolating:
                    continue
                found: list[Match] = []
                for policy in isolating:
                    key = (policy.namespace, policy.name, direction)
                    if key not in matches_of:
                        matches_of[key] = tuple(self._matches(policy, direction))
                    found += matches_of[key]
                chain = f"{direction}-{_digest(repr(found))}"
                self.rules.chains[chain] = tuple(found)
                self.rules.closed(direction).update(dict.fromkeys(pod.addresses, chain))

    def _matches(self, policy: Policy, direction: Direction) -> Iterable[Match]:
        for rule in policy.rules[direction]:
            peers: tuple[_Peer | None, ...] = rule.peers or (None,)
            for peer in peers:
                yield from self._of_peer(policy, direction, peer, rule.ports)

    def _of_peer(
        self, policy: Policy, direction: Direction, peer: _Peer | None, ports: Sequence[_Port]
    ) -> Iterable[Match]:
        peers = "" if peer is None else self._set_of(peer, policy.namespace)
        if not ports:
            yield Match(str(policy), peers)
            return
        by_protocol: dict[str, list[tuple[int, int]]] = {}
        for port in ports:
            if isinstance(port.ports, str):
                servers = self._servers(policy, direction, peer, peers, port.ports, port.protocol)
                yield Match(str(policy), peers if direction == "ingress" else "", servers=servers)
            elif port.ports is None:
                yield Match(str(policy), peers, port.protocol)
            else:
                by_protocol.setdefault(port.protocol, []).append(port.ports)
        for protocol, ranges in by_protocol.items():
            yield Match(str(policy), peers, protocol, tuple(_merged(ranges)))

    def _set_of(self, peer: _Peer, namespace: str) -> str:
        if peer.networks is not None:
            name = f"networks-{_digest(repr(peer.networks))}"
            self.rules.networks[name] = peer.networks
            return name
        where = "" if peer.namespaces is not None else namespace
        name = f"pods-{_digest(repr((where, peer.namespaces, peer.pods)))}"
        if name not in self.rules.pods:
            self._selected[name] = found = list(self._select(peer, namespace))
            self.rules.pods[name] = frozenset(_addresses(found))
        return name

    def _select(self, peer: _Peer, namespace: str) -> Iterable[Pod]:
        if peer.namespaces is None:
            places = [namespace]
        else:
            places = [name for name, labels in self._namespaces.items() if matches(peer.namespaces, labels)]
        for place in places:
            yield from (pod for pod in self._pods.get(place, ()) if matches(peer.pods, pod.labels))

    def _servers(
        self, policy: Policy, direction: Direction, peer: _Peer | None, peers: str, port: str, protocol: str
    ) -> str:
        """The set of the pods that have a port of this name, among those that may accept a connection."""
        if direction == "ingress":
            own = [pod for pod in self._pods.get(policy.namespace, ()) if pod.is_local]
            pods = [pod for pod in own if matches(policy.selector, pod.labels)]
        elif peer is None:
            pods = [pod for found in self._pods.values() for pod in found]
        else:
            pods = self._selected.get(peers, [])  # addresses outside of the cluster have no names for ports
        of = str(policy) if direction == "ingress" else peers
        name = f"servers-{_digest(repr((direction, of, port, protocol)))}"
        found = (
            (address, protocol, pod.ports[port, protocol])
            for pod in pods
            if (port, protocol) in pod.ports
            for address in pod.addresses
        )
        self.rules.servers[name] = frozenset(found)
        return name


def _addresses(pods: Iterable[Pod]) -> Iterable[Address]:
    return (address for pod in pods for address in pod.addresses)


def _rule(rule: Object, direction: Direction) -> _Rule:
    known = _PEERS[direction]
    if unknown := rule.keys() - {known, "ports"}:
        raise _Fault(f"{min(unknown)} is not supported")
    peers = tuple(_peer(each, f"{known}[{number}]") for number, each in enumerate(rule.get(known) or ()))
    ports = tuple(_port(each, f"ports[{number}]") for number, each in enumerate(rule.get("ports") or ()))
    return _Rule(peers, ports)


def _peer(peer: Object, path: str) -> _Peer:
    if not peer or (unknown := peer.keys() - {"podSelector", "namespaceSelector", "ipBlock"}):
        raise _Fault(f"{path}{f'.{min(unknown)}' if peer else ''} is not supported")
    if block := peer.get("ipBlock"):
        if len(peer) > 1 or block.keys() - {"cidr", "except"}:
            raise _Fault(f"{path} has more than an ipBlock, which is not supported")
        return _Peer(None, _EVERY_LABEL, _ranges(block, f"{path}.ipBlock"))
    namespaces = peer.get("namespaceSelector")
    return _Peer(
        _selector(namespaces, f"{path}.namespaceSelector") if namespaces is not None else None,
        _selector(peer.get("podSelector"), f"{path}.podSelector"),
        None,
    )


def _ranges(block: Object, path: str) -> tuple[Range, ...]:
    """Addresses of a block without its exceptions, which the API server lets be of the block's family only."""
    try:
        whole = ipaddress.ip_network(block["cidr"], strict=False)
        excepted = [ipaddress.ip_network(each, strict=False) for each in block.get("except") or ()]
    except ValueError as error:
        raise _Fault(f"{path}: {error}") from None
    found: list[tuple[int, int]] = []
    first, last = int(whole.network_address), int(whole.broadcast_address)
    bounds = ((int(e.network_address), int(e.broadcast_address)) for e in excepted if e.version == whole.version)
    for begin, end in sorted(bounds):
        if end < first or begin > last:
            continue
        if begin > first:
            found.append((first, begin - 1))
        first = end + 1
    if first <= last:
        found.append((first, last))
    address = type(whole.network_address)
    return tuple((str(address(begin)), str(address(end))) for begin, end in found)


def _port(port: Object, path: str) -> _Port:
    if unknown := port.keys() - {"port", "endPort", "protocol"}:
        raise _Fault(f"{path}.{min(unknown)} is not supported")
    protocol = _PROTOCOLS.get(port.get("protocol") or "TCP")
    if protocol is None:
        raise _Fault(f"{path}.protocol {port['protocol']} is not supported")
    first = port.get("port")
    if isinstance(first, int):
        return _Port(protocol, (first, port.get("endPort") or first))
    return _Port(protocol, first)


def _merged(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """The same ports in ranges that do not overlap, which nftables would refuse."""
    first, last = -1, -1
    for begin, end in sorted(ranges):
        if begin > last + 1 or first < 0:
            if first >= 0:
                yield first, last
            first, last = begin, end
        else:
            last = max(last, end)
    if first >= 0:
        yield first, last


def _selector(selector: Object | None, path: str) -> LabelSelector:
    return _parsed(json.dumps(selector or {}, sort_keys=True), path)


@lru_cache(maxsize=4096)
def _parsed(selector: str, path: str) -> LabelSelector:
    try:
        found = LabelSelector.model_validate_json(selector)
    except ValidationError as error:
        raise _Fault(f"{path}: {error.errors()[0]['msg']}") from None
    for each in found.match_expressions or ():
        if each.operator not in _OPERATORS:
            raise _Fault(f"{path}: operator {each.operator} is not supported")
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
