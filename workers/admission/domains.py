"""Secrets of role internal-domain: the domain stays as long as nodes find their API servers by it.

Source: spec/api-core.md 10.1. The rules hold for namespace ``garden`` and for namespaces ``seed-<name>``. No process
reads such a Secret of another namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api import resources
from api.constants import DNS_DOMAIN, DNS_PROVIDER, GARDEN_NAMESPACE, ROLE, ROLE_INTERNAL_DOMAIN
from workers.admission.indexes import SHOOTS_BY_SEED
from workers.admission.review import Garden, Refusal, Review

_OF_SEED = "seed-"


async def check_internal_domain(review: Review, garden: Garden) -> None:
    """Refuse a second Secret of a namespace, and another domain or a deletion while Shoots exist.

    A Secret that loses the label counts as deleted, and one that gets it as created.
    """
    if review.namespace != GARDEN_NAMESPACE and not review.namespace.startswith(_OF_SEED):
        return
    before, after = (each if _has_role(each) else None for each in (review.old, review.object))
    if after is not None:
        _check_annotations(review, after)
    if before is None and after is not None:
        found = await garden.list(resources.SECRET, review.namespace, labels=f"{ROLE}={ROLE_INTERNAL_DOMAIN}")
        others = sorted(each["metadata"]["name"] for each in found if each["metadata"]["name"] != review.name)
        if others:
            text = f"namespace {review.namespace} has one already, {others[0]}: change that one"
            raise Refusal.forbidden(review, f"only one Secret of role {ROLE_INTERNAL_DOMAIN}: {text}")
    if before is None or (after is not None and _domain(before) == _domain(after)):
        return
    if number := await _number_of_shoots(review.namespace, garden):
        what = "it cannot be deleted" if after is None else f"metadata.annotations[{DNS_DOMAIN}]: cannot change"
        why = f"{number} Shoots have an API server below {_domain(before)}"
        raise Refusal.forbidden(review, f"{what}: {why}: delete the Shoots first")


def _check_annotations(review: Review, secret: Mapping[str, Any]) -> None:
    annotations = secret["metadata"].get("annotations") or {}
    for each in (DNS_PROVIDER, DNS_DOMAIN):
        if not annotations.get(each):
            text = f"metadata.annotations[{each}]: Required value: of a Secret of role {ROLE_INTERNAL_DOMAIN}"
            raise Refusal(422, "Invalid", f'{review.kind} "{review.name}" is invalid: {text}')


async def _number_of_shoots(namespace: str, garden: Garden) -> int:
    if namespace == GARDEN_NAMESPACE:
        return len(await garden.list(resources.SHOOT))
    return len(await garden.by_index(SHOOTS_BY_SEED, namespace.removeprefix(_OF_SEED)))


def _has_role(secret: Mapping[str, Any] | None) -> bool:
    labels = (secret or {}).get("metadata", {}).get("labels") or {}
    return bool(labels.get(ROLE) == ROLE_INTERNAL_DOMAIN)


def _domain(secret: Mapping[str, Any]) -> str:
    return str((secret["metadata"].get("annotations") or {}).get(DNS_DOMAIN) or "")
