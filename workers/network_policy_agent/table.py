"""The tables of nftables with a node's rules, one for each family: as a whole, or the difference of two states.

Packets of a connection that has been allowed pass on. All others pass the chain of the pod that sends them and the one
of the pod that receives them: after DNAT, so a rule sees pods and not Services. The node reaches its own pods always:
the kubelet probes them. Whether pods reach their own node whatever their policies say is a choice of the caller. A pod
of the node that is unknown reaches nothing, and nothing reaches it.

The kernel gives each interface a link-local address of IPv6, which no policy names. So by IPv6, pods send from, and
receive at, the addresses that the agent knows, and no others. Neighbour solicitations and advertisements pass, as ARP
does: without them a node and its pods find no address. Router advertisements of pods do not. If pods have no addresses
of a family, the table of that family drops all that they send.
"""

import asyncio
import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.network_policy_agent.policies import DIRECTIONS, Direction, Family, Match, Range, Rules

Command = dict[str, Any]
Expression = dict[str, Any]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Networks = Sequence[Network]
Shown = Callable[[Any], Any]
"""Makes the JSON of a set's element."""

NAME = "gardener-network-policies"
_LONGEST_COMMENT = 120
"""nftables takes 127 characters."""
_COMES_FROM = {"meta": {"key": "iifname"}}
_ICMPV6 = {"payload": {"protocol": "icmpv6", "field": "type"}}
_PROTOCOL = {"meta": {"key": "l4proto"}}
_PORT = {"payload": {"protocol": "th", "field": "dport"}}
_DROP: list[Expression] = [{"counter": None}, {"drop": None}]
_PRIORITY = 10
"""After the chains of kube-proxy (0). These refuse connections to Services without endpoints at once. If they were
dropped here first, a client would wait: an API server does so for 10 s at each webhook that does not run."""
_V4, _V6 = 4, 6
_LOCAL, _ITSELF = "local", "itself"
_NEIGHBOURS = ("nd-neighbor-solicit", "nd-neighbor-advert")


@dataclass(frozen=True)
class _Table:
    """The table of one family."""

    of: Family
    family: str
    """Name of the family in nftables."""
    address: str
    """Type of its addresses in nftables."""

    @property
    def place(self) -> dict[str, str]:
        return {"family": self.family, "table": NAME}

    @property
    def sender(self) -> Expression:
        return {"payload": {"protocol": self.family, "field": "saddr"}}

    @property
    def receiver(self) -> Expression:
        return {"payload": {"protocol": self.family, "field": "daddr"}}

    def pod(self, direction: Direction) -> Expression:
        """The address of a packet that is looked up for a pod's chain."""
        return self.receiver if direction == "ingress" else self.sender

    def peer(self, direction: Direction) -> Expression:
        return self.sender if direction == "ingress" else self.receiver

    @property
    def server(self) -> list[str]:
        return [self.address, "inet_proto", "inet_service"]


_IPV4 = _Table("IPv4", "ip", "ipv4_addr")
_IPV6 = _Table("IPv6", "ip6", "ipv6_addr")
_TABLES = {4: _IPV4, 6: _IPV6}


class TableError(Exception):
    """nftables refuses a change; the text is its own."""


def whole(rules: Rules, networks: Networks, bridge: str, *, own_node: bool, ipv6: bool = True) -> list[Command]:
    """Commands that replace the tables of all families, if there are some.

    ``networks``: the networks of the node's pods, one for each of their families. ``bridge``: interface of these pods.
    ``own_node``: whether policies limit what pods open to their own node. ``ipv6``: whether the kernel has IPv6.
    """
    commands = []
    for network in networks:
        commands += _whole(_TABLES[network.version], rules, network, bridge, own_node=own_node)
    versions = {each.version for each in networks}
    if _V4 not in versions:
        commands += _without(_IPV4, bridge)
    if ipv6 and _V6 not in versions:
        commands += _without(_IPV6, bridge)
    return commands


def difference(old: Rules, new: Rules, networks: Networks) -> list[Command]:
    """Commands that change the tables from one state to the other; nftables takes all of them, or none."""
    return [command for each in networks for command in _difference(_TABLES[each.version], old, new)]


def _replaced(table: _Table) -> list[Command]:
    made = {"table": {"family": table.family, "name": NAME}}
    return [{"add": made}, {"delete": made}, {"add": made}]


def _without(table: _Table, bridge: str) -> list[Command]:
    """Commands that replace the table of a family of which pods have no addresses.

    A node forwards nothing by this family, between pods of its bridge either, and takes nothing from its pods: by IPv6
    no neighbour solicitation, so they find no other address, and no router advertisement.
    """
    from_pods = _equals(_COMES_FROM, bridge)
    commands = _replaced(table)
    commands += _base_chain(table, "forward", [_DROP])
    return commands + _base_chain(table, "input", [[from_pods, *_DROP]])


def _whole(table: _Table, rules: Rules, pods: Network, bridge: str, *, own_node: bool) -> list[Command]:
    commands = _replaced(table)
    commands.append(_add_set(table, _LOCAL, table.address))
    commands.append(_add_set(table, _ITSELF, [table.address, table.address]))
    for direction in DIRECTIONS:
        of_pods = {**table.place, "name": direction, "type": table.address, "map": "verdict"}
        commands.append({"add": {"map": of_pods}})
    commands += _difference(table, Rules(), rules)
    prefix = {"prefix": {"addr": str(pods.network_address), "len": pods.prefixlen}}
    allowed = _equals({"ct": {"key": "state"}}, ["established", "related"], "in")
    itself = _equals({"concat": [table.sender, table.receiver]}, f"@{_ITSELF}")
    accept = {"accept": None}
    unknown_sender, unknown_receiver = (
        [_equals(each, prefix), _equals(each, f"@{_LOCAL}", "!="), *_DROP] for each in (table.sender, table.receiver)
    )
    egress = [unknown_sender, [_look_up(table, "egress")]]
    ingress = [unknown_receiver, [_look_up(table, "ingress")]]
    loopback = _equals(_COMES_FROM, "lo")
    own_address = _equals({"fib": {"result": "type", "flags": ["saddr"]}}, "local")
    forwarded: list[list[Expression]] = []
    taken: list[list[Expression]] = []
    sent: list[list[Expression]] = []
    if table is _IPV6:
        from_pods, to_pods = _equals(_COMES_FROM, bridge), _equals({"meta": {"key": "oifname"}}, bridge)
        neighbours = _equals(_ICMPV6, {"set": list(_NEIGHBOURS)})
        other_sender = [from_pods, _equals(table.sender, f"@{_LOCAL}", "!="), *_DROP]
        other_receiver = [to_pods, _equals(table.receiver, f"@{_LOCAL}", "!="), *_DROP]
        forwarded = [[from_pods, to_pods, neighbours, accept], other_sender, other_receiver]
        taken = [[from_pods, neighbours, accept], other_sender]
        sent = [[neighbours, accept]]
    commands += _base_chain(table, "forward", [[allowed, accept], *forwarded, [itself, accept], *egress, *ingress])
    # Packets of pods to the node itself.
    of_node = egress if own_node else [unknown_sender]
    commands += _base_chain(table, "input", [[allowed, accept], [loopback, accept], *taken, *of_node])
    # IPVS sends packets for Services on from here, and not through ``forward``.
    local = [[allowed, accept], [own_address, accept], *sent, [itself, accept], *egress, *ingress]
    return commands + _base_chain(table, "output", local)


def _difference(table: _Table, before: Rules, after: Rules) -> list[Command]:
    old, new = before.of(table.of), after.of(table.of)
    commands: list[Command] = []
    for name in new.networks.keys() - old.networks.keys():
        ranges = [_range(each) for each in new.networks[name]]
        commands.append(_add_set(table, name, table.address, ["interval"], ranges))
    commands += _change_sets(table, old.pods, new.pods, table.address, _same)
    commands += _change_sets(table, old.servers, new.servers, table.server, _server)
    for name in new.chains.keys() - old.chains.keys():
        commands += _chain(table, name, new.chains[name])
    commands += _change(table, _LOCAL, old.local, new.local, _same)
    commands += _change(table, _ITSELF, old.local, new.local, lambda each: {"concat": [each, each]})
    for direction in DIRECTIONS:
        commands += _change_map(table, direction, old.closed(direction), new.closed(direction))
    gone = old.chains.keys() - new.chains.keys()
    commands += [{"delete": {"chain": {**table.place, "name": each}}} for each in gone]
    sets_before, sets_after = ({*each.networks, *each.pods, *each.servers} for each in (old, new))
    commands += [{"delete": {"set": {**table.place, "name": each}}} for each in sets_before - sets_after]
    return commands


async def apply(commands: Iterable[Command], inside: Sequence[str] = ()) -> None:
    """Let nftables make all of these changes at once. Raises TableError, and then it has made none.

    ``inside``: a command that runs nftables, for example in another network namespace.
    """
    process = await asyncio.create_subprocess_exec(
        *(*inside, "nft", "-j", "-f", "-"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(json.dumps({"nftables": list(commands)}).encode())
    if process.returncode:
        raise TableError(f"nft ended with {process.returncode}: {said.decode(errors='replace')[:500]}")


def _add_set(
    table: _Table, name: str, type_: str | list[str], flags: Iterable[str] = (), elements: Iterable[Any] = ()
) -> Command:
    made: dict[str, Any] = {**table.place, "name": name, "type": type_}
    if flags:
        made["flags"] = list(flags)
    if found := list(elements):
        made["elem"] = found
    return {"add": {"set": made}}


def _change_sets(
    table: _Table,
    old: Mapping[str, Iterable[Any]],
    new: Mapping[str, Iterable[Any]],
    type_: str | list[str],
    shown: Shown,
) -> list[Command]:
    """Add sets, and change the elements of those that stay."""
    commands = [_add_set(table, name, type_) for name in new.keys() - old.keys()]
    for name, elements in new.items():
        commands += _change(table, name, old.get(name, ()), elements, shown)
    return commands


def _change(table: _Table, name: str, old: Iterable[Any], new: Iterable[Any], shown: Shown) -> list[Command]:
    before, after = frozenset(old), frozenset(new)
    return [
        {verb: {"element": {**table.place, "name": name, "elem": [shown(each) for each in sorted(elements)]}}}
        for verb, elements in (("delete", before - after), ("add", after - before))
        if elements
    ]


def _change_map(table: _Table, name: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[Command]:
    obsolete = [each for each, chain in old.items() if new.get(each) != chain]
    added = [[each, {"jump": {"target": chain}}] for each, chain in new.items() if old.get(each) != chain]
    return [
        {verb: {"element": {**table.place, "name": name, "elem": elements}}}
        for verb, elements in (("delete", obsolete), ("add", added))
        if elements
    ]


def _chain(table: _Table, name: str, allowed: Iterable[Match]) -> list[Command]:
    """A chain returns for an allowed connection, and drops all others."""
    direction: Direction = "ingress" if name.startswith("ingress-") else "egress"
    commands: list[Command] = [{"add": {"chain": {**table.place, "name": name}}}]
    for each in allowed:
        conditions = _conditions(table, each, direction)
        commands.append(_add_rule(table, name, [*conditions, {"return": None}], each.policy))
    commands.append(_add_rule(table, name, _DROP))
    return commands


def _conditions(table: _Table, match: Match, direction: Direction) -> list[Expression]:
    found = []
    if match.peers:
        found.append(_equals(table.peer(direction), f"@{match.peers}"))
    if match.protocol:
        found.append(_equals(_PROTOCOL, match.protocol))
    if match.ports:
        ports: list[Any] = [first if first == last else {"range": [first, last]} for first, last in match.ports]
        found.append(_equals(_PORT, {"set": ports}))
    if match.servers:
        found.append(_equals({"concat": [table.receiver, _PROTOCOL, _PORT]}, f"@{match.servers}"))
    return found


def _base_chain(table: _Table, hook: str, rules: Iterable[list[Expression]]) -> list[Command]:
    chain = {**table.place, "name": hook, "type": "filter", "hook": hook, "prio": _PRIORITY, "policy": "accept"}
    return [{"add": {"chain": chain}}, *(_add_rule(table, hook, each) for each in rules)]


def _add_rule(table: _Table, chain: str, expressions: list[Expression], comment: str = "") -> Command:
    made: dict[str, Any] = {**table.place, "chain": chain, "expr": expressions}
    if comment:
        made["comment"] = comment[:_LONGEST_COMMENT]
    return {"add": {"rule": made}}


def _equals(left: Expression, right: Any, operator: str = "==") -> Expression:
    return {"match": {"op": operator, "left": left, "right": right}}


def _look_up(table: _Table, direction: Direction) -> Expression:
    return {"vmap": {"key": table.pod(direction), "data": f"@{direction}"}}


def _range(addresses: Range) -> Any:
    first, last = addresses
    return first if first == last else {"range": [first, last]}


def _same(element: Any) -> Any:
    return element


def _server(element: tuple[str, str, int]) -> Expression:
    return {"concat": list(element)}
