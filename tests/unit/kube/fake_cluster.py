"""A cluster in memory, as far as controllers can tell: versions, generations, finalizers, watches."""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from api.resources import Resource, resource_of
from kube.client import Keep, KubeClient, Object, Objects, WatchEvent
from kube.errors import AlreadyExists, ApiError, Conflict, NotFound

Place = tuple[Resource, str, str]


class FakeCluster(KubeClient):
    """Shared state, no transport. ``refuse`` makes the next requests of a kind fail."""

    def __init__(self) -> None:
        self.objects: dict[Place, Object] = {}
        self.requests: list[tuple[str, str, str]] = []
        """Verb, kind and name of everything that was asked for in writing."""
        self._versions = itertools.count(1)
        self._watchers: dict[Resource, list[asyncio.Queue[WatchEvent]]] = {}
        self._written = asyncio.Event()
        self._refusals: dict[tuple[str, Resource], ApiError] = {}
        self._limits = None

    def refuse(self, verb: str, resource: Resource, error: ApiError | None) -> None:
        if error is None:
            self._refusals.pop((verb, resource), None)
        else:
            self._refusals[verb, resource] = error

    async def close(self) -> None:
        return

    async def get(self, res: Resource, name: str, namespace: str | None = None, *, subresource: str = "") -> Object:
        self._check("get", res)
        try:
            return copy.deepcopy(self.objects[res, namespace or "", name])
        except KeyError:
            raise NotFound(404, "NotFound", f"getting {res.kind} {name}") from None

    async def list(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        keep: Keep | None = None,
    ) -> Objects:
        listed = self.list_with_version(
            res, namespace, labels=labels, fields=fields, metadata_only=metadata_only, keep=keep
        )
        return (await listed)[0]

    async def list_with_version(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Objects, str]:
        assert keep is None, "a seed's objects are kept whole"
        assert not metadata_only, "a seed's objects are read whole"
        found = [
            copy.deepcopy(each)
            for (kind, place, _), each in self.objects.items()
            if kind == res and namespace in (None, place) and _selected(each, labels, fields)
        ]
        return found, "0"

    async def watch(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        on_open: Callable[[], None] | None = None,
    ) -> AsyncIterator[WatchEvent]:
        if on_open is not None:
            on_open()
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._watchers.setdefault(res, []).append(queue)
        for (kind, _, _), each in self.objects.items():
            if kind == res:
                queue.put_nowait(WatchEvent("MODIFIED", copy.deepcopy(each)))
        while True:
            event = await queue.get()
            same = namespace in (None, event.object["metadata"].get("namespace"))
            if same and _selected(event.object, labels, fields):
                yield event

    async def create(self, obj: Mapping[str, Any], *, subresource: str = "", manager: str = "") -> Object:
        res, place = self._place(obj)
        self._check("create", res, place[2])
        if place in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"creating {res.kind} {place[2]}")
        created = copy.deepcopy(dict(obj))
        created.pop("status", None)
        created["metadata"] |= {
            "uid": f"uid-{next(self._versions)}",
            "generation": 1,
            "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        return self._store(place, created, "ADDED")

    async def apply(
        self,
        obj: Mapping[str, Any],
        *,
        manager: str,
        subresource: str = "",
        force: bool = True,
        live: Object | None = None,
        version: str = "",
    ) -> Object:
        res, place = self._place(obj)
        self._check("apply", res, place[2])
        if place not in self.objects:
            return await self.create(obj)
        if version not in ("", self.objects[place]["metadata"]["resourceVersion"]):
            raise Conflict(409, "Conflict", f"applying {res.kind} {place[2]}")
        return self._merge(place, {key: value for key, value in obj.items() if key != "status"})

    async def patch(
        self,
        res: Resource,
        name: str,
        namespace: str | None,
        patch: Mapping[str, Any] | Objects,
        *,
        subresource: str = "",
    ) -> Object:
        self._check("patch", res, name)
        place = (res, namespace or "", name)
        if place not in self.objects:
            raise NotFound(404, "NotFound", f"patching {res.kind} {name}")
        assert isinstance(patch, Mapping)
        version = (patch.get("metadata") or {}).get("resourceVersion")
        if version is not None and version != self.objects[place]["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", f"patching {res.kind} {name}")
        if subresource == "status":
            return self._merge(place, {"status": patch["status"]})
        return self._merge(place, {key: value for key, value in patch.items() if key != "status"})

    async def delete(self, res: Resource, name: str, namespace: str | None = None, **options: Any) -> bool:
        self._check("delete", res, name)
        place = (res, namespace or "", name)
        live = self.objects.get(place)
        if live is None or options.get("uid") not in (None, live["metadata"]["uid"]):
            return False
        if live["metadata"].get("finalizers"):
            if not live["metadata"].get("deletionTimestamp"):
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                self._merge(place, {"metadata": {"deletionTimestamp": now}})
        else:
            self._remove(place)
        return True

    async def request(self, method: str, path: str, **_: Any) -> Any:
        self.requests.append((method, path, ""))
        return {}

    async def until(self, condition: Callable[[], object]) -> None:
        """Until a condition on what is stored holds; it is asked again after each write."""
        async with asyncio.timeout(5):
            while not condition():
                self._written.clear()
                await self._written.wait()

    def wake(self) -> None:
        """Have ``until`` ask again, for conditions on something else."""
        self._written.set()

    def of(self, res: Resource) -> Objects:
        """All objects of a kind."""
        return [each for (kind, _, _), each in self.objects.items() if kind == res]

    def _place(self, obj: Mapping[str, Any]) -> tuple[Resource, Place]:
        res = resource_of(obj)
        return res, (res, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])

    def _check(self, verb: str, res: Resource, name: str = "") -> None:
        if name:
            self.requests.append((verb, res.kind, name))
            self._written.set()
        if (verb, res) in self._refusals:
            raise self._refusals[verb, res]

    def _merge(self, place: Place, patch: Mapping[str, Any]) -> Object:
        old = self.objects[place]
        new: Object = _merged(old, patch)
        if new == old:
            return copy.deepcopy(old)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self._remove(place)
            return new
        return self._store(place, new, "MODIFIED")

    def _store(self, place: Place, obj: Object, event: Any) -> Object:
        obj["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[place] = obj
        self._tell(place[0], WatchEvent(event, copy.deepcopy(obj)))
        return copy.deepcopy(obj)

    def _remove(self, place: Place) -> None:
        obj = self.objects.pop(place)
        obj["metadata"]["resourceVersion"] = str(next(self._versions))
        self._tell(place[0], WatchEvent("DELETED", copy.deepcopy(obj)))

    def _tell(self, res: Resource, event: WatchEvent) -> None:
        self._written.set()
        for queue in self._watchers.get(res, []):
            queue.put_nowait(event)


def _merged(live: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(live) if isinstance(live, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _selected(obj: Object, labels: str, fields: str) -> bool:
    have = obj["metadata"].get("labels") or {}
    for term in filter(None, labels.split(",")):
        key, _, value = term.partition("=")
        if key not in have or (value and have[key] != value):
            return False
    for term in filter(None, fields.split(",")):
        path, _, value = term.partition("=")
        found: Any = obj
        for part in path.split("."):
            found = (found or {}).get(part)
        if found != value:
            return False
    return True
