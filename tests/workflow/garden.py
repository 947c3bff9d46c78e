"""A garden's API server in memory: merge patches, resource versions, status subresource, finalizers."""

import copy
from typing import Any

from api import resources
from api.resources import Resource, resource_of
from kube.errors import AlreadyExists, Conflict, NotFound


class FakeGarden:
    """The part of ``KubeClient`` that the garden's activities use."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self._objects: dict[tuple[Resource, str | None, str], dict[str, Any]] = {}
        self._version = 0
        self.writes: list[str] = []
        for item in objects:
            self.put(item)

    def put(self, item: dict[str, Any]) -> None:
        metadata = item["metadata"]
        self._store((resource_of(item), metadata.get("namespace"), metadata["name"]), copy.deepcopy(item))

    def events(self) -> list[tuple[str, str]]:
        return [(item["reason"], item["message"]) for key, item in self._objects.items() if key[0] is resources.EVENT]

    async def get(self, res: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        found = await self.find(res, name, namespace)
        if found is None:
            raise NotFound(404, "NotFound", f"getting {res.kind} {name}")
        return found

    async def find(self, res: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        return copy.deepcopy(self._objects.get((res, namespace, name)))

    async def list(self, res: Resource, namespace: str | None = None) -> list[dict[str, Any]]:
        return [copy.deepcopy(item) for key, item in self._objects.items() if key[0] is res]

    async def create(self, item: dict[str, Any]) -> dict[str, Any]:
        metadata = item["metadata"]
        key = (resource_of(item), metadata.get("namespace"), metadata["name"])
        if key in self._objects:
            raise AlreadyExists(409, "AlreadyExists", f"creating {metadata['name']}")
        return self._store(key, copy.deepcopy(item))

    async def patch(
        self, res: Resource, name: str, namespace: str | None, patch: dict[str, Any], *, subresource: str = ""
    ) -> dict[str, Any]:
        key = (res, namespace, name)
        live = await self.get(res, name, namespace)
        wanted = patch.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, live["metadata"]["resourceVersion"]):
            raise Conflict(409, "Conflict", f"patching {name}")
        change = {"status": patch["status"]} if subresource == "status" else {**patch, "status": {}}
        before = copy.deepcopy(live)
        _merge(live, change)
        if live == before:
            return live
        if live.get("spec") != before.get("spec"):
            live["metadata"]["generation"] += 1
        if "deletionTimestamp" in live["metadata"] and not live["metadata"].get("finalizers"):
            del self._objects[key]
            return live
        self.writes.append(f"{res.kind} {name} {subresource}".strip())
        return self._store(key, live)

    def _store(self, key: tuple[Resource, str | None, str], item: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._objects[key] = item
        return copy.deepcopy(item)


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = copy.deepcopy(value)


def shoot(**metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "Shoot",
        "metadata": {"name": "demo", "namespace": "garden-local", "uid": "0f3c", "generation": 1, **metadata},
        "spec": {
            "seedName": "seed-1",
            "credentialsBindingName": "local",
            "kubernetes": {"version": "1.37.1"},
            "provider": {"type": "local", "workers": [{"name": "pool"}]},
        },
    }


def surroundings() -> list[dict[str, Any]]:
    """Objects that a Shoot needs in the garden: its Project with a namespace, a ready Seed, credentials."""
    ready = [{"type": each, "status": "True"} for each in ("GardenletReady", "SeedSystemComponentsHealthy")]
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "garden-local", "labels": {"project.gardener.cloud/name": "local"}},
        },
        {
            "apiVersion": "core.gardener.cloud/v1beta1",
            "kind": "Project",
            "metadata": {"name": "local"},
            "spec": {"namespace": "garden-local"},
        },
        {
            "apiVersion": "core.gardener.cloud/v1beta1",
            "kind": "Seed",
            "metadata": {"name": "seed-1", "uid": "5eed"},
            "spec": {"backup": {"provider": "local"}},
            "status": {"conditions": ready},
        },
        {
            "apiVersion": "security.gardener.cloud/v1alpha1",
            "kind": "CredentialsBinding",
            "metadata": {"name": "local", "namespace": "garden-local"},
            "credentialsRef": {"kind": "Secret", "name": "local", "namespace": "garden-local"},
        },
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "local", "namespace": "garden-local", "uid": "c"}},
    ]
