"""A machine uses IPv6 to get where the rules for IPv4 do not let it: machines and load balancers have such addresses.

The network is a real one of its own: namespaces, links, routes and rules, without clusters.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from landscape import network
from landscape.network import ETCD_PORTS, GATEWAY_PORTS, POD_BRIDGE
from landscape.plan import SEEDS, Plan
from tests.connections import ADVERTISE
from tests.landscape.conftest import run
from tests.security.test_networks_of_managed_seeds import (
    CENTRAL,
    MACHINES,
    OF_A_SEED,
    OF_OTHERS,
    USER,
    _cloud,
    _in,
    _serving,
    machine_address,
    plan,
    reached,
)
from tests.unit.kube.waiting import until

__all__ = ["plan"]

pytestmark = pytest.mark.landscape

PORTS = (22, 6443)
USERS_PORT = 9443
OF_A_SEEDS_ADDRESS = (*GATEWAY_PORTS, *ETCD_PORTS, 6443, 10250)
"""Ports at which a test serves at the addresses of gateways."""


def address(plan: Plan, name: str) -> str:
    """IPv6 address of a machine; of the cloud's bridge, which is the gateway, for ``cloud``."""
    return plan.machine_network_ipv6.replace("::/64", f"::{MACHINES.get(name, 1)}")


def public(plan: Plan, number: int = 1) -> str:
    """Address of a load balancer; the first one is for the machine of the seed."""
    return plan.public_network_ipv6.replace("::/64", f"::{number}")


@pytest.fixture(scope="module")
def machines(plan: Plan) -> Iterator[Plan]:
    """Two machines and their gateway have addresses, as CNI gives them, and one machine and the cloud have servers."""
    _cloud(plan, "ip", "address", "add", f"{address(plan, 'cloud')}/64", "dev", POD_BRIDGE, "nodad")
    # CNI does this when it adds the first machine.
    _cloud(plan, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
    for name in MACHINES:
        netns = plan.netns(name)
        run("ip", "-netns", netns, "address", "add", f"{address(plan, name)}/64", "dev", "eth0", "nodad")
        run("ip", "-netns", netns, "route", "add", "default", "via", address(plan, "cloud"))
    # The other end of a link of the cloud, in case a packet gets there.
    garden, cloud = "2001:2:0:ffff::1", "2001:2:0:ffff::2"
    run("ip", "-netns", plan.garden.netns, "address", "add", f"{garden}/64", "dev", "cloud", "nodad")
    run("ip", "-netns", plan.garden.netns, "route", "add", "2001:2::/48", "via", cloud)
    _cloud(plan, "ip", "address", "add", f"{cloud}/64", "dev", "garden", "nodad")
    with ExitStack() as stack:
        for place in ("cloud", OF_A_SEED):
            stack.enter_context(_serving(plan, place, address(plan, place), *PORTS))
        stack.enter_context(_serving(plan, "garden", garden, *PORTS))
        # As kube-proxy of the cloud does for a load balancer.
        forwarded = f"-A PREROUTING -d {public(plan)}/128 -p tcp --dport 22 -j DNAT --to {address(plan, OF_A_SEED)}"
        _cloud(plan, "ip6tables", "-t", "nat", *forwarded.split())
        stack.enter_context(_serving(plan, USER, plan.host_link("cloud").left_ipv6, USERS_PORT))
        # The network must close the ports that the process of these addresses does not have, too.
        stack.enter_context(_serving(plan, "garden", plan.dns_address_ipv6, *CENTRAL))
        for seed in SEEDS:
            for each in plan.gateway_addresses(seed).values():
                stack.enter_context(_serving(plan, seed, each, *OF_A_SEEDS_ADDRESS))
            stack.enter_context(_serving(plan, seed, plan.cloud_link(seed).right_ipv6, *GATEWAY_PORTS))
        yield plan


_ECHO = """
import selectors, socket, sys
servers = selectors.DefaultSelector()
for port in map(int, sys.argv[2:]):
    one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    one.bind((sys.argv[1], port))
    servers.register(one, selectors.EVENT_READ)
print("serving", flush=True)
while True:
    for key, _ in servers.select():
        key.fileobj.sendto(*key.fileobj.recvfrom(9))
"""
_ASK = """
import socket, sys
for port in map(int, sys.argv[2:]):
    one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    one.settimeout(2)
    try:
        one.connect((sys.argv[1], port))
        one.send(b"?")
        one.recv(9)
    except OSError:
        continue
    print(port)
"""


@contextmanager
def having(plan: Plan, name: str, address: str) -> Iterator[None]:
    """A machine has given itself an address, and serves there."""
    at_machine = (f"{address}/128", "dev", "eth0")
    run("ip", "-netns", plan.netns(name), "address", "add", *at_machine, "nodad")
    try:
        with _serving(plan, name, address, *PORTS):
            yield
    finally:
        run("ip", "-netns", plan.netns(name), "address", "delete", *at_machine)


def test_machines_reach_each_other_by_ipv6(machines: Plan) -> None:
    """As by IPv4: machines of a Shoot forward packets of its pods to each other."""
    assert reached(machines, OF_OTHERS, address(machines, OF_A_SEED), *PORTS) == list(PORTS)
    assert reached(machines, "cloud", address(machines, OF_A_SEED), *PORTS) == list(PORTS)


@pytest.mark.attack(actor="T2", asset="A5", finding=19)
def test_a_machine_reaches_nothing_but_machines_by_ipv6(machines: Plan) -> None:
    assert reached(machines, "cloud", "2001:2:0:ffff::1", *PORTS) == list(PORTS), "there is a way"

    assert reached(machines, OF_OTHERS, "2001:2:0:ffff::1", *PORTS) == []
    assert reached(machines, OF_OTHERS, address(machines, "cloud"), *PORTS) == []


def test_users_and_machines_reach_a_load_balancer_by_ipv6(machines: Plan) -> None:
    for place in (USER, *MACHINES):
        assert reached(machines, place, public(machines), *PORTS) == [22], place


@pytest.mark.attack(actor="T2", asset="A5", finding=28)
def test_a_machine_reaches_no_user_by_the_way_of_its_answers(machines: Plan) -> None:
    user = machines.host_link("cloud").left_ipv6
    assert reached(machines, "cloud", user, USERS_PORT) == [USERS_PORT], "there is a way"

    for name in MACHINES:
        assert reached(machines, name, user, USERS_PORT) == []


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
@pytest.mark.parametrize("number", [1, 2], ids=["of another", "of none"])
def test_a_machine_takes_the_address_of_a_load_balancer(machines: Plan, number: int) -> None:
    """The attacker's machine serves both ports. The load balancer has one of them."""
    with having(machines, OF_OTHERS, public(machines, number)):
        for place in (USER, OF_A_SEED):
            assert reached(machines, place, public(machines, number), *PORTS) == ([22] if number == 1 else []), place


@pytest.mark.attack(actor="T3", asset="A3", finding=28)
def test_the_garden_reaches_neither_load_balancers_nor_machines_by_ipv6(machines: Plan) -> None:
    for each in (public(machines), address(machines, OF_A_SEED)):
        assert reached(machines, "garden", each, *PORTS) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_users_and_machines_reach_gateways_and_the_dns_server_by_ipv6(machines: Plan, seed: str) -> None:
    for place in (USER, *MACHINES):
        for each in machines.gateway_addresses(seed).values():
            assert set(GATEWAY_PORTS) <= set(reached(machines, place, each, *GATEWAY_PORTS)), place
        assert 53 in reached(machines, place, machines.dns_address_ipv6, 53)


@pytest.mark.attack(actor="T2", asset="A5", finding=19)
def test_a_machine_reaches_no_central_service_but_the_dns_by_ipv6(machines: Plan) -> None:
    """The garden, Temporal, the codec endpoint and the object store would serve there, too."""
    assert reached(machines, "cloud", machines.dns_address_ipv6, *CENTRAL) == list(CENTRAL), "there is a way"

    for name in MACHINES:
        assert reached(machines, name, machines.dns_address_ipv6, *CENTRAL) == [53]


@pytest.mark.attack(actor="T2", asset="A5", finding=19)
def test_a_machine_that_may_reach_central_services_does_so_by_ipv4_alone(machines: Plan) -> None:
    asyncio.run(network.admit_machines(machines, [machine_address(machines, OF_A_SEED)]))
    try:
        assert reached(machines, OF_A_SEED, machines.dns_address_ipv6, *CENTRAL) == [53]
    finally:
        asyncio.run(network.admit_machines(machines, []))


@pytest.mark.attack(actor="T2", asset="A2", finding=19)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_machine_reaches_gateways_and_nothing_else_of_a_seed_by_ipv6(machines: Plan, seed: str) -> None:
    """By the ports of etcds, members in two seeds find each other."""
    of_the_link = machines.cloud_link(seed).right_ipv6
    assert reached(machines, "cloud", of_the_link, *GATEWAY_PORTS) == list(GATEWAY_PORTS), "there is a way"

    for name in MACHINES:
        for each in machines.gateway_addresses(seed).values():
            assert reached(machines, name, each, *OF_A_SEEDS_ADDRESS) == list(GATEWAY_PORTS)
        assert reached(machines, name, of_the_link, *GATEWAY_PORTS) == []


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
def test_a_machine_takes_the_address_of_a_gateway_or_of_the_dns_server(machines: Plan) -> None:
    """Clients of API servers, and questions for names, would come to the attacker's machine."""
    gateway = next(iter(machines.gateway_addresses("seed-1").values()))
    with having(machines, OF_OTHERS, gateway), having(machines, OF_OTHERS, machines.dns_address_ipv6):
        for place in (USER, OF_A_SEED):
            assert reached(machines, place, gateway, 22, 443) == [443], place
            assert reached(machines, place, machines.dns_address_ipv6, 22, 53) == [53], place


@pytest.mark.attack(actor="T3", asset="A3", finding=28)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_reaches_neither_machines_nor_load_balancers_nor_the_other_seed_by_ipv6(
    machines: Plan, seed: str
) -> None:
    """The seed gives itself routes: it is the link's other end."""
    (other,) = set(SEEDS) - {seed}
    gateway = next(iter(machines.gateway_addresses(other).values()))
    route = ("2001:2::/48", "via", machines.cloud_link(seed).left_ipv6)
    run("ip", "-netns", machines.netns(seed), "route", "add", *route)
    try:
        for each in (address(machines, OF_A_SEED), public(machines), gateway, machines.dns_address_ipv6):
            assert reached(machines, seed, each, *PORTS, *GATEWAY_PORTS, 53) == []
    finally:
        run("ip", "-netns", machines.netns(seed), "route", "delete", *route)


def test_a_seed_that_is_cut_off_is_so_by_ipv6_and_comes_back(machines: Plan) -> None:
    gateway = next(iter(machines.gateway_addresses("seed-1").values()))
    asyncio.run(network.set_seed_links(machines, "seed-1", "down"))
    try:
        for place in (USER, OF_OTHERS):
            assert reached(machines, place, gateway, 443) == [], place
    finally:
        asyncio.run(network.set_seed_links(machines, "seed-1", "up"))
    for place in (USER, OF_OTHERS):
        assert reached(machines, place, gateway, 443) == [443], place


def test_a_landscape_of_an_earlier_version_gets_the_ways_to_gateways_once(machines: Plan) -> None:
    def rules() -> list[str]:
        return run("nsenter", f"--net=/run/netns/{machines.cloud.netns}", "ip6tables-save").splitlines()

    def ours() -> list[str]:
        return sorted(
            each for each in rules() if "GATEWAYS" in each or "-o cni0 -m conntrack" in each or "-o seed" in each
        )

    before = ours()
    asyncio.run(network.up(machines))
    assert ours() == before, "a second run adds nothing"

    # As an earlier version has left it: the other rules, and none of these.
    for rule in (each for each in rules() if each.startswith(("-A FORWARD", "-A GARDENER-GATEWAYS"))):
        if any(each in rule for each in ("GARDENER-GATEWAYS", *(f"-i {each} " for each in (*SEEDS, "garden")))):
            _cloud(machines, "ip6tables", "-D", *rule.split()[1:])
    for rule in (each for each in rules() if each.startswith("-A POSTROUTING") and "-o " in each):
        _cloud(machines, "ip6tables", "-t", "nat", "-D", *rule.split()[1:])
    _cloud(machines, "ip6tables", "-X", "GARDENER-GATEWAYS")
    gateway = next(iter(machines.gateway_addresses("seed-1").values()))
    assert reached(machines, OF_OTHERS, gateway, *OF_A_SEEDS_ADDRESS) == []

    asyncio.run(network.up(machines))

    assert ours() == before
    assert reached(machines, OF_OTHERS, gateway, *OF_A_SEEDS_ADDRESS) == list(GATEWAY_PORTS)


def test_a_machine_resolves_names_by_ipv6_over_udp(machines: Plan) -> None:
    """The question is one byte, which the server returns."""
    place = machines.netns("garden")
    argv = ["nsenter", f"--net=/run/netns/{place}", sys.executable, "-c", _ECHO, machines.dns_address_ipv6, "53", "54"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "serving\n"
            assert run(*_in(machines, OF_OTHERS, _ASK, machines.dns_address_ipv6, 53, 54)).split() == ["53"]
        finally:
            server.kill()


def _received(plan: Plan, place: str) -> int:
    lines = run("nsenter", f"--net=/run/netns/{plan.netns(place)}", "cat", "/proc/net/snmp6").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Icmp6InRouterAdvertisements"))


def _dropped(plan: Plan) -> int:
    rules = run("nsenter", f"--net=/run/netns/{plan.cloud.netns}", "ip6tables-save", "-c", "-t", "filter").splitlines()
    (rule,) = (each for each in rules if "GARDENER-MACHINES -p" in each and "134" in each)
    return int(rule[1:].partition(":")[0])


@pytest.mark.attack(actor="T2", asset="A5", finding=19)
async def test_a_machine_does_not_become_the_gateway_of_others(machines: Plan) -> None:
    """All that a machine of another Shoot sends by IPv6 would pass the attacker's machine."""
    before, dropped = _received(machines, OF_A_SEED), _dropped(machines)

    run(*_in(machines, OF_OTHERS, ADVERTISE, ""))

    await until(lambda: _dropped(machines) >= dropped + 2)  # to the other machine, and to the cloud
    assert _received(machines, OF_A_SEED) == before
