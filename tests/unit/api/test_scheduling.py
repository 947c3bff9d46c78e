"""Which seed a Shoot goes to, and what its owner hears when there is none."""

from collections import Counter
from copy import deepcopy
from typing import Any

import pytest

from api.core.v1beta1.seed import Seed
from api.decisions.scheduling import NoSeed, choose_seed
from api.decisions.seed_ranking import Ranking, Score, Strategy, distance_of_names, distances_from
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
        ("metadata.deletionTimestamp", "2026-01-01T00:00:00Z", "is not being deleted"),
        ("spec.settings", {"scheduling": {"visible": False}}, "accepts new shoots"),
        ("status", {}, "GardenletReady"),
        ("status.conditions", [{"type": "GardenletReady", "status": "Unknown"}], "GardenletReady"),
        ("spec.provider.region", "elsewhere", "is in region local"),
        ("spec.provider.type", "aws", "serves provider type local"),
        ("spec.taints", [{"key": "seed.gardener.cloud/protected"}], "taints that the shoot tolerates"),
        ("spec.networks.pods", "10.250.0.0/16", "networks apart from the shoot's"),
        ("status.allocatable", {"shoots": "0"}, "room for one more shoot"),
        ("metadata.annotations", {"shoot.gardener.cloud/emergency-stop-reconciliations": "true"}, "emergency stop"),
        ("spec.backup", {"provider": "local", "credentialsRef": {}}, "BackupBucketsReady"),
    ],
)
def test_a_seed_that_does_not_fit_is_left_out(path, value, why):
    subject = shoot("spec.networking.nodes", "10.250.0.0/16")
    bad, good = seeds("seed-a", path=path, value=value), seeds("seed-z")
    assert choose_seed(subject, profile(), [*bad, *good], Counter()) == "seed-z"
    with pytest.raises(NoSeed, match=why):
        choose_seed(subject, profile(), bad, Counter())


def test_the_reason_names_each_seed_with_the_first_requirement_that_it_fails():
    far = seeds("far", path="spec.provider.type", value="aws")
    near = seeds("near", "next", path="spec.taints", value=[{"key": "x"}])
    with pytest.raises(NoSeed) as error:
        choose_seed(shoot(), profile(), [*far, *near], Counter())
    assert str(error.value) == (
        "none of the 3 seeds fits: the shoot needs one that serves provider type local (not far), "
        "has only taints that the shoot tolerates (not near, next)"
    )


def test_the_reason_stays_short_with_many_seeds():
    known = seeds(*(f"seed-{number:03}" for number in range(200)), path="spec.taints", value=[{"key": "x"}])
    with pytest.raises(NoSeed, match="seed-009 and 190 more") as error:
        choose_seed(shoot(), profile(), known, Counter())
    assert len(str(error.value)) < 300


def test_without_seeds_a_reason_is_given():
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


def by_region(**regions: str) -> list[Seed]:
    """Seeds, each in the region of its keyword."""
    return [
        each
        for name, region in regions.items()
        for each in seeds(name, path="spec.provider.region", value=region.replace("_", "-"))
    ]


NEAREST = Ranking(Strategy.MINIMAL_DISTANCE)


def test_the_nearest_region_by_name_wins():
    subject = shoot("spec.region", "eu-west-1")
    known = by_region(a="eu_east_1", b="us_west_1", c="eu_west_1", d="ap_south_9")
    assert choose_seed(subject, profile(), known, Counter({"c": 50}), NEAREST) == "c"
    assert choose_seed(
        subject, profile(), [each for each in known if each.metadata.name != "c"], Counter(), NEAREST
    ) == ("a")


def test_without_minimal_distance_other_regions_do_not_count():
    with pytest.raises(NoSeed, match="is in region eu-west-1"):
        choose_seed(shoot("spec.region", "eu-west-1"), profile(), by_region(c="eu_west_2"), Counter())


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ("eu-west-1", "eu-west-1", 0),
        ("eu-west-1", "eu-west-2", 2),
        ("eu-west-1", "eu-east-1", 2),
        ("northeurope", "europe", 3),
        ("westeurope", "westus", 10),
    ],
)
def test_distance_of_two_names(one, other, distance):
    assert distance_of_names(one, other) == distance_of_names(other, one) == distance


def test_a_seed_of_another_provider_is_two_farther():
    known = [*by_region(near="eu_west_1"), *by_region(far="eu_west_2")]
    known[0].spec.provider.type = "other"
    elsewhere = profile("spec.seedSelector", {"providerTypes": ["*"]})
    subject = shoot("spec.region", "eu-west-1")
    assert choose_seed(subject, elsewhere, known, Counter({"near": 1}), NEAREST) == "far"


REGIONS = {
    "metadata": {
        "name": "distances",
        "namespace": "garden",
        "annotations": {"scheduling.gardener.cloud/cloudprofiles": "aws, local"},
    },
    "data": {"europe": "asia: 300\namerica: 100\n", "broken": "[1, 2]"},
}


def test_an_operators_distances_come_before_names():
    given = distances_from([REGIONS], "local", "europe")
    assert given == {"asia": 300, "america": 100, "europe": 0}
    ranking = Ranking(Strategy.MINIMAL_DISTANCE, distances=given)
    known = by_region(a="europa", b="asia", c="america")
    assert choose_seed(shoot("spec.region", "europe"), profile(), known, Counter(), ranking) == "c"


def test_distances_are_those_of_the_shoots_profile_and_region():
    assert distances_from([REGIONS], "gcp", "europe") == {}
    assert distances_from([REGIONS], "local", "africa") == {}
    with pytest.raises(ValueError, match="ConfigMap garden/distances, key broken must be a map"):
        distances_from([REGIONS], "local", "broken")


@pytest.mark.parametrize(
    ("weights", "winner"),
    [
        ({Score.LEAST_SHOOTS: 1}, "empty"),
        ({Score.MINIMAL_DISTANCE: 3, Score.LEAST_SHOOTS: 1}, "near"),
        ({Score.MINIMAL_DISTANCE: 1, Score.LEAST_SHOOTS: 3}, "empty"),
        ({Score.SEED_RESOURCES_LEAST_ALLOCATED: 1}, "large"),
    ],
)
def test_weighted_scores_choose_among_the_seeds_that_fit(weights, winner):
    known = by_region(near="eu_west_1", empty="us_north_7", large="us_south_8")
    for each, size in zip(known, ("12", "4", "1k"), strict=True):
        assert each.status is not None
        each.status.allocatable = {"shoots": size}
    placed = Counter({"near": 10, "empty": 2, "large": 10})
    ranking = Ranking(Strategy.MINIMAL_DISTANCE, weights)
    assert choose_seed(shoot("spec.region", "eu-west-1"), profile(), known, placed, ranking) == winner


@pytest.mark.parametrize(("families", "fits"), [(["IPv4"], False), (["IPv4", "IPv6"], False), (["IPv6"], True)])
def test_defaults_of_a_seed_concern_no_shoot_with_ipv6_alone(families: list[str], fits: bool) -> None:
    """Its provider chooses its networks. The Seed's defaults overlap, so they would be refused."""
    same = {"pods": "100.112.0.0/16", "services": "100.112.0.0/16"}
    subject, known = (
        shoot("spec.networking.ipFamilies", families),
        seeds("a", path="spec.networks.shootDefaults", value=same),
    )

    if fits:
        assert choose_seed(subject, profile(), known, Counter()) == "a"
    else:
        with pytest.raises(NoSeed):
            choose_seed(subject, profile(), known, Counter())
