"""Protects objects against users who may write them, but would harm others. Source: spec/api-core.md 10.1, 12.

Finalizers of objects in use stay: without them, a deletion would take the object from its users at once. Objects with
the label ``gardener.cloud/update-restriction``, such as the CA bundles of a Shoot, are written by gardenlets alone.
"""

from __future__ import annotations

from api import resources
from api.access import OPERATORS
from api.constants import FINALIZER_FOREIGN, FINALIZER_REFERENCE_PROTECTION, GARDEN_NAMESPACE, UPDATE_RESTRICTION
from api.labels import is_true
from api.resources import Object, Resource
from workers.admission.indexes import BINDINGS_BY_CREDENTIALS, PLANTS_BY_SECRET, SHOOTS_BY_REFERENCE, place
from workers.admission.review import Garden, Refusal, Review
from workers.admission.seed_writes import is_gardenlet
from workers.lib.access import MASTERS, User

FINALIZERS = (FINALIZER_REFERENCE_PROTECTION, FINALIZER_FOREIGN)
PROTECTED = (resources.SECRET, resources.CONFIG_MAP, resources.INTERNAL_SECRET, resources.WORKLOAD_IDENTITY)
"""Kinds that Shoots, Seeds, Plants and bindings refer to."""
_BY_PLURAL = {(each.group, each.plural): each for each in PROTECTED}

REMOVES_FINALIZER = (
    f"has(oldObject.metadata.finalizers) && oldObject.metadata.finalizers.exists(each, each in {list(FINALIZERS)}"
    " && !(has(object.metadata.finalizers) && each in object.metadata.finalizers))"
)
"""Match condition (CEL) of the webhook."""


async def check_finalizers_kept(review: Review, garden: Garden) -> None:
    """Refuse to remove the finalizer of an object that a Shoot, a Seed or a binding needs."""
    resource = _BY_PLURAL[review.group, review.plural]
    before, after = (_finalizers(each) for each in (review.old, review.object))
    named = place(review.namespace, review.name, resource)
    if FINALIZER_REFERENCE_PROTECTION in before - after:
        shoots = await garden.by_index(SHOOTS_BY_REFERENCE, named)
        if shoots:
            names = ", ".join(sorted(each["metadata"]["name"] for each in shoots)[:5])
            raise Refusal.forbidden(review, _refusal(FINALIZER_REFERENCE_PROTECTION, f"Shoots refer to it: {names}"))
        if plants := await garden.by_index(PLANTS_BY_SECRET, named):
            names = ", ".join(sorted(each["metadata"]["name"] for each in plants)[:5])
            raise Refusal.forbidden(review, _refusal(FINALIZER_REFERENCE_PROTECTION, f"Plants refer to it: {names}"))
        if await _seed_refers(resource, review, garden):
            raise Refusal.forbidden(review, _refusal(FINALIZER_REFERENCE_PROTECTION, "a Seed refers to it"))
    if FINALIZER_FOREIGN in before - after and await _is_bound(named, garden):
        # Users of the object may have no right to read bindings of other namespaces, so the message does not name them.
        raise Refusal.forbidden(review, _refusal(FINALIZER_FOREIGN, "bindings name it: delete them first"))


_CONTROLLERS = ("system:serviceaccounts:kube-system", OPERATORS)
"""Groups of Kubernetes' controllers, and of the processes of the garden side."""


def is_controller(user: User) -> bool:
    """Whether a user is a process that acts for others. The garbage collector deletes what any user has it delete."""
    return user.name == "system:kube-controller-manager" or bool({*user.groups} & {*_CONTROLLERS})


async def check_update_allowed(review: Review) -> None:
    """Refuse to change or delete an object that gardenlets alone may write."""
    labels = (review.old or {}).get("metadata", {}).get("labels") or {}
    if is_true(labels.get(UPDATE_RESTRICTION)) and not _may_write(review.user):
        raise Refusal.forbidden(
            review,
            f"user {review.user.name} may not write objects with label {UPDATE_RESTRICTION}=true; gardenlets may",
        )


def _may_write(user: User) -> bool:
    """Gardenlets, administrators, and controllers, which delete the objects of a Shoot or a namespace that is gone."""
    return is_gardenlet(user) or is_controller(user) or MASTERS in user.groups


def _finalizers(obj: Object | None) -> set[str]:
    return set((obj or {}).get("metadata", {}).get("finalizers") or ())


def _refusal(finalizer: str, why: str) -> str:
    return f"metadata.finalizers: {finalizer} cannot be removed: {why}"


async def _seed_refers(resource: Resource, review: Review, garden: Garden) -> bool:
    if review.namespace != GARDEN_NAMESPACE:
        return False
    return any(
        (each["resourceRef"]["kind"], each["resourceRef"]["name"]) == (resource.kind, review.name)
        for seed in await garden.list(resources.SEED)
        for each in seed["spec"].get("resources") or ()
    )


async def _is_bound(credentials: str, garden: Garden) -> bool:
    """Whether a binding needs the credentials; a binding that is being deleted needs them while Shoots use it."""
    for kind, index in BINDINGS_BY_CREDENTIALS.items():
        for each in await garden.by_index(index, credentials):
            metadata = each["metadata"]
            if "deletionTimestamp" not in metadata:
                return True
            if await garden.by_index(SHOOTS_BY_REFERENCE, place(metadata["namespace"], metadata["name"], kind)):
                return True
    return False
