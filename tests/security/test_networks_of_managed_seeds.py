"""A machine, or a seed, uses the ways that the network of a landscape opens for managed seeds, and is none of them.

The network is a real one of its own: namespaces, links, routes and rules, without clusters.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from landscape import network
from landscape.network import GATEWAY_PORTS, POD_BRIDGE
from landscape.plan import MAX_LANDSCAPES, Plan
from tests.connections import CONNECT
from tests.landscape.conftest import run

pytestmark = pytest.mark.landscape

OF_A_SEED, OF_OTHERS = "of-a-seed", "of-others"
USER = ""
"""Place of users: this machine, in no namespace."""
MACHINES = {OF_A_SEED: 2, OF_OTHERS: 3}
"""Last part of the addresses of two machines."""
CENTRAL = (53, 6443, 7233, 8234, 9001, 9002)
NEEDED = [6443, 7233, 9001, 9002]
BALANCED = (80, *GATEWAY_PORTS)
"""Ports of a load balancer, whose pod is the machine of the seed."""
_SERVE = """
import selectors, socket, sys
servers = selectors.DefaultSelector()
for port in map(int, sys.argv[2:]):
    family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
    servers.register(socket.create_server((sys.argv[1], port), family=family), selectors.EVENT_READ)
print("serving", flush=True)
while True:
    for key, _ in servers.select():
        key.fileobj.accept()[0].close()
"""


def machine_address(plan: Plan, name: str) -> str:
    return plan.machine_network.replace(".0/22", f".{MACHINES[name]}")


def public_address(plan: Plan) -> str:
    return plan.public_network.replace(".0/24", ".1")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    """A network with two machines, and servers at all addresses that the tests try."""
    made = Plan("attacked", MAX_LANDSCAPES - 1, "1.37.1", state_home=tmp_path_factory.mktemp("state"))
    with ExitStack() as stack:
        stack.callback(lambda: asyncio.run(network.down(made)))
        asyncio.run(network.up(made))
        _cloud(made, "ip", "link", "add", POD_BRIDGE, "type", "bridge")
        _cloud(made, "ip", "address", "add", made.machine_network.replace(".0/22", ".1/22"), "dev", POD_BRIDGE)
        _cloud(made, "ip", "link", "set", POD_BRIDGE, "up")
        for name in MACHINES:
            stack.callback(run, "ip", "netns", "delete", made.netns(name))
            _add_machine(made, name)
        # As kube-proxy of the cloud does for a load balancer.
        forwarded = f"-A PREROUTING -d {public_address(made)}/32 -p tcp -j DNAT --to {machine_address(made, OF_A_SEED)}"
        _cloud(made, "iptables", "-t", "nat", *forwarded.split())
        stack.enter_context(_serving(made, "garden", made.central_address, *CENTRAL))
        stack.enter_context(_serving(made, OF_A_SEED, machine_address(made, OF_A_SEED), *BALANCED))
        yield made


def _add_machine(plan: Plan, name: str) -> None:
    netns, link = plan.netns(name), f"machine-{MACHINES[name]}"
    run("ip", "netns", "add", netns)
    _cloud(plan, "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", netns)
    _cloud(plan, "ip", "link", "set", link, "master", POD_BRIDGE, "up")
    # As CNI does: a machine may reach itself by a load balancer.
    _cloud(plan, "ip", "link", "set", link, "type", "bridge_slave", "hairpin", "on")
    run("ip", "-netns", netns, "address", "add", f"{machine_address(plan, name)}/22", "dev", "eth0")
    for device in ("lo", "eth0"):
        run("ip", "-netns", netns, "link", "set", device, "up")
    run("ip", "-netns", netns, "route", "add", "default", "via", plan.machine_network.replace(".0/22", ".1"))


def _cloud(plan: Plan, *command: str) -> None:
    run("nsenter", f"--net=/run/netns/{plan.cloud.netns}", *command)


@contextmanager
def _serving(plan: Plan, place: str, address: str, *ports: int) -> Iterator[None]:
    """A server in a namespace, for these ports of an address."""
    argv = _in(plan, place, _SERVE, address, *ports)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "serving\n"
            yield
        finally:
            process.kill()


def _in(plan: Plan, place: str, code: str, *arguments: str | int) -> list[str]:
    inside = [] if place == USER else ["nsenter", f"--net=/run/netns/{plan.netns(place)}"]
    return [*inside, sys.executable, "-c", code, *map(str, arguments)]


def reached(plan: Plan, place: str, address: str, *ports: int) -> list[int]:
    """Ports of an address that take a connection from a place."""
    taken = run(*_in(plan, place, CONNECT, *(f"{port}/{address}/{port}" for port in ports))).split()
    return [port for port in ports if str(port) in taken]


@pytest.mark.attack(actor="T2", asset="A5", finding=19)
def test_a_machine_beside_those_of_a_managed_seed_reaches_no_central_service(plan: Plan) -> None:
    """The machines of all Shoots are on one network. A seed needs the garden, Temporal and the object store."""
    asyncio.run(network.admit_machines(plan, [machine_address(plan, OF_A_SEED)]))

    assert reached(plan, OF_A_SEED, plan.central_address, *CENTRAL) == [53, *NEEDED]
    assert reached(plan, OF_OTHERS, plan.central_address, *CENTRAL) == [53]
    assert reached(plan, OF_A_SEED, plan.garden_link("cloud").left_address, *CENTRAL) == []


@pytest.mark.attack(actor="T2", asset="A5", finding=28)
def test_a_machine_that_backs_up_reaches_the_garden_and_temporal(plan: Plan) -> None:
    """A self-hosted Shoot needs the object store alone, which asks each client for its key."""
    asyncio.run(network.admit_machines(plan, [], [machine_address(plan, OF_A_SEED)]))

    assert reached(plan, OF_A_SEED, plan.central_address, *CENTRAL) == [53, 9001, 9002]
    assert reached(plan, OF_OTHERS, plan.central_address, *CENTRAL) == [53]


@pytest.mark.attack(actor="T2", asset="A5", finding=19)
def test_a_machine_whose_shoot_is_a_seed_no_more_reaches_no_central_service(plan: Plan) -> None:
    admitted = [machine_address(plan, OF_A_SEED)]
    asyncio.run(network.admit_machines(plan, admitted))
    assert not asyncio.run(network.admit_machines(plan, admitted)), "a second run changes nothing"

    assert asyncio.run(network.admit_machines(plan, []))

    assert reached(plan, OF_A_SEED, plan.central_address, *CENTRAL) == [53]


@pytest.mark.attack(actor="T3", asset="A3", finding=19)
def test_a_seed_reaches_no_load_balancers_of_shoots_but_the_ports_of_gateways(plan: Plan) -> None:
    """The gateway of a managed seed has a public address, and the gateways of other seeds forward clients to it."""
    for seed in plan.seeds:
        assert reached(plan, seed.name, public_address(plan), *BALANCED) == list(GATEWAY_PORTS)
        assert reached(plan, seed.name, machine_address(plan, OF_A_SEED), *BALANCED) == []
    assert reached(plan, OF_OTHERS, public_address(plan), *BALANCED) == list(BALANCED), "as through the internet"
    assert reached(plan, "garden", public_address(plan), *BALANCED) == []
