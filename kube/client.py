"""An async client of one cluster: raw JSON in and out, over aiohttp (docs/decisions/0017)."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import random
import re
import socket
import ssl
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

import aiohttp
from aiohttp.abc import AbstractResolver

from api.resources import NotAName, Resource, UnknownKind, resource_of
from api.resources import Object as Object
from api.resources import Objects as Objects
from kube.credentials import Issued
from kube.errors import (
    AnswerTooLarge,
    ApiError,
    Conflict,
    Gone,
    Invalid,
    KubeconfigError,
    NotFound,
    Unauthorized,
    Unreachable,
    error_from_status,
)
from kube.kubeconfig import Endpoint, endpoint_of, in_cluster_endpoint, parse_kubeconfig
from kube.unchanged import unchanged

APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Accept header for a list without spec, status and data of its objects."""

Keep = Callable[[Object], Object | None]
"""Returns the part to keep of each object of a list; None drops the object."""

_log = logging.getLogger(__name__)

_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"(?: ".*")?')
"""Value of a Warning header of HTTP."""
_SECRET_KINDS = frozenset(
    {
        "secrets",
        "internalsecrets",
        "shootstates",
        "tokenreviews",
        "operatingsystemconfigs",
    }
)
"""Resources whose content must not reach logs and histories through an error message of the API server."""

_ANSWER = aiohttp.ClientTimeout(total=60, sock_connect=5)
# API servers send a bookmark about once a minute. A watch without one is broken.
_WATCH = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=100)
_WATCH_SECONDS = (280, 560)
"""Shortest and longest duration in seconds that a watch asks for. Random, so that not all watches reconnect at once."""
_PAGE = 500
_PARALLEL_REQUESTS = 16
"""Requests in flight per client, without watches: each new connection costs a TLS handshake."""
_REREAD_FILES = 5.0
"""Seconds between two reads of a kubeconfig or token file that may have rotated."""
_READ_BUFFER = 1 << 21
"""Size of the read buffer in bytes. One event of a watch is one line, and objects have up to 1.5 MB."""
_BUSY_RETRIES = 3
"""Maximum number of retries of one request that the server refuses for a while (429)."""


@dataclass(frozen=True)
class Limits:
    """Maximum numbers of bytes that a client reads from an API server whose content tenants choose."""

    answer: int = 4 << 20
    """Bytes of one answer, one page of a list, or one event. An object has at most 1.5 MiB in etcd."""
    whole: int = 32 << 20
    """Bytes of all pages of a list that the caller keeps whole."""
    reduced: int = 128 << 20
    """Bytes of all pages of a list of which the caller keeps a part: each page is reduced before the next is read."""
    page: int = 100
    """Number of objects in the first page. If a page is too large, the client asks for a smaller one."""


@dataclass(frozen=True)
class Guard:
    """Limits the servers to which a client connects, if a tenant names them."""

    fault: Callable[[str], str]
    """Returns why the client must not connect to an IP address; empty if it may."""
    resolver: AbstractResolver
    """Resolves names. It needs threads of its own: a tenant's DNS server may delay its answers."""


class Pace:
    """Limits the requests of a client: ``burst`` at once after a pause, and ``qps`` per second in the long run."""

    def __init__(self, qps: float, burst: int) -> None:
        self._gap, self._credit = 1 / qps, (burst - 1) / qps
        self._next = float("-inf")

    async def wait(self) -> None:
        """Return when the next request may be sent."""
        now = asyncio.get_running_loop().time()
        self._next = max(self._next + self._gap, now - self._credit)
        if self._next > now:
            await asyncio.sleep(self._next - now)


@dataclass
class _Budget:
    """Bytes that all pages of one list may have together."""

    total: int
    spent: int = 0

    def spend(self, size: int, doing: str) -> None:
        self.spent += size
        if self.spent > self.total:
            raise _too_large(f"the list has more than {self.total >> 20} MiB", doing)

    @property
    def exhausted(self) -> bool:
        return self.spent > self.total


@dataclass
class Request:
    """One request, as metrics and traces show it."""

    method: str
    server: str
    path: str
    """Path of the URL without its query."""
    status: int = 0
    """HTTP status of the answer; 0 while there is no answer."""

    @property
    def resource(self) -> str:
        """Plural name of the requested resource, with its subresource; empty for a path without a resource."""
        parts = self.path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else []
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("finalize", "status"):
            rest = rest[2:]
        return "/".join([rest[0], *rest[2:3]]) if rest else ""


observe: Callable[[Request], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
"""Returns a context manager around each request of this process. Set once, when the process starts."""


@dataclass(frozen=True)
class WatchEvent:
    """A change of one object. Objects are shared: read them, copy before changing."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Object
    old: Object | None = None
    """The object before the change, if a cache knew it."""


class KubeClient:
    """One cluster, safe for concurrent use from one event loop.

    Failures raise ``kube.errors.ApiError``. The client reads rotated files again: its token file, and what ``read``
    reads, which is a kubeconfig that was given as a path, with the files that it names, or the CA of the pod's cluster.

    With limits, an answer that has more bytes raises AnswerTooLarge. With a guard, the client connects to no IP address
    to which the guard objects, also if the server's name resolves to it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        read: Callable[[], Endpoint] | None = None,
        limits: Limits | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._guard = guard
        self._read = read
        self._issued: Issued | None = None
        self._issuing = asyncio.Lock()
        self._token = ""
        self._files_read_at = float("-inf")
        self._transport: _Transport | None = None
        self._retired: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_PARALLEL_REQUESTS)
        self.pace: Pace | None = None
        self._discovered: dict[tuple[str, str], Resource] = {}
        self._discovery = asyncio.Lock()
        self._closed = False

    @classmethod
    def from_kubeconfig(cls, kubeconfig: str | Path | Mapping[str, Any], *, run_programs: bool = False) -> "KubeClient":
        """A client for the current context of a path, of YAML or JSON text, or of a parsed kubeconfig.

        ``run_programs``: the path was given by the person who runs this process, so the kubeconfig may name a program
        that issues credentials.
        """
        if isinstance(kubeconfig, Mapping):
            return cls(endpoint_of(kubeconfig))
        if isinstance(kubeconfig, str) and ("\n" in kubeconfig or kubeconfig.startswith("{")):
            return cls(endpoint_of(parse_kubeconfig(kubeconfig)))
        path = Path(kubeconfig).expanduser()
        read = partial(_endpoint_at, path, run_programs)
        return cls(read(), read=read)

    @classmethod
    def in_cluster(cls) -> "KubeClient":
        """A client with the service account of this process's pod."""
        return cls(in_cluster_endpoint(), read=in_cluster_endpoint)

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def is_limited(self) -> bool:
        """Whether the client's API server belongs to a tenant, so its answers are not trusted."""
        return self._limits is not None

    def reconfigure(self, endpoint: Endpoint) -> None:
        """Use another address or other credentials from now on. Requests in flight keep the old connections."""
        if not self._endpoint.same_connection(endpoint):
            self._retire()
            self._issued = None
        self._endpoint = endpoint
        self._token = ""

    def _retire(self) -> None:
        if self._transport is not None:
            task = asyncio.get_running_loop().create_task(self._transport.retire())
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)
            self._transport = None

    async def close(self) -> None:
        self._closed = True
        for task in self._retired:
            task.cancel()
        if self._retired:
            await asyncio.wait(self._retired)
        if self._transport is not None:
            await self._transport.close()
            self._transport = None

    async def __aenter__(self) -> "KubeClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Reading

    async def get(self, res: Resource, name: str, namespace: str | None = None, *, subresource: str = "") -> Object:
        """Read one object. Raises NotFound, also for an empty name: a request without a name would list objects."""
        if not name:
            raise NotFound(404, "NotFound", f"reading {_where(res, namespace)}", "the request names no object")
        answer = await self._call("GET", res, namespace, name, subresource)
        return _object(answer)

    async def find(self, res: Resource, name: str, namespace: str | None = None) -> Object | None:
        """Like ``get``, but None if there is no such object or no such kind."""
        try:
            return await self.get(res, name, namespace)
        except NotFound:
            return None

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
        """All objects, or those of one namespace, in the server's order.

        ``metadata_only``: the server leaves out spec, status and data. ``keep`` is applied to each page before the
        next page is read, so that the whole list is never in memory.
        """
        objects, _ = await self.list_with_version(
            res, namespace, labels=labels, fields=fields, metadata_only=metadata_only, keep=keep
        )
        return objects

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
        """The objects and the resource version to start a watch at."""
        query, accept = _selectors(labels, fields), METADATA if metadata_only else JSON
        limits = self._limits
        try:
            return await self._list(res, namespace, query, accept, keep, limit=limits.page if limits else _PAGE)
        except Gone:  # the continue token expired between two pages
            return await self._list(res, namespace, query, accept, keep, limit=limits.page if limits else 0)

    async def _list(
        self, res: Resource, namespace: str | None, query: dict[str, str], accept: str, keep: Keep | None, limit: int
    ) -> tuple[Objects, str]:
        objects: Objects = []
        token = ""
        budget = None
        if self._limits:
            budget = _Budget(self._limits.reduced if keep else self._limits.whole)
        while True:
            page, limit = await self._page(res, namespace, query, accept, limit, token, budget)
            items = _items(page, res)
            objects += items if keep is None else [kept for each in items if (kept := keep(each)) is not None]
            token = page["metadata"].get("continue") or ""
            if not token:
                return objects, str(page["metadata"].get("resourceVersion", ""))

    async def list_page(
        self, res: Resource, *, labels: str = "", limit: int = _PAGE, token: str = "", metadata_only: bool = False
    ) -> tuple[Objects, str]:
        """One page of the objects of all namespaces, and the token of the next page; empty if this page is the last.

        All pages show the objects as they were at the time of the first page. Raises Gone if the token has expired,
        after some minutes.
        """
        accept = METADATA if metadata_only else JSON
        page, _ = await self._page(res, None, _selectors(labels, ""), accept, limit, token)
        return _items(page, res), page["metadata"].get("continue") or ""

    async def _page(
        self,
        res: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        accept: str,
        limit: int,
        token: str,
        budget: _Budget | None = None,
    ) -> tuple[Object, int]:
        """A page, and the number of objects that it asked for: fewer than ``limit`` if the answer was too large."""
        while True:
            asked = {**query, **({"limit": str(limit)} if limit else {}), **({"continue": token} if token else {})}
            try:
                return _object(
                    await self._call("GET", res, namespace, query=asked, accept=accept, budget=budget)
                ), limit
            except AnswerTooLarge:
                if limit <= 1 or (budget is not None and budget.exhausted):
                    raise
                limit = max(1, limit // 5)

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
        """Events of one watch connection, until the server ends it after a few minutes.

        The events include bookmarks. Raises Gone if the resource version is too old. ``on_open`` is called once
        the server has accepted the watch. For a watch that lasts, use ``kube.cache``.
        """
        doing = f"watching {_where(res, namespace)}"
        query = _selectors(labels, fields)
        query |= {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),
        }
        if resource_version:
            query["resourceVersion"] = resource_version
        response = await self._open(
            "GET",
            _path("GET", res, namespace, doing=doing),
            query=query,
            timeout=_WATCH,
            doing=doing,
            quote_answer=_quotable(res),
        )
        if on_open is not None:
            on_open()
        try:
            async for line in _lines(response, doing, self._limits.answer if self._limits else None):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise error_from_status(int(status.get("code") or 500), status, doing, quote=_quotable(res))
                yield WatchEvent(event["type"], event["object"])
        finally:
            # Not release(): release() would read to the end of the stream, and a watch has no end.
            response.close()

    # Writing

    async def create(self, obj: Mapping[str, Any], *, subresource: str = "", manager: str = "") -> Object:
        """Create an object, or a subresource of the named object, such as ``token``. Raises AlreadyExists."""
        res = await self._resource(obj)
        name = str(obj["metadata"].get("name", "")) if subresource else ""
        query = {"fieldManager": manager} if manager else None
        return _object(
            await self._call(
                "POST", res, self._namespace(res, obj), name, subresource, body=obj, named=obj, query=query
            )
        )

    async def dry_run(self, obj: Mapping[str, Any]) -> tuple[Object, tuple[str, ...]]:
        """Ask for a creation, or for a replacement of the object if it has a resourceVersion; nothing is stored.

        Returns the object as it would be stored, and the warnings of the API server. Raises ApiError.
        """
        res = await self._resource(obj)
        namespace, name = self._namespace(res, obj), str(obj["metadata"].get("name", ""))
        update = bool(obj["metadata"].get("resourceVersion"))
        doing = f"trying {'an update' if update else 'a creation'} of {_where(res, namespace, name)}"
        method = "PUT" if update else "POST"
        response = await self._open(
            method,
            _path(method, res, namespace, name if update else "", doing=doing),
            body=obj,
            query={"dryRun": "All", "fieldValidation": "Strict"},
            timeout=_ANSWER,
            doing=doing,
            quote_answer=_quotable(res),
        )
        told = [_WARNING.fullmatch(each) for each in response.headers.getall("Warning", [])]
        warnings = tuple(re.sub(r"\\(.)", r"\1", each[1]) for each in told if each)
        return _object(_parsed(response, await self._content(response, doing))), warnings

    async def replace(
        self, obj: Mapping[str, Any], *, subresource: str = "", manager: str = "", dry_run: bool = False
    ) -> Object:
        """Replace the object. Raises Conflict if the live object has another resourceVersion than ``obj``.

        ``dry_run``: return the object as it would be stored, and store nothing.
        """
        res = await self._resource(obj)
        name = str(obj["metadata"]["name"])
        query = ({"fieldManager": manager} if manager else {}) | ({"dryRun": "All"} if dry_run else {})
        return _object(
            await self._call("PUT", res, self._namespace(res, obj), name, subresource, body=obj, query=query or None)
        )

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
        """Server-side apply: own exactly the fields given here.

        The client reads the object first and sends no apply if nothing would change. ``live``: the object as the
        caller has just read it; ``version``: the resource version that the object must still have. Use
        ``apply_blindly`` for an object that changes each time.

        Raises Conflict if another manager owns a field and ``force`` is False, or if the object has another resource
        version than ``version``.
        """
        if force and not subresource:
            if live is None:
                res = await self._resource(obj)
                live = await self.find(res, str(obj["metadata"]["name"]), self._namespace(res, obj))
            if live is not None and unchanged(live, obj, manager):
                return live
        return await self.apply_blindly(obj, manager=manager, subresource=subresource, force=force, version=version)

    async def apply_blindly(
        self, obj: Mapping[str, Any], *, manager: str, subresource: str = "", force: bool = True, version: str = ""
    ) -> Object:
        """Like ``apply``, but without reading first: for an object that differs each time, such as a lease."""
        res = await self._resource(obj)
        metadata = {
            key: value for key, value in obj["metadata"].items() if key not in ("managedFields", "resourceVersion")
        } | ({"resourceVersion": version} if version else {})
        return _object(
            await self._call(
                "PATCH",
                res,
                self._namespace(res, obj),
                str(metadata["name"]),
                subresource,
                body={**obj, "metadata": metadata},
                query={"fieldManager": manager, "force": "true" if force else "false"},
                content_type=APPLY,
            )
        )

    async def patch(
        self,
        res: Resource,
        name: str,
        namespace: str | None,
        patch: Mapping[str, Any] | Objects,
        *,
        subresource: str = "",
    ) -> Object:
        """Send a mapping as a merge patch, a list as a JSON patch."""
        content_type = JSON_PATCH if isinstance(patch, list) else MERGE_PATCH
        return _object(
            await self._call("PATCH", res, namespace, name, subresource, body=patch, content_type=content_type)
        )

    async def delete(
        self,
        res: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Request the deletion. False: the object is gone, or another object (uid) has its name now."""
        return await self._delete(res, name, namespace, uid, propagation, grace_seconds) is not None

    async def remove(
        self,
        res: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
    ) -> Object | None:
        """Request the deletion; returns the object while something else must end it first, None if it is gone."""
        answer = await self._delete(res, name, namespace, uid, propagation, None)
        if answer is None or answer.get("kind") == "Status":
            return None
        # For some kinds the answer is the object, whether it is gone or not.
        live = await self.find(res, name, namespace)
        return live if live is not None and live["metadata"]["uid"] == uid else None

    async def _delete(
        self,
        res: Resource,
        name: str,
        namespace: str | None,
        uid: str | None,
        propagation: str | None,
        grace_seconds: int | None,
    ) -> Object | None:
        """The API server's answer; None if there is nothing to delete."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if propagation is not None:
            options["propagationPolicy"] = propagation
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            answer = await self._call("DELETE", res, namespace, name, body=options)
            return answer if isinstance(answer, dict) else {}
        except NotFound:
            return None
        except Conflict:
            if uid is None:
                raise
            now = await self.find(res, name, namespace)
            if now is not None and now["metadata"].get("uid") == uid:
                raise
            return None

    async def resource_for(self, api_version: str, kind: str) -> Resource:
        """The resource of a kind. Discovered from the cluster if the kind is not in ``api.resources``.

        Raises NotFound if the cluster does not serve the kind.
        """
        with contextlib.suppress(UnknownKind):
            return resource_of(api_version, kind)
        async with self._discovery:
            if (api_version, kind) not in self._discovered:
                await self._discover(api_version, kind)
            try:
                return self._discovered[api_version, kind]
            except KeyError:
                raise NotFound(404, "UnknownKind", f"looking up kind {kind} of {api_version}") from None

    async def _discover(self, api_version: str, kind: str) -> None:
        group, _, version = api_version.rpartition("/")
        path = f"/apis/{api_version}" if group else f"/api/{version}"
        served = await self.request("GET", path, doing=f"looking up kind {kind} of {api_version}")
        for entry in served.get("resources") or ():
            if "/" not in entry["name"]:
                self._discovered[api_version, entry["kind"]] = Resource(
                    group, version, entry["kind"], entry["name"], bool(entry["namespaced"])
                )

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str | None = None,
        accept: str = JSON,
        doing: str = "",
    ) -> Any:
        """Send any request; returns parsed JSON, or text if the answer is not JSON."""
        secret = any(part in _SECRET_KINDS for part in path.split("/"))
        return await self._answer(
            method,
            path,
            body=body,
            query=query,
            content_type=content_type,
            accept=accept,
            doing=doing or f"{method} {path}",
            quote_answer=not secret,
        )

    # Plumbing

    async def _resource(self, obj: Mapping[str, Any]) -> Resource:
        return await self.resource_for(str(obj["apiVersion"]), str(obj["kind"]))

    @staticmethod
    def _namespace(res: Resource, obj: Mapping[str, Any]) -> str | None:
        if not res.namespaced:
            return None
        namespace = obj["metadata"].get("namespace")
        if not namespace:
            raise ValueError(f"{res.kind} {obj['metadata'].get('name', '')!r} has no namespace")
        return str(namespace)

    async def _call(
        self,
        method: str,
        res: Resource,
        namespace: str | None = None,
        name: str = "",
        subresource: str = "",
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str | None = None,
        named: Mapping[str, Any] | None = None,
        accept: str = JSON,
        budget: _Budget | None = None,
    ) -> Any:
        shown = name or (str(named["metadata"].get("name", "")) if named else "")
        verb = _VERBS.get(content_type or "", "") or ("listing" if method == "GET" and not name else _VERBS[method])
        doing = f"{verb} {_where(res, namespace, shown)}" + (f" ({subresource})" if subresource else "")
        return await self._answer(
            method,
            _path(method, res, namespace, name, subresource, doing=doing),
            body=body,
            query=query,
            content_type=content_type,
            doing=doing,
            quote_answer=_quotable(res) and subresource != "token",
            accept=accept,
            budget=budget,
        )

    async def _answer(
        self,
        method: str,
        path: str,
        *,
        body: Any,
        query: Mapping[str, str] | None,
        content_type: str | None,
        doing: str,
        quote_answer: bool,
        accept: str = JSON,
        budget: _Budget | None = None,
    ) -> Any:
        async with self._slots:
            for attempt in range(_BUSY_RETRIES + 1):
                if self.pace is not None:
                    await self.pace.wait()
                try:
                    response = await self._open(
                        method,
                        path,
                        body=body,
                        query=query,
                        content_type=content_type,
                        timeout=_ANSWER,
                        doing=doing,
                        quote_answer=quote_answer,
                        accept=accept,
                    )
                    return _parsed(response, await self._content(response, doing, budget))
                except ApiError as error:
                    wait = error.retry_after
                    if error.status != 429 or wait is None or attempt == _BUSY_RETRIES:
                        raise
                await asyncio.sleep(min(wait, 5.0) * random.uniform(1.0, 1.3))
        raise AssertionError("unreachable")

    async def _open(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str | None = None,
        timeout: aiohttp.ClientTimeout,
        doing: str,
        quote_answer: bool,
        accept: str = JSON,
    ) -> aiohttp.ClientResponse:
        """Send a request and return a successful answer, whose body is still unread. Raises ApiError."""
        try:
            return await self._send(method, path, body, query, content_type, timeout, doing, quote_answer, accept)
        except Unauthorized:
            if not self._reread_files(now=True) and not await self._issue(doing, refused=self._issued):
                raise
        return await self._send(method, path, body, query, content_type, timeout, doing, quote_answer, accept)

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str] | None,
        content_type: str | None,
        timeout: aiohttp.ClientTimeout,
        doing: str,
        quote_answer: bool,
        accept: str,
    ) -> aiohttp.ClientResponse:
        if not self._closed:
            self._reread_files()
            await self._issue(doing)
        if self._closed:
            raise Unreachable(0, "client is closed", doing)
        endpoint = self._endpoint
        if self._issued is not None and self._issued.certificate:
            endpoint = replace(endpoint, certificate=self._issued.certificate, key=self._issued.key)
        if self._transport is None:
            try:
                self._transport = _Transport(endpoint, limited=self._limits is not None, guard=self._guard)
            except ssl.SSLError as error:
                fault = error.reason or "not in PEM format"
                raise Unreachable(0, f"certificates of the kubeconfig can't be used: {fault}", doing) from None
        headers = {"Accept": accept, "User-Agent": "gardener-on-temporal"}
        if content_type or body is not None:
            headers["Content-Type"] = content_type or JSON
        if token := (self._issued.token if self._issued else "") or self._token or self._endpoint.token:
            headers["Authorization"] = f"Bearer {token}"
        url = self._endpoint.server + path + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        transport = self._transport
        request = Request(method, self._endpoint.server, path)
        with observe(request):
            for retry in (True, False):
                try:
                    with _unreachable(doing):
                        response = await transport.send(method, url, headers, body, timeout)
                    break
                except ConnectionLost:
                    # Retry once: a restart of the server may have closed a kept-alive connection before this request
                    # was sent. Do not retry POST, which may have reached the server; other methods may run twice.
                    if not retry or method == "POST":
                        raise
            request.status = response.status
        if response.status < 300:
            if self._limits and response.headers.get("Content-Encoding", "identity") != "identity":
                response.close()
                raise _too_large("the answer is compressed, which was not asked for", doing)
            return response
        raise _refusal(response, await self._content(response, doing), doing, quote_answer)

    async def _content(self, response: aiohttp.ClientResponse, doing: str, budget: _Budget | None = None) -> bytes:
        """The whole body of an answer. Raises AnswerTooLarge."""
        if self._limits is None:
            with _unreachable(doing):
                return await response.read()
        pieces: list[bytes] = []
        size = 0
        try:
            with _unreachable(doing):
                async for piece in response.content.iter_any():
                    size += len(piece)
                    if size > self._limits.answer:
                        raise _too_large(f"the answer has more than {self._limits.answer >> 20} MiB", doing)
                    pieces.append(piece)
        finally:
            response.close() if size > self._limits.answer else response.release()
            if budget is not None:
                budget.spend(size, doing)
        return b"".join(pieces)

    async def _issue(self, doing: str, *, refused: Issued | None = None) -> bool:
        """Get credentials from the kubeconfig's issuer, if there are none yet, or they expire soon.

        ``refused``: credentials that the API server has refused. Returns True if they have been replaced.
        """
        async with self._issuing:
            while (issuer := self._endpoint.issuer) is not None:
                known = self._issued
                if known is not None and known is not refused and not known.is_expiring:
                    return refused is not None
                try:
                    issued = await asyncio.to_thread(issuer.issue)
                except KubeconfigError as error:
                    raise Unreachable(0, str(error), doing) from None
                if issuer == self._endpoint.issuer:  # else the kubeconfig has changed meanwhile
                    self._issued = issued
                    if known is not None and known.certificate != issued.certificate:
                        self._retire()
                    return True
        return False

    def _reread_files(self, *, now: bool = False) -> bool:
        """Read rotated files again; returns True if something changed."""
        if self._read is None and self._endpoint.token_file is None:
            return False
        clock = time.monotonic()
        if not now and clock - self._files_read_at < _REREAD_FILES:
            return False
        self._files_read_at = clock
        changed = False
        try:
            if self._read is not None:
                endpoint = self._read()
                if endpoint != self._endpoint:
                    self.reconfigure(endpoint)
                    changed = True
            if self._endpoint.token_file is not None:
                token = self._endpoint.token_file.read_text().strip()
                changed |= token != self._token
                self._token = token
        except (OSError, ValueError) as error:
            # The rotation is not complete, or a volume is not mounted yet: keep the credentials that were read last.
            _log.warning("credentials can't be read again: %s", error)
        return changed


def _endpoint_at(path: Path, run_programs: bool) -> Endpoint:
    return endpoint_of(parse_kubeconfig(path.read_bytes()), path.parent, trusted=path if run_programs else None)


class ConnectionLost(Unreachable):
    """The connection was lost while a request used it."""


class _Transport:
    """Connections to one API server. The event loop that sends the first request opens them.

    ``limited``: answers are not decompressed, because a small answer may decompress to a very large one.
    """

    def __init__(self, endpoint: Endpoint, *, limited: bool = False, guard: Guard | None = None) -> None:
        self._endpoint = endpoint
        self._guard = guard
        self._limited = limited
        self._session: aiohttp.ClientSession | None = None
        self._answers: weakref.WeakSet[aiohttp.ClientResponse] = weakref.WeakSet()
        self._tls = tls_of(endpoint)

    async def send(
        self, method: str, url: str, headers: dict[str, str], body: Any, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                ssl=self._tls,
                keepalive_timeout=60,
                socket_factory=partial(_watchful_socket, self._guard),
                resolver=self._guard.resolver if self._guard else None,
            )
            # Connect to API servers directly or through the kubeconfig's proxy, not through HTTPS_PROXY.
            self._session = aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                read_bufsize=_READ_BUFFER,
                auto_decompress=not self._limited,
                headers={"Accept-Encoding": "identity"} if self._limited else None,
            )
        answer = await self._session.request(
            method,
            url,
            headers=headers,
            data=None if body is None else json.dumps(body),
            timeout=timeout,
            proxy=self._endpoint.proxy or None,
            server_hostname=self._endpoint.tls_server_name or None,
            # Kubernetes' API has no redirects. A node or an aggregated API behind the API server could redirect this
            # client to any address.
            allow_redirects=False,
        )
        self._answers.add(answer)
        return answer

    async def close(self) -> None:
        # Closing the session does not end a read in progress: a watch would wait for ever. So close the answers, too.
        for answer in list(self._answers):
            answer.close()
        if self._session is not None:
            await self._session.close()

    async def retire(self) -> None:
        """Close the connections after the time in which every request but a watch must have ended."""
        try:
            await asyncio.sleep(_ANSWER.total or 60)
        finally:
            await self.close()


def _watchful_socket(guard: Guard | None, address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that detects within 30 s that its peer is gone, also without traffic.

    Raises OSError if the guard objects to the address. The client asks here, after the name was resolved: an answer of
    DNS that is checked earlier may be another one than the connection uses.
    """
    family, kind, protocol, _, target = address
    if guard is not None and (why := guard.fault(str(target[0]))):
        raise OSError(errno.EACCES, f"its address {why}")
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):  # Linux has them all
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def tls_of(endpoint: Endpoint) -> ssl.SSLContext:
    """TLS settings of a connection to an endpoint."""
    context = ssl.create_default_context(cadata=endpoint.ca or None)
    if endpoint.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if endpoint.certificate and endpoint.key:
        load_certificate(context, endpoint.certificate, endpoint.key)
    return context


def load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a client certificate from memory. Python's ssl reads only files; if possible, the file is not on a disk."""
    pem = certificate.rstrip() + b"\n" + key
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("client-certificate")
        try:
            os.write(descriptor, pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:  # mode 0600
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


_VERBS = {
    "GET": "getting",
    "POST": "creating",
    "PUT": "replacing",
    "DELETE": "deleting",
    APPLY: "applying",
    MERGE_PATCH: "patching",
    JSON_PATCH: "patching",
}


def _where(res: Resource, namespace: str | None, name: str = "") -> str:
    return f"{res.kind} " + "/".join(part for part in (namespace, name) if part) if namespace or name else str(res)


def _quotable(res: Resource) -> bool:
    return res.plural not in _SECRET_KINDS


def _items(page: Object, res: Resource) -> Objects:
    """Items of a list with apiVersion and kind. Items lack both, or have PartialObjectMetadata if they are metadata."""
    return [{**item, "apiVersion": res.api_version, "kind": res.kind} for item in page.get("items") or ()]


def _path(
    method: str, res: Resource, namespace: str | None = None, name: str = "", subresource: str = "", *, doing: str
) -> str:
    """Path of a request. A text that can be no name gets the answer of an API server.

    Raises NotFound for what is only read or deleted, Invalid for what is written, also if a write names no object.
    """
    try:
        if name or method in ("GET", "POST"):
            return res.path(namespace, name, subresource)
        fault = "the request names no object"
    except NotAName as error:
        fault = str(error)
    if method in ("GET", "DELETE"):
        raise NotFound(404, "NotFound", doing, fault)
    raise Invalid(422, "Invalid", doing, fault)


def _selectors(labels: str, fields: str) -> dict[str, str]:
    query = {}
    if labels:
        query["labelSelector"] = labels
    if fields:
        query["fieldSelector"] = fields
    return query


def _too_large(what: str, doing: str) -> AnswerTooLarge:
    return AnswerTooLarge(0, what, doing)


def _object(answer: Any) -> Object:
    if not isinstance(answer, dict):
        raise TypeError("API server answered with something that is no object")
    return answer


def _parsed(response: aiohttp.ClientResponse, text: bytes) -> Any:
    return json.loads(text) if "json" in response.content_type else text.decode(errors="replace")


def _refusal(response: aiohttp.ClientResponse, text: bytes, doing: str, quote_answer: bool) -> ApiError:
    body: Any = {}
    if "json" in response.content_type:
        with contextlib.suppress(ValueError):
            body = json.loads(text)
    if not isinstance(body, Mapping) or not body.get("reason"):
        message = body.get("message", "") if isinstance(body, Mapping) else ""
        body = {"reason": response.reason, "message": message}
    error = error_from_status(response.status, body, doing, quote=quote_answer)
    if error.retry_after is None and response.headers.get("Retry-After", "").isdigit():
        error.retry_after = float(response.headers["Retry-After"])
    return error


@contextlib.contextmanager
def _unreachable(doing: str) -> Any:
    """Turn the transport's exceptions into those of ``kube.errors``."""
    try:
        yield
    except TimeoutError:
        raise Unreachable(0, "API server did not answer in time", doing) from None
    except aiohttp.ClientConnectorCertificateError as error:
        raise Unreachable(0, f"API server's certificate is not trusted: {error.certificate_error}", doing) from None
    except aiohttp.ClientConnectorError as error:
        raise Unreachable(0, f"API server can't be reached: {error.os_error.strerror or error}", doing) from None
    except (aiohttp.ClientError, OSError) as error:
        raise ConnectionLost(0, f"connection to API server was lost: {type(error).__name__}", doing) from None


async def _lines(response: aiohttp.ClientResponse, doing: str, limit: int | None) -> AsyncIterator[bytes]:
    """Lines of any length up to the limit: an object may be larger than the transport's buffer."""
    rest = b""
    chunks = response.content.iter_any()
    while True:
        with _unreachable(doing):
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
        *whole, rest = (rest + chunk).split(b"\n")
        if limit is not None and len(rest) > limit:
            raise _too_large(f"an event has more than {limit >> 20} MiB", doing)
        for line in whole:
            if line:
                yield line
