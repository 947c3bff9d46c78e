"""A control plane leaves a seed that takes no part: one that is dead, one that is cut off, one that stands still.

An operator says so. What the seed did not back up any more is lost; nodes, pods, volumes and load balancers go on. The
seed comes back later, as one that knows nothing of it: it serves no client, and cleans up its remains of the cluster
and nothing else.
``GARDENER_TEST_MOVES=10`` does each ten times, for the figures.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest.fixtures import SubRequest

from tests.landscape import pods
from tests.landscape.audit import AuditLogs, assert_one_after_the_other
from tests.landscape.conftest import Landscape
from tests.landscape.pods import PROBE
from tests.landscape.probe import Probe, await_pods, running
from tests.landscape.shoots import MOVES, Shoot, background, eventually
from tests.landscape.test_load_balancers import WEB, Balanced, Visitor, address_of, asked
from tests.landscape.test_volumes import Volumes, claim

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

DELTA = 10
"""Seconds: what is older is in the bucket (landscape.workers)."""
_SLACK = 3.0
"""For a delta to be uploaded by a busy machine."""
_MOVE_SECONDS = 240.0
_CLEAN_SECONDS = 180.0

_SEED_CLEANS, _SHOOT_WAITS = "MovedControlPlanesCleanedUp", "SourceSeedCleanedUp"

FAULTS = {
    "killed": (["kill"], ["up"]),
    "cut": (["cut", "--serving"], ["heal"]),
    "paused": (["pause"], ["resume"]),
}
"""How a seed is taken out, and brought back."""


@dataclass(frozen=True)
class Move:
    """A Shoot whose seed went away, and came back when its control plane was elsewhere."""

    shoot: Shoot
    source: str
    destination: str
    before: dict[str, Any]
    after: dict[str, Any]
    probe: Probe
    zombie: Probe
    """Requests to the old seed, whatever the DNS says."""
    visitor: Visitor
    audit: AuditLogs
    gone: float
    told: float
    back: float
    """Monotonic seconds: the seed was out, the operator told it, the seed was back."""
    lost: dict[str, float]
    phases: list[dict[str, Any]]
    telling: subprocess.Popen[str]
    """Ends well when the old Seed has said that it cleans up."""

    @property
    def served(self) -> float:
        """When the first write was answered by the new seed; what the old one takes now is lost."""
        return min(at for name, at in self.probe.written.items() if at > self.told and name not in self.lost)


@pytest.fixture(scope="module")
def victim(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot with a pod that has a volume, and a Service of type LoadBalancer."""
    shoot = Shoot(landscape, "victim", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created():
        volumes = Volumes(shoot)
        volumes.apply(pods.namespace(), claim("data"))
        volumes.start("writer", "data")
        volumes.run("writer", "echo kept > /data/file")
        balanced = Balanced(shoot)
        balanced.apply(pods.python("balanced", 1, WEB))
        balanced.service("public")
        await_pods(shoot)
        yield shoot


@pytest.fixture(scope="module", params=[(each, number) for each in FAULTS for number in range(MOVES)])
def moved(victim: Shoot, request: SubRequest) -> Iterator[Move]:
    shoot, landscape = victim, victim.landscape
    fault, number = request.param
    out, back = FAULTS[fault]
    shoot.has_moved()
    source, destination = shoot.seed, shoot.other_seed
    before = running(shoot)
    with ExitStack() as stack:
        audit = stack.enter_context(AuditLogs(shoot).followed())
        probe = stack.enter_context(Probe(shoot, f"probe-{fault}{number}").running())
        zombie = stack.enter_context(Probe(shoot, f"zombie-{fault}{number}", landscape.address(source)).running())
        eventually(lambda: min(len(probe.answered), len(zombie.answered)) > 20, "the probes are answered", 60)
        address = address_of(Balanced(shoot).wait("public"))
        eventually(lambda: asked(address), "the Service answers", 60)
        visitor = stack.enter_context(Visitor(address).asking())
        time.sleep(2 * DELTA)  # there is something that is old enough to be backed up
        landscape.gardener(*out, source)
        gone = time.monotonic()
        stack.callback(bring_back, landscape, back, source)
        move = ["shoot", "move", shoot.reference, "--to", destination, "--source-lost", "--follow", "-o", "json"]
        told = time.monotonic()
        text = shoot.gardener(*move, timeout=_MOVE_SECONDS)
        answered = len(probe.answered)
        eventually(lambda: len(probe.answered) > answered + 20, "the probe is answered after the move", 60)
        shoot.has_moved()
        await_pods(shoot)
        waits = f"--for=condition={_SHOOT_WAITS}=Progressing"
        shoot.garden("wait", "shoot", shoot.name, waits, "--timeout=60s", timeout=70)
        after = running(shoot)
        cleans = f"--for=condition={_SEED_CLEANS}=Progressing"
        waiting = landscape.argv("garden", "wait", "seed", source, cleans, f"--timeout={_CLEAN_SECONDS:.0f}s")
        telling = stack.enter_context(background(waiting))
        bring_back(landscape, back, source)
        came_back = time.monotonic()
        yield Move(
            shoot, source, destination, before, after, probe, zombie, visitor, audit, gone, told, came_back,
            probe.lost | zombie.lost, [json.loads(line) for line in text.splitlines()], telling,
        )  # fmt: skip


def _conditions(moved: Move) -> dict[str, dict[str, str]]:
    """Conditions of the Shoot, and of the Seed that was away."""
    seed = json.loads(moved.shoot.landscape.kubectl("garden", "get", "seed", moved.source, "-o", "json"))
    return {each["type"]: each for obj in (moved.shoot.get(), seed) for each in obj["status"]["conditions"]}


def bring_back(landscape: Landscape, command: list[str], seed: str) -> None:
    landscape.gardener(*command, *([] if command == ["up"] else [seed]), timeout=300)


def test_the_destination_serves_soon(moved: Move) -> None:
    print(f"served {moved.served - moved.told:.1f} s after the operator asked")
    print(json.dumps(moved.phases, indent=1))
    assert moved.served - moved.told < 120  # 60 where the machine has nothing else to do
    status = moved.shoot.get()["status"]
    assert status["seedName"] == moved.destination
    assert (status["lastOperation"]["type"], status["lastOperation"]["state"]) == ("Restore", "Succeeded")


def test_lost_writes_are_younger_than_the_period_of_deltas(moved: Move) -> None:
    ages = [moved.gone - at for at in moved.lost.values()]
    print(f"{len(ages)} writes are lost, the oldest {max(ages, default=0):.1f} s before the seed was out")
    assert all(age < DELTA + _SLACK for age in ages)


def test_lost_writes_are_the_last_ones_of_the_source(moved: Move) -> None:
    """By etcd's revisions: kept writes have the same revision as before, and none between is missing."""
    told = {
        name: (at, probe.revisions[name])
        for probe in (moved.probe, moved.zombie)
        for name, at in probe.written.items()
        if at < moved.served
    }
    kept = max(revision for name, (_, revision) in told.items() if name not in moved.lost)
    assert all(told[name][1] > kept for name in moved.lost)


def test_no_node_is_replaced_and_no_pod_restarted(moved: Move) -> None:
    assert moved.after == moved.before


def test_the_seed_that_is_back_accepts_no_write(moved: Move) -> None:
    """It would be lost: the cluster is elsewhere."""
    accepted = [at for at in moved.zombie.written.values() if at > moved.served]
    assert not accepted


def test_the_seed_that_is_back_cleans_up_without_disturbing_the_cluster(moved: Move) -> None:
    shoot, landscape = moved.shoot, moved.shoot.landscape

    def marks() -> list[str]:
        entries = shoot.garden("get", "backupentries", "-o", "name").split()
        return [each for each in entries if f"/source-{shoot.technical_id}--" in each]

    assert moved.telling.wait(_CLEAN_SECONDS) == 0, moved.telling.communicate()
    eventually(lambda: not shoot.is_in(moved.source), "the old seed is clean", _CLEAN_SECONDS)
    eventually(lambda: not marks(), "nothing has to tell it any more that it is not the one", 60)
    print(f"clean {time.monotonic() - moved.back:.1f} s after the seed was back")
    eventually(lambda: not {_SEED_CLEANS, _SHOOT_WAITS} & _conditions(moved).keys(), "the conditions are removed", 10)
    assert running(shoot) == moved.before
    answered = len(moved.probe.answered)
    eventually(lambda: len(moved.probe.answered) > answered + 20, "the probe is answered", 20)
    silent = [later - earlier for earlier, later in zip(moved.probe.answered, moved.probe.answered[1:], strict=False)
              if earlier > moved.back]  # fmt: skip
    assert max(silent, default=0) < 10
    assert [each.partition("/")[0] for each in shoot.backups()] == [
        landscape.kubectl("garden", "get", "seed", moved.destination, "-o", "jsonpath={.metadata.uid}")
    ]


def test_the_seeds_accept_changes_one_after_the_other(moved: Move) -> None:
    """The old seed is clean by then, and has reported everything."""
    assert_one_after_the_other(moved.audit, moved.source, moved.destination)


def test_it_works_where_it_is(moved: Move) -> None:
    for condition in ("APIServerAvailable", "ControlPlaneHealthy", "EveryNodeReady", "SystemComponentsHealthy"):
        moved.shoot.garden(
            "wait", f"--for=condition={condition}", f"shoot/{moved.shoot.name}", "--timeout=60s", timeout=70
        )
    assert moved.shoot.kubectl("-n", "kube-system", "logs", "-l", "app=vpn-shoot", "--tail=1")


def test_volume_and_load_balancer_of_the_user_outlive_the_seed(moved: Move) -> None:
    print(moved.visitor)
    assert moved.visitor.answered
    assert not moved.visitor.failed
    volumes = Volumes(moved.shoot)
    assert volumes.run("writer", "cat /data/file") == "kept"
    volumes.apply(claim("later"))
    volumes.start("reader", "later")
    assert len(volumes.disks()) == 2, "the destination makes disks"
    volumes.stop("reader")
    moved.shoot.kubectl("-n", PROBE, "delete", "pvc", "later", "--timeout=60s")
    eventually(lambda: len(volumes.disks()) == 1, "the destination deletes disks", 60)
