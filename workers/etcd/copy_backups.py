"""Copies the backups of an etcd from one bucket to another, as an ``EtcdCopyBackupsTask`` requests.

Snapshots keep their names; only the mark of the final snapshot is removed. So snapshots that are in the target already
are not copied again, and a copy that was interrupted goes on where it stopped. Source: spec/extensions.md 5.
"""

import asyncio
import base64
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from api.decisions.conditions import find_condition, set_conditions
from api.resources import ETCD_COPY_BACKUPS_TASK, SECRET
from api.times import timestamp
from etcd import snapshots
from etcd.snapshots import Snapshot
from etcd.store import Store, StoreError, open_store
from kube.cache import Caches, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, Requeue
from kube.errors import NotFound
from workers.etcd import manifests
from workers.etcd.wrapper import STOP_SECONDS

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
"""Time between two checks for the final snapshot. Short, because users wait for it: etcd-druid's 15 s would be most of
a move's downtime."""
_RETRY_SECONDS = 2.0
_NEWEST = 4
"""Number of newest full snapshots among which the final snapshot is searched."""
_PARALLEL = 8


class CopyBackupsController:
    """Controller of ``EtcdCopyBackupsTask`` objects, one per seed. It runs inside the gardenlet."""

    def __init__(
        self, client: KubeClient, caches: Caches, takeover_tolerance: timedelta = manifests.TAKEOVER_TOLERANCE
    ) -> None:
        self._client = client
        self._tolerance = takeover_tolerance + timedelta(seconds=STOP_SECONDS)
        self._inert: dict[Key, tuple[float, datetime]] = {}
        """By task: when the etcd of a lost seed can no longer serve, as a time of our monotonic clock, and in UTC to
        show."""
        self._patient: dict[Key, tuple[float, datetime]] = {}
        """By task: until when a final snapshot may appear, in the same two forms."""
        self._tasks = caches.of(ETCD_COPY_BACKUPS_TASK)

    async def run(self) -> None:
        """Run until cancelled."""
        controller = Controller("copy backups", self._reconcile, workers=10)
        controller.watch(self._tasks)
        await controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        task = self._tasks.get(key.name, key.namespace)
        if task is None or _succeeded(task):
            self._inert.pop(key, None)
            self._patient.pop(key, None)
            return None
        try:
            source, target = [await self._open(task, task["spec"][side]) for side in ("sourceStore", "targetStore")]
            waiting = await self._copy(key, task, source, target)
        except (StoreError, NotFound) as error:
            waiting = str(error)
            log.warning("%s: %s", key, waiting)
        if not waiting:
            return None
        await self._write(task, {"lastError": waiting})
        return Requeue(_LOOK_SECONDS if waiting.startswith((_NO_FINAL, _MAY_SERVE)) else _RETRY_SECONDS)

    async def _open(self, task: Object, store: Mapping[str, Any]) -> Store:
        secret = await self._client.get(SECRET, store["secretRef"]["name"], task["metadata"]["namespace"])
        credentials = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
        return open_store(store["provider"], credentials, store["container"])

    async def _copy(self, key: Key, task: Object, source: Store, target: Store) -> str:
        """Copy all snapshots. Returns what the task waits for, empty if the copy is done."""
        directories = [snapshots.directory(task["spec"][side]["prefix"]) for side in ("sourceStore", "targetStore")]
        names = [item.name for item in await source.list(directories[0])]
        there, fenced = snapshots.counted(names), snapshots.fence(names) is not None
        if not fenced and lacks_final(task, there) and (fault := self._may_come(key, task)):
            return fault
        if not snapshots.fulls(there):
            return f"bucket {task['spec']['sourceStore']['container']} has no full snapshot in {directories[0]}"
        if not fenced:
            # The takeover marker. A source that is only cut off may still write snapshots; now they do not count.
            await source.create(directories[0] + snapshots.fence_name(snapshots.last_revision(there)))
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
            # So the destination's etcd need not wait for the same time itself.
            await source.create(directories[0] + snapshots.silence_name(newest))
        message = f"{len(there)} snapshots up to revision {newest}" + ("" if final else ", none of them final")
        succeeded = {"type": "Succeeded", "status": "True", "reason": "Copied", "message": message}
        await self._write(task, {"lastError": None, "conditions": set_conditions((), [succeeded], timestamp())})
        return ""

    def _may_serve(self, key: Key) -> str:
        """Until when the source's etcd may serve, if it found no takeover marker when it last read its bucket.

        Measured here, from the moment at which this process knew of the marker: no two clocks have to agree.
        """
        shown = _left(self._inert, key, self._tolerance)
        return f"{_MAY_SERVE}; it stops by {shown:%H:%M:%S} UTC" if shown else ""

    def _may_come(self, key: Key, task: Mapping[str, Any]) -> str:
        """Until when the source may still write its final snapshot: for the task's timeout, by the monotonic clock."""
        patience = timedelta(seconds=manifests.seconds(task["spec"]["waitForFinalSnapshot"].get("timeout") or "5m"))
        shown = _left(self._patient, key, patience)
        return f"{_NO_FINAL} yet; the copy waits for it until {shown:%H:%M:%S} UTC" if shown else ""

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


_MAY_SERVE = "the source's etcd may still serve"
_NO_FINAL = "there is no final snapshot"


def lacks_final(task: Mapping[str, Any], there: list[Snapshot]) -> bool:
    """Whether the task must wait for a final snapshot before it copies anything, and there is none yet."""
    wait = task["spec"].get("waitForFinalSnapshot") or {}
    return bool(wait.get("enabled")) and not any(item.final for item in snapshots.fulls(there)[:_NEWEST])


def _left(ends: dict[Key, tuple[float, datetime]], key: Key, patience: timedelta) -> datetime | None:
    """UTC time, to show, at which a wait ends that began with the first call for this key; None once it has ended.

    The monotonic clock decides that, because the system's clock may be set.
    """
    now = time.monotonic()
    end, shown = ends.setdefault(key, (now + patience.total_seconds(), datetime.now(UTC) + patience))
    return shown if now < end else None


def _unmarked(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it is named in the target: final in the source, it is not the last one of the target."""
    return replace(snapshot, final=False)


def _succeeded(task: Mapping[str, Any]) -> bool:
    return find_condition(task, "Succeeded").get("status") == "True"
