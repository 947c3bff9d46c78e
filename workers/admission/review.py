"""Access to the objects on which the answer to a review of the API server depends, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from api.constants import FINALIZER
from api.resources import Object, Resource
from api.validation.field import Faults
from workers.admission.indexes import Index
from workers.lib.access import User
from workers.lib.reviews import Refusal, Review

__all__ = [
    "Garden",
    "Refusal",
    "Review",
    "finalizer_dropped",
    "full_name",
    "refuse_forbidden",
    "refuse_invalid",
    "refuse_used",
]


class Garden(Protocol):
    """Reads the garden, and writes what admission has granted; the process that runs the server implements it."""

    live_migration: bool
    """Whether Shoots may ask to be moved live."""

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
