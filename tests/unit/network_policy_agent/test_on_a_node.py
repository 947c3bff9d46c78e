"""The rules in a kernel: connections between network namespaces that stand for pods, the node and a client outside.

Each server sends a byte back, so a connection counts only if both directions pass. A Service is a rule of DNAT, as
kube-proxy makes it.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

import pytest

from tests.unit.network_policy_agent.test_policies import NAMESPACES, policy
from workers.network_policy_agent import table
from workers.network_policy_agent.policies import Pod, Rules, compute, read

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root"),
    pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft: run `make packages`"),
]

NETWORK, NETWORK_V6 = "100.96.0.0/24", "fd00:96::/64"
GATEWAY, OUTSIDE, SERVICE = "100.96.0.1", "203.0.113.9", "100.64.0.5"
EMPTY_SERVICE = "203.0.113.77"
A, B, C, UNKNOWN = "100.96.0.10", "100.96.0.11", "100.96.0.12", "100.96.0.13"
TCP, UDP = (8080, 8081, 9090), (5353,)
SECONDS = 0.5
"""Until a connection counts as refused. On one machine it takes a millisecond."""

_POD = f"""
import json, selectors, socket, sys, threading

def serve():
    found = selectors.DefaultSelector()
    for kind, ports in ((socket.SOCK_STREAM, {TCP}), (socket.SOCK_DGRAM, {UDP})):
        for port in ports:
            one = socket.socket(socket.AF_INET6, kind)
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            one.bind(("::", port))
            if kind == socket.SOCK_STREAM:
                one.listen()
            found.register(one, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in found.select():
            one = key.fileobj
            if one.type == socket.SOCK_DGRAM:
                one.sendto(b"x", one.recvfrom(9)[1])
            elif key.data is None:
                found.register(one.accept()[0], selectors.EVENT_READ, "accepted")
            elif received := receive(one):
                one.send(received)
            else:
                found.unregister(one)
                one.close()

def receive(one):
    try:
        return one.recv(9)
    except OSError:
        return b""  # its client gave up

def connect(target, reached):
    protocol, address, port = target.split("/")
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind) as one:
        one.settimeout({SECONDS})
        try:
            one.connect((address, int(port)))
            one.send(b"x")
            if one.recv(1):
                reached.append(target)
        except OSError:
            pass

threading.Thread(target=serve, daemon=True).start()
for line in sys.stdin:
    reached = []
    threads = [threading.Thread(target=connect, args=(each, reached)) for each in line.split()]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print(json.dumps(reached), flush=True)
"""
"""Serves, and connects to the targets of each line of its input."""

_HOLD = """
import socket, sys
s = socket.create_connection((sys.argv[1], 8080), 5)
for line in sys.stdin:
    s.settimeout(1)
    s.send(b"x")
    print(len(s.recv(1)), flush=True)
"""


_FORGE = """
import socket, struct, sys
source, target = (socket.inet_aton(each) for each in sys.argv[1:3])
udp = struct.pack("!HHHH", 9, 9, 9, 0) + b"x"
header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 29, 0, 0, 64, socket.IPPROTO_UDP, 0, source, target)
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as one:
    try:
        one.sendto(header + udp, (sys.argv[2], 0))
    except PermissionError:
        pass
"""
"""Sends a packet of UDP with this sender's address."""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class Node:
    """A bridge with pods, and a client behind another link."""

    name: str
    pods: dict[str, str] = field(default_factory=dict)
    """Network namespaces by address."""
    processes: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)
    written: Rules | None = None
    networks: table.Networks = (ip_network(NETWORK),)
    """Networks of its pods: by default, of IPv4 only."""

    def inside(self, address: str, *argv: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.pods[address]}", *argv]

    def reached(self, source: str, *targets: str) -> set[str]:
        """Those of ``<protocol>/<address>/<port>`` that answer."""
        process = self.processes[source]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{' '.join(targets)}\n")
        process.stdin.flush()
        return set(json.loads(process.stdout.readline()))

    async def enforce(self, *policies, unknown: str = UNKNOWN, own_node: bool = True) -> None:
        """Write the rules of these policies as the agent does: the difference to what is written."""
        rules = compute(
            [read(each) for each in policies], NAMESPACES, [each for each in PODS if unknown not in each.addresses]
        )
        whole = table.whole(rules, self.networks, "cni0", own_node=own_node)
        commands = table.difference(self.written, rules, self.networks) if self.written else whole
        await table.apply(commands, ["nsenter", f"--net=/run/netns/{self.name}"])
        self.written = rules


def v6(address: str) -> str:
    """The IPv6 address beside an IPv4 address."""
    return f"fd00:{'96' if address.startswith('100.96.') else '203'}::{address.rpartition('.')[2]}"


PODS = [
    Pod("a", "server", (A, v6(A)), {"app": "server"}, {("web", "tcp"): 8080}, is_local=True),
    Pod("a", "client", (B, v6(B)), {"app": "client"}, {}, is_local=True),
    Pod("b", "other", (C, v6(C)), {"app": "client"}, {("web", "tcp"): 8081}, is_local=True),
    Pod("c", "unknown", (UNKNOWN, v6(UNKNOWN)), {}, {}, is_local=True),
]
ALL_OF_A = (f"tcp/{A}/8080", f"tcp/{A}/8081", f"tcp/{A}/9090", f"udp/{A}/5353")


@contextmanager
def namespace(name: str) -> Iterator[str]:
    ip("netns", "add", name)
    try:
        # The kernel then uses its addresses of IPv6 at once, without duplicate address detection.
        without = ["sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad"]
        subprocess.run(["nsenter", f"--net=/run/netns/{name}", *without], check=True)
        yield name
    finally:
        ip("netns", "delete", name)


@contextmanager
def running(node: Node, address: str) -> Iterator[None]:
    argv = node.inside(address, sys.executable, "-IS", "-c", _POD)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            node.processes[address] = process
            yield
        finally:
            process.kill()


def connect(node: Node, name: str, address: str, gateway: str, *, bridged: bool) -> None:
    link = f"v{address.rpartition('.')[2]}"
    ip("-n", node.name, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
    if bridged:
        ip("-n", node.name, "link", "set", link, "master", "cni0")
        subprocess.run(
            ["nsenter", f"--net=/run/netns/{node.name}", "bridge", "link", "set", "dev", link, "hairpin", "on"],
            check=True,
        )
    else:
        for each in (f"{gateway}/24", f"{v6(gateway)}/64"):
            ip("-n", node.name, "address", "add", each, "dev", link)
    ip("-n", node.name, "link", "set", link, "up")
    for each in (f"{address}/24", f"{v6(address)}/64"):
        ip("-n", name, "address", "add", each, "dev", "eth0")
    for each in ("lo", "eth0"):
        ip("-n", name, "link", "set", each, "up")
    for each in (gateway, v6(gateway)):
        ip("-n", name, "route", "add", "default", "via", each)


@pytest.fixture(scope="module")
def network() -> Iterator[Node]:
    base = f"npa{os.getpid()}"
    with ExitStack() as stack:
        node = Node(stack.enter_context(namespace(f"{base}-node")))
        ip("-n", node.name, "link", "set", "lo", "up")
        ip("-n", node.name, "link", "add", "cni0", "type", "bridge")
        for each in (f"{GATEWAY}/24", f"{v6(GATEWAY)}/64"):
            ip("-n", node.name, "address", "add", each, "dev", "cni0")
        ip("-n", node.name, "link", "set", "cni0", "up")
        node.pods[GATEWAY] = node.name
        for address, gateway in (
            (A, GATEWAY),
            (B, GATEWAY),
            (C, GATEWAY),
            (UNKNOWN, GATEWAY),
            (OUTSIDE, "203.0.113.1"),
        ):
            name = stack.enter_context(namespace(f"{base}-{address.rpartition('.')[2]}"))
            node.pods[address] = name
            connect(node, name, address, gateway, bridged=gateway == GATEWAY)
        names = ("ipv4/ip_forward", "ipv6/conf/all/forwarding", "bridge/bridge-nf-call-iptables")
        settings = "; ".join(f"echo 1 >/proc/sys/net/{each}" for each in (*names, "bridge/bridge-nf-call-ip6tables"))
        subprocess.run(node.inside(GATEWAY, "sh", "-ec", settings), check=True)
        service = f"add table ip s; add chain ip s p {{ type nat hook prerouting priority dstnat; }}; \
            add rule ip s p ip daddr {SERVICE} tcp dport 80 dnat to {A}:8080; \
            add chain ip s o {{ type nat hook postrouting priority srcnat; }}"
        subprocess.run(node.inside(GATEWAY, "nft", service), check=True)
        for address in node.pods:
            stack.enter_context(running(node, address))
        yield node


@pytest.fixture
async def node(network: Node) -> Node:
    network.written, network.networks = None, Node.networks
    await network.enforce()
    return network


async def test_without_a_policy_all_pods_are_open(node):
    assert node.reached(B, *ALL_OF_A, f"tcp/{SERVICE}/80", f"tcp/{OUTSIDE}/8080") == {
        *ALL_OF_A,
        f"tcp/{SERVICE}/80",
        f"tcp/{OUTSIDE}/8080",
    }
    assert node.reached(OUTSIDE, *ALL_OF_A) == set(ALL_OF_A)


async def test_a_closed_pod_accepts_connections_of_its_node_alone(node):
    await node.enforce(policy(selector={"matchLabels": {"app": "server"}}, types=["Ingress"]))

    assert [node.reached(each, *ALL_OF_A, f"tcp/{SERVICE}/80") for each in (B, C, OUTSIDE)] == [set()] * 3
    assert node.reached(GATEWAY, *ALL_OF_A) == set(ALL_OF_A), "the kubelet probes it"
    assert node.reached(A, *ALL_OF_A) == set(ALL_OF_A), "a pod reaches itself"
    assert node.reached(A, f"tcp/{B}/8080") == {f"tcp/{B}/8080"}, "it may open connections"


async def test_a_pod_closed_for_egress_opens_no_connection(node):
    targets = (f"tcp/{A}/8080", f"udp/{A}/5353", f"tcp/{OUTSIDE}/8080", f"tcp/{GATEWAY}/8080", f"tcp/{SERVICE}/80")
    assert node.reached(B, *targets) == set(targets)

    await node.enforce(policy(selector={"matchLabels": {"app": "client"}}, types=["Egress"]))

    assert node.reached(B, *targets) == set()
    assert node.reached(A, f"tcp/{B}/8080") == {f"tcp/{B}/8080"}, "it answers"


async def test_a_connection_to_a_service_without_endpoints_is_refused_at_once(node):
    """By kube-proxy, whose chain may be older than the agent's, and whatever the policies say."""
    with refusing(node, EMPTY_SERVICE):
        node.written = None
        await node.enforce(policy(selector={"matchLabels": CLIENT}, types=["Egress"]))
        assert "ConnectionRefusedError" in await asyncio.to_thread(failure, node, B, EMPTY_SERVICE)


@contextmanager
def refusing(node: Node, address: str) -> Iterator[None]:
    """kube-proxy's rule for a Service without endpoints."""
    chain = "add chain ip s f { type filter hook forward priority filter; }"
    subprocess.run(node.inside(GATEWAY, "nft", f"{chain}; add rule ip s f ip daddr {address} reject"), check=True)
    try:
        yield
    finally:
        subprocess.run(node.inside(GATEWAY, "nft", "flush chain ip s f; delete chain ip s f"), check=True)


def failure(node: Node, source: str, address: str) -> str:
    """The error of a client that cannot connect."""
    script = f"import socket; socket.create_connection(('{address}', 80), 5)"
    argv = node.inside(source, sys.executable, "-IS", "-c", script)
    return subprocess.run(argv, capture_output=True, text=True, check=False).stderr


CLIENT = {"app": "client"}
ROWS: dict[str, tuple[Any, dict[str, tuple[str, ...]]]] = {
    "pods of the namespace": ({"from": [{"podSelector": {}}]}, {B: ALL_OF_A}),
    "pods with labels, in namespaces with labels": (
        {"from": [{"namespaceSelector": {"matchLabels": {"team": "blue"}}, "podSelector": {"matchLabels": CLIENT}}]},
        {C: ALL_OF_A},
    ),
    "a block": ({"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}, {OUTSIDE: ALL_OF_A}),
    "a block with exceptions": (
        {"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["203.0.113.0/24", f"{B}/32"]}}]},
        {C: ALL_OF_A},
    ),
    "a port": ({"ports": [{"port": 8081}]}, dict.fromkeys((B, C, OUTSIDE), ALL_OF_A[1:2])),
    "ports": ({"ports": [{"port": 8080, "endPort": 8081}]}, dict.fromkeys((B, C, OUTSIDE), ALL_OF_A[:2])),
    "a named port": ({"ports": [{"port": "web"}]}, dict.fromkeys((B, C, OUTSIDE), ALL_OF_A[:1])),
    "a protocol": ({"ports": [{"protocol": "UDP"}]}, dict.fromkeys((B, C, OUTSIDE), ALL_OF_A[3:])),
    "a port of a protocol": ({"ports": [{"protocol": "UDP", "port": 8080}]}, {}),
    "all": ({}, dict.fromkeys((B, C, OUTSIDE), ALL_OF_A)),
}


@pytest.mark.parametrize("name", ROWS)
async def test_a_pod_accepts_what_a_rule_allows(node, name):
    rule, allowed = ROWS[name]
    await node.enforce(policy(selector={"matchLabels": {"app": "server"}}, types=["Ingress"], ingress=[rule]))

    for source in (B, C, OUTSIDE):
        assert node.reached(source, *ALL_OF_A) == set(allowed.get(source, ()))


TARGETS = (f"tcp/{A}/8080", f"tcp/{C}/8081", f"tcp/{C}/9090", f"tcp/{OUTSIDE}/8080", f"tcp/{GATEWAY}/8080")
EGRESS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "pods": ({"to": [{"namespaceSelector": {}}]}, TARGETS[:3]),
    "a named port": ({"to": [{"namespaceSelector": {}}], "ports": [{"port": "web"}]}, TARGETS[:2]),
    "public addresses": (
        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["100.64.0.0/10"]}}]},
        (f"tcp/{OUTSIDE}/8080",),
    ),
    "the node": ({"to": [{"ipBlock": {"cidr": f"{GATEWAY}/32"}}], "ports": [{"port": 8080}]}, (TARGETS[4],)),
}


@pytest.mark.parametrize("name", EGRESS)
async def test_a_pod_opens_what_a_rule_allows(node, name):
    rule, allowed = EGRESS[name]
    await node.enforce(policy(selector={"matchLabels": CLIENT}, types=["Egress"], egress=[rule]))

    assert node.reached(B, *TARGETS) == set(allowed)


async def test_a_pod_reaches_its_own_node_where_policies_do_not_limit_that(node):
    """Kubernetes' rule. On the nodes of a shoot a pod's DNS server and its way to the API server may be there."""
    node.written = None
    await node.enforce(policy(), own_node=False)

    assert node.reached(B, *TARGETS) == {TARGETS[4]}
    assert node.reached(UNKNOWN, f"tcp/{GATEWAY}/8080") == set()


@pytest.mark.parametrize(("source", "passes"), [(GATEWAY, True), (B, False), (OUTSIDE, False)])
async def test_what_ipvs_sends_on_obeys_policies(node, source, passes):
    """IPVS sends a client's packet for a Service as the node's own, with the address of the client."""
    await node.enforce(policy(selector={"matchLabels": {"app": "server"}}, types=["Ingress"], ingress=[]))
    before = received(node)

    forge(node, source, A)

    assert received(node) - before == int(passes)


def forge(node: Node, source: str, target: str) -> None:
    """Let the node send a packet with this sender's address."""
    subprocess.run(node.inside(GATEWAY, sys.executable, "-IS", "-c", _FORGE, source, target), check=True)


def received(node: Node) -> int:
    """Packets that the server has got for a port at which it does not listen."""
    counters = subprocess.run(node.inside(A, "cat", "/proc/net/snmp"), check=True, capture_output=True, text=True)
    names, values = (line.split() for line in counters.stdout.splitlines() if line.startswith("Udp:"))
    return int(values[names.index("NoPorts")])


async def test_a_rule_sees_the_pods_behind_a_service(node):
    to_server = {"to": [{"podSelector": {"matchLabels": {"app": "server"}}}], "ports": [{"port": 8080}]}
    await node.enforce(policy(egress=[to_server], ingress=[{"from": [{"podSelector": {}}]}]))

    assert node.reached(B, f"tcp/{SERVICE}/80", f"tcp/{C}/8081") == {f"tcp/{SERVICE}/80"}
    assert node.reached(C, f"tcp/{SERVICE}/80") == set()


async def test_a_pod_that_the_agent_does_not_know_reaches_nothing_and_nothing_reaches_it(node):
    assert node.reached(UNKNOWN, f"tcp/{A}/8080", f"tcp/{OUTSIDE}/8080", f"tcp/{GATEWAY}/8080") == set()
    assert node.reached(B, f"tcp/{UNKNOWN}/8080") == set()

    await node.enforce(unknown="")

    assert node.reached(UNKNOWN, f"tcp/{A}/8080", f"tcp/{GATEWAY}/8080") == {f"tcp/{A}/8080", f"tcp/{GATEWAY}/8080"}
    assert node.reached(B, f"tcp/{UNKNOWN}/8080") == {f"tcp/{UNKNOWN}/8080"}


async def test_a_connection_that_was_allowed_goes_on(node):
    argv = node.inside(B, sys.executable, "-IS", "-c", _HOLD, A)
    held = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert held.stdin is not None
        assert held.stdout is not None
        held.stdin.write(b"\n")
        assert await held.stdout.readline() == b"1\n"

        await node.enforce(policy())
        assert node.reached(B, f"tcp/{A}/8080") == set()

        held.stdin.write(b"\n")
        assert await held.stdout.readline() == b"1\n"
    finally:
        held.kill()
        await held.wait()


STATES: list[tuple[Any, ...]] = [
    (),
    (policy(ingress=[{"from": [{"podSelector": {}}], "ports": [{"port": "web"}]}]), policy("q", "b")),
    (policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]), policy("q", "b", egress=[{}])),
    (policy("q", "b", egress=[{"to": [{"namespaceSelector": {}}]}]),),
]


async def test_differences_lead_to_the_table_that_is_written_as_a_whole(node):
    """Also if sets, chains and pods come and go."""
    for number, state in enumerate([*STATES, *reversed(STATES)]):
        await node.enforce(*state, unknown=B if number % 2 else UNKNOWN)
        changed, rules = listed(node), node.written
        node.written = None
        await node.enforce(*state, unknown=B if number % 2 else UNKNOWN)
        assert changed == listed(node)
        assert table.difference(rules, node.written, node.networks) == []


def listed(node: Node, family: str = "ip") -> list[str]:
    """The table, without numbers and order that the kernel chooses."""
    said = subprocess.run(node.inside(GATEWAY, "nft", "-j", "list", "table", family, table.NAME), capture_output=True)
    found = []
    for each in json.loads(said.stdout)["nftables"]:
        for content in each.values():
            content.pop("handle", None)
            if "elem" in content:
                content["elem"] = sorted(map(str, content["elem"]))
        found.append(json.dumps(each, sort_keys=True))
    return sorted(each for each in found if "counter" not in each)


async def test_a_refused_change_changes_nothing(node):
    before, other = listed(node), Rules(local=frozenset({"100.96.0.99"}))

    with pytest.raises(table.TableError, match="nft ended with 1"):
        await table.apply(
            [*table.difference(Rules(), other, node.networks), {"delete": {"set": {"name": "x"}}}],
            ["nsenter", f"--net=/run/netns/{node.name}"],
        )

    assert listed(node) == before
