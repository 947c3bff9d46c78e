"""Pools whose machines are updated in place: each machine and its Node stay, and pods leave the Node meanwhile.

The tests run in the order in which they stand, each on what the one before has left.
"""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from api.machine import in_place
from tests.landscape import pods
from tests.landscape.bastions import in_cloud
from tests.landscape.conftest import Landscape
from tests.landscape.load import check_all_answered, counted, nodes_by_pod, run_under_load
from tests.landscape.shoots import Shoot, eventually, refused

pytestmark = [pytest.mark.landscape, pytest.mark.slow, pytest.mark.timeout(480, func_only=True)]

RECONCILIATION = 360
OLD, NEW = "1.0.0", "1.1.0"
"""Versions of the machine image."""
SELECTED = f"{in_place.SELECTED}=true"
_MACHINE_CONTROLLERS = "app=machine-controller-manager"
"""Label of their pods."""
_RESERVED = {"cpu": "90m", "memory": "64Mi"}


@dataclass(frozen=True)
class Seen:
    """A Node and its Machine, as far as an update may not or must change them."""

    uid: str
    machine: str
    """Uid of the Machine."""
    system: str
    """Name of the operating system, which has the version of the image after an update."""
    cpu: str
    """CPU that is left for pods."""


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot with a pool of each strategy, and a CloudProfile that offers a newer version of the machine image."""
    shoot = Shoot(landscape, "in-place", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest()
    (first,) = manifest["spec"]["provider"]["workers"]
    plain = {"machine": {"type": first["machine"]["type"], "image": {"name": "local", "version": OLD}}}
    manifest["spec"]["provider"]["workers"] = [
        {"name": "auto", **plain, "minimum": 2, "maximum": 2, "updateStrategy": "AutoInPlaceUpdate"},
        {"name": "manual", **plain, "minimum": 1, "maximum": 1, "updateStrategy": "ManualInPlaceUpdate"},
    ]
    profile = json.loads(landscape.kubectl("garden", "get", "cloudprofile", "local", "-o", "json"))
    (offered,) = profile["spec"]["machineImages"]
    reachable = {"supported": True, "minVersionForUpdate": OLD}
    before = [each for each in offered["versions"] if each["version"] != NEW]
    _offer(landscape, [*before, {**before[0], "version": NEW, "inPlaceUpdates": reachable}])
    try:
        with shoot.created(manifest):
            yield shoot
    finally:
        _offer(landscape, before)


def test_an_automatic_update_keeps_machines_and_nodes_and_serves_while_processes_are_killed(shoot: Shoot) -> None:
    run_under_load(shoot, "auto", client="manual")
    before, replicas = _seen(shoot), nodes_by_pod(shoot, "auto")
    assert set(replicas.values()) == shoot.nodes()["auto"], "one replica on each machine"
    eventually(lambda: counted(shoot)["answered"] > 50, "the client's first requests", 60)

    _change(shoot, "auto", {"kubernetes": {"kubelet": {"kubeReserved": _RESERVED}}}, version=NEW)
    draining = eventually(lambda: _unschedulable(shoot), "a node that is drained", 180)
    _kill_machine_controllers(shoot)
    for node in draining:
        _kill_node_agent(shoot, node)
    eventually(lambda: _is_new(shoot, "auto"), "the first updated machine", 180)
    _kill_machine_controllers(shoot)
    shoot.wait_until_reconciled(RECONCILIATION)

    after = _seen(shoot)
    for node in shoot.nodes()["auto"]:
        assert (after[node].uid, after[node].machine) == (before[node].uid, before[node].machine), "it is the same"
        assert f"(image {NEW})" in after[node].system
        assert after[node].cpu != before[node].cpu, "the kubelet has its new reservation"
    (other,) = shoot.nodes()["manual"]
    assert after[other] == before[other]
    eventually(lambda: not _traces(shoot), "nodes without traces of the update", 120)
    check_all_answered(shoot)
    assert not nodes_by_pod(shoot, "auto").keys() & replicas.keys(), "each node was drained"
    assert "inPlaceUpdates" not in shoot.get()["status"]


def test_a_manual_update_waits_for_the_label_of_the_node(shoot: Shoot) -> None:
    before = _seen(shoot)
    (node,) = shoot.nodes()["manual"]
    _change(shoot, "manual", {}, version=NEW)
    shoot.wait_until_reconciled(RECONCILIATION)

    assert _pending(shoot) == {"manualInPlaceUpdate": ["manual"]}
    told = eventually(lambda: _constraint(shoot), "constraint ManualInPlaceWorkersUpdated", 120)
    assert told["status"] in ("Progressing", "False"), "Progressing at first, as all constraints"
    assert told["message"].endswith("manual")
    assert _label(shoot, node, in_place.CANDIDATE) == "true"
    assert _seen(shoot)[node] == before[node]
    said = refused(*_patch_of(shoot, "manual", {"maximum": 2}))
    assert "an in-place update of pool manual is pending" in said

    shoot.kubectl("label", "node", node, SELECTED)
    eventually(lambda: not _pending(shoot), "the end of the update", 240)

    after = _seen(shoot)
    assert (after[node].uid, after[node].machine) == (before[node].uid, before[node].machine)
    assert f"(image {NEW})" in after[node].system
    eventually(lambda: not _traces(shoot), "a node without traces of the update", 120)
    eventually(lambda: not _constraint(shoot), "the end of the constraint", 120)


def test_a_rotation_updates_nodes_in_place_and_goes_on_after_the_last_manual_one(shoot: Shoot) -> None:
    before = _seen(shoot)
    (node,) = shoot.nodes()["manual"]
    shoot.garden("annotate", "shoot", shoot.name, "gardener.cloud/operation=rotate-ca-start")
    shoot.wait_for_rotation("certificateAuthorities", "Preparing", 60)
    eventually(lambda: _pending(shoot) == {"manualInPlaceUpdate": ["manual"]}, "the manual pool alone waits", 420)
    assert _phase(shoot) == "Preparing"

    shoot.kubectl("label", "node", node, SELECTED)
    shoot.wait_for_rotation("certificateAuthorities", "Prepared", RECONCILIATION)

    after = _seen(shoot)
    for each in shoot.nodes()["auto"] | {node}:
        assert (after[each].uid, after[each].machine) == (before[each].uid, before[each].machine)
    users = shoot.gardener("credentials", "status", shoot.reference)
    for each in shoot.nodes()["auto"] | {node}:
        assert each not in users, "certificates of the machine are of the new authority"


# The Shoot


def _offer(landscape: Landscape, versions: list[dict[str, Any]]) -> None:
    patch = [{"op": "replace", "path": "/spec/machineImages/0/versions", "value": versions}]
    landscape.kubectl("garden", "patch", "cloudprofile", "local", "--type=json", "-p", json.dumps(patch))


def _changed(shoot: Shoot, pool: str, fields: dict[str, Any], version: str = "") -> dict[str, Any]:
    workers = shoot.get()["spec"]["provider"]["workers"]
    (found,) = [each for each in workers if each["name"] == pool]
    found.update(fields)
    if version:
        found["machine"]["image"]["version"] = version
    return {"provider": {"workers": workers}}


def _change(shoot: Shoot, pool: str, fields: dict[str, Any], version: str = "") -> None:
    shoot.change(_changed(shoot, pool, fields, version))


def _patch_of(shoot: Shoot, pool: str, fields: dict[str, Any]) -> list[str]:
    """Command line that changes a pool."""
    patch = json.dumps({"spec": _changed(shoot, pool, fields)})
    return shoot.landscape.argv(
        "garden", "-n", shoot.namespace, "patch", "shoot", shoot.name, "--type=merge", "-p", patch
    )


def _pending(shoot: Shoot) -> dict[str, list[str]]:
    """Pools whose update is pending, by the field of the status."""
    status = shoot.get()["status"].get("inPlaceUpdates") or {}
    return {field: names for field, names in (status.get("pendingWorkerUpdates") or {}).items() if names}


def _constraint(shoot: Shoot) -> dict[str, Any] | None:
    constraints = shoot.get()["status"].get("constraints") or []
    return next((each for each in constraints if each["type"] == "ManualInPlaceWorkersUpdated"), None)


def _phase(shoot: Shoot) -> str:
    phase: str = shoot.get()["status"]["credentials"]["rotation"]["certificateAuthorities"]["phase"]
    return phase


# Nodes


def _nodes(shoot: Shoot) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]
    return found


def _seen(shoot: Shoot) -> dict[str, Seen]:
    machines = json.loads(shoot.control_plane("get", "machines", "-o", "json"))["items"]
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in machines}
    return {
        node["metadata"]["name"]: Seen(
            uid=node["metadata"]["uid"],
            machine=uids[node["metadata"]["name"]],
            system=node["status"]["nodeInfo"]["osImage"],
            cpu=node["status"]["allocatable"]["cpu"],
        )
        for node in _nodes(shoot)
    }


def _is_new(shoot: Shoot, pool: str) -> bool:
    """Whether a machine of the pool has the new image."""
    mine = shoot.nodes()[pool]
    return any(f"(image {NEW})" in each.system for name, each in _seen(shoot).items() if name in mine)


def _unschedulable(shoot: Shoot) -> list[str]:
    return [node["metadata"]["name"] for node in _nodes(shoot) if node["spec"].get("unschedulable")]


def _traces(shoot: Shoot) -> list[str]:
    """Names of Nodes that pods cannot use, or that have labels of an update."""
    marks = {in_place.CANDIDATE, in_place.SELECTED, in_place.RESULT}
    return [
        node["metadata"]["name"]
        for node in _nodes(shoot)
        if node["spec"].get("unschedulable") or node["spec"].get("taints") or marks & node["metadata"]["labels"].keys()
    ]


def _label(shoot: Shoot, node: str, label: str) -> str:
    (found,) = [each for each in _nodes(shoot) if each["metadata"]["name"] == node]
    value: str = found["metadata"]["labels"].get(label, "")
    return value


def _kill_machine_controllers(shoot: Shoot) -> None:
    """End the machine controllers by SIGKILL: they cannot finish what they do."""
    found = json.loads(shoot.control_plane("get", "pods", "-l", _MACHINE_CONTROLLERS, "-o", "json"))["items"]
    killed = [pid for pod in found for pid in pods.processes_of(pod["metadata"]["uid"]) if _runs_python(pid)]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert killed, "no process of the machine controllers was found"


def _runs_python(pid: int) -> bool:
    """Whether it is not the process that only holds the namespaces of the pod."""
    with open(f"/proc/{pid}/cmdline", "rb") as command:
        return b"python" in command.read()


def _kill_node_agent(shoot: Shoot, node: str) -> None:
    in_cloud(shoot, "exec", node, "--", "systemctl", "kill", "--signal=KILL", "gardener-node-agent.service")
