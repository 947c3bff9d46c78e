"""Order of the seeds that fit a Shoot: by distance, number of Shoots, and weighted scores.

Source: spec/api-core.md 12, Scheduler; GEP-13, Scheduling Algorithm.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import yaml
from rapidfuzz.distance import Levenshtein

from api.core.v1beta1.seed import Seed
from api.quantities import parse_quantity
from api.resources import Object

REGION_CONFIG_SELECTOR = "scheduling.gardener.cloud/purpose=region-config"
"""Selects the ConfigMaps in namespace garden that hold distances between regions."""
_CLOUD_PROFILES = "scheduling.gardener.cloud/cloudprofiles"
"""Annotation of such a ConfigMap: the cloud profiles for which it holds, separated by commas."""

_ORIENTATIONS = ("north", "south", "east", "west", "central")
_BEST_SCORE = 100.0


class Strategy(StrEnum):
    """In which regions the scheduler looks for a seed."""

    SAME_REGION = "SameRegion"
    MINIMAL_DISTANCE = "MinimalDistance"


class Score(StrEnum):
    """A rule that gives each seed a number from 0 to 100."""

    MINIMAL_DISTANCE = "minimalDistance"
    LEAST_SHOOTS = "leastShoots"
    SEED_RESOURCES_LEAST_ALLOCATED = "seedResourcesLeastAllocated"


@dataclass(frozen=True)
class Candidate:
    """A seed and the number of its Shoots."""

    seed: Seed
    shoots: int


@dataclass(frozen=True)
class Ranking:
    """How the scheduler compares the seeds that fit a Shoot."""

    strategy: Strategy = Strategy.SAME_REGION
    weights: Mapping[Score, int] = field(default_factory=dict)
    """Weights of the scores. Without any, the strategy chooses the seeds, and the one with fewest Shoots wins."""
    distances: Mapping[str, int] = field(default_factory=dict)
    """Distance of each region that an operator has given for the Shoot's region."""


def distances_from(config_maps: Iterable[Object], profile: str, region: str) -> dict[str, int]:
    """Distances from a region to others, by the region ConfigMaps of a cloud profile; empty if there are none.

    Raises ValueError, which names the ConfigMap, if its data is no map of distances.
    """
    for config_map in sorted(config_maps, key=lambda each: each["metadata"]["name"]):
        metadata = config_map["metadata"]
        profiles = (metadata.get("annotations") or {}).get(_CLOUD_PROFILES, "")
        text = (config_map.get("data") or {}).get(region)
        if text is not None and profile in {each.strip() for each in profiles.split(",")}:
            return _parsed(text, f"ConfigMap {metadata.get('namespace')}/{metadata['name']}, key {region}") | {
                region: 0
            }
    return {}


def _parsed(text: str, source: str) -> dict[str, int]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError(f"{source} is not YAML") from None
    if not isinstance(found, dict) or not all(isinstance(each, int) and each >= 0 for each in found.values()):
        raise ValueError(f"{source} must be a map from a region's name to its distance, a number from 0")
    return {str(name): distance for name, distance in found.items()}


def nearest(candidates: Sequence[Candidate], provider: str, region: str, ranking: Ranking) -> list[Candidate]:
    """The nearest candidates if strategy MinimalDistance decides alone, else all: scores compare them."""
    if ranking.strategy is not Strategy.MINIMAL_DISTANCE or ranking.weights:
        return list(candidates)
    away = _distances(candidates, provider, region, ranking)
    return [each for each in candidates if away[each.seed.metadata.name] == min(away.values())]


def best(candidates: Sequence[Candidate], provider: str, region: str, ranking: Ranking) -> Candidate:
    """The candidate with the highest weighted score, then with fewest Shoots, then by name."""
    scores = _scores(candidates, provider, region, ranking)
    return min(candidates, key=lambda each: (-scores[each.seed.metadata.name], each.shoots, each.seed.metadata.name))


def _scores(candidates: Sequence[Candidate], provider: str, region: str, ranking: Ranking) -> dict[str, float]:
    totals = {each.seed.metadata.name: 0.0 for each in candidates}
    for score, weight in ranking.weights.items():
        match score:
            case Score.MINIMAL_DISTANCE:
                part = _smallest_is_best(_distances(candidates, provider, region, ranking))
            case Score.LEAST_SHOOTS:
                part = _smallest_is_best({each.seed.metadata.name: each.shoots for each in candidates})
            case Score.SEED_RESOURCES_LEAST_ALLOCATED:
                part = {each.seed.metadata.name: _BEST_SCORE * _free_share(each) for each in candidates}
        for name, value in part.items():
            totals[name] += weight * value
    return totals


def _smallest_is_best(numbers: Mapping[str, int]) -> dict[str, float]:
    largest = max(numbers.values())
    return {name: _BEST_SCORE * (1 - number / largest) if largest else _BEST_SCORE for name, number in numbers.items()}


def _free_share(candidate: Candidate) -> float:
    """Share of a seed's allocatable Shoots that is free; 1 if the seed has no limit."""
    allocatable = allocatable_shoots(candidate.seed)
    if allocatable is None:
        return 1.0
    return max(0.0, 1 - candidate.shoots / allocatable) if allocatable else 0.0


def allocatable_shoots(seed: Seed) -> int | None:
    """Number of Shoots for which the seed has capacity; None if it has no limit."""
    allocatable = (seed.status.allocatable or {}) if seed.status else {}
    return int(parse_quantity(allocatable["shoots"])) if "shoots" in allocatable else None


def _distances(candidates: Sequence[Candidate], provider: str, region: str, ranking: Ranking) -> dict[str, int]:
    """Distance of each candidate from the region: the operator's where one is given, else by the names of regions.

    An operator's distances count alone: a region without one is farther than all that have one.
    """
    regions = {each.seed.metadata.name: each.seed.spec.provider for each in candidates}
    given = {
        name: ranking.distances[where.region] for name, where in regions.items() if where.region in ranking.distances
    }
    if given:
        unknown = max(ranking.distances.values()) + 1
        return {name: given.get(name, unknown) for name in regions}
    return {
        name: distance_of_names(where.region, region) + (0 if where.type == provider else 2)
        for name, where in regions.items()
    }


def distance_of_names(one: str, other: str) -> int:
    """Distance of two regions by their names: twice the edits, and up to 2 for another orientation (north, …)."""
    (name, orientation), (other_name, other_orientation) = _split(one), _split(other)
    turned = 0
    if orientation != other_orientation:
        turned = 2 if orientation and other_orientation else 1
    return 2 * Levenshtein.distance(name, other_name) + turned


def _split(region: str) -> tuple[str, str]:
    """A region's name with its orientation replaced by a colon, and that orientation."""
    for orientation in _ORIENTATIONS:
        if orientation in region:
            return region.replace(orientation, ":", 1), orientation
    return region, ""
