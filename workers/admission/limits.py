"""Limits of an operator for the size and the number of objects, as Gardener's ``resourceAdmissionConfiguration``.

Each process of the garden side holds the objects of its kinds in memory, so users could exhaust the memory of all of
them. A size holds for each object. A number holds for kinds without namespaces only: ResourceQuotas limit the others.
Source: spec/api-core.md 10.1.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from api.access import OPERATORS
from api.model import ApiModel
from api.quantities import parse_quantity
from api.resources import Object, Resource
from kube.errors import ApiError
from workers.admission.review import Garden, Refusal, Review
from workers.lib.access import User

log = logging.getLogger(__name__)

_SERVICE_ACCOUNT = "system:serviceaccount:"
_ANY = "*"


class ResourceLimit(ApiModel):
    api_groups: tuple[str, ...] = Field(min_length=1)
    """API groups, such as ``core.gardener.cloud``; empty for ``v1``, ``*`` for all."""
    api_versions: tuple[str, ...] = Field(min_length=1)
    resources: tuple[str, ...] = Field(min_length=1)
    """Plural names, such as ``shoots``."""
    size: str | int | None = None
    """Largest size of an object as JSON, without status and managed fields: a quantity of bytes, such as ``100k``."""
    count: int | None = Field(default=None, ge=0)
    """Largest number of objects, for kinds without namespaces."""

    @field_validator("size")
    @classmethod
    def _is_quantity(cls, size: str | int | None) -> str | int | None:
        if size is not None and parse_quantity(size) < 0:
            raise ValueError(f"{size} is below zero")
        return size

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.size is None and self.count is None:
            raise ValueError("either size or count is needed")
        return self

    def holds_for(self, review: Review) -> bool:
        """Whether the limit names the kind of the object."""
        pairs = ((review.group, self.api_groups), (review.version, self.api_versions), (review.plural, self.resources))
        return all(each in names or _ANY in names for each, names in pairs)


class Subject(ApiModel):
    """A user, a group or a ServiceAccount, as in a RoleBinding. The name ``*`` stands for all."""

    kind: Literal["User", "Group", "ServiceAccount"]
    name: str
    namespace: str = ""
    """Namespace of a ServiceAccount."""
    api_group: str = ""

    def includes(self, user: User) -> bool:
        """As in Gardener, only an entry for ServiceAccounts includes a ServiceAccount."""
        if user.name.startswith(_SERVICE_ACCOUNT):
            namespace, _, name = user.name.removeprefix(_SERVICE_ACCOUNT).partition(":")
            return self.kind == "ServiceAccount" and self.namespace == namespace and self.name in (_ANY, name)
        names = {"User": (user.name,), "Group": user.groups, "ServiceAccount": ()}[self.kind]
        return self.name in names or (self.name == _ANY and bool(names))


class ResourceAdmissionConfiguration(ApiModel):
    limits: tuple[ResourceLimit, ...] = ()
    """The first entry that names a kind holds for it."""
    unrestricted_subjects: tuple[Subject, ...] = ()
    """Users without limits, beside the processes of the garden side. Gardenlets should be among them: they must be able
    to write a Shoot whose owner has used up the size."""
    operation_mode: Literal["block", "log"] = "block"
    """``log``: admission writes what it would refuse to its log."""

    def rules(self) -> list[dict[str, Any]]:
        """Rules of the webhook."""
        return [
            {
                "apiGroups": list(each.api_groups),
                "apiVersions": list(each.api_versions),
                "operations": ["CREATE"] if each.size is None else ["CREATE", "UPDATE"],
                "resources": list(each.resources),
                "scope": "Cluster" if each.size is None else "*",
            }
            for each in self.limits
        ]


NO_LIMITS = ResourceAdmissionConfiguration()


async def check_limits(review: Review, limits: ResourceAdmissionConfiguration, garden: Garden) -> None:
    """Refuse, or log, an object that is larger than its limit, or one more than the limit allows."""
    limit = next((each for each in limits.limits if each.holds_for(review)), None)
    if limit is None or OPERATORS in review.user.groups:
        return
    if any(each.includes(review.user) for each in limits.unrestricted_subjects):
        return
    for fault in await _faults(review, limit, garden):
        if limits.operation_mode == "block":
            raise Refusal.forbidden(review, fault)
        log.warning("mode block would refuse %s %s by %s: %s", review.plural, review.name, review.user.name, fault)


async def _faults(review: Review, limit: ResourceLimit, garden: Garden) -> list[str]:
    """Faults of an object that exceeds its limit. An object that is too large already must not grow."""
    found = []
    if limit.count is not None and review.operation == "CREATE" and not review.namespace:
        kind = Resource(review.group, review.version, review.kind, review.plural, namespaced=False)
        try:
            if await garden.number(kind) >= limit.count:
                found.append(f"the garden has {limit.count} {review.plural} or more; its operator allows no more")
        except ApiError as error:
            found.append(f"the number of {review.plural}, which is limited to {limit.count}, cannot be read: {error}")
    if limit.size is not None:
        size, before = _size(review.object), _size(review.old)
        if size > before and size > parse_quantity(limit.size):
            found.append(f"its size is {size} bytes; the operator of the garden allows {limit.size}")
    return found


def _size(obj: Object | None) -> int:
    """Bytes of an object as JSON, without the parts that its author does not write; 0 if there is none."""
    if obj is None:
        return 0
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "managedFields"}
    kept = {key: value for key, value in obj.items() if key != "status"} | {"metadata": metadata}
    return len(json.dumps(kept, separators=(",", ":"), ensure_ascii=False).encode())
