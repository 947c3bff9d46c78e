"""Which seed a Shoot goes to, and what its owner hears when there is none."""

from collections import Counter
from copy import deepcopy
from typing import Any

import pytest

from api.core.v1beta1.seed import Seed
from api.decisions.scheduling import NoSeed, choose_seed
from tests.unit.api.shoots import SEED, changed, profile, shoot

READY = SEED["status"]


def seeds(*names: str, path: str = "", value: Any = None) -> list[Seed]:
    found = []
    for name in names:
        obj = changed(SEED, path, value)
        obj["metadata"]["name"] = name
        found.append(Seed.of(obj))
    return found


def test_the_emptiest_seed_wins_and_names_break_ties():
    known = seeds("seed-b", "seed-a")
    assert choose_seed(shoot(), profile(), known, Counter()) == "seed-a"
    assert choose_seed(shoot(), profile(), known, Counter({"seed-a": 1})) == "seed-b"


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("metadata.deletionTimestamp", "2026-01-01T00:00:00Z", "ready for new shoots"),
        ("spec.settings", {"scheduling": {"visible": False}}, "ready for new shoots"),
        ("status", {}, "ready for new shoots"),
        ("status.conditions", [{"type": "GardenletReady", "status": "Unknown"}], "ready for new shoots"),
        ("spec.provider.region", "elsewhere", "is in region local"),
        ("spec.provider.type", "aws", "serves provider type local"),
        ("spec.taints", [{"key": "seed.gardener.cloud/protected"}], "taints that the shoot tolerates"),
        ("spec.networks.pods", "10.250.0.0/16", "networks apart from the shoot's"),
        ("status.allocatable", {"shoots": "0"}, "room for one more shoot"),
        ("metadata.annotations", {"shoot.gardener.cloud/emergency-stop-reconciliations": "true"}, "emergency stop"),
        ("spec.backup", {"provider": "local", "credentialsRef": {}}, "ready for new shoots"),
    ],
)
def test_a_seed_that_does_not_fit_is_left_out(path, value, why):
    subject = shoot("spec.networking.nodes", "10.250.0.0/16")
    bad, good = seeds("seed-a", path=path, value=value), seeds("seed-z")
    assert choose_seed(subject, profile(), [*bad, *good], Counter()) == "seed-z"
    with pytest.raises(NoSeed, match=why):
        choose_seed(subject, profile(), bad, Counter())


def test_the_reason_names_what_the_last_candidates_lacked():
    """Of many seeds only those that met all earlier requirements tell the owner something."""
    far = seeds("far", path="spec.provider.type", value="aws")
    near = seeds("near", path="spec.taints", value=[{"key": "x"}])
    with pytest.raises(NoSeed) as error:
        choose_seed(shoot(), profile(), [*far, *near], Counter())
    assert str(error.value) == "none of the 1 seeds (near) has only taints that the shoot tolerates"


def test_without_seeds_there_is_a_reason_too():
    with pytest.raises(NoSeed, match="there are no seeds"):
        choose_seed(shoot(), profile(), [], Counter())


def test_a_testing_shoot_may_go_to_any_region():
    known = seeds("far", path="spec.provider.region", value="elsewhere")
    assert choose_seed(shoot("spec.purpose", "testing"), profile(), known, Counter()) == "far"


def test_selectors_of_profile_and_shoot_both_count():
    labelled = deepcopy(SEED)
    labelled["metadata"] |= {"name": "blue", "labels": {"colour": "blue", "size": "big"}}
    known = [*seeds("plain"), Seed.of(labelled)]
    picky = shoot("spec.seedSelector", {"matchLabels": {"colour": "blue"}})
    assert choose_seed(picky, profile(), known, Counter({"blue": 9})) == "blue"
    expression = {"matchExpressions": [{"key": "size", "operator": "In", "values": ["big"]}]}
    assert choose_seed(shoot(), profile("spec.seedSelector", expression), known, Counter({"blue": 9})) == "blue"
    with pytest.raises(NoSeed, match="shoot's seed selector"):
        choose_seed(shoot("spec.seedSelector", {"matchLabels": {"colour": "red"}}), profile(), known, Counter())


def test_zone_failure_tolerance_needs_three_zones():
    subject = shoot("spec.controlPlane", {"highAvailability": {"failureTolerance": {"type": "zone"}}})
    with pytest.raises(NoSeed, match="3 zones"):
        choose_seed(subject, profile(), seeds("seed-1"), Counter())
    wide = seeds("wide", path="spec.provider.zones", value=["a", "b", "c"])
    assert choose_seed(subject, profile(), wide, Counter()) == "wide"
