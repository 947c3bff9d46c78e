"""Reviews of ManagedSeedSets and SeedAutoscalers.

The templates of a set must make a valid Shoot and a valid ManagedSeed: both are reviewed like objects that the author
of the set creates. So a set gives its author no credentials that the author could not give to a Shoot.
"""

from __future__ import annotations

from dataclasses import replace

from api import resources
from api.constants import GARDEN_NAMESPACE
from api.core.v1beta1.shoot import Shoot
from api.decisions.managed_seed_templates import Revision, managed_seed_of, revision_data, shoot_of
from api.defaulting.managed_seed import default_managed_seed
from api.resources import Object, Resource
from api.seedmanagement.v1alpha1.managed_seed import ManagedSeed
from api.seedmanagement.v1alpha1.seed_autoscaler import SeedAutoscaler
from api.validation.managed_seeds import check_managed_seed, check_shoot_of
from api.validation.seed_autoscaler import check_seed_autoscaler
from workers.admission import managed_seeds
from workers.admission.review import Garden, Refusal, Review, refuse_forbidden, refuse_invalid
from workers.admission.shoots import mutate_shoot, validate_shoot


async def validate_managed_seed_set(review: Review, garden: Garden) -> list[str]:
    warnings = await managed_seeds.validate_managed_seed_set(review, garden)
    if review.operation == "DELETE" or review.object is None or review.deleting or not _templates_changed(review):
        return warnings
    number = ((review.object.get("status") or {}).get("nextReplicaNumber")) or 0
    name, revision = f"{review.name}-{number}", Revision("", 0, revision_data(review.object))
    try:
        shoot, told = await _reviewed_shoot(review, shoot_of(review.object, name, revision), garden)
    except Refusal as refusal:
        raise _in_template(review, "spec.shootTemplate", refusal) from None
    try:
        await _check_managed_seed(review, managed_seed_of(review.object, name, revision), shoot, garden)
    except Refusal as refusal:
        raise _in_template(review, "spec.template", refusal) from None
    return [*warnings, *told]


def _templates_changed(review: Review) -> bool:
    return review.old is None or revision_data(review.old) != revision_data(review.object or {})


async def _reviewed_shoot(review: Review, manifest: Object, garden: Garden) -> tuple[Object, list[str]]:
    """The Shoot with its defaults, and warnings about it."""
    asked = _creation(review, resources.SHOOT, manifest)
    shoot = await mutate_shoot(asked, garden)
    return shoot, await validate_shoot(replace(asked, object=shoot), garden)


async def _check_managed_seed(review: Review, manifest: Object, shoot: Object, garden: Garden) -> None:
    asked = _creation(review, resources.MANAGED_SEED, manifest)
    managed_seed = ManagedSeed.of(manifest)
    hosts = await garden.list(resources.SEED)
    chosen = shoot["spec"].get("seedName")
    host = next((each for each in hosts if each["metadata"]["name"] == chosen), hosts[0] if hosts else None)
    if host is not None and not chosen:
        # The review takes any Seed of the garden as the later host of the Shoot. The Shoot gets its networks and its
        # domain from it, and the new Seed its DNS.
        placed = {**shoot, "spec": {**shoot["spec"], "seedName": host["metadata"]["name"]}}
        shoot = await mutate_shoot(_creation(review, resources.SHOOT, placed), garden)
    default_managed_seed(managed_seed, shoot, host)
    refuse_invalid(asked, check_managed_seed(managed_seed, None))
    refuse_forbidden(asked, check_shoot_of(managed_seed, Shoot.of(shoot), [], new=True))


def _creation(review: Review, resource: Resource, manifest: Object) -> Review:
    """A creation by the author of the set, which reserves nothing."""
    return replace(
        review,
        operation="CREATE",
        group=resource.group,
        plural=resource.plural,
        kind=resource.kind,
        version=resource.version,
        name=manifest["metadata"]["name"],
        object=manifest,
        old=None,
        subresource="",
        dry_run=True,
    )


def _in_template(review: Review, field: str, refusal: Refusal) -> Refusal:
    text = f'{review.kind}.{review.group} "{review.name}" is invalid: {field}: its objects would be refused: {refusal}'
    return Refusal(refusal.code, refusal.reason, text)


async def validate_seed_autoscaler(review: Review, garden: Garden) -> list[str]:
    if review.operation == "DELETE" or review.deleting or not review.spec_changed:
        return []
    if review.namespace != GARDEN_NAMESPACE:
        raise Refusal.forbidden(review, f"metadata.namespace: must be {GARDEN_NAMESPACE}")
    scaler, _ = review.models(SeedAutoscaler)
    refuse_invalid(review, check_seed_autoscaler(scaler))
    return []
