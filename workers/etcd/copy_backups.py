"""Copies the backups of an etcd from one bucket to another: what an ``EtcdCopyBackupsTask`` asks for.

Snapshots keep their names but for the mark of the final one, so what is in the target already is not copied again,
and a copy that was stopped anywhere goes on where it stopped. Source: spec/extensions.md 5.
"""

import asyncio
import base64
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.etcd import snapshots
from activities.etcd.snapshots import Snapshot
from activities.etcd.store import Store, StoreError, open_store
from api.resources import ETCD_COPY_BACKUPS_TASK, SECRET
from api.times import timestamp
from kube.cache import Caches, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, Requeue
from kube.errors import NotFound
from workers.etcd import manifests
from workers.etcd.wrapper import STOP_SECONDS

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
"""Between looks for the final snapshot: users wait for it. etcd-druid's 15 s would be most of a move's downtime."""
_RETRY_SECONDS = 2.0
_NEWEST = 4
"""So many full snapshots are looked at for the mark of the final one."""
_PARALLEL = 8


class CopyBackupsController:
    """One per seed; runs inside the gardenlet."""

    def __init__(
        self, client: KubeClient, caches: Caches, takeover_tolerance: timedelta = manifests.TAKEOVER_TOLERANCE
    ) -> None:
        self._client = client
        self._tolerance = takeover_tolerance + timedelta(seconds=STOP_SECONDS)
        self._inert: dict[Key, tuple[float, datetime]] = {}
        """By task: when an old seed that was given up cannot serve any more, by our own clock, and for people."""
        self._patient: dict[Key, tuple[float, datetime]] = {}
        """The same of the time in which a final snapshot may appear."""
        self._tasks = caches.of(ETCD_COPY_BACKUPS_TASK)

    async def run(self) -> None:
        """Until cancelled."""
        controller = Controller("copy backups", self._reconcile, workers=10)
        controller.watch(self._tasks)
        await controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        task = self._tasks.get(key.name, key.namespace)
        if task is None or _succeeded(task):
            self._inert.pop(key, None)
            self._patient.pop(key, None)
            return None
        stores: list[Store] = []
        try:
            for side in ("sourceStore", "targetStore"):
                stores.append(await self._open(task, task["spec"][side]))
            waiting = await self._copy(key, task, *stores)
        except (StoreError, NotFound) as error:
            waiting = str(error)
            log.warning("%s: %s", key, waiting)
        finally:
            await asyncio.gather(*(store.close() for store in stores))
        if not waiting:
            return None
        await self._write(task, {"lastError": waiting})
        return Requeue(_LOOK_SECONDS if waiting.startswith((_NO_FINAL, _MAY_SERVE)) else _RETRY_SECONDS)

    async def _open(self, task: Object, store: Mapping[str, Any]) -> Store:
        secret = await self._client.get(SECRET, store["secretRef"]["name"], task["metadata"]["namespace"])
        credentials = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
        return open_store(store["provider"], credentials, store["container"])

    async def _copy(self, key: Key, task: Object, source: Store, target: Store) -> str:
        """Copy all there is; returns what is waited for, empty if it is done."""
        directories = [snapshots.directory(task["spec"][side]["prefix"]) for side in ("sourceStore", "targetStore")]
        names = [item.name for item in await source.list(directories[0])]
        there, fenced = snapshots.counted(names), snapshots.fence(names) is not None
        if not fenced and lacks_final(task, there) and (fault := self._may_come(key, task)):
            return fault
        if not snapshots.fulls(there):
            return f"bucket {task['spec']['sourceStore']['container']} has no full snapshot in {directories[0]}"
        if not fenced:
            # From now on it does not matter what the old seed still writes, if it is not dead but cut off.
            await source.put(directories[0] + snapshots.fence_name(snapshots.last_revision(there)), _nothing())
        have = {item.name.rsplit("/", 1)[-1] for item in await target.list(directories[1])}
        missing = [item for item in there if _unmarked(item).name not in have]
        limit = asyncio.Semaphore(_PARALLEL)

        async def copy(item: Snapshot) -> None:
            async with limit:
                await target.put(directories[1] + _unmarked(item).name, source.get(directories[0] + item.name))

        await asyncio.gather(*map(copy, missing))
        newest = snapshots.last_revision(there)
        log.info("%s: copied %d snapshots, up to revision %d", task["metadata"]["namespace"], len(missing), newest)
        final = any(item.final for item in there)
        if not final:
            if fault := self._may_serve(key):
                return fault
            # The etcd that starts from here need not wait again.
            await source.put(directories[0] + snapshots.silence_name(newest), _nothing())
        message = f"{len(there)} snapshots up to revision {newest}" + ("" if final else ", none of them final")
        await self._write(task, {"lastError": None, "conditions": [_condition("Succeeded", "Copied", message)]})
        return ""

    def _may_serve(self, key: Key) -> str:
        """Until when the old seed may serve that found no mark in its bucket when it looked there last.

        By the time that passes here since we know of the mark: no two clocks have to agree.
        """
        shown = _left(self._inert, key, self._tolerance)
        return f"{_MAY_SERVE}; it stops by {shown:%H:%M:%S} UTC" if shown else ""

    def _may_come(self, key: Key, task: Mapping[str, Any]) -> str:
        """Until when the old seed may still take its last snapshot; whatever clocks say, not for longer than it has."""
        patience = timedelta(seconds=manifests.seconds(task["spec"]["waitForFinalSnapshot"].get("timeout") or "5m"))
        shown = _left(self._patient, key, patience)
        return f"{_NO_FINAL} yet; it is waited for until {shown:%H:%M:%S} UTC" if shown else ""

    async def _write(self, task: Object, status: dict[str, Any]) -> None:
        metadata, live = task["metadata"], task.get("status") or {}
        wanted = {**status, "observedGeneration": metadata.get("generation")}
        if all(live.get(name) == value for name, value in wanted.items()):
            return
        try:
            await self._client.patch(
                ETCD_COPY_BACKUPS_TASK,
                metadata["name"],
                metadata["namespace"],
                {"status": wanted},
                subresource="status",
            )
        except NotFound:
            return


async def _nothing() -> AsyncIterator[bytes]:
    yield b""


_MAY_SERVE = "the old seed may serve still"
_NO_FINAL = "there is no final snapshot"


def lacks_final(task: Mapping[str, Any], there: list[Snapshot]) -> bool:
    """Whether there is no final snapshot, and one is to be waited for before anything is copied."""
    wait = task["spec"].get("waitForFinalSnapshot") or {}
    return bool(wait.get("enabled")) and not any(item.final for item in snapshots.fulls(there)[:_NEWEST])


def _left(ends: dict[Key, tuple[float, datetime]], key: Key, patience: timedelta) -> datetime | None:
    """When a wait that began with the first question ends, for people; None once it has, by a clock nobody sets."""
    now = time.monotonic()
    end, shown = ends.setdefault(key, (now + patience.total_seconds(), datetime.now(UTC) + patience))
    return shown if now < end else None


def _unmarked(snapshot: Snapshot) -> Snapshot:
    """As it is named in the target: only the source's last snapshot was its last."""
    return replace(snapshot, final=False)


def _succeeded(task: Mapping[str, Any]) -> bool:
    conditions = (task.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Succeeded" and each["status"] == "True" for each in conditions)


def _condition(kind: str, reason: str, message: str) -> dict[str, Any]:
    now = timestamp()
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
        "lastUpdateTime": now,
    }
