"""Domains of Shoots and Seeds that overlap, and the Secret of role internal-domain.

The internal domain stays as long as nodes find their API servers by it. The rules of its Secret hold for namespace
``garden`` and for namespaces ``seed-<name>``: no process reads such a Secret of another namespace. Source:
spec/api-core.md 10.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from api import resources
from api.constants import DNS_DOMAIN, DNS_PROVIDER, GARDEN_NAMESPACE, ROLE, ROLE_INTERNAL_DOMAIN
from api.names import domains_above
from api.resources import Object
from workers.admission.indexes import SEEDS_BY_DEFAULT_DOMAIN, SHOOTS_BY_SEED, Index
from workers.admission.review import Garden, Refusal, Review, full_name

_OF_SEED = "seed-"


async def overlapping(domain: str, exact: Index, below: Index, garden: Garden) -> list[Object]:
    """Objects with a domain that is equal to this one, above it or below it; none for an empty domain.

    ``exact`` finds objects by their domains, ``below`` by their domains and all domains above these.
    """
    if not domain:
        return []
    own, *above = domains_above(domain)
    found = await garden.by_index(below, own)
    for each in above:
        found += await garden.by_index(exact, each)
    return found


async def default_domains_above(domain: str, garden: Garden) -> frozenset[str]:
    """Default domains of Seeds that are equal to a domain, or above it."""
    found = []
    for each in domains_above(domain) if domain else ():
        found += await garden.by_index(SEEDS_BY_DEFAULT_DOMAIN, each)
    return frozenset(each["domain"] for seed in found for each in seed["spec"]["dns"].get("defaults") or ())


def domains_of(shoots: Iterable[Object]) -> dict[str, str]:
    """Domains of Shoots, by ``namespace/name``."""
    return {full_name(each): domain for each in shoots if (domain := (each["spec"].get("dns") or {}).get("domain"))}


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
