"""Handlers of cloud profiles and of ExposureClasses."""

from __future__ import annotations

from datetime import UTC, datetime

from api import resources
from api.constants import APPROVED_TYPES, MODIFY_MACHINE_TYPES
from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.exposure_class import ExposureClass
from api.core.v1beta1.namespaced_cloud_profile import NamespacedCloudProfile
from api.core.v1beta1.shoot import Shoot
from api.decisions.profiles import approved_types, parent_of, recounted_types, types_digest, used_types
from api.defaulting.cloud_profile import drop_expired, label_for_extensions
from api.resources import Object, Resource
from api.validation.garden import check_cloud_profile, check_cloud_profile_change, check_exposure_class
from api.validation.namespaced_profile import (
    check_children,
    check_namespaced_profile,
    check_namespaced_profile_change,
    verbs_needed,
)
from workers.admission.indexes import PROFILES_BY_PARENT, SHOOTS_BY_PROFILE, place
from workers.admission.review import (
    Garden,
    Refusal,
    Review,
    finalizer_dropped,
    refuse_forbidden,
    refuse_invalid,
    refuse_used,
)


async def validate_cloud_profile(review: Review, garden: Garden) -> list[str]:
    now = datetime.now(UTC)
    if review.operation == "DELETE":
        return []  # a finalizer keeps the CloudProfile while Shoots use it
    profile, old = review.models(CloudProfile)
    if not review.spec_changed or review.deleting:
        return []
    refuse_invalid(review, check_cloud_profile(profile, now))
    if old is not None:
        shoots = await _shoots_with(resources.CLOUD_PROFILE, None, review.name, garden)
        refuse_forbidden(review, check_cloud_profile_change(profile, old, shoots, now))
        kind = resources.NAMESPACED_CLOUD_PROFILE
        children = [
            (each, await _shoots_with(kind, each["metadata"]["namespace"], each["metadata"]["name"], garden))
            for each in await garden.by_index(PROFILES_BY_PARENT, review.name)
        ]
        refuse_forbidden(review, check_children(profile, old, children, now))
    return []


async def _shoots_with(kind: Resource, namespace: str | None, name: str, garden: Garden) -> list[Shoot]:
    """Shoots that use a CloudProfile or NamespacedCloudProfile."""
    return [Shoot.of(each) for each in await garden.by_index(SHOOTS_BY_PROFILE, place(namespace, name, kind))]


async def validate_namespaced_cloud_profile(review: Review, garden: Garden) -> list[str]:
    """Refuse what a project may not add to the parent, and changes that take something from a Shoot that uses it."""
    if review.operation == "DELETE":
        return []  # a finalizer keeps the profile while Shoots use it
    profile, old = review.models(NamespacedCloudProfile)
    if finalizer_dropped(review):
        named = place(review.namespace, review.name, resources.NAMESPACED_CLOUD_PROFILE)
        refuse_used(review, await garden.by_index(SHOOTS_BY_PROFILE, named))
    await _check_approval(review, garden)
    if not review.spec_changed or review.deleting or review.object is None:
        return []
    now, name = datetime.now(UTC), parent_of(review.object)
    parent = await garden.find(resources.CLOUD_PROFILE, name)
    if parent is None:
        raise Refusal.forbidden(review, f'spec.parent.name: Not found: "{name}": there is no such CloudProfile')
    for path, verb in verbs_needed(review.object, review.old, parent):
        if not await garden.allowed(
            review.user, verb, resources.NAMESPACED_CLOUD_PROFILE, review.namespace, review.name
        ):
            raise Refusal.forbidden(
                review, f"{path}: user {review.user.name} may not {verb} namespacedcloudprofiles: ask an operator"
            )
    refuse_invalid(review, check_namespaced_profile(profile, old, CloudProfile.of(parent), now))
    if review.old is not None:
        shoots = await _shoots_with(resources.NAMESPACED_CLOUD_PROFILE, review.namespace, review.name, garden)
        refuse_forbidden(review, check_namespaced_profile_change(review.object, review.old, parent, shoots, now))
        used = {name for each in shoots for name in used_types(each.to_wire())}
        recounted = sorted(used & recounted_types(review.object, review.old))
        if recounted and not await _may_approve(review, garden):
            text = (
                f"{', '.join(recounted)}: Shoots use it, and Quotas count its amounts: ask an operator to change them"
            )
            raise Refusal.forbidden(review, text)
    return []


async def _check_approval(review: Review, garden: Garden) -> None:
    """An operator alone says that Quotas may count with the amounts of a project."""
    before, after = (approved_types(each) if each else None for each in (review.old, review.object))
    if after not in (None, before) and not await _may_approve(review, garden):
        path = f"metadata.annotations[{APPROVED_TYPES}]"
        text = (
            f"{path}: user {review.user.name} may not {MODIFY_MACHINE_TYPES} namespacedcloudprofiles: ask an operator"
        )
        raise Refusal.forbidden(review, text)


async def _may_approve(review: Review, garden: Garden) -> bool:
    kind = resources.NAMESPACED_CLOUD_PROFILE
    return await garden.allowed(review.user, MODIFY_MACHINE_TYPES, kind, review.namespace, review.name)


async def validate_exposure_class(review: Review, garden: Garden) -> list[str]:
    """Handler and scheduling never change, so a new ExposureClass alone is checked. A finalizer delays its deletion."""
    if review.operation == "CREATE" and review.object is not None:
        refuse_invalid(review, check_exposure_class(ExposureClass.of(review.object)))
    return []


async def mutate_cloud_profile(review: Review, garden: Garden) -> Object:
    """Drop versions that have expired already when the CloudProfile is created: no Shoot uses them."""
    profile, old = review.models(CloudProfile)
    if old is None:
        drop_expired(profile, datetime.now(UTC))
    label_for_extensions(profile, profile.spec.type)
    return profile.to_wire()


async def mutate_namespaced_cloud_profile(review: Review, garden: Garden) -> Object:
    profile, _ = review.models(NamespacedCloudProfile)
    parent = await garden.find(resources.CLOUD_PROFILE, profile.spec.parent.name)
    if parent is not None:  # validation reports that it does not exist
        label_for_extensions(profile, parent["spec"]["type"])
    return await _with_approval(profile.to_wire(), review, garden)


async def _with_approval(profile: Object, review: Review, garden: Garden) -> Object:
    """Note that an operator has written the machine types and volume types, or has set the annotation to approve them.

    The annotation is removed when another user changes them.
    """
    old, digest, asked = review.old, types_digest(profile), approved_types(profile)
    changed = digest != (types_digest(old) if old else None)
    if not changed and asked == (approved_types(old) if old else None):
        return profile
    metadata = profile["metadata"]
    kept = {name: text for name, text in (metadata.get("annotations") or {}).items() if name != APPROVED_TYPES}
    if digest is not None and await _may_approve(review, garden):
        return {**profile, "metadata": {**metadata, "annotations": {**kept, APPROVED_TYPES: digest}}}
    if changed and asked is not None:
        return {**profile, "metadata": {**metadata, "annotations": kept}}
    return profile
