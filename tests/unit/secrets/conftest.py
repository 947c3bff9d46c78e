"""A cluster in memory, as far as secrets need one; it can die after any write."""

import base64
import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from api.resources import Resource, resource_of
from kube.errors import AlreadyExists, NotFound


class Killed(Exception):
    """The worker died: a write has happened, its answer never arrived."""


class MemoryCluster:
    """Stands in for ``KubeClient``; keeps objects, counts writes."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str | None, str], dict[str, Any]] = {}
        self.writes = 0
        self.listed = 0
        """Objects that lists have returned."""
        self.dies_after: int | None = None

    def _written(self) -> None:
        self.writes += 1
        if self.dies_after is not None and self.writes >= self.dies_after:
            raise Killed

    async def list(
        self, res: Resource, namespace: str | None = None, *, labels: str = "", **_: str
    ) -> list[dict[str, Any]]:
        found = [
            copy.deepcopy(obj)
            for (kind, where, _name), obj in self.objects.items()
            if kind == res.kind and where == namespace and _is_selected(obj, labels)
        ]
        self.listed += len(found)
        return found

    async def find(self, res: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        found = self.objects.get((res.kind, namespace, name))
        return copy.deepcopy(found) if found else None

    async def get(self, res: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        found = await self.find(res, name, namespace)
        if found is None:
            raise NotFound(404, "NotFound", f"getting {res.kind} {name}")
        return found

    async def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        key = self._key(obj)
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"creating {key}")
        self.objects[key] = copy.deepcopy(obj)
        self.objects[key]["metadata"]["uid"] = f"uid-{len(self.objects)}"
        self._written()
        return copy.deepcopy(self.objects[key])

    async def apply(self, obj: dict[str, Any], *, manager: str) -> dict[str, Any]:
        self.objects[self._key(obj)] = copy.deepcopy(obj)
        self._written()
        return copy.deepcopy(obj)

    apply_blindly = apply

    async def patch(self, res: Resource, name: str, namespace: str | None, patch: dict[str, Any]) -> dict[str, Any]:
        found = self.objects[res.kind, namespace, name]
        _merge(found, patch)
        self._written()
        return copy.deepcopy(found)

    async def delete(self, res: Resource, name: str, namespace: str | None = None, *, uid: str | None = None) -> bool:
        found = self.objects.pop((res.kind, namespace, name), None)
        self._written()
        return found is not None

    def secret(self, namespace: str, name: str) -> dict[str, bytes]:
        data = self.objects["Secret", namespace, name]["data"]
        return {key: base64.b64decode(value) for key, value in data.items()}

    def names(self, kind: str = "Secret") -> set[str]:
        return {name for (found, _where, name) in self.objects if found == kind}

    @staticmethod
    def _key(obj: dict[str, Any]) -> tuple[str, str | None, str]:
        return resource_of(obj).kind, obj["metadata"].get("namespace"), obj["metadata"]["name"]


def _is_selected(obj: dict[str, Any], labels: str) -> bool:
    """Whether an object has labels ``key=value`` or ``key``, separated by commas."""
    own = obj["metadata"].get("labels") or {}
    terms = [term.partition("=") for term in filter(None, labels.split(","))]
    return all(own.get(key) == value if equals else key in own for key, equals, value in terms)


def _merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
