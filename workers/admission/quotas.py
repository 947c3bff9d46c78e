"""Holds Shoots to the Quotas of their credentials. Source: spec/api-core.md 10.2, "Quota".

Two writes that are reviewed at the same moment cannot both use what is left of a Quota: admission notes each grant in a
Lease beside the Quota before it answers, with the resource version that it read. Replicas of admission thereby take
turns. A grant counts until the Shoot in the cache shows the write, and at most for ``RESERVED_SECONDS``, because
another webhook may refuse the write. A Quota can be exceeded only if a cache lags behind by more than that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from api import resources
from api.constants import MODIFY_MACHINE_TYPES
from api.core.v1beta1.shoot import Shoot
from api.decisions.credentials import Credentials, binding_of
from api.decisions.profiles import profile_of, unapproved_types
from api.decisions.quota import (
    Amounts,
    Bound,
    QuotaKey,
    Reservation,
    Uncountable,
    Use,
    counted_in,
    effective,
    exceeded,
    is_for_project,
    named_quotas,
    needed,
    unclassed,
    use,
)
from api.resources import Object, ObjectView, Resource
from kube.edit import retry_on_conflict
from kube.errors import AlreadyExists, ApiError, Conflict
from workers.admission.indexes import BINDINGS_BY_CREDENTIALS, BINDINGS_BY_QUOTA, SHOOTS_BY_REFERENCE, Index, place
from workers.admission.review import Garden, Refusal, Review

RESERVED_SECONDS = 30.0
"""Time for which a grant counts while no Shoot shows it. The API server ends a request after 60 s, but it needs less
than 1 s after the last review; a cache that follows its watch lags behind by milliseconds."""
RESERVATIONS = "quota.gardener.cloud/reservations"
"""Annotation of the Lease ``quota-<uid of the Quota>``: the grants of the last seconds, as JSON."""
_MAX_RESERVATIONS = 500
"""Number of grants, of up to 450 bytes each, that fit into the annotations of one object (256 KiB)."""


async def check_quotas(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """Refuse a Shoot that needs more of a metric than before, and more than a Quota leaves. Reserves what it grants.

    Call it after all other checks: a refused write should reserve nothing.
    """
    new, before = shoot.to_wire(), old.to_wire() if old else None
    if before is not None and counted_in(new) == counted_in(before):
        return
    quotas = await _keys_of(new, garden)
    if not quotas:
        return
    after = await _needed(review, new, garden)
    held = await _keys_of(before, garden) if before else []
    now = await _counted(before, garden) if before else {}
    checks = [_Check(review, each, new, now if each in held else {}, after, garden) for each in quotas]
    growing = [each for each in checks if each.grows]
    for each in growing:
        await each.refuse_excess()
    await _check_approved(review, new, before, bool(growing), garden)
    if not review.dry_run:
        for each in growing:
            await each.reserve()


async def _check_approved(review: Review, shoot: Object, before: Object | None, grows: bool, garden: Garden) -> None:
    """Refuse machine types and volume types whose amounts the project has chosen, and that no operator has approved."""
    found = await unapproved_types(shoot, garden.find)
    kept = await unapproved_types(before, garden.find) if before else set()
    if found and (grows or not found <= kept):
        names = ", ".join(sorted(found))
        text = f"a Quota limits them, and the project itself has chosen the amounts of {names}"
        remedy = f"ask an operator with verb {MODIFY_MACHINE_TYPES} on namespacedcloudprofiles to approve them"
        raise Refusal.forbidden(review, f"spec.provider.workers: {text}: {remedy}")


class _Check:
    """One Quota and one write of a Shoot."""

    def __init__(
        self, review: Review, key: QuotaKey, shoot: Object, before: Amounts, after: Amounts, garden: Garden
    ) -> None:
        self._review = review
        self._key = key
        self._shoot = shoot
        self._before = before
        self._after = after
        self._garden = garden

    @property
    def grows(self) -> bool:
        return any(each > self._before.get(metric, 0) for metric, each in self._after.items())

    async def refuse_excess(self) -> None:
        """Raises Refusal if the Quota is exceeded by what is stored and reserved now."""
        quota = await self._quota()
        await self._check(quota, _reservations(await self._lease(quota)))

    async def reserve(self) -> None:
        """Check again, and note the grant. Raises Refusal, also if other writes of this Quota always come first."""
        async with self._garden.turn(f"quota {self._key}"):
            try:
                await retry_on_conflict(f"reserving of Quota {self._key}", self._try_to_reserve)
            except Conflict:
                raise self._busy() from None
            except ApiError as error:
                text = f"the grant of Quota {self._key} cannot be noted, repeat the request: {error}"
                raise Refusal(503, "ServiceUnavailable", text) from None

    async def _try_to_reserve(self) -> None:
        quota = await self._quota()
        if not quota["spec"].get("metrics"):
            return
        lease = await self._lease(quota)
        known = _reservations(lease)
        await self._check(quota, known)
        metadata = self._shoot["metadata"]
        own = Reservation(
            namespace=metadata["namespace"],
            uid=metadata.get("uid", ""),
            generation=_generation(self._review.old),
            at=int(time.time()),
            amounts=self._after,
        )
        for each in known:
            if (each.uid, each.generation) == (own.uid, own.generation):
                own = own.joined(each)
        kept = [each for each in known if each.uid != own.uid]
        if len(kept) >= _MAX_RESERVATIONS:
            raise self._busy()
        text = json.dumps([each.to_wire() for each in (*kept, own)], separators=(",", ":"))
        if lease is None:
            try:
                await self._garden.create(_lease_of(quota, text))
            except AlreadyExists:
                raise Conflict(409, "Conflict", "creating the Lease", "another replica has created it") from None
        else:
            annotations = {**(lease["metadata"].get("annotations") or {}), RESERVATIONS: text}
            await self._garden.replace({**lease, "metadata": {**lease["metadata"], "annotations": annotations}})

    def _busy(self) -> Refusal:
        return Refusal(
            429, "TooManyRequests", f"too many Shoots of Quota {self._key} are written at once: repeat the request"
        )

    async def _quota(self) -> Object:
        quota = await self._garden.find(resources.QUOTA, self._key.name, self._key.namespace)
        if quota is None:
            text = f"Quota {self._key}, which a binding of these credentials names, does not exist: create it again"
            raise Refusal.forbidden(self._review, text)
        return quota

    async def _lease(self, quota: Object) -> Object | None:
        return await self._garden.find(resources.LEASE, _lease_name(quota), self._key.namespace)

    async def _check(self, quota: Object, known: Iterable[Reservation]) -> None:
        text = f"Quota {self._key} for {_scope(quota)}"
        if (missing := unclassed(quota, self._after)) and not unclassed(quota, self._before):
            detail = f"volumes of class {missing} cannot be counted: choose a volume type of another class"
            raise Refusal.forbidden(self._review, f"{text}: {detail}")
        try:
            faults = exceeded(quota, await self._use(quota, known), self._before, self._after)
        except Uncountable as error:
            raise Refusal.forbidden(self._review, f"{text}: its use cannot be counted: {error}") from None
        if faults:
            raise Refusal.forbidden(self._review, f"{text} is exceeded: {'; '.join(faults)}")

    async def _use(self, quota: Object, known: Iterable[Reservation]) -> Use:
        """Amounts that other Shoots use of the Quota; for a Quota of scope project: other Shoots of this project."""
        own, namespace = self._shoot["metadata"].get("uid"), self._review.namespace
        only = namespace if is_for_project(quota) else None
        shoots: dict[str, tuple[ObjectView, Amounts]] = {}
        for bound in await _held_by(self._key, only, self._garden):
            named = place(bound.namespace, bound.binding["metadata"]["name"], bound.kind)
            for each in await self._garden.by_index(SHOOTS_BY_REFERENCE, named):
                if (uid := each["metadata"]["uid"]) != own:
                    shoots[uid] = each, needed(each, await _profile_of(each, self._garden))
        others = [each for each in known if each.uid != own and only in (None, each.namespace)]
        return use(shoots, others)


async def quotas_of(shoot: ObjectView, garden: Garden) -> list[Object]:
    """Quotas that hold for a Shoot and exist."""
    found = [await garden.find(resources.QUOTA, each.name, each.namespace) for each in await _keys_of(shoot, garden)]
    return [each for each in found if each is not None]


async def _needed(review: Review, shoot: Object, garden: Garden) -> Amounts:
    try:
        return needed(shoot, await _profile_of(shoot, garden))
    except Uncountable as error:
        raise Refusal.forbidden(review, f"spec.provider.workers: a Quota limits them, but {error}") from None


async def _counted(shoot: Object, garden: Garden) -> Amounts:
    """Amounts that a stored Shoot counts; empty if its profile has lost a machine type that it uses."""
    try:
        return needed(shoot, await _profile_of(shoot, garden))
    except Uncountable:
        return {}


async def _keys_of(shoot: ObjectView, garden: Garden) -> list[QuotaKey]:
    """Quotas that hold for a Shoot."""
    named = binding_of(shoot)
    if named is None:
        return []
    kind, name = named
    namespace = shoot["metadata"]["namespace"]
    binding = await garden.find(kind.resource, name, namespace)
    if binding is None:
        return []
    own = Bound(kind.resource, binding)
    # The index may not hold a binding that has just been created.
    alike = [*(each for each in await _alike(own.credentials, garden) if each.key != own.key), own]
    return [quota for each, quotas in await _effective(alike, garden) if each.key == own.key for quota in quotas]


async def _effective(alike: Sequence[Bound], garden: Garden) -> list[tuple[Bound, Collection[QuotaKey]]]:
    keys = {key for each in alike for key in named_quotas(each.binding)}
    found = {key: await garden.find(resources.QUOTA, key.name, key.namespace) for key in keys}
    return effective(alike, lambda key: (quota := found[key]) is not None and is_for_project(quota))


async def _alike(credentials: Credentials, garden: Garden) -> list[Bound]:
    """All bindings with the same credentials."""
    resource = resources.resource_of(credentials.api_version, credentials.kind)
    return await _bound(BINDINGS_BY_CREDENTIALS, place(credentials.namespace, credentials.name, resource), garden)


async def _held_by(key: QuotaKey, namespace: str | None, garden: Garden) -> list[Bound]:
    """Bindings, of one namespace or of all, for whose Shoots a Quota holds."""
    naming = await _bound(BINDINGS_BY_QUOTA, place(key.namespace, key.name, resources.QUOTA), garden)
    found = []
    for credentials in {each.credentials for each in naming}:
        for each, quotas in await _effective(await _alike(credentials, garden), garden):
            if key in quotas and namespace in (None, each.namespace):
                found.append(each)
    return found


async def _bound(indexes: Mapping[Resource, Index], value: str, garden: Garden) -> list[Bound]:
    return [Bound(kind, each) for kind, index in indexes.items() for each in await garden.by_index(index, value)]


async def _profile_of(shoot: ObjectView, garden: Garden) -> ObjectView | None:
    found = await profile_of(shoot, garden.find)
    return found["spec"] if found else None


def _generation(old: Object | None) -> int:
    return int(old["metadata"].get("generation", 1)) if old else 0


def _scope(quota: ObjectView) -> str:
    return "the project" if is_for_project(quota) else "all clusters with these credentials"


def _reservations(lease: Mapping[str, Any] | None) -> list[Reservation]:
    """Grants of the last seconds."""
    text = ((lease or {}).get("metadata", {}).get("annotations") or {}).get(RESERVATIONS, "[]")
    found = [Reservation.of(each) for each in json.loads(text)]
    return [each for each in found if abs(time.time() - each.at) < RESERVED_SECONDS]


def _lease_name(quota: Object) -> str:
    return f"quota-{quota['metadata']['uid']}"


def _lease_of(quota: Object, reservations: str) -> Object:
    """The Lease of a Quota. Members of projects have no rights on Leases; Kubernetes deletes it with the Quota."""
    metadata = quota["metadata"]
    owner = {"apiVersion": resources.QUOTA.api_version, "kind": resources.QUOTA.kind}
    return {
        "apiVersion": resources.LEASE.api_version,
        "kind": resources.LEASE.kind,
        "metadata": {
            "name": _lease_name(quota),
            "namespace": metadata["namespace"],
            "annotations": {RESERVATIONS: reservations},
            "ownerReferences": [{**owner, "name": metadata["name"], "uid": metadata["uid"]}],
        },
    }
