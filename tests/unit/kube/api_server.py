"""An API server in memory, on real HTTP: as much of Kubernetes as clients, caches and controllers see.

It knows objects, resource versions, finalizers, watches, selectors, merge patch and server-side
apply (by three-way merge per manager; lists are replaced whole). It can be told to misbehave.
"""

import asyncio
import copy
import json
import re
from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from kube.client import KubeClient

Object = dict[str, Any]
Place = tuple[str, str | None, str]
"""Collection path without namespace (``/api/v1/secrets``), namespace, name."""


_SET_BY_SERVER = ("namespace", "uid", "creationTimestamp", "generation", "deletionTimestamp", "managedFields")
"""Metadata that a replacement of an object does not change."""
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
"""Keys of Secrets and ConfigMaps."""


class ApiServer:
    def __init__(self) -> None:
        self.objects: dict[Place, Object] = {}
        self.requests: list[tuple[str, str]] = []
        """Method and path of everything asked."""
        self.tokens: dict[str, str] = {}
        """Issued bearer tokens and their users; remove one to revoke it."""
        self.kinds: dict[str, list[Object]] = {}
        """Answers of discovery by group and version, ``example.org/v1``."""
        self.discovery: dict[str, list[Object]] = {}
        """Groups of aggregated discovery, by path: ``/api``, ``/apis``."""
        self.swept: list[tuple[str, str, Object]] = []
        """Deleted collections: path, label selector, options."""
        self.answer: Callable[[web.Request], web.Response | None] = lambda _: None
        """Asked first; an answer here replaces the real one."""
        self.watch_hook: Callable[[web.Request], web.Response | None] = lambda _: None
        self.watches_flow = asyncio.Event()
        """Clear it, and watchers learn what happened only when it is set again."""
        self.watches_flow.set()
        self._version = 100
        self._oldest = 0
        self._issued = 0
        self._log: list[tuple[int, str, Place, Object, Object | None]] = []
        self._applied: dict[tuple[Place, str], Object] = {}
        self._pages: dict[str, list[Object]] = {}
        """Remaining pages of lists, as they were when their first page was read, by continue token."""
        self._watches: set[asyncio.Queue[Any]] = set()

    @asynccontextmanager
    async def running(self):
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        server = TestServer(app)
        await server.start_server()
        self.url = str(server.make_url("")).rstrip("/")
        try:
            yield self
        finally:
            self.cut_watches()
            await server.close()

    def client(self, token: str = "") -> KubeClient:
        return KubeClient.from_kubeconfig(self.kubeconfig(token))

    def kubeconfig(self, token: str = "") -> str:
        return json.dumps(
            {
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "clusters": [{"name": "test", "cluster": {"server": self.url}}],
                "users": [{"name": "test", "user": {"token": token} if token else {}}],
            }
        )

    # What tests do behind the client's back

    def put(self, path: str, obj: Object, namespace: str | None = None) -> Object:
        """Store an object as it is. Without a uid it is a new version of the object that has its place."""
        obj = copy.deepcopy(obj)
        namespace = namespace or obj["metadata"].get("namespace")
        if namespace:
            obj["metadata"]["namespace"] = namespace
        place = (path, namespace, obj["metadata"]["name"])
        if live := self.objects.get(place):
            obj["metadata"].setdefault("uid", live["metadata"]["uid"])
        return self._store(place, obj)

    def change(self, path: str, name: str, namespace: str | None, patch: Object) -> Object:
        place = (path, namespace, name)
        return self._store(place, merge(copy.deepcopy(self.objects[place]), patch))

    def remove(self, path: str, name: str, namespace: str | None = None) -> None:
        self._drop((path, namespace, name))

    def find(self, path: str, name: str, namespace: str | None = None) -> Object | None:
        return self.objects.get((path, namespace, name))

    def compact(self) -> None:
        """Drop history: watches from older versions get 410."""
        self._oldest = self._version
        self._log.clear()

    def expire_pages(self) -> None:
        """Drop the continue tokens of lists: they get 410."""
        self._pages.clear()

    def cut_watches(self) -> None:
        """Break all watch connections in the middle."""
        self.watches_flow.set()
        for queue in self._watches:
            queue.put_nowait(None)

    def expire_watches(self) -> None:
        """Send an error about their age to all watches, in-band."""
        self.tell("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})

    def bookmark(self) -> None:
        self.tell("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})

    def tell(self, type_: str, obj: Object) -> None:
        """Send an event to all watches, whether it is true or not."""
        for queue in self._watches:
            queue.put_nowait((type_, obj))

    @property
    def watching(self) -> int:
        return len(self._watches)

    def count(self, method: str, path: str) -> int:
        return sum(1 for request in self.requests if request == (method, path))

    # The server

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if (answer := self.answer(request)) is not None:
            return answer
        if request.path in ("/healthz", "/readyz"):
            return web.Response(text="ok")
        group = request.path.removeprefix("/apis/")
        if group in self.kinds:
            return web.json_response({"kind": "APIResourceList", "resources": self.kinds[group]})
        if "g=apidiscovery.k8s.io" in request.headers["Accept"] and request.path in self.discovery:
            return web.json_response({"kind": "APIGroupDiscoveryList", "items": self.discovery[request.path]})
        place = _parse(request.path)
        if place is None:
            return refuse(404, "NotFound", "the server could not find the requested resource")
        collection, namespace, name, sub = place
        if request.method == "GET" and not name:
            if request.query.get("watch"):
                return await self._watch(request, collection, namespace)
            return self._list(request, collection, namespace)
        body = await request.json() if request.can_read_body else {}
        if request.method == "POST":
            return self._post(collection, namespace, name, sub, body)
        if request.method == "DELETE" and name is None:
            self.swept.append((request.path, request.query.get("labelSelector", ""), body))
            places = [each for each in self.objects if each[:2] == (collection, namespace)]
            found = {each: obj for each in places if _selected(request, obj := self.objects[each])}
            for each, obj in found.items():
                self._delete(each, obj, body)
            return web.json_response({"kind": "List", "items": list(found.values())})
        if name is None:
            return refuse(405, "MethodNotAllowed", request.method)
        return self._one(request, (collection, namespace, name), sub, body)

    def _list(self, request: web.Request, collection: str, namespace: str | None) -> web.Response:
        token = request.query.get("continue")
        if token is not None:
            if token not in self._pages:
                return refuse(410, "Expired", "the provided continue parameter is too old")
            found = self._pages[token]
        else:
            found = [
                obj
                for place, obj in sorted(self.objects.items(), key=lambda item: (item[0][1] or "", item[0][2]))
                if place[0] == collection and namespace in (None, place[1]) and _selected(request, obj)
            ]
        limit = int(request.query.get("limit") or 0) or len(found)
        metadata: Object = {"resourceVersion": str(self._version)}
        if limit < len(found):
            metadata["continue"] = f"page-{self._version}-{len(found)}"
            self._pages[metadata["continue"]] = found[limit:]
        items = [{k: v for k, v in obj.items() if k not in ("apiVersion", "kind")} for obj in found[:limit]]
        return web.json_response({"kind": "List", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request, collection: str, namespace: str | None) -> web.StreamResponse:
        if (answer := self.watch_hook(request)) is not None:
            return answer
        since = int(request.query.get("resourceVersion") or self._version)
        if since < self._oldest:
            return refuse(410, "Expired", "too old resource version")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        for version, *event in self._log:
            if version > since:
                queue.put_nowait(tuple(event))
        self._watches.add(queue)
        try:
            while (item := await queue.get()) is not None:
                if len(item) == 4:
                    kind, place, obj, before = item
                    if place[0] != collection or namespace not in (None, place[1]):
                        continue
                    seen = _seen(request, kind, obj, before)
                    if seen is None:
                        continue
                    kind = seen
                else:
                    kind, obj = item
                await self.watches_flow.wait()
                await response.write(json.dumps({"type": kind, "object": obj}).encode() + b"\n")
        finally:
            self._watches.discard(queue)
        assert request.transport is not None
        request.transport.abort()
        return response

    def _post(
        self, collection: str, namespace: str | None, name: str | None, sub: str | None, body: Object
    ) -> web.Response:
        if sub == "token":
            self._issued += 1
            token = f"token-{self._issued}-of-{namespace}-{name}"
            if (collection, namespace, name) not in self.objects:
                return refuse(404, "NotFound", f'serviceaccounts "{name}" not found')
            self.tokens[token] = f"{namespace}:{name}"
            end = datetime.now(UTC) + timedelta(seconds=body["spec"]["expirationSeconds"])
            return web.json_response({"status": {"token": token, "expirationTimestamp": end.isoformat()}}, status=201)
        if collection.endswith("/tokenreviews"):
            known = body["spec"]["token"] in self.tokens
            return web.json_response({**body, "status": {"authenticated": known}}, status=201)
        if prefix := body["metadata"].get("generateName"):
            body["metadata"].setdefault("name", f"{prefix}{self._version:05}")
        place = (collection, namespace, body["metadata"]["name"])
        if place in self.objects:
            return refuse(409, "AlreadyExists", f'{collection} "{place[2]}" already exists')
        return web.json_response(self._store(place, copy.deepcopy(body)), status=201)

    def _one(self, request: web.Request, place: Place, sub: str | None, body: Object) -> web.Response:
        live = self.objects.get(place)
        apply = request.content_type == "application/apply-patch+yaml"
        if live is None:
            if not apply:
                return refuse(404, "NotFound", f'"{place[2]}" not found')
            if faulty := [key for key in body.get("data") or {} if not _DATA_KEY.fullmatch(key)]:
                return refuse(422, "Invalid", f"a valid config key must consist of other characters: {faulty}")
            self._applied[place, request.query["fieldManager"]] = body
            made = _owning(copy.deepcopy(body), body, request.query["fieldManager"])
            return web.json_response(self._store(place, made), status=201)
        if request.method == "GET":
            return web.json_response(live)
        if request.method == "DELETE":
            return self._delete(place, live, body)
        version = (body.get("metadata") or {}).get("resourceVersion") if isinstance(body, dict) else None
        if version not in (None, live["metadata"]["resourceVersion"]):
            return refuse(409, "Conflict", "the object has been modified")
        if sub == "finalize":
            if body["spec"].get("finalizers"):
                return web.json_response(self._store(place, {**live, "spec": body["spec"]}))
            self._drop(place)
            return web.json_response(live)
        if request.method == "PUT":
            kept = {key: live["metadata"][key] for key in _SET_BY_SERVER if key in live["metadata"]}
            new = {**copy.deepcopy(body), "metadata": {**body["metadata"], **kept}}
        elif apply:
            key = (place, request.query["fieldManager"])
            new = _without(copy.deepcopy(live), self._applied.get(key, {}), body)
            self._applied[key] = body
            new = _owning(merge(new, body), body, request.query["fieldManager"])
        else:
            body.get("metadata", {}).pop("resourceVersion", None)
            new = merge(copy.deepcopy(live), body)
        if sub == "status":
            new = {**live, "status": new.get("status"), "metadata": live["metadata"]}
        elif sub is None and "status" in live and not apply:
            new["status"] = live["status"]
        if live.get("immutable") and new.get("data") != live.get("data"):
            return refuse(422, "Invalid", f"field is immutable when `immutable` is set: {json.dumps(new.get('data'))}")
        if request.query.get("dryRun"):
            return web.json_response(new)
        return web.json_response(self._store(place, new))

    def _delete(self, place: Place, live: Object, options: Object) -> web.Response:
        uid = (options.get("preconditions") or {}).get("uid")
        if uid not in (None, live["metadata"]["uid"]):
            return refuse(409, "Conflict", "the UID in the precondition does not match")
        if live["metadata"].get("finalizers"):
            if not live["metadata"].get("deletionTimestamp"):
                now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
                self._store(place, {**live, "metadata": {**live["metadata"], "deletionTimestamp": now}})
            return web.json_response(self.objects[place])
        self._drop(place)
        return web.json_response({"kind": "Status", "status": "Success"})

    def _store(self, place: Place, obj: Object) -> Object:
        before = self.objects.get(place)
        metadata = obj["metadata"]
        if before is not None and metadata.get("managedFields"):
            metadata["managedFields"] = [_disowned(entry, before, obj) for entry in metadata["managedFields"]]
        if before is None:
            self._version += 1
            metadata.setdefault("uid", f"uid-{self._version}")
            metadata.setdefault("creationTimestamp", datetime.now(UTC).isoformat(timespec="seconds"))
            metadata.setdefault("generation", 1)
        elif _content(before) == _content(obj):
            return before
        else:
            self._version += 1
            if before.get("spec") != obj.get("spec"):
                metadata["generation"] = before["metadata"]["generation"] + 1
        metadata["resourceVersion"] = str(self._version)
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self.objects[place] = obj
            self._drop(place)
            return obj
        self.objects[place] = obj
        self._publish("ADDED" if before is None else "MODIFIED", place, obj, before)
        return obj

    def _drop(self, place: Place) -> None:
        obj = copy.deepcopy(self.objects.pop(place))
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        for key in [key for key in self._applied if key[0] == place]:
            del self._applied[key]
        self._publish("DELETED", place, obj)

    def _publish(self, kind: str, place: Place, obj: Object, before: Object | None = None) -> None:
        event = kind, place, copy.deepcopy(obj), copy.deepcopy(before)
        self._log.append((self._version, *event))
        for queue in self._watches:
            queue.put_nowait(event)


def refuse(status: int, reason: str, message: str, **details: Any) -> web.Response:
    body = {"kind": "Status", "code": status, "reason": reason, "message": message, "details": details}
    return web.json_response(body, status=status)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def _without(live: Any, applied: Any, wanted: Any) -> Any:
    """``live`` without what a manager applied before and no longer wants."""
    if isinstance(live, dict) and isinstance(applied, dict):
        for key in [key for key in applied if key in live]:
            if not isinstance(wanted, dict) or key not in wanted:
                del live[key]
            else:
                live[key] = _without(live[key], applied[key], wanted[key])
    return live


def _owning(obj: Object, body: Object, manager: str) -> Object:
    """With the fields of ``body`` as the manager's in ``metadata.managedFields``; lists are leaves."""
    unowned = ("name", "namespace", "uid", "resourceVersion")
    fields = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
    fields["metadata"] = {key: value for key, value in body["metadata"].items() if key not in unowned}
    if not fields["metadata"]:
        del fields["metadata"]
    entry = {"manager": manager, "operation": "Apply", "apiVersion": body["apiVersion"], "fieldsV1": _tree(fields)}
    others = [each for each in obj["metadata"].get("managedFields") or () if each["manager"] != manager]
    obj["metadata"]["managedFields"] = [*others, entry]
    return obj


def _tree(value: Any) -> Object:
    return {f"f:{key}": _tree(below) for key, below in value.items()} if isinstance(value, dict) else {}


def _disowned(entry: Object, before: Object, after: Object) -> Object:
    """Without the fields that have another value now than their manager gave them."""

    def keep(fields: Object, old: Any, new: Any) -> Object:
        kept = {}
        for key, below in fields.items():
            had, has = (each.get(key[2:]) if isinstance(each, dict) else None for each in (old, new))
            if below:
                kept[key] = keep(below, had, has)
            elif had == has:
                kept[key] = {}
        return kept

    if entry not in (before["metadata"].get("managedFields") or ()):
        return entry  # applied just now
    return {**entry, "fieldsV1": keep(entry["fieldsV1"], before, after)}


def _content(obj: Object) -> Object:
    metadata = {k: v for k, v in obj["metadata"].items() if k not in ("resourceVersion", "generation")}
    return {**obj, "metadata": metadata}


def _parse(path: str) -> tuple[str, str | None, str | None, str | None] | None:
    parts = path.strip("/").split("/")
    prefix, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
    if not rest:
        return None
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "finalize":
        namespace, rest = rest[1], rest[2:]
    name = rest[1] if len(rest) > 1 else None
    sub = rest[2] if len(rest) > 2 else None
    return "/" + "/".join([*prefix, rest[0]]), namespace, name, sub


def _seen(request: web.Request, kind: str, obj: Object, before: Object | None) -> str | None:
    """The type of an event for a watch with selectors; None: the watch does not see it.

    An object that stops to match is deleted for this watch, and one that begins to match is new.
    """
    matches, matched = _selected(request, obj), before is not None and _selected(request, before)
    if kind == "DELETED" or not matches:
        return "DELETED" if matches or matched else None
    return "MODIFIED" if matched else "ADDED"


def _selected(request: web.Request, obj: Object) -> bool:
    labels = obj["metadata"].get("labels") or {}
    for term in filter(None, request.query.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if term.startswith("!"):
            fits = term[1:] not in labels
        elif key.endswith("!"):
            fits = labels.get(key[:-1]) != value
        else:
            fits = labels.get(key) == value if "=" in term else key in labels
        if not fits:
            return False
    for term in filter(None, request.query.get("fieldSelector", "").split(",")):
        key, _, value = term.partition("=")
        found: Any = obj
        for part in key.removesuffix("!").split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if (str(found or "") == value) == key.endswith("!"):
            return False
    return True
