"""Rewrite every object of some kinds of a shoot, page by page, by a change of a label.

If an attempt is killed, the next attempt continues where it stopped:

- Each heartbeat holds the kind and the continue token of the page that is being written. The next attempt requests
  that page again; the kinds and pages before it are done.
- A token shows the objects as they were when the first page was requested, so some objects of the page may have been
  written since. Each write names the resourceVersion that was listed. If an object has changed meanwhile, the API
  server rejects the write, and the object is read again; if it has the label then, it is skipped. So no object is
  written twice.
- A token expires after some minutes. Then the kind starts again from its first page; the selector leaves out the
  objects that are written already.

Objects that are created meanwhile need no rewrite: the API server stores them with the new key from the start.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from activities.shoot.survey import KEY_NAME
from api.model import ApiModel
from api.resources import Resource
from kube.client import KubeClient
from kube.errors import Conflict, Gone, NotFound

_PARALLEL = 20
PER_SECOND = 100
"""Maximum number of writes: the shoot's API server has other clients to serve. Source: spec/credentials.md 5 and 6."""
PAGE = PER_SECOND
"""Objects of one page: to write them takes a second."""
_ATTEMPTS = 5


class Position(ApiModel):
    """Progress of a rewrite."""

    resource: str = ""
    """Kind by its plural name and group, as in ``deployments.apps``; empty if no kind is in progress."""
    token: str = ""
    """Continue token of the page that is being written; empty for the first page of the kind."""
    written: int = 0
    """Number of objects written so far."""


class Rewriting:
    """One attempt of a rewrite, which begins at the position of the previous attempt."""

    def __init__(self, last: Mapping[str, Any] | None) -> None:
        self._position = Position.model_validate(last or {})

    def position(self) -> Position:
        """Position for the heartbeat."""
        return self._position

    def progress(self) -> str:
        """Progress as a text for users."""
        at = f", at {self._position.resource}" if self._position.resource else ""
        return f"{self._position.written} objects{at}"

    async def run(self, shoot: KubeClient, names: tuple[str, ...], selector: str, label: str | None) -> None:
        """Set the label on all objects of these kinds that the selector finds; remove it if ``label`` is None."""
        kinds = await resources_named(shoot, names)
        begun = [index for index, kind in enumerate(kinds) if str(kind) == self._position.resource]
        for kind in kinds[begun[0] if begun else 0 :]:
            if str(kind) != self._position.resource:
                self._move(resource=str(kind), token="")
            await self._kind(shoot, kind, selector, label)
        self._move(resource="", token="")

    async def _kind(self, shoot: KubeClient, kind: Resource, selector: str, label: str | None) -> None:
        async def write(item: dict[str, Any]) -> None:
            if await _labeled(shoot, kind, item, label):
                self._move(written=self._position.written + 1)

        clock = asyncio.get_running_loop().time
        while True:
            begun = clock()
            try:
                found, token = await shoot.list_page(
                    kind, labels=selector, limit=PAGE, token=self._position.token, metadata_only=True
                )
            except Gone:
                if not self._position.token:
                    raise
                self._move(token="")
                continue
            await each_of(found, write)
            if not token:
                return
            self._move(token=token)
            await asyncio.sleep(max(0.0, begun + 1 - clock()))

    def _move(self, **change: Any) -> None:
        self._position = self._position.model_copy(update=change)


async def _labeled(shoot: KubeClient, kind: Resource, item: dict[str, Any], label: str | None) -> bool:
    """Set or remove the label of an object; return whether this call has written the object."""
    name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
    live: dict[str, Any] | None = item
    for attempt in range(_ATTEMPTS):
        if live is None or (live["metadata"].get("labels") or {}).get(KEY_NAME) == label:
            return False
        change: dict[str, Any] = {"labels": {KEY_NAME: label}}
        if (
            attempt < _ATTEMPTS - 1
        ):  # the last write ignores the version: other clients may change the object all the time
            change["resourceVersion"] = live["metadata"]["resourceVersion"]
        try:
            await shoot.patch(kind, name, namespace, {"metadata": change})
        except NotFound:
            return False  # deleted meanwhile, and with it its encrypted content
        except Conflict:
            live = await shoot.find(kind, name, namespace)
            continue
        return True
    return False


async def resources_named(client: KubeClient, names: tuple[str, ...]) -> list[Resource]:
    """Kinds by their plural names, ``configmaps`` or ``deployments.apps``, as the cluster serves them.

    A kind that the cluster does not serve is left out: it has no objects.
    """
    groups = {group["name"]: group for group in (await client.request("GET", "/apis")).get("groups") or ()}
    found = []
    for name in dict.fromkeys(names):
        plural, _, group = name.partition(".")
        if group and group not in groups:
            continue
        version = groups[group]["preferredVersion"]["version"] if group else "v1"
        path = f"/apis/{group}/{version}" if group else "/api/v1"
        for entry in (await client.request("GET", path)).get("resources") or ():
            if entry["name"] == plural:
                found.append(Resource(group, version, entry["kind"], plural, bool(entry["namespaced"])))
    return found


async def paced(items: list[dict[str, Any]], do: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Call ``do`` for all items, ``PER_SECOND`` of them a second at most."""
    clock = asyncio.get_running_loop().time
    for start in range(0, len(items), PER_SECOND):
        begun = clock()
        await each_of(items[start : start + PER_SECOND], do)
        if start + PER_SECOND < len(items):
            await asyncio.sleep(max(0.0, begun + 1 - clock()))


async def each_of(items: list[dict[str, Any]], do: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Call ``do`` for all items, ``_PARALLEL`` of them at a time at most."""
    limit = asyncio.Semaphore(_PARALLEL)

    async def one(item: dict[str, Any]) -> None:
        async with limit:
            await do(item)

    await asyncio.gather(*map(one, items))
