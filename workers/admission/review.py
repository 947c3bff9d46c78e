"""A review of the API server, and access to the objects that the answer depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from api.constants import FINALIZER
from api.meta import KubeObject
from api.resources import Object, Resource
from api.validation.field import Faults
from workers.admission.indexes import Index
from workers.lib.access import User

K = TypeVar("K", bound=KubeObject)


class Garden(Protocol):
    """Reads the garden, and writes what admission has granted; the process that runs the server implements it."""

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        """The object; None if it certainly does not exist."""

    async def by_index(self, index: Index, value: str) -> list[Object]:
        """Objects with a value in an index; the index may lag behind by a moment."""

    async def list(self, resource: Resource, namespace: str | None = None, labels: str = "") -> list[Object]:
        """All objects, or those with these labels; the list may lag behind by a moment."""

    async def number(self, resource: Resource) -> int:
        """Number of all objects of a kind. Raises ApiError."""

    async def allowed(self, user: User, verb: str, resource: Resource, namespace: str | None, name: str) -> bool:
        """Whether RBAC allows this to a user. A subresource is part of the resource's plural, as ``shoots/binding``."""

    async def create(self, obj: Object) -> Object:
        """Create an object. Raises AlreadyExists."""

    async def replace(self, obj: Object) -> Object:
        """Replace an object. Raises Conflict if the live object has another resource version."""

    def turn(self, name: str) -> AbstractAsyncContextManager[object]:
        """Lock of this process; reviews that want the same one wait for each other."""


@dataclass(frozen=True)
class Review:
    """A write for which the API server waits for an answer."""

    uid: str
    operation: Literal["CREATE", "UPDATE", "DELETE"]
    group: str
    plural: str
    kind: str
    namespace: str
    name: str
    user: User
    object: Object | None
    old: Object | None
    subresource: str = ""
    dry_run: bool = False
    version: str = ""

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Review:
        return cls(
            uid=request["uid"],
            operation=request["operation"],
            group=request["resource"]["group"],
            plural=request["resource"]["resource"],
            kind=request["kind"]["kind"],
            namespace=request.get("namespace", ""),
            name=request.get("name", ""),
            user=User.of(request.get("userInfo") or {}),
            object=request.get("object"),
            old=request.get("oldObject"),
            subresource=request.get("subResource") or "",
            dry_run=bool(request.get("dryRun")),
            version=request["resource"]["version"],
        )

    def models(self, model: type[K]) -> tuple[K, K | None]:
        """The object as written, and as it was before; None for a new object."""
        if self.object is None:
            raise ValueError(f"a {self.operation} has no object")
        return model.of(self.object), model.of(self.old) if self.old else None

    @property
    def spec_changed(self) -> bool:
        return self.old is None or self.object is None or self.object.get("spec") != self.old.get("spec")

    @property
    def deleting(self) -> bool:
        return self.object is not None and "deletionTimestamp" in self.object["metadata"]


class Refusal(Exception):
    """The write is refused. The author of the write sees the text."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    @classmethod
    def invalid(cls, review: Review, faults: Faults) -> Refusal:
        """Status 422: the object is inconsistent, or its change is not allowed."""
        return cls(422, "Invalid", f'{review.kind}.{review.group} "{review.name}" is invalid: {faults}')

    @classmethod
    def forbidden(cls, review: Review, what: Faults | str) -> Refusal:
        """Status 403: other objects do not allow the write, or its author lacks a right."""
        plural = f"{review.plural}.{review.group}" if review.group else review.plural
        return cls(403, "Forbidden", f'{plural} "{review.name}" is forbidden: {what}')


def refuse_invalid(review: Review, faults: Faults) -> None:
    if faults:
        raise Refusal.invalid(review, faults)


def refuse_forbidden(review: Review, faults: Faults) -> None:
    if faults:
        raise Refusal.forbidden(review, faults)


def refuse_used(review: Review, users: Sequence[Object], what: str = "it is used by Shoots") -> None:
    """Refuse the write if there are objects that need the object; the text names the first of them."""
    if users:
        raise Refusal.forbidden(review, f"{what}: {', '.join(map(full_name, users[:5]))}")


def full_name(obj: Object) -> str:
    """Namespace and name."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def finalizer_dropped(review: Review) -> bool:
    """Whether an update removes our finalizer."""
    if review.operation != "UPDATE":
        return False
    before, after = ((each or {}).get("metadata", {}).get("finalizers") or [] for each in (review.old, review.object))
    return FINALIZER in before and FINALIZER not in after
