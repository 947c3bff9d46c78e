"""A move is aborted in each of its steps before the point of no return: nodes, pods and data stay undisturbed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.landscape.conftest import Landscape
from tests.landscape.gardenlets import replaced
from tests.landscape.probe import await_pods, inventory, running
from tests.landscape.shoots import Shoot, eventually
from tests.workflow.graphs import NO_RETURN, before_no_return

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(300, func_only=True)]

_STEP, _BACK = 120.0, 180.0


@dataclass(frozen=True)
class Turner:
    """A Shoot, and gardenlets that stand still in a step of its move."""

    shoot: Shoot
    directory: Path
    """Directory that the gardenlets read."""

    def hold(self, task: str) -> None:
        self.held.unlink(missing_ok=True)
        (self.directory / "task").write_text(task)

    def release(self) -> None:
        (self.directory / "task").unlink()

    @property
    def held(self) -> Path:
        return self.directory / "held"

    def move(self, seed: str) -> None:
        self.shoot.gardener("shoot", "move", self.shoot.reference, "--to", seed)

    def settled_in(self, seed: str) -> bool:
        """Whether nothing of a move is left to be done."""
        live = self.shoot.get()
        last = live["status"]["lastOperation"]
        seeds = live["spec"]["seedName"], live["status"]["seedName"]
        return (last["type"], last["state"], *seeds) == ("Restore", "Succeeded", seed, seed)


@pytest.fixture(scope="module")
def turner(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Turner]:
    shoot = Shoot(landscape, "turner", tmp_path_factory.mktemp("kubeconfigs"))
    directory = tmp_path_factory.mktemp("held")
    with shoot.created():
        await_pods(shoot)
        with replaced(landscape, "tests.landscape.held_gardenlet", directory):
            yield Turner(shoot, directory)


@pytest.mark.parametrize("task", before_no_return())
def test_a_move_is_aborted_in_each_step_before_the_point_of_no_return(turner: Turner, task: str) -> None:
    shoot = turner.shoot
    source, destination = shoot.seed, shoot.other_seed
    before, objects, flows = running(shoot), inventory(shoot), len(shoot.flows())
    turner.hold(task)
    try:
        turner.move(destination)
        eventually(lambda: turner.held.exists(), f"the move is in {task}", _STEP)
        turner.move(source)
        eventually(lambda: turner.settled_in(source), f"it is where it was, though {task} ran", _BACK)
    finally:
        turner.release()

    restored, migrated = shoot.flows()[:-flows]
    assert (restored["operation"], migrated["operation"]) == ("Restore", "Migrate")
    states = {each["name"]: each["state"] for each in shoot.flow(migrated["workflowId"])["tasks"]}
    assert states[task] != "Waiting"
    assert states[NO_RETURN] not in ("Running", "Finished")
    await_pods(shoot)
    assert running(shoot) == before
    assert not objects - inventory(shoot)
    eventually(lambda: not shoot.is_in(destination), f"nothing is left in {destination}", 60)
