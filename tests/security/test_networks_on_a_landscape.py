"""A node or a pod reaches addresses that its network or namespace must deny, on a landscape."""

import json

import pytest

from landscape.plan import Plan, load
from tests.landscape.shoots import Shoot, refused

pytestmark = pytest.mark.landscape

_CONNECT = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), 3).close()
    except OSError:
        continue
    print(port)
"""
"""Prints the ports that take a connection."""


def _plan(shoot: Shoot) -> Plan:
    plan = load(shoot.landscape.name)
    assert plan is not None
    return plan


def _open_ports(shoot: Shoot, address: str, *ports: int) -> list[int]:
    """Ports of an address that take a connection from a machine of the Shoot."""
    machine = min(name for pool in shoot.nodes().values() for name in pool)
    command = ["python3", "-c", _CONNECT, address, *map(str, ports)]
    said = shoot.landscape.kubectl("cloud", "-n", f"infra-{shoot.technical_id}", "exec", machine, "--", *command)
    return [int(line) for line in said.split()]


@pytest.mark.attack(actor="T2", asset="A5", finding=19)
def test_a_machine_reaches_no_central_service_but_the_dns(shoot: Shoot) -> None:
    """Temporal with its HTTP port and its UI, the codec server, the object store and the garden are at one address."""
    central = _open_ports(shoot, _plan(shoot).central_address, 53, 6443, 7233, 7243, 8233, 8234, 9001, 9002, 9443, 9444)

    assert central == [53]


@pytest.mark.attack(actor="T2", asset="A2", finding=19)
def test_a_machine_reaches_gateways_and_nothing_else_of_a_seed(shoot: Shoot) -> None:
    """The API servers of a seed and of the garden's other addresses are behind the same links."""
    plan = _plan(shoot)

    for seed in plan.seeds:
        assert _open_ports(shoot, seed.address, 443, 6443, 10250) == [443]
    assert _open_ports(shoot, plan.garden_link("cloud").left_address, 53, 6443, 7233, 9001, 9002) == []


_WRITE = """
import ssl, sys, urllib.error, urllib.request
trusting = ssl._create_unverified_context()
for method, path in (("GET", ""), ("POST", "team/app/blobs/uploads/"), ("PUT", "team/app/manifests/v1"),
                     ("DELETE", "team/app/manifests/v1")):
    request = urllib.request.Request(f"{sys.argv[1]}/v2/{path}", data=None if method == "GET" else b"{}", method=method)
    try:
        print(urllib.request.urlopen(request, timeout=10, context=trusting).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
"""Prints the answers of a registry to writes."""


@pytest.mark.attack(actor="T2", asset="A7", finding=40)
def test_a_machine_reads_the_registry_and_writes_nothing(shoot: Shoot) -> None:
    """Other Shoots pull from the registry."""
    plan = _plan(shoot)
    machine = min(name for pool in shoot.nodes().values() for name in pool)
    command = ["python3", "-c", _WRITE, plan.registry_endpoint]

    said = shoot.landscape.kubectl("cloud", "-n", f"infra-{shoot.technical_id}", "exec", machine, "--", *command)

    assert said.split() == ["200", "405", "405", "405"]
    assert _open_ports(shoot, plan.central_address, 5000) == []


@pytest.mark.attack(actor="T4", asset="A2", finding=8)
@pytest.mark.parametrize(
    "change",
    [
        {"hostNetwork": True},
        {"hostPID": True},
        {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
        {"containers": [{"name": "root", "image": "x", "securityContext": {"privileged": True}}]},
        {"containers": [{"name": "x", "image": "x", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
        {"initContainers": [{"name": "root", "image": "x", "securityContext": {"privileged": True}}]},
        {"containers": [{"name": "x", "image": "x", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_pod_that_reaches_its_host_is_refused_in_a_control_plane(shoot: Shoot, change: dict[str, object]) -> None:
    """An extension may create pods in the control planes that it serves. A seed's node holds all of them."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "intruder", "namespace": shoot.technical_id},
        "spec": {"containers": [{"name": "x", "image": "x"}], **change},
    }
    argv = shoot.landscape.argv(shoot.seed, "create", "--dry-run=server", "-f", "-")

    assert "pod of a control plane" in refused(*argv, stdin=json.dumps(pod))
