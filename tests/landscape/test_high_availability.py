"""A control plane gets tolerant of failures while clients read and write; members are killed, and lose their data.

What was acknowledged is there afterwards, and two members serve while the third is away.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.landscape import wire
from tests.landscape.conftest import Landscape
from tests.landscape.probe import Probe
from tests.landscape.shoots import Shoot, eventually, refused
from tests.landscape.tunnel import Asking, pods_of_tunnel

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

_ETCDS = ("etcd-main", "etcd-events")
_CHANGE_SECONDS = 180.0
_BACK_SECONDS = 120.0
_ROTATION_SECONDS = 900.0
_KILL = """
import os
for process in filter(str.isdigit, os.listdir("/proc")):
    if open(f"/proc/{process}/comm").read() == "etcd\\n":
        os.kill(int(process), 9)
"""
_TOLERANCE = {"controlPlane": {"highAvailability": {"failureTolerance": {"type": "node"}}}}


@dataclass(frozen=True)
class Tolerant:
    """A Shoot whose etcd had one member, and what was seen since."""

    shoot: Shoot
    probe: Probe
    silences: dict[str, float]
    """The longest time without an answer, by what was done."""
    before: dict[str, str]
    after: dict[str, str]
    """Ids of etcd-main's members before one lost its data, and since."""


@pytest.fixture(scope="module")
def tolerant(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tolerant]:
    shoot = Shoot(landscape, "tolerant", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created():
        yield _harm(shoot)


def _harm(shoot: Shoot) -> Tolerant:
    silences: dict[str, float] = {}
    with Probe(shoot).running() as probe:
        eventually(lambda: len(probe.answered) > 20, "the probe is answered", 30)

        def note(what: str) -> None:
            answered = len(probe.answered)
            eventually(lambda: len(probe.answered) > answered + 20, f"the probe is answered after: {what}", 60)
            silences[what] = probe.longest_silence
            probe.answered[:] = probe.answered[-1:]
            print(f"{what}: longest silence {silences[what]:.1f} s", flush=True)

        note("one member")
        shoot.change(_TOLERANCE)
        shoot.wait_until_reconciled(_CHANGE_SECONDS)
        for etcd in _ETCDS:
            _await_members(shoot, etcd)
        note("two more joined")
        leader = next(each["name"] for each in _members(shoot) if each["role"] == "Leader")
        restarts = _restarts(shoot, leader)
        shoot.control_plane("exec", leader, "-c", "etcd", "--", "python3", "-c", _KILL)
        eventually(lambda: _restarts(shoot, leader) != restarts, f"{leader} was killed", 30)
        _await_members(shoot, "etcd-main")
        note("the leader was killed")
        before = {each["name"]: each["id"] for each in _members(shoot)}
        uid = _uid(shoot, "etcd-main-0")
        shoot.control_plane("delete", "pvc", "main-etcd-etcd-main-0", "--wait=false")
        shoot.control_plane("delete", "pod", "etcd-main-0")
        eventually(lambda: _uid(shoot, "etcd-main-0") not in ("", uid), "etcd-main-0 has another pod", 60)
        eventually(lambda: _ids(shoot)["etcd-main-0"] != before["etcd-main-0"], "it joined again", _BACK_SECONDS)
        _await_members(shoot, "etcd-main")
        note("a member lost its data")
    return Tolerant(shoot, probe, silences, before, _ids(shoot))


def _members(shoot: Shoot, etcd: str = "etcd-main") -> list[dict[str, Any]]:
    live = json.loads(shoot.control_plane("get", "etcds.druid.gardener.cloud", etcd, "-o", "json"))
    members: list[dict[str, Any]] = live["status"]["members"]
    return members


def _ids(shoot: Shoot) -> dict[str, str]:
    return {each["name"]: each.get("id", "") for each in _members(shoot)}


def _uid(shoot: Shoot, pod: str) -> str:
    return shoot.control_plane("get", "pod", pod, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")


def _restarts(shoot: Shoot, pod: str) -> str:
    path = "jsonpath={.status.containerStatuses[?(@.name=='etcd')].restartCount}"
    return shoot.control_plane("get", "pod", pod, "-o", path)


def _await_members(shoot: Shoot, etcd: str) -> None:
    def complete() -> bool:
        members = _members(shoot, etcd)
        ready = [each for each in members if each["status"] == "Ready" and each.get("id")]
        return len(ready) == 3 and sum(each["role"] == "Leader" for each in ready) == 1

    eventually(complete, f"three members of {etcd} are ready, and one leads", _BACK_SECONDS)


def test_no_acknowledged_write_is_lost(tolerant: Tolerant) -> None:
    assert not tolerant.probe.lost


def test_two_members_serve_while_the_third_is_away(tolerant: Tolerant) -> None:
    """The machine of the tests is small, and busy."""
    print(", ".join(f"{what}: {seconds:.1f} s" for what, seconds in tolerant.silences.items()))
    assert tolerant.silences["the leader was killed"] < 30
    assert tolerant.silences["a member lost its data"] < 30


def test_a_member_that_lost_its_data_is_replaced_and_the_others_stay(tolerant: Tolerant) -> None:
    changed = {name for name in tolerant.after if tolerant.after[name] != tolerant.before[name]}
    assert changed == {"etcd-main-0"}


def test_an_etcd_with_a_replaced_member_is_healthy_and_backed_up(tolerant: Tolerant) -> None:
    shoot = tolerant.shoot
    for condition in ("APIServerAvailable", "ControlPlaneHealthy"):
        shoot.garden("wait", f"--for=condition={condition}", f"shoot/{shoot.name}", "--timeout=60s", timeout=70)
    shoot.control_plane("wait", "--for=condition=BackupReady", "etcds.druid.gardener.cloud/etcd-main", "--timeout=60s")
    pods = shoot.control_plane("get", "pods", "-l", "app=kubernetes,role=apiserver", "-o", "name").split()
    assert len(pods) == 2


@pytest.mark.parametrize("server", [True, False], ids=["server", "client"])
def test_the_loss_of_either_end_of_the_tunnel_refuses_no_request(tolerant: Tolerant, *, server: bool) -> None:
    shoot = tolerant.shoot
    pods = pods_of_tunnel(shoot, server=server)
    assert len(pods) == 2
    for pod in pods:
        with Asking(shoot).running() as asking:
            eventually(partial(asking.has_answers, 20), "the kubelet answers", 30)
            kubectl = shoot.control_plane if server else partial(shoot.kubectl, "-n", "kube-system")
            kubectl("delete", pod, "--grace-period=0", "--force")
            before = asking.answered

            def replaced(before: int = before, asking: Asking = asking, pod: str = pod) -> bool:
                left = pods_of_tunnel(shoot, server=server)
                return pod not in left and len(left) == 2 and asking.answered > before + 50

            eventually(replaced, f"{pod} is replaced", _BACK_SECONDS)
        print(f"{pod}: {asking}")
        assert not asking.failed, asking.failed


@pytest.mark.timeout(2000, func_only=True)
def test_members_take_other_authorities_while_they_serve(tolerant: Tolerant) -> None:
    """One after the other, each trusting both before any shows a new certificate: never more than one is away."""
    shoot, old = tolerant.shoot, wire.authorities(tolerant.shoot)
    assert set(wire.peers(shoot, old).values()) == {"old; old"}
    for begin, phase, expected in (
        (["rotate", shoot.reference, "ca"], "Prepared", "new; old and new"),
        (["complete", shoot.reference, "ca", "--force", "--reason", "a test's"], "Completed", "new; new"),
    ):
        shoot.has_moved()  # to a kubeconfig of now
        with Probe(shoot, f"probe-{phase.lower()}").running() as probe:
            eventually(lambda: len(probe.answered) > 20, "the probe is answered", 30)
            shoot.gardener("credentials", *begin)
            shoot.wait_for_rotation("certificateAuthorities", phase, _ROTATION_SECONDS)
            shown = wire.peers(shoot, old)
            print(f"{phase}: {shown}, longest silence {probe.longest_silence:.1f} s")
            assert list(shown.values()) == [expected] * 3
            assert probe.longest_silence < 30
        assert not probe.lost
    assert _ids(shoot) == tolerant.after


def test_a_control_plane_stays_tolerant(tolerant: Tolerant) -> None:
    patch = json.dumps({"spec": {"controlPlane": None}})
    kubeconfig = tolerant.shoot.landscape.directory / "kubeconfigs/garden.yaml"
    told = refused(
        *(tolerant.shoot.argv()[0], f"--kubeconfig={kubeconfig}", "-n", "garden-local"),
        *("patch", "shoot", tolerant.shoot.name, "--type=merge", "-p", patch),
    )
    assert "spec.controlPlane.highAvailability.failureTolerance.type: Invalid value" in told
