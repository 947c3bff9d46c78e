"""The table of nftables with the rules of a node: as a whole, or the difference between two states of it.

Packets of a connection that has been allowed pass on. All others pass the chain of the pod that sends them and the one
of the pod that receives them: after DNAT, so a rule sees pods and not Services. The node reaches its own pods always:
the kubelet probes them. Whether pods reach their own node whatever their policies say is a choice of the caller. A pod
of the node that is unknown reaches nothing, and nothing reaches it.

Policies name addresses of IPv4, and no pod has one of IPv6. But the kernel gives each interface a link-local one, so a
second table drops all that pods send by IPv6.
"""

import asyncio
import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from workers.network_policy_agent.policies import DIRECTIONS, Match, Range, Rules

Command = dict[str, Any]
Expression = dict[str, Any]
Shown = Callable[[Any], Any]
"""Makes the JSON of a set's element."""

NAME = "gardener-network-policies"
_TABLE = {"family": "ip", "table": NAME}
_LONGEST_COMMENT = 120
"""nftables takes 127 characters."""
_SENDER = {"payload": {"protocol": "ip", "field": "saddr"}}
_RECEIVER = {"payload": {"protocol": "ip", "field": "daddr"}}
_PROTOCOL = {"meta": {"key": "l4proto"}}
_PORT = {"payload": {"protocol": "th", "field": "dport"}}
_DROP: list[Expression] = [{"counter": None}, {"drop": None}]
_LOCAL, _ITSELF = "local", "itself"
_SERVER = ["ipv4_addr", "inet_proto", "inet_service"]
_CHAINS = {"ingress": _RECEIVER, "egress": _SENDER}
"""The address of a packet that is looked up for a pod's chain, by direction."""
_PEERS = {"ingress": _SENDER, "egress": _RECEIVER}


class TableError(Exception):
    """nftables refuses a change; the text is its own."""


def without_ipv6(bridge: str) -> list[Command]:
    """Commands that replace the table of IPv6, if there is one. ``bridge``: interface of the node's pods.

    A node forwards nothing by IPv6, between pods of its bridge either, and takes nothing from its pods: no neighbour
    solicitation, so they find no other address, and no router advertisement.
    """
    of_ipv6 = {"family": "ip6", "table": NAME}
    table = {"table": {"family": "ip6", "name": NAME}}
    commands: list[Command] = [{"add": table}, {"delete": table}, {"add": table}]
    from_pods = _equals({"meta": {"key": "iifname"}}, bridge)
    for hook, expressions in (("forward", _DROP), ("input", [from_pods, *_DROP])):
        chain = {**of_ipv6, "name": hook, "type": "filter", "hook": hook, "prio": 0, "policy": "accept"}
        commands.append({"add": {"chain": chain}})
        commands.append({"add": {"rule": {**of_ipv6, "chain": hook, "expr": expressions}}})
    return commands


def whole(rules: Rules, pods: str, *, own_node: bool) -> list[Command]:
    """Commands that replace the table of IPv4, if there is one.

    ``pods``: the network of the node's pods. ``own_node``: whether policies limit what pods open to their own node.
    """
    table = {"table": {"family": "ip", "name": NAME}}
    commands: list[Command] = [{"add": table}, {"delete": table}, {"add": table}]
    commands.append(_add_set(_LOCAL, "ipv4_addr"))
    commands.append(_add_set(_ITSELF, ["ipv4_addr", "ipv4_addr"]))
    for direction in DIRECTIONS:
        commands.append({"add": {"map": {**_TABLE, "name": direction, "type": "ipv4_addr", "map": "verdict"}}})
    commands += difference(Rules(), rules)
    network = ipaddress.ip_network(pods)
    prefix = {"prefix": {"addr": str(network.network_address), "len": network.prefixlen}}
    allowed = _equals({"ct": {"key": "state"}}, ["established", "related"], "in")
    itself = _equals({"concat": [_SENDER, _RECEIVER]}, f"@{_ITSELF}")
    accept = {"accept": None}
    unknown_sender, unknown_receiver = (
        [_equals(each, prefix), _equals(each, f"@{_LOCAL}", "!="), *_DROP] for each in (_SENDER, _RECEIVER)
    )
    egress, ingress = [unknown_sender, [_look_up("egress")]], [unknown_receiver, [_look_up("ingress")]]
    loopback = _equals({"meta": {"key": "iifname"}}, "lo")
    own_address = _equals({"fib": {"result": "type", "flags": ["saddr"]}}, "local")
    commands += _base_chain("forward", [[allowed, accept], [itself, accept], *egress, *ingress])
    # Packets of pods to the node itself.
    commands += _base_chain(
        "input", [[allowed, accept], [loopback, accept], *(egress if own_node else [unknown_sender])]
    )
    # IPVS sends packets for Services on from here, and not through ``forward``.
    commands += _base_chain("output", [[allowed, accept], [own_address, accept], [itself, accept], *egress, *ingress])
    return commands


def difference(old: Rules, new: Rules) -> list[Command]:
    """Commands that change the table from one state to the other; nftables takes all of them, or none."""
    commands: list[Command] = []
    for name in new.networks.keys() - old.networks.keys():
        commands.append(_add_set(name, "ipv4_addr", ["interval"], [_range(each) for each in new.networks[name]]))
    commands += _change_sets(old.pods, new.pods, "ipv4_addr", _same)
    commands += _change_sets(old.servers, new.servers, _SERVER, _server)
    for name in new.chains.keys() - old.chains.keys():
        commands += _chain(name, new.chains[name])
    commands += _change(_LOCAL, old.local, new.local, _same)
    commands += _change(_ITSELF, old.local, new.local, lambda each: {"concat": [each, each]})
    for direction in DIRECTIONS:
        commands += _change_map(direction, old.closed(direction), new.closed(direction))
    commands += [{"delete": {"chain": {**_TABLE, "name": each}}} for each in old.chains.keys() - new.chains.keys()]
    before, after = ({*each.networks, *each.pods, *each.servers} for each in (old, new))
    commands += [{"delete": {"set": {**_TABLE, "name": each}}} for each in before - after]
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


def _add_set(name: str, type_: str | list[str], flags: Iterable[str] = (), elements: Iterable[Any] = ()) -> Command:
    made: dict[str, Any] = {**_TABLE, "name": name, "type": type_}
    if flags:
        made["flags"] = list(flags)
    if found := list(elements):
        made["elem"] = found
    return {"add": {"set": made}}


def _change_sets(
    old: Mapping[str, Iterable[Any]], new: Mapping[str, Iterable[Any]], type_: str | list[str], shown: Shown
) -> list[Command]:
    """Add sets, and change the elements of those that stay."""
    commands = [_add_set(name, type_) for name in new.keys() - old.keys()]
    for name, elements in new.items():
        commands += _change(name, old.get(name, ()), elements, shown)
    return commands


def _change(name: str, old: Iterable[Any], new: Iterable[Any], shown: Shown) -> list[Command]:
    before, after = frozenset(old), frozenset(new)
    return [
        {verb: {"element": {**_TABLE, "name": name, "elem": [shown(each) for each in sorted(elements)]}}}
        for verb, elements in (("delete", before - after), ("add", after - before))
        if elements
    ]


def _change_map(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[Command]:
    obsolete = [each for each, chain in old.items() if new.get(each) != chain]
    added = [[each, {"jump": {"target": chain}}] for each, chain in new.items() if old.get(each) != chain]
    return [
        {verb: {"element": {**_TABLE, "name": name, "elem": elements}}}
        for verb, elements in (("delete", obsolete), ("add", added))
        if elements
    ]


def _chain(name: str, allowed: Iterable[Match]) -> list[Command]:
    """A chain returns for an allowed connection, and drops all others."""
    direction = name.partition("-")[0]
    commands: list[Command] = [{"add": {"chain": {**_TABLE, "name": name}}}]
    for each in allowed:
        conditions = _conditions(each, direction)
        commands.append(_add_rule(name, [*conditions, {"return": None}], each.policy))
    commands.append(_add_rule(name, _DROP))
    return commands


def _conditions(match: Match, direction: str) -> list[Expression]:
    found = []
    if match.peers:
        found.append(_equals(_PEERS[direction], f"@{match.peers}"))
    if match.protocol:
        found.append(_equals(_PROTOCOL, match.protocol))
    if match.ports:
        ports: list[Any] = [first if first == last else {"range": [first, last]} for first, last in match.ports]
        found.append(_equals(_PORT, {"set": ports}))
    if match.servers:
        found.append(_equals({"concat": [_RECEIVER, _PROTOCOL, _PORT]}, f"@{match.servers}"))
    return found


def _base_chain(hook: str, rules: Iterable[list[Expression]]) -> list[Command]:
    chain = {**_TABLE, "name": hook, "type": "filter", "hook": hook, "prio": 0, "policy": "accept"}
    return [{"add": {"chain": chain}}, *(_add_rule(hook, each) for each in rules)]


def _add_rule(chain: str, expressions: list[Expression], comment: str = "") -> Command:
    made: dict[str, Any] = {**_TABLE, "chain": chain, "expr": expressions}
    if comment:
        made["comment"] = comment[:_LONGEST_COMMENT]
    return {"add": {"rule": made}}


def _equals(left: Expression, right: Any, operator: str = "==") -> Expression:
    return {"match": {"op": operator, "left": left, "right": right}}


def _look_up(direction: str) -> Expression:
    return {"vmap": {"key": _CHAINS[direction], "data": f"@{direction}"}}


def _range(addresses: Range) -> Any:
    first, last = addresses
    return first if first == last else {"range": [first, last]}


def _same(element: Any) -> Any:
    return element


def _server(element: tuple[str, str, int]) -> Expression:
    return {"concat": list(element)}
