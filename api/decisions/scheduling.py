"""Chooses the seed for a new Shoot's control plane. Source: spec/api-core.md 12, Scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from api.constants import EMERGENCY_STOP, PURPOSE_TESTING, SEED_BACKUP_BUCKETS_READY, SEED_GARDENLET_READY
from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.decisions.seed_ranking import Candidate, Ranking, Strategy, allocatable_shoots, best, nearest
from api.defaulting.shoot import DEFAULT_PODS, DEFAULT_SERVICES, workerless
from api.labels import condition_status, matches, overlapping
from api.meta import SeedSelector

ZONES_FOR_ZONE_FAILURES = 3
SAME_REGION = Ranking()

_NAMES_TOLD = 10
"""Number of seeds that a message names for one requirement."""


class NoSeed(Exception):
    """No seed fits; the text gives the reason."""


def choose_seed(
    shoot: Shoot, profile: CloudProfile, seeds: Sequence[Seed], placed: Counter[str], ranking: Ranking = SAME_REGION
) -> str:
    """Name of the best seed among those that fit.

    ``placed`` counts Shoots by seed. Raises NoSeed, which names for each seed the first requirement that it fails.
    """
    candidates = [Candidate(seed, placed[seed.metadata.name]) for seed in seeds]
    if not candidates:
        raise NoSeed("there are no seeds")
    failed: dict[str, list[str]] = {}
    for requirement in _requirements(shoot, profile, ranking.strategy):
        answers = [(each, requirement.fits(each)) for each in candidates]
        if failing := [each.seed.metadata.name for each, fits in answers if not fits]:
            failed[requirement.text] = failing
        candidates = [each for each, fits in answers if fits]
    if not candidates:
        raise NoSeed(_refusals(failed, len(seeds)))
    where = shoot.spec.provider.type, shoot.spec.region
    candidates = nearest(candidates, *where, ranking)
    rank = min(_zone_rank(shoot, each.seed) for each in candidates)
    candidates = [each for each in candidates if _zone_rank(shoot, each.seed) == rank]
    return best(candidates, *where, ranking).seed.metadata.name


def _refusals(failed: Mapping[str, Sequence[str]], seeds: int) -> str:
    parts = [f"{text} (not {_some(names)})" for text, names in failed.items()]
    return f"none of the {seeds} seeds fits: the shoot needs one that {', '.join(parts)}"


def _some(names: Sequence[str]) -> str:
    """Names in order, the first ten of them."""
    told, rest = sorted(names)[:_NAMES_TOLD], len(names) - _NAMES_TOLD
    return ", ".join(told) + (f" and {rest} more" if rest > 0 else "")


def unmet(shoot: Shoot, profile: CloudProfile, candidate: Candidate) -> list[str]:
    """Requirements for any assignment that a seed does not meet, each as the end of "must be a seed that …"."""
    return [
        requirement.text
        for requirement in _requirements(shoot, profile, Strategy.SAME_REGION)
        if requirement.always and not requirement.fits(candidate)
    ]


@dataclass(frozen=True)
class _Requirement:
    text: str
    """End of the sentence "the shoot needs a seed that …"."""
    fits: Callable[[Candidate], bool]
    always: bool = True
    """Whether the requirement also holds for a seed that a user chooses."""


def _requirements(shoot: Shoot, profile: CloudProfile, strategy: Strategy) -> list[_Requirement]:
    """Requirements of a Shoot, in the order in which the scheduler applies them."""
    spec = shoot.spec
    zones = set(spec.control_plane.zones or []) if spec.control_plane else set()
    restrictions = {each.name for each in spec.access_restrictions or []}
    required = [
        _Requirement("is not being deleted", lambda each: each.seed.metadata.deletion_timestamp is None),
        _Requirement(
            "accepts new shoots (settings.scheduling.visible)",
            lambda each: each.seed.spec.settings.scheduling.visible,
            always=False,
        ),
        _Requirement(
            f"has been reconciled and has condition {SEED_GARDENLET_READY}",
            lambda each: _has_ready_gardenlet(each.seed),
            always=False,
        ),
        _Requirement(
            f"has condition {SEED_BACKUP_BUCKETS_READY}", lambda each: _has_ready_backups(each.seed), always=False
        ),
        _Requirement(
            f"matches the seed selector of cloud profile {profile.metadata.name}",
            lambda each: matches(profile.spec.seed_selector, each.seed.metadata.labels),
        ),
        _Requirement(
            "matches the shoot's seed selector", lambda each: matches(spec.seed_selector, each.seed.metadata.labels)
        ),
        _Requirement(
            f"serves provider type {spec.provider.type}",
            lambda each: _provider_fits(spec.provider.type, profile.spec.seed_selector, each.seed),
        ),
        _Requirement(
            f"has {ZONES_FOR_ZONE_FAILURES} zones, which failure tolerance zone needs",
            lambda each: has_zones(shoot, each.seed),
        ),
        _Requirement(
            f"has the zones {', '.join(sorted(zones))} that the control plane is pinned to",
            lambda each: zones <= set(each.seed.spec.provider.zones or []),
        ),
        _Requirement(
            "enforces none but the shoot's zones",
            lambda each: not _enforces_other_zones(shoot, each.seed),
            always=False,
        ),
        _Requirement(
            f"offers access restrictions {', '.join(sorted(restrictions))}",
            lambda each: restrictions <= {known.name for known in each.seed.spec.access_restrictions or []},
        ),
        _Requirement(
            f"serves domain {spec.dns.domain if spec.dns else None}", lambda each: _domain_fits(shoot, each.seed)
        ),
        _Requirement(
            "reconciles shoots (no emergency stop)",
            lambda each: EMERGENCY_STOP not in each.seed.metadata.annotations,
            always=False,
        ),
        _Requirement("has networks apart from the shoot's", lambda each: not network_conflicts(shoot, each.seed)),
        _Requirement(
            "gives shoots default networks apart from the shoot's own networks",
            lambda each: not default_conflicts(shoot, each.seed),
        ),
        _Requirement("has only taints that the shoot tolerates", lambda each: not untolerated_taints(shoot, each.seed)),
        _Requirement("has room for one more shoot", has_room),
    ]
    if spec.purpose != PURPOSE_TESTING and strategy is Strategy.SAME_REGION:
        same_region = _Requirement(
            f"is in region {spec.region} of provider {spec.provider.type}",
            lambda each: (
                (each.seed.spec.provider.type, each.seed.spec.provider.region) == (spec.provider.type, spec.region)
            ),
            always=False,
        )
        required.append(same_region)
    return required


def _has_ready_gardenlet(seed: Seed) -> bool:
    status = seed.status
    reconciled = status is not None and status.last_operation is not None
    return reconciled and _has_condition(seed, SEED_GARDENLET_READY)


def _has_ready_backups(seed: Seed) -> bool:
    return seed.spec.backup is None or _has_condition(seed, SEED_BACKUP_BUCKETS_READY)


def _has_condition(seed: Seed, type_: str) -> bool:
    return seed.status is not None and condition_status(seed.status.conditions, type_) == "True"


def _provider_fits(provider: str, selector: SeedSelector | None, seed: Seed) -> bool:
    types = selector.provider_types if selector and selector.provider_types else [provider]
    return "*" in types or seed.spec.provider.type in types


def has_zones(shoot: Shoot, seed: Seed) -> bool:
    """Whether the seed has enough zones for a Shoot with failure tolerance ``zone``; true for other Shoots."""
    return _failure_tolerance(shoot) != "zone" or len(seed.spec.provider.zones or []) >= ZONES_FOR_ZONE_FAILURES


def _failure_tolerance(shoot: Shoot) -> str | None:
    control_plane = shoot.spec.control_plane
    if control_plane is None or control_plane.high_availability is None:
        return None
    return control_plane.high_availability.failure_tolerance.type


def _worker_zones(shoot: Shoot) -> set[str]:
    return {zone for pool in shoot.spec.provider.workers or [] for zone in pool.zones or []}


def _zone_mode(seed: Seed) -> str | None:
    selection = seed.spec.settings.zone_selection
    return selection.mode if selection else None


def _enforces_other_zones(shoot: Shoot, seed: Seed) -> bool:
    wanted = _worker_zones(shoot)
    return _zone_mode(seed) == "Enforce" and bool(wanted) and not wanted & set(seed.spec.provider.zones or [])


def _zone_rank(shoot: Shoot, seed: Seed) -> int:
    """Rank of a seed: seeds that prefer zones, and share some with the shoot's workers, come first."""
    overlaps = bool(_worker_zones(shoot) & set(seed.spec.provider.zones or []))
    return 0 if _zone_mode(seed) == "Prefer" and overlaps else 1


def _domain_fits(shoot: Shoot, seed: Seed) -> bool:
    """Whether the seed has the default domain of the Shoot's domain; true if that is below no seed's default domain."""
    domain = shoot.spec.dns.domain if shoot.spec.dns else None
    if domain is None or (shoot.spec.dns and shoot.spec.dns.providers):
        return True
    defaults = [each.domain for each in seed.spec.dns.defaults or []]
    return not defaults or any(domain.endswith(f".{each}") for each in defaults)


def network_conflicts(shoot: Shoot, seed: Seed) -> list[tuple[str, str]]:
    """Pairs of a Shoot's and a Seed's networks that overlap; named as in their specs."""
    wanted, theirs = shoot.spec.networking, seed.spec.networks
    networks = {
        "shoot nodes": wanted.nodes if wanted else None,
        "shoot pods": wanted.pods if wanted else None,
        "shoot services": wanted.services if wanted else None,
        "seed nodes": theirs.nodes,
        "seed pods": theirs.pods,
        "seed services": theirs.services,
    }
    return [pair for pair in overlapping(networks) if len({name.split()[0] for name in pair}) == 2]


def default_conflicts(shoot: Shoot, seed: Seed) -> list[tuple[str, str]]:
    """Pairs of a Shoot's networks that overlap once the Seed's defaults are in the Shoot's spec."""
    own, defaults = shoot.spec.networking, seed.spec.networks.shoot_defaults
    if own and own.ip_families == ["IPv6"]:
        return []  # its provider chooses the networks
    pods = None if workerless(shoot) else (defaults and defaults.pods) or DEFAULT_PODS
    networks = {
        "nodes": own.nodes if own else None,
        "pods": (own.pods if own else None) or pods,
        "services": (own.services if own else None) or (defaults and defaults.services) or DEFAULT_SERVICES,
    }
    return overlapping(networks)


def untolerated_taints(shoot: Shoot, seed: Seed) -> list[str]:
    """Taints of the seed that the Shoot does not tolerate."""
    tolerated = {(each.key, each.value or "") for each in shoot.spec.tolerations or []}
    return [
        each.key
        for each in seed.spec.taints or []
        if (each.key, each.value or "") not in tolerated and (each.key, "") not in tolerated
    ]


def has_room(candidate: Candidate) -> bool:
    """Whether the seed has capacity for one more Shoot; true if it declares no capacity."""
    allocatable = allocatable_shoots(candidate.seed)
    return allocatable is None or candidate.shoots < allocatable
