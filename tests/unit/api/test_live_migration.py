"""Refused wishes to move a control plane live, and the reason that the user reads."""

from typing import Any

import pytest

from api.core.v1beta1.shoot import Shoot
from api.validation.live_migration import check_annotations, check_live_move
from tests.unit.api.shoots import changed, complete
from tests.unit.api.test_binding import DONE, seed

LIVE, THRESHOLD, DISTANT = (
    f"migration.gardener.cloud/{each}"
    for each in ("live-migrate", "inter-region-distance-threshold", "allow-distant-regions")
)
TOLERANT = {"highAvailability": {"failureTolerance": {"type": "node"}}}


def shoot(annotations: dict[str, str] | None = None, **spec: Any) -> Shoot:
    made = complete("spec.seedName", "seed-1", bound=True).to_wire()
    made = changed(made, "spec", {**made["spec"], "controlPlane": TOLERANT, **spec})
    made["metadata"]["annotations"] = annotations or {}
    made["status"] = {**DONE, "lastOperation": {"type": "Create", "state": "Succeeded"}}
    return Shoot.of(made)


def moving(made: Shoot) -> Shoot:
    wire = made.to_wire()
    wire["spec"]["seedName"] = "seed-2"
    return Shoot.of(wire)


def test_a_tolerant_control_plane_may_be_asked_to_move_live() -> None:
    wanted = shoot({LIVE: "true", THRESHOLD: "20", DISTANT: "false"})
    assert not check_annotations(wanted, shoot(), offered=True)
    assert not check_annotations(shoot(), shoot({LIVE: "true"}), offered=True)
    assert not check_live_move(shoot({LIVE: "true"}), seed("seed-1"), seed("seed-2"), 180)


@pytest.mark.parametrize(
    ("new", "old", "reason"),
    [
        (shoot({LIVE: "true"}), None, "can be set once the control plane exists"),
        (shoot({LIVE: "true"}, controlPlane=None), shoot(controlPlane=None), "needs spec.controlPlane.highAvail"),
        (shoot({LIVE: "true"}, hibernation={"enabled": True}), shoot(), "the cluster is hibernated"),
        (shoot({LIVE: "yes"}), shoot(), "Unsupported value"),
        (shoot({THRESHOLD: "near"}), shoot(), "must be a number of milliseconds"),
        (shoot({THRESHOLD: "-1"}), shoot(), "must be a number of milliseconds"),
        (moving(shoot({LIVE: "true"})), moving(shoot()), "change this after the move"),
        (moving(shoot()), moving(shoot({LIVE: "true"})), "change this after the move"),
    ],
)
def test_annotations_that_are_refused(new: Shoot, old: Shoot | None, reason: str) -> None:
    assert reason in str(check_annotations(new, old, offered=True))


@pytest.mark.parametrize(
    ("annotations", "there", "distance", "reason"),
    [
        ({}, {"spec__provider": {"type": "other", "region": "local"}}, 0, "the other other"),
        ({}, {"status__gardener": {"id": "g", "name": "g", "version": "v9"}}, 0, "have versions  and v9"),
        ({}, {}, 181, "is 181 ms, and etcd writes in both: at most 180 ms"),
        ({}, {}, None, "is unknown"),
        ({THRESHOLD: "20"}, {}, 21, "at most 20 ms"),
    ],
)
def test_seeds_between_which_nothing_moves_live(
    annotations: dict[str, str], there: dict[str, Any], distance: int | None, reason: str
) -> None:
    wanted = shoot({LIVE: "true", **annotations})
    assert reason in str(check_live_move(wanted, seed("seed-1"), seed("seed-2", **there), distance))
    assert not check_live_move(shoot(annotations), seed("seed-1"), seed("seed-2", **there), distance), "it need not"


@pytest.mark.parametrize("distance", [181, None])
def test_an_owner_may_allow_distant_regions(distance: int | None) -> None:
    wanted = shoot({LIVE: "true", DISTANT: "true"})
    assert not check_live_move(wanted, seed("seed-1"), seed("seed-2"), distance)


@pytest.mark.parametrize("change", [{"controlPlane": None}, {"hibernation": {"enabled": True}}])
def test_what_has_changed_since_the_annotation_was_set_counts(change: dict[str, Any]) -> None:
    assert check_live_move(shoot({LIVE: "true"}, **change), seed("seed-1"), seed("seed-2"), 0)


@pytest.mark.parametrize("name", [LIVE, THRESHOLD, DISTANT])
def test_a_garden_that_offers_no_live_moves_refuses_each_annotation(name: str) -> None:
    for old in (None, shoot()):
        assert "not offered by this garden" in str(check_annotations(shoot({name: "1"}), old, offered=False))
    assert not check_annotations(shoot({name: "1"}), shoot({name: "1"}), offered=False), "it may keep it"
    assert not check_annotations(shoot(), shoot({name: "1"}), offered=False), "it may take it off"
