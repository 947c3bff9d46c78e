"""Refused moves of a control plane, and the reason that the user reads."""

from typing import Any

import pytest

from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Hibernation
from api.validation.binding import check_move, check_while_moving, is_moving
from tests.unit.api.shoots import SEED as SEED_OBJECT
from tests.unit.api.shoots import changed, complete

READY = [
    {"type": each, "status": "True"} for each in ("GardenletReady", "SeedSystemComponentsHealthy", "BackupBucketsReady")
]
DONE = {"uid": "u-1", "technicalID": "shoot--local--demo", "seedName": "seed-1"}


def seed(name: str, **changes: Any) -> Seed:
    made = changed(SEED_OBJECT, "metadata.name", name)
    made = changed(made, "status", {"conditions": READY})
    made = changed(made, "spec.backup", {"provider": "local", "credentialsRef": {"name": "b", "namespace": "garden"}})
    for path, value in changes.items():
        made = changed(made, path.replace("__", "."), value)
    return Seed.of(made)


def pair(last: dict[str, str] | None = None, **status: Any) -> Any:
    old = complete("spec.seedName", "seed-1", bound=True).to_wire()
    old["status"] = {**DONE, "lastOperation": last or {"type": "Create", "state": "Succeeded"}, **status}
    new = {**old, "spec": {**old["spec"], "seedName": "seed-2"}}
    model = type(complete("spec.seedName", "seed-1", bound=True))
    return model.of(new), model.of(old)


def test_a_move_between_two_good_seeds_is_allowed() -> None:
    shoot, old = pair()
    assert not check_move(shoot, old, seed("seed-1"), seed("seed-2"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spec__backup": None}, "seed seed-2 has no backup"),
        (
            {"spec__backup": {"provider": "other", "credentialsRef": {}}},
            "has backups of provider other, seed seed-1 of local",
        ),
        ({"metadata__deletionTimestamp": "2026-11-21T12:00:00Z"}, "seed seed-2 is being deleted"),
        ({"status": {"conditions": READY[1:]}}, "seed seed-2 is not ready: condition GardenletReady is not reported"),
        ({"spec__dns__internal__domain": "other.example.org"}, "nodes would not find their API server"),
    ],
)
def test_a_move_to_an_unsuitable_seed_is_refused(changes: dict[str, Any], reason: str) -> None:
    shoot, old = pair()
    assert reason in str(check_move(shoot, old, seed("seed-1"), seed("seed-2", **changes)))


def test_a_control_plane_that_is_not_created_yet_does_not_move() -> None:
    shoot, old = pair({"type": "Create", "state": "Processing"})
    assert "the creation in seed-1 has not succeeded" in str(check_move(shoot, old, seed("seed-1"), seed("seed-2")))


@pytest.mark.parametrize(
    ("wanted", "asleep", "refusal"),
    [(True, True, ""), (True, False, "is being hibernated: wait until"), (False, True, "wakes up: wait until")],
)
def test_a_cluster_does_not_move_while_it_hibernates_or_wakes_up(wanted: bool, asleep: bool, refusal: str) -> None:
    shoot, old = pair(hibernated=asleep)
    for each in (shoot, old):
        each.spec.hibernation = Hibernation(enabled=wanted)
    faults = check_move(shoot, old, seed("seed-1"), seed("seed-2"))
    assert bool(faults) == bool(refusal)
    assert refusal in str(faults)


def test_a_move_changes_nothing_else() -> None:
    shoot, old = pair()
    shoot.spec.purpose = "production"
    assert "must be the only change" in str(check_move(shoot, old, seed("seed-1"), seed("seed-2")))


def test_a_move_can_be_aborted_until_the_backups_are_handed_over() -> None:
    moving, _ = pair({"type": "Migrate", "state": "Processing"})
    _, home = pair({"type": "Migrate", "state": "Processing"})
    assert is_moving(moving)
    assert not check_while_moving(home, moving, "seed-1")
    assert "the move cannot be aborted" in str(check_while_moving(home, moving, "seed-2"))
    assert not check_while_moving(moving, home, "seed-2"), "it goes on anyway"
    assert "wait for the end" in str(check_while_moving(moving, home, "seed-3"))


def test_no_other_change_is_allowed_during_a_move() -> None:
    moving, _ = pair({"type": "Migrate", "state": "Processing"})
    other, _ = pair({"type": "Migrate", "state": "Processing"})
    other.spec.purpose = "production"
    assert "change the spec after the move" in str(check_while_moving(other, moving, "seed-1"))


def test_a_finished_move_is_not_moving() -> None:
    _, arrived = pair({"type": "Restore", "state": "Succeeded"})
    assert not is_moving(arrived)
