"""Shared caches of a cluster's objects: list once, then watch; events wake the waiters."""

import asyncio
import contextlib
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self, TypeVar

from api.resources import Resource
from kube import liveness
from kube.client import Keep, KubeClient, Object, Objects, WatchEvent
from kube.errors import ApiError, Gone
from kube.waits import waiting_for

T = TypeVar("T")
Handler = Callable[[WatchEvent], None]
Values = Callable[[Object], Iterable[str]]
"""The values under which an index finds an object."""

_log = logging.getLogger(__name__)

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 3.0
"""Seconds between attempts to reach the API server. Short, because callers wait for the cache meanwhile."""


_SYNC_SECONDS = 10 * 60.0
"""A cache fails the liveness of its process if the API server has refused the first list for so long."""
_SILENCE_SECONDS = 10 * 60.0
"""A cache fails liveness, too, if it has had neither an answer nor an error for so long.

A working cache gets either: watches bring a bookmark each minute, and requests time out.
"""
_IDLE_SECONDS = 15 * 60.0
"""How long the unused cache of one namespace is kept. Shoots are created and deleted, and caches must go with them."""


class Key(NamedTuple):
    """Names an object of one kind; the namespace is None for cluster-scoped kinds."""

    namespace: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(obj: Object) -> Key:
    return Key(obj["metadata"].get("namespace"), obj["metadata"]["name"])


BY_UID = "metadata.uid"
"""Index of objects of any kind, by ``uids_of``."""


def uids_of(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["uid"],)


class _Index:
    """Keys of objects, by the values that a function returns for each object."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._keys: dict[str, dict[Key, None]] = {}
        """Keys by value. The inner dictionary is an ordered set."""
        self._known: dict[Key, tuple[str, ...]] = {}

    def find(self, value: str) -> Iterable[Key]:
        return self._keys.get(value, ())

    def put(self, key: Key, obj: Object) -> None:
        try:
            values = tuple(self.values(obj))
        except Exception:
            _log.exception("an index cannot read %s", key)
            values = ()
        if values == self._known.get(key):
            return
        self.remove(key)
        if values:
            self._known[key] = values
        for value in values:
            self._keys.setdefault(value, {})[key] = None

    def remove(self, key: Key) -> None:
        for value in self._known.pop(key, ()):
            keys = self._keys[value]
            keys.pop(key, None)
            if not keys:
                del self._keys[value]


def _replaced(one: Object, other: Object) -> bool:
    """Whether an object was deleted and created again between two states. An object that was cut may have no uid."""
    before, after = one["metadata"].get("uid"), other["metadata"].get("uid")
    return None not in (before, after) and before != after


class ObjectStore:
    """Objects of one kind in memory, with indexes, subscribers and waiters.

    Objects handed out are shared: read them, copy before changing. The objects may lag behind the cluster; a caller
    that has just written compares generation or resourceVersion.
    """

    def __init__(self, resource: Resource, namespace: str | None = None) -> None:
        self.resource = resource
        self._namespace = namespace
        self._objects: defaultdict[str | None, dict[str, Object]] = defaultdict(dict)
        """Objects by namespace and name."""
        self._indexes: dict[str, _Index] = {}
        self._handlers: list[Handler] = []
        self._waiters: defaultdict[Key | str | None, set[asyncio.Event]] = defaultdict(set)
        """Waiters by the key or the namespace whose events wake them; None: all events."""
        self._synced = asyncio.Event()
        self._last_error = ""
        self._last_used = 0.0

    def idle_seconds(self) -> float:
        """Seconds since the last subscription, wait, or request to ``Caches`` for this cache."""
        now = asyncio.get_running_loop().time()
        if self._handlers or self._waiters or not self._last_used:
            self._last_used = now
        return now - self._last_used

    def touch(self) -> None:
        self._last_used = asyncio.get_running_loop().time()

    def get(self, name: str, namespace: str | None = None) -> Object | None:
        """The object; the namespace may be left out if the cache has just one."""
        return self._find(self._key(name, namespace))

    def list(self, namespace: str | None = None) -> Objects:
        if namespace is None:
            return [obj for objects in self._objects.values() for obj in objects.values()]
        return list(self._objects[namespace].values()) if namespace in self._objects else []

    def index(self, name: str, values: Values) -> None:
        """Keep an index of the objects by the values that ``values`` returns for each object; ``by_index`` reads it.

        Components that share a cache may define the same index with the same function. Raises ValueError for another
        function.
        """
        known = self._indexes.get(name)
        if known is not None:
            if known.values is not values:
                raise ValueError(f"index {name} of {self.resource} is defined with another function")
            return
        index = self._indexes[name] = _Index(values)
        for obj in self.list():
            index.put(key_of(obj), obj)

    def by_index(self, name: str, value: str | None) -> Objects:
        """Objects with a value in an index; an empty list if the value is None."""
        found = self._indexes[name].find(value) if value is not None else ()
        return [self._objects[key.namespace][key.name] for key in found]

    async def synced(self, timeout: float | None = None) -> None:
        """Returns once the first list has been read. Raises TimeoutError after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._synced.wait()
        except TimeoutError:
            why = self._last_error or "the server does not answer"
            raise TimeoutError(f"{self.resource} could not be listed within {timeout:.0f} s: {why}") from None

    @property
    def is_synced(self) -> bool:
        return self._synced.is_set()

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Call ``handler`` for every object in the cache, as ADDED, and for every change after that.

        Handlers must be quick and must not raise. Returns the function that ends the subscription.
        """
        self._handlers.append(handler)
        for obj in self.list():
            self._tell(handler, WatchEvent("ADDED", obj))

        def unsubscribe() -> None:
            if handler in self._handlers:
                self._handlers.remove(handler)

        return unsubscribe

    async def wait_for(
        self,
        name: str,
        namespace: str | None,
        predicate: Callable[[Object | None], T | None],
        timeout: float | None,
        on_progress: Callable[[Object | None], None] | None = None,
    ) -> T:
        """Wait until ``predicate`` returns neither None nor False for the object, and return its result.

        ``predicate`` is called once at the start and again after each change of the object, with None while
        the object does not exist; an exception of ``predicate`` ends the wait. ``on_progress`` is called with each
        state for which the wait goes on. Raises TimeoutError after ``timeout`` seconds; None: never.
        """
        key = self._key(name, namespace)

        def check() -> T | None:
            obj = self._find(key)
            answer = predicate(obj)
            if (answer is None or answer is False) and on_progress is not None:
                on_progress(obj)
            return answer

        what = f"{self.resource.kind} {key}"
        with waiting_for(what):
            return await self._wait(check, key, what, timeout)

    async def wait_until(
        self, predicate: Callable[[Self], T | None], timeout: float, namespace: str | None = None
    ) -> T:
        """Like ``wait_for``, for all objects or those of a namespace: each change of one calls ``predicate`` again."""
        where = namespace or self._namespace
        what = f"{self.resource}" + (f" in {where}" if where else "")
        with waiting_for(what):
            return await self._wait(lambda: predicate(self), namespace, what, timeout)

    async def _wait(
        self, check: Callable[[], T | None], concerned: Key | str | None, what: str, timeout: float | None
    ) -> T:
        changed = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                await self._synced.wait()
                self._waiters[concerned].add(changed)
                try:
                    while True:
                        changed.clear()
                        answer = check()
                        if answer is not None and answer is not False:
                            return answer
                        await changed.wait()
                finally:
                    self._waiters[concerned].discard(changed)
                    if not self._waiters[concerned]:
                        del self._waiters[concerned]
                    self.touch()
        except TimeoutError:
            lost = f"; the watch is broken: {self._last_error}" if self._last_error else ""
            raise TimeoutError(f"{what} did not reach the expected state within {timeout:.0f} s{lost}") from None

    def _key(self, name: str, namespace: str | None) -> Key:
        return Key((namespace or self._namespace) if self.resource.namespaced else None, name)

    def _find(self, key: Key) -> Object | None:
        objects = self._objects.get(key.namespace)
        return objects.get(key.name) if objects is not None else None

    def _put(self, obj: Object) -> None:
        key = key_of(obj)
        old = self._find(key)
        if old is not None and old["metadata"].get("resourceVersion") == obj["metadata"].get("resourceVersion"):
            return
        if old is not None and _replaced(old, obj):
            # Deleted and created again while no watch was open: subscribers must see the end of the earlier object.
            self._remove(key, old)
            old = None
        self._objects[key.namespace][key.name] = obj
        for index in self._indexes.values():
            index.put(key, obj)
        self._publish(WatchEvent("ADDED" if old is None else "MODIFIED", obj, old), key)

    def _remove(self, key: Key, last: Object) -> None:
        old = self._find(key)
        if old is None or _replaced(last, old):  # the end of an earlier object, which came late
            return
        del self._objects[key.namespace][key.name]
        if not self._objects[key.namespace]:
            del self._objects[key.namespace]
        for index in self._indexes.values():
            index.remove(key)
        self._publish(WatchEvent("DELETED", last, old), key)

    def _publish(self, event: WatchEvent, key: Key) -> None:
        for handler in list(self._handlers):
            self._tell(handler, event)
        for concerned in {key, key.namespace, None}:
            for changed in self._waiters.get(concerned, ()):
                changed.set()

    def _tell(self, handler: Handler, event: WatchEvent) -> None:
        try:
            handler(event)
        except Exception:
            _log.exception("a handler of %s events failed", self.resource)


class Cache(ObjectStore):
    """One resource of one cluster, whole or by namespace, labels or fields: list once, then watch.

    ``async with`` starts and closes the cache.

    ``keep``: returns the part of each object to keep, with its namespace, name and resourceVersion at least. A cache
    of a shoot cluster needs ``keep`` where the Shoot's owner decides how many objects there are, and how large.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        *,
        keep: Keep | None = None,
    ) -> None:
        super().__init__(resource, namespace)
        self._keep = keep
        self._client = client
        self._labels = labels
        self._fields = fields
        self._task: asyncio.Task[None] | None = None
        self._started = self._heard = 0.0
        """Times of the event loop in seconds: the start, and the last answer or error of the API server."""
        self._refused = False
        """Whether the last request reached an API server that could not serve it."""

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._started = self._heard = loop.time()
            self._task = loop.create_task(self._run_alive(), name=f"cache of {self.resource} {self._namespace or ''}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    def stop(self) -> None:
        """Like ``close``, but without waiting until the connection is closed."""
        if self._task is not None:
            self._task.cancel()

    def fault(self) -> str | None:
        """Why the cache makes no progress; None while it follows its API server, or cannot reach it."""
        now = asyncio.get_running_loop().time()
        if (silent := now - self._heard) > _SILENCE_SECONDS:
            return f"cache of {self.resource}: neither an answer nor an error for {silent:.0f} s"
        if not self.is_synced and self._refused and now - self._started > _SYNC_SECONDS:
            return f"cache of {self.resource}: could not be listed for {now - self._started:.0f} s: {self._last_error}"
        return None

    def _hear(self, error: ApiError | None = None) -> None:
        self._heard = asyncio.get_running_loop().time()
        self._refused = error is not None and error.status != 0

    async def _run_alive(self) -> None:
        # An API server of a tenant that refuses requests must not cause a restart of the gardenlet.
        with contextlib.nullcontext() if self._client.is_limited else liveness.running(self):
            await self._run()

    async def _run(self) -> None:
        delay = _FIRST_DELAY
        while True:
            try:
                version = await self._relist()
                self._last_error = ""
                delay = _FIRST_DELAY
                await self._follow(version)
            except Gone:
                self._hear()
                _log.debug("watch of %s is too old, listing again", self.resource)
            except ApiError as error:
                self._hear(error)
                if str(error) != self._last_error:
                    _log.warning("%s; trying again", error)
                self._last_error = str(error)
            except Exception:
                _log.exception("cache of %s failed, starting again", self.resource)
            await asyncio.sleep(delay * random.uniform(0.7, 1.3))
            delay = min(delay * 2, _LONGEST_DELAY)

    async def _relist(self) -> str:
        objects, version = await self._client.list_with_version(
            self.resource, self._namespace, labels=self._labels, fields=self._fields, keep=self._keep
        )
        found = {key_of(obj): obj for obj in objects}
        for obj in self.list():
            if (key := key_of(obj)) not in found:
                self._remove(key, obj)
        for obj in found.values():
            self._put(obj)
        self._synced.set()
        self._hear()
        return version

    async def _follow(self, version: str) -> None:
        """Watch from a resource version on and reconnect after errors that pass. Raises ApiError for other errors."""
        failures = 0
        while True:
            started = asyncio.get_running_loop().time()
            try:
                async for event in self._client.watch(
                    self.resource,
                    self._namespace,
                    labels=self._labels,
                    fields=self._fields,
                    resource_version=version,
                    on_open=self._heal,
                ):
                    failures = 0
                    self._hear()
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type == "BOOKMARK":
                        continue
                    kept = event.object if self._keep is None else self._keep(event.object)
                    if event.type == "DELETED" or kept is None:
                        self._remove(key_of(event.object), kept or event.object)
                    else:
                        self._put(kept)
            except ApiError as error:
                if error.status not in (0, 429, 500, 502, 503, 504):
                    raise
                self._hear(error)
                self._last_error = str(error)
                failures += 1
                _log.debug("%s; reconnecting", error)
            else:
                # Without a delay, a server that ends each watch at once would keep this loop busy.
                failures = failures + 1 if asyncio.get_running_loop().time() - started < 1 else 0
            if failures:
                delay = min(_FIRST_DELAY * 2 ** (failures - 1), _LONGEST_DELAY)
                await asyncio.sleep(delay * random.uniform(0.7, 1.3))

    def _heal(self) -> None:
        self._hear()
        self._last_error = ""


class Caches:
    """The caches of one cluster. The first request for a cache starts it, and all later requests share it."""

    def __init__(self, client: KubeClient, *, keep: Keep | None = None) -> None:
        self.client = client
        self._keep = keep
        self._caches: dict[tuple[Resource, str | None, str, str], Cache] = {}

    def of(self, resource: Resource, namespace: str | None = None, labels: str = "", fields: str = "") -> Cache:
        """The cache of a resource. To wait for the effect of a write, ask for the cache before or after the write.

        Caches of one namespace are dropped when they have not been used for ``_IDLE_SECONDS``. Subscribe to such a
        cache, or ask for it again instead of keeping it.
        """
        for idle in [key for key, cache in self._caches.items() if key[1] and cache.idle_seconds() > _IDLE_SECONDS]:
            self._caches.pop(idle).stop()
        key = (resource, namespace if resource.namespaced else None, labels, fields)
        cache = self._caches.get(key)
        if cache is None:
            cache = self._caches[key] = Cache(self.client, resource, key[1], labels, fields, keep=self._keep)
            cache.start()
        cache.touch()
        return cache

    def started(self) -> list[Cache]:
        """All caches that run."""
        return list(self._caches.values())

    async def forget(self, namespace: str) -> None:
        """Stop the caches of one namespace, after the namespace is gone."""
        gone = [key for key in self._caches if key[1] == namespace]
        await asyncio.gather(*(self._caches.pop(key).close() for key in gone))

    async def close(self) -> None:
        await asyncio.gather(*(cache.close() for cache in self._caches.values()))
        self._caches.clear()
