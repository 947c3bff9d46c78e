"""The front door of a landscape's garden: all clients use it, either of its two Envoys may end, none gets round it."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from landscape import plan as plans
from landscape.plan import Plan
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import NAMESPACE, Shoot, eventually

pytestmark = pytest.mark.chaos
DOORS = ("garden/front-door-1", "garden/front-door-2")
REQUESTS = 20
"""New connections; the kernel gives each of them to one of the Envoys that run."""


@pytest.fixture
def plan(landscape: Landscape) -> Plan:
    found = plans.load(landscape.name)
    assert found is not None
    return found


@pytest.fixture
def one_door(landscape: Landscape) -> Iterator[str]:
    """The only Envoy: the other one is killed, and the keeper that would start it again is paused meanwhile."""
    ended, left = DOORS
    landscape.gardener("pause", "keeper")
    try:
        landscape.gardener("kill", ended)
        yield left
    finally:
        landscape.gardener("resume", "keeper")
    eventually(lambda: landscape.status["processes"][ended]["state"] == "Running", f"{ended} runs again", 60)


def test_users_are_served_while_one_of_the_two_envoys_is_gone(landscape: Landscape, one_door: str) -> None:
    assert landscape.status["processes"][DOORS[0]]["state"] == "Dead"
    for _ in range(REQUESTS):
        assert "landscape-admin" in landscape.kubectl("garden", "auth", "whoami")
    assert landscape.status["processes"][one_door]["state"] == "Running"


def test_documented_commands_get_a_kubeconfig_of_a_shoot(landscape: Landscape, shoot: Shoot) -> None:
    """The command of Gardener's documents, as it is; either Envoy and either subresource server may answer."""
    request = json.dumps({"spec": {"expirationSeconds": 600}})
    for subresource in ("adminkubeconfig", "viewerkubeconfig"):
        path = f"/apis/core.gardener.cloud/v1beta1/namespaces/{NAMESPACE}/shoots/{shoot.name}/{subresource}"
        answer = json.loads(landscape.kubectl("garden", "create", "--raw", path, "-f", "-", stdin=request))
        assert answer["spec"]["expirationSeconds"] == 600
        assert answer["status"]["kubeconfig"]


def test_kube_apiserver_listens_behind_the_front_door_alone(plan: Plan) -> None:
    """The two Envoys have the garden's address, and kube-apiserver only the loopback address of its network."""
    command = ["nsenter", f"--net=/run/netns/{plan.netns('garden')}", "ss", "-Hltnp", "sport = :6443"]
    listeners = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    by_address: dict[str, set[str]] = {}
    for line in listeners:
        by_address.setdefault(line.split()[3], set()).add(line.split('"')[1])
    assert by_address == {f"{plan.central_address}:6443": {"envoy"}, "127.0.0.1:6443": {"kube-apiserver"}}
