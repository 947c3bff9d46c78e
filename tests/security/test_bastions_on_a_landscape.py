"""The way through a Bastion is open to its sources, and leads to SSH servers of machines only, on a landscape."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from activities.provider_local.bastion import LABEL
from landscape.plan import Plan, load
from tests.landscape.bastions import KIND, NAME, bastion, in_cloud, left_in_cloud, names, wait_until_ready
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(180, func_only=True)]

_CONNECT = """
import socket, sys
for each in sys.argv[1:]:
    address, port = each.rsplit(":", 1)
    try:
        socket.create_connection((address, int(port)), 3).close()
    except OSError:
        continue
    print(each)
"""
"""Prints the places that take a connection."""


@dataclass(frozen=True)
class Open:
    """A Bastion that is open to the user of this machine."""

    shoot: Shoot
    plan: Plan
    address: str
    pod: str
    """Its address among the machines."""

    @property
    def user(self) -> str:
        """Address by which cloud and garden know this machine."""
        return self.plan.host_link("garden").left_address

    def lets_in(self, source: str) -> bool:
        try:
            socket.create_connection((self.address, 22), 3, (source, 0)).close()
        except OSError:
            return False
        return True

    def reached_from(self, kind: str, *places: str) -> list[str]:
        """Places that take a connection from a pod of the cloud with this label."""
        pod = in_cloud(self.shoot, "get", "pods", "-l", kind, "-o", "name").split()[0]
        return in_cloud(self.shoot, "exec", pod, "-c", "machine", "--", "python3", "-c", _CONNECT, *places).split()


@pytest.fixture(scope="module")
def opened(shoot: Shoot) -> Iterator[Open]:
    plan = load(shoot.landscape.name)
    assert plan is not None
    ingress = [{"ipBlock": {"cidr": f"{plan.host_link('garden').left_address}/32"}}]
    shoot.garden("create", "-f", "-", stdin=json.dumps(bastion(shoot, ingress=ingress)))
    try:
        wait_until_ready(shoot)
        address = shoot.garden("get", KIND, NAME, "-o", "jsonpath={.status.ingress.ip}")
        pod = in_cloud(shoot, "get", "pods", "-l", LABEL, "-o", "jsonpath={.items[0].status.podIP}")
        yield Open(shoot, plan, address, pod)
    finally:
        shoot.garden("delete", KIND, NAME)
        eventually(lambda: not names(shoot, KIND), "no Bastion is left", 30)
    assert left_in_cloud(shoot) == []


def _address_of_a_machine(shoot: Shoot) -> str:
    return in_cloud(shoot, "get", "pods", "-l", "app=machine", "-o", "jsonpath={.items[0].status.podIP}")


@pytest.mark.attack(actor="T6", asset="A3", finding=19)
def test_an_address_outside_the_ingress_connects_to_a_bastion(opened: Open) -> None:
    eventually(lambda: opened.lets_in(opened.user), "the user's address gets in", 10)

    assert not opened.lets_in(opened.plan.host_link("cloud").left_address)
    assert not opened.lets_in(opened.plan.host_link("seed-1").left_address)


@pytest.mark.attack(actor="T2", asset="A3", finding=19)
def test_a_machine_connects_to_a_bastion_at_its_address_or_beside_its_rules(opened: Open) -> None:
    """Machines of all Shoots are in one network with the bastion."""
    machine = _address_of_a_machine(opened.shoot)

    ways = opened.reached_from("app=machine", f"{opened.address}:22", f"{opened.pod}:22", f"{machine}:22")
    assert ways == [f"{machine}:22"]


@pytest.mark.attack(actor="T1", asset="A3", finding=19)
def test_a_bastion_opens_connections_to_more_than_ssh_servers_of_machines(opened: Open) -> None:
    machine = _address_of_a_machine(opened.shoot)
    others = (
        f"{machine}:10250",
        f"{opened.plan.central_address}:53",
        f"{opened.plan.central_address}:6443",
        f"{opened.plan.cluster('seed-1').address}:443",
        f"{opened.plan.cloud.address}:6443",
    )

    assert opened.reached_from("app=bastion", f"{machine}:22", *others) == [f"{machine}:22"]


@pytest.mark.attack(actor="T6", asset="A3", finding=19)
def test_an_address_that_was_taken_from_the_ingress_connects_to_a_bastion(opened: Open) -> None:
    eventually(lambda: opened.lets_in(opened.user), "the user's address gets in", 10)
    change = {"spec": {"ingress": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}}

    opened.shoot.garden("patch", KIND, NAME, "--type=merge", "-p", json.dumps(change))
    eventually(lambda: not opened.lets_in(opened.user), "the user's address gets nowhere", 20)
