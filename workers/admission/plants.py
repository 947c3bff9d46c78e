"""Reviews of Plants: their Secrets exist, have a usable kubeconfig, and are ones that the author may read."""

from __future__ import annotations

from api import resources
from api.core.v1beta1.plant import Plant
from api.validation.field import Path
from api.validation.kubeconfigs import KUBECONFIG_KEY
from api.validation.plants import check_plant, parse_plant_kubeconfig
from workers.admission.logins import text_of
from workers.admission.projects import project_of
from workers.admission.review import Garden, Refusal, Review, refuse_invalid
from workers.admission.rights import require

_SECRET = Path("spec.secretRef.name")


async def validate_plant(review: Review, garden: Garden) -> list[str]:
    """The Secret of a Plant must exist, with a usable kubeconfig, and its author must be allowed to read it."""
    if review.operation == "DELETE" or review.deleting or not review.spec_changed:
        return []
    plant, old = review.models(Plant)
    refuse_invalid(review, check_plant(plant))
    if old is None and await project_of(review.namespace, garden) is None:
        raise Refusal.forbidden(review, f"metadata.namespace: {review.namespace} belongs to no Project")
    name = plant.spec.secret_ref.name
    if old is not None and old.spec.secret_ref.name == name:
        return []
    # The right first: the answer must not tell what a Secret holds.
    await require(review, garden, str(_SECRET), "get", resources.SECRET, review.namespace, name)
    secret = await garden.find(resources.SECRET, name, review.namespace)
    if secret is None:
        raise Refusal.forbidden(review, f'{_SECRET}: Not found: "{name}": there is no such Secret')
    _, faults = parse_plant_kubeconfig(text_of(secret, KUBECONFIG_KEY))
    if faults:
        raise Refusal.forbidden(review, f"{_SECRET}: Secret {name}: data[{KUBECONFIG_KEY}]: {faults}")
    return []
