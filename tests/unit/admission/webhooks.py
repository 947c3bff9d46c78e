"""Requests to the webhook server, and a garden in memory that it looks into."""

import asyncio
import json
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from aiohttp.test_utils import TestClient

from api import resources
from api.resources import Resource
from kube.errors import AlreadyExists, Conflict
from tests.unit.api.shoots import PROFILE, PROJECT, REGISTRATION, SEED
from workers.admission.indexes import Index
from workers.lib.access import User

SECURITY = "security.gardener.cloud/v1alpha1"
BINDING: dict[str, Any] = {
    "apiVersion": SECURITY,
    "kind": "CredentialsBinding",
    "metadata": {"name": "local", "namespace": "garden-local"},
    "provider": {"type": "local"},
    "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "namespace": "garden-local", "name": "local"},
}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "local", "namespace": "garden-local"}}


class FakeGarden:
    """Holds objects; forbids what is in ``denied``."""

    def __init__(self) -> None:
        self.objects = [PROFILE, PROJECT, REGISTRATION, SEED, BINDING, SECRET]
        self.denied: set[tuple[str, str]] = set()
        self.live_migration = True
        self._turns: dict[str, asyncio.Lock] = {}

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        return next((each for each in await self.list(resource, namespace) if each["metadata"]["name"] == name), None)

    async def by_index(self, index: Index, value: str) -> list[dict[str, Any]]:
        return [each for each in await self.list(index.resource) if value in index.values(each)]

    async def list(self, resource: Resource, namespace: str | None = None, labels: str = "") -> list[dict[str, Any]]:
        return [
            each
            for each in self.objects
            if each["kind"] == resource.kind
            and (namespace is None or each["metadata"].get("namespace") == namespace)
            and (not labels or labels in {f"{k}={v}" for k, v in (each["metadata"].get("labels") or {}).items()})
        ]

    async def number(self, resource: Resource) -> int:
        return len(await self.list(resource))

    async def allowed(self, user: User, verb: str, resource: Resource, namespace: str | None, name: str) -> bool:
        return (verb, resource.plural) not in self.denied

    async def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Store an object; a moment passes, as with a real API server."""
        await asyncio.sleep(0)
        metadata = obj["metadata"]
        if await self.find(resources.resource_of(obj), metadata["name"], metadata["namespace"]):
            raise AlreadyExists(409, "AlreadyExists", "creating")
        self.objects.append({**obj, "metadata": {**metadata, "resourceVersion": "1"}})
        return self.objects[-1]

    async def replace(self, obj: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        metadata = obj["metadata"]
        live = await self.find(resources.resource_of(obj), metadata["name"], metadata["namespace"])
        if live is None or live["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise Conflict(409, "Conflict", "replacing")
        self.objects.remove(live)
        version = str(int(metadata["resourceVersion"]) + 1)
        self.objects.append({**obj, "metadata": {**metadata, "resourceVersion": version}})
        return self.objects[-1]

    def turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())


async def ask(
    client: TestClient[Any, Any],
    path: str,
    operation: str,
    obj: dict[str, Any] | None,
    old: dict[str, Any] | None = None,
    *,
    user: str = "alice",
    groups: Sequence[str] = ("system:authenticated",),
) -> dict[str, Any]:
    subject = obj or old
    assert subject is not None
    resource = resources.resource_of(subject)
    request = {
        "uid": "r-1",
        "operation": operation,
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "namespace": subject["metadata"].get("namespace", ""),
        "name": subject["metadata"].get("name", ""),
        "userInfo": {"username": user, "groups": list(groups)},
        "object": obj,
        "oldObject": old,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer = await (await client.post(path, json=body)).json()
    assert answer["response"]["uid"] == "r-1"
    return dict(answer["response"])


def patched(obj: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    for change in json.loads(b64decode(response["patch"])):
        *parents, last = change["path"].strip("/").split("/")
        node = obj
        for part in parents:
            node = node[part]
        node.pop(last, None)
        if change["op"] == "add":
            node[last] = change["value"]
    return obj
