"""Each task of a cluster fails for good once, is repaired, and is retried by kubectl: nothing finished runs again."""

import json
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api.contracts.operations import OperationType
from api.decisions.conditions import hibernation_possible
from tests.landscape.conftest import Landscape
from tests.landscape.gardenlets import replaced
from tests.landscape.shoots import Shoot, eventually
from tests.workflow.graphs import graph
from workflows.flow import Flow

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(1200, func_only=True)]

ATTEMPT = 240
RUN_BY_EACH_ATTEMPT = "survey"
"""The task that reads which objects there are to be deleted."""


@dataclass(frozen=True)
class Broken:
    """A Shoot, and gardenlets whose tasks fail when they are run first."""

    shoot: Shoot
    log: Path

    def runs(self, workflow: str, how: str) -> Counter[str]:
        """How often each task of a workflow's type has failed, or was done."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return Counter(task for type_, task, told in lines if (type_, told) == (workflow, how))

    def carried_through(self) -> list[float]:
        """The operation succeeds after retries: seconds from kubectl's answer to the next attempt, for each of them."""
        waited = []
        while (ended := eventually(self._ended, "the operation ends", ATTEMPT)) == "Failed":
            before = self.shoot.flows()[0]["workflowId"]
            self.shoot.garden("annotate", "shoot", self.shoot.name, "gardener.cloud/operation=retry")
            asked = datetime.now(UTC)
            second = eventually(lambda: self._after(before), "the next attempt", 30)
            waited.append((datetime.fromisoformat(second["started"]) - asked).total_seconds())
        assert ended in ("Succeeded", "gone")
        return waited

    def _ended(self) -> str:
        """Result; empty while the operation runs."""
        found = self.shoot.garden("get", "shoot", self.shoot.name, "--ignore-not-found", "-o", "json")
        if not found:
            return "gone"
        live = json.loads(found)
        status = live.get("status") or {}
        last = status.get("lastOperation") or {"state": "Pending"}
        newest = status.get("observedGeneration") == live["metadata"]["generation"]
        ended = last["state"] == "Failed" or (last["state"] == "Succeeded" and last["type"] != "Delete")
        return str(last["state"]) if newest and ended else ""

    def _after(self, workflow_id: str) -> dict[str, Any] | None:
        newest = self.shoot.flows()[0]
        return newest if newest["workflowId"] != workflow_id else None


@pytest.fixture(scope="module")
def broken(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    """The Shoot is not there yet."""
    shoot = Shoot(landscape, "broken", tmp_path_factory.mktemp("kubeconfigs"))
    log = tmp_path_factory.mktemp("runs") / "log"
    log.touch()
    with replaced(landscape, "tests.landscape.failing_gardenlet", log):
        yield Broken(shoot, log)
    shoot.remove()


def test_a_creation(broken: Broken) -> None:
    shoot = broken.shoot
    manifest = shoot.manifest(systemComponents={"nodeLocalDNS": {"enabled": True}})
    manifest["spec"]["provider"]["workers"][0]["maximum"] = 2  # it has an autoscaler, too
    shoot.apply(manifest)
    _tell("creation", broken, "ReconcileShoot", broken.carried_through())
    _assert_once(broken, "ReconcileShoot", graph(OperationType.CREATE))


def test_a_hibernation_and_a_wake_up(broken: Broken) -> None:
    """Only what did not run before fails."""
    shoot = broken.shoot
    for asleep in (True, False):
        eventually(lambda: _may_sleep(shoot), "the cluster may be hibernated", 90)
        before = broken.runs("ReconcileShoot", "failed")
        shoot.change({"hibernation": {"enabled": asleep}})
        waited = broken.carried_through()
        new = broken.runs("ReconcileShoot", "failed") - before
        print(f"{'sleep' if asleep else 'wake-up'}: {len(new)} tasks failed once, {len(waited)} retries, {waited}")
        assert bool(new) == bool(waited)
        assert shoot.get()["status"]["hibernated"] is asleep


def test_a_deletion(broken: Broken) -> None:
    broken.shoot.delete(wait=False)
    _tell("deletion", broken, "DeleteShoot", broken.carried_through())
    _assert_once(broken, "DeleteShoot", graph(OperationType.DELETE))


def _may_sleep(shoot: Shoot) -> bool:
    return hibernation_possible(shoot.get()) == "True"


def _tell(what: str, broken: Broken, workflow: str, waited: list[float]) -> None:
    failed = broken.runs(workflow, "failed")
    median, most = statistics.median(waited), max(waited)
    print(f"{what}: {len(failed)} tasks failed once: {', '.join(sorted(failed))}")
    print(f"{len(waited)} retries; the next attempt began after {median:.2f} s (median), {most:.2f} s (most)")
    assert most < 1


def _assert_once(broken: Broken, workflow: str, flow: Flow) -> None:
    """Each task failed once and was done once; a wait triggers its other half again."""
    failed, done = broken.runs(workflow, "failed"), broken.runs(workflow, "done")
    assert set(failed.values()) == {1}
    assert not failed.keys() - done.keys()
    orders = {flow.completes(each) for each in flow.names} | {RUN_BY_EACH_ATTEMPT}
    again = {task for task, runs in done.items() if runs > 1}
    print(f"done more than once: {', '.join(sorted(again)) or 'none'}")
    assert not again - orders
