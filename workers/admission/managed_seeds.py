"""Reviews of ManagedSeeds, their sets and Gardenlets, and of Shoots that ManagedSeeds make seeds."""

from __future__ import annotations

from api import resources
from api.constants import GARDEN_NAMESPACE
from api.core.v1beta1.shoot import Shoot
from api.decisions.managed_seeds import seed_template, shoot_name
from api.defaulting.managed_seed import default_managed_seed
from api.resources import Object
from api.seedmanagement.v1alpha1.gardenlet import Gardenlet
from api.seedmanagement.v1alpha1.managed_seed import ManagedSeed
from api.seedmanagement.v1alpha1.managed_seed_set import ManagedSeedSet
from api.validation.field import Faults, Path
from api.validation.garden import check_seed_unused
from api.validation.managed_seeds import (
    check_gardenlet,
    check_gardenlet_operation,
    check_managed_seed,
    check_managed_seed_set,
    check_seed_shoot,
    check_shoot_of,
)
from workers.admission.indexes import MANAGED_SEEDS_BY_SHOOT
from workers.admission.review import Garden, Refusal, Review, refuse_forbidden, refuse_invalid
from workers.admission.seeds import hindrances_of

_CONFIG = Path("spec.gardenlet.config.seedConfig")


async def mutate_managed_seed(review: Review, garden: Garden) -> Object:
    managed_seed, _ = review.models(ManagedSeed)
    shoot = await _shoot_of(managed_seed, review, garden)
    host = ((shoot or {}).get("status") or {}).get("seedName") or ((shoot or {}).get("spec") or {}).get("seedName")
    seed = await garden.find(resources.SEED, host) if host else None
    if not review.deleting:
        default_managed_seed(managed_seed, shoot, seed)
    return managed_seed.to_wire()


async def validate_managed_seed(review: Review, garden: Garden) -> list[str]:
    if review.operation == "DELETE":
        found = await hindrances_of(review.name, garden, by_managed_seed=True)
        refuse_forbidden(review, check_seed_unused(review.name, found))
        return []
    if review.deleting or not review.spec_changed:
        return []
    _require_garden(review)
    managed_seed, old = review.models(ManagedSeed)
    refuse_invalid(review, check_managed_seed(managed_seed, old))
    shoot = await _shoot_of(managed_seed, review, garden)
    registered = await garden.by_index(MANAGED_SEEDS_BY_SHOOT, managed_seed.spec.shoot.name)
    others = sorted(each["metadata"]["name"] for each in registered if each["metadata"]["name"] != review.name)
    refuse_forbidden(review, check_shoot_of(managed_seed, Shoot.of(shoot) if shoot else None, others, new=old is None))
    if old is None:
        refuse_forbidden(review, await _taken_name(review, garden))
    refuse_forbidden(review, await _missing_credentials(managed_seed, garden))
    return []


async def _taken_name(review: Review, garden: Garden) -> Faults:
    faults, path = Faults(), Path("metadata") / "name"
    for resource, namespace in ((resources.SEED, None), (resources.GARDENLET, GARDEN_NAMESPACE)):
        if await garden.find(resource, review.name, namespace):
            faults.forbidden(path, f"there is a {resource.kind} {review.name} already: it is another cluster")
    return faults


async def _missing_credentials(managed_seed: ManagedSeed, garden: Garden) -> Faults:
    """Faults of the Secrets that the template of the Seed names."""
    faults = Faults()
    spec = seed_template(managed_seed.to_wire())["spec"]
    dns = spec.get("dns") or {}
    named = [
        ("backup", spec.get("backup")),
        ("dns.provider", dns.get("provider")),
        ("dns.internal", dns.get("internal")),
    ]
    named += [(f"dns.defaults[{index}]", each) for index, each in enumerate(dns.get("defaults") or ())]
    for path, part in named:
        reference = (part or {}).get("credentialsRef") or {}
        where = reference.get("namespace"), reference.get("name")
        if not part or reference.get("kind", "Secret") != "Secret":
            continue
        if not await garden.find(resources.SECRET, where[1] or "", where[0]):
            full = Path(f"{_CONFIG}.spec.{path}.credentialsRef")
            faults.not_found(full, f"{where[0]}/{where[1]}", "there is no such Secret")
    return faults


async def validate_managed_seed_set(review: Review, garden: Garden) -> list[str]:
    if review.operation == "DELETE" or review.deleting or not review.spec_changed:
        return []
    _require_garden(review)
    refuse_invalid(review, check_managed_seed_set(*review.models(ManagedSeedSet)))
    return []


async def validate_gardenlet(review: Review, garden: Garden) -> list[str]:
    if review.operation == "DELETE" or review.deleting:
        return []
    gardenlet, old = review.models(Gardenlet)
    refuse_invalid(review, check_gardenlet_operation(gardenlet, old))
    if not review.spec_changed:
        return []
    _require_garden(review)
    refuse_invalid(review, check_gardenlet(gardenlet))
    if old is None and await garden.find(resources.MANAGED_SEED, review.name, GARDEN_NAMESPACE):
        text = f"ManagedSeed {GARDEN_NAMESPACE}/{review.name} deploys the gardenlet of this seed"
        raise Refusal.forbidden(review, f"metadata.name: {text}: change its spec.gardenlet")
    return []


async def check_seed_shoot_change(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """Refuse changes that would take from a seed what its control planes need."""
    if old is not None and (owner := await _registration(review, garden)) is not None:
        refuse_forbidden(review, check_seed_shoot(shoot, old, owner))


async def check_no_seed(review: Review, garden: Garden) -> None:
    """Refuse the deletion of a Shoot that is a seed."""
    if (owner := await _registration(review, garden)) is not None:
        name = owner["metadata"]["name"]
        raise Refusal.forbidden(review, f"it is a seed: delete ManagedSeed {GARDEN_NAMESPACE}/{name} first")


async def _registration(review: Review, garden: Garden) -> Object | None:
    if review.namespace != GARDEN_NAMESPACE:
        return None
    return next(iter(await garden.by_index(MANAGED_SEEDS_BY_SHOOT, review.name)), None)


async def _shoot_of(managed_seed: ManagedSeed, review: Review, garden: Garden) -> Object | None:
    name = shoot_name(managed_seed.to_wire())
    return await garden.find(resources.SHOOT, name, review.namespace) if name else None


async def shoot_of_seed(seed: str, garden: Garden) -> Object | None:
    """The Shoot that a ManagedSeed makes this Seed; the ingress of the Seed is below the domain of that Shoot."""
    owner = await garden.find(resources.MANAGED_SEED, seed, GARDEN_NAMESPACE)
    return await garden.find(resources.SHOOT, shoot_name(owner), GARDEN_NAMESPACE) if owner else None


def _require_garden(review: Review) -> None:
    if review.namespace != GARDEN_NAMESPACE:
        raise Refusal.forbidden(review, f"metadata.namespace: must be {GARDEN_NAMESPACE}")
