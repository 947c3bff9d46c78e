"""A machine uses IPv6 to get where the rules for IPv4 do not let it: machines and load balancers have such addresses.

The network is a real one of its own: namespaces, links, routes and rules, without clusters.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from landscape.network import POD_BRIDGE
from landscape.plan import Plan
from tests.connections import ADVERTISE
from tests.landscape.conftest import run
from tests.security.test_networks_of_managed_seeds import (
    MACHINES,
    OF_A_SEED,
    OF_OTHERS,
    USER,
    _cloud,
    _in,
    _serving,
    plan,
    reached,
)
from tests.unit.kube.waiting import until

__all__ = ["plan"]

pytestmark = pytest.mark.landscape

PORTS = (22, 6443)
USERS_PORT = 9443


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
        yield plan


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
