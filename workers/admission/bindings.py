"""Handlers of SecretBindings and CredentialsBindings."""

from __future__ import annotations

from api import resources
from api.constants import SECURITY
from api.core.v1beta1.secret_binding import SecretBinding
from api.decisions.credentials import BINDINGS, Binding
from api.meta import KubeObject
from api.resources import Object
from api.security.v1alpha1.credentials_binding import CredentialsBinding
from api.validation.field import Path
from api.validation.quota import check_quotas_of_binding
from api.validation.workload_identity import check_target_type
from workers.admission.indexes import SHOOTS_BY_REFERENCE, place
from workers.admission.review import (
    Garden,
    Refusal,
    Review,
    finalizer_dropped,
    refuse_forbidden,
    refuse_used,
)
from workers.admission.rights import require


async def mutate_binding(review: Review, garden: Garden) -> Object:
    """Set the binding's namespace in references without a namespace."""
    review.models(_model_of_binding(review))  # the schema is validated later
    obj = dict(review.object or {})
    for field in ("secretRef", "credentialsRef"):
        if field in obj and not obj[field].get("namespace"):
            obj[field] = {**obj[field], "namespace": review.namespace}
    if obj.get("quotas"):
        obj["quotas"] = [
            each if each.get("namespace") else {**each, "namespace": review.namespace} for each in obj["quotas"]
        ]
    return obj


async def validate_binding(review: Review, garden: Garden) -> list[str]:
    if finalizer_dropped(review):
        binding = place(review.namespace, review.name, _binding_kind(review).resource)
        refuse_used(review, await garden.by_index(SHOOTS_BY_REFERENCE, binding))
        return []
    if review.operation == "CREATE":
        await _check_bound(review, review.models(_model_of_binding(review))[0], garden)
    return []


def _model_of_binding(review: Review) -> type[KubeObject]:
    return CredentialsBinding if review.group == SECURITY else SecretBinding


def _binding_kind(review: Review) -> Binding:
    return BINDINGS[resources.CREDENTIALS_BINDING if review.group == SECURITY else resources.SECRET_BINDING]


async def _check_bound(review: Review, binding: KubeObject, garden: Garden) -> None:
    """The author of a binding must be allowed to read the objects that it names."""
    wire, kind = binding.to_wire(), _binding_kind(review)
    path, credentials = kind.credentials_field, kind.credentials(wire)
    try:
        resource = resources.resource_of(credentials.api_version, credentials.kind)
    except KeyError:
        kinds = (
            "v1 Secret, core.gardener.cloud/v1beta1 InternalSecret, security.gardener.cloud/v1alpha1 WorkloadIdentity"
        )
        raise Refusal.forbidden(review, f"{path}: {credentials.kind} is none of {kinds}") from None
    bound = [(path, resource, credentials.namespace, credentials.name)]
    for index, each in enumerate(wire.get("quotas") or []):
        if not each.get("name"):
            raise Refusal.forbidden(review, f"quotas[{index}].name: Required value: must name a Quota")
        bound.append((f"quotas[{index}]", resources.QUOTA, each.get("namespace") or review.namespace, each["name"]))
    for path, resource, namespace, name in bound:
        # The right first: the answer must not tell whether a Secret of another Project exists.
        await require(review, garden, path, "get", resource, namespace, name)
        if not await garden.find(resource, name, namespace):
            where = f"{namespace}/{name}"
            raise Refusal.forbidden(review, f'{path}: Not found: "{where}": there is no such {resource.kind}')
    if bound[0][1] == resources.WORKLOAD_IDENTITY:
        identity = await garden.find(resources.WORKLOAD_IDENTITY, credentials.name, credentials.namespace)
        types = ((wire.get("provider") or {}).get("type") or "").split(",")
        refuse_forbidden(review, check_target_type(Path(kind.credentials_field), identity or {}, types))
    quotas = [await garden.find(resources.QUOTA, name, namespace) for _, _, namespace, name in bound[1:]]
    refuse_forbidden(review, check_quotas_of_binding([each for each in quotas if each is not None]))
