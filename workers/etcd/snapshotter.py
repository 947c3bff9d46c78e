"""Backs up one etcd: full snapshots by schedule, and all changes in between as delta snapshots.

The snapshotter watches the keyspace without a break, also during full snapshots, so the deltas in the store follow each
other without a gap. After a restart, the snapshots in the store tell from which revision to go on.
"""

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from api import cron
from etcd import snapshots
from etcd.client import Compacted, EtcdClient, EtcdError
from etcd.delta import DeltaWriter
from etcd.snapshots import FULL, INCR, Snapshot
from etcd.store import Store, StoreError

log = logging.getLogger(__name__)

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 10.0
_LONGEST_ETCD_DELAY = 1.0
"""Longest pause after an error of etcd, which runs in the same pod. Etcd does not answer while it replicates, and must
be backed up as soon as it accepts writes."""
_LEVEL = 3
_CATCH_UP_SECONDS = 30.0
_LEAST_FULL = 256 << 10
"""Bytes of deltas that can be restored in a few seconds. Fewer bytes are no reason for a full snapshot, however small
that would be."""
_TAKEOVER_SECONDS = 10.0
"""Time between checks for a takeover by another seed. An etcd that comes back after it was cut off accepts writes for
this time, although another seed has taken over its cluster."""
_LEADERSHIP_SECONDS = 2.0
"""Time between checks whether this pod's member is still the leader. If two sidecars back up for a moment, they only
write the same changes twice."""
_LOST = "the store did not accept changes; they are read from etcd again"


class SnapshotError(Exception):
    """A requested snapshot could not be taken; the text may be shown to anyone."""


@dataclass(frozen=True)
class Schedule:
    """When to take snapshots, collect garbage and defragment. Times are UTC."""

    full: str
    delta_period: timedelta
    delta_bytes: int
    """Bytes of uncompressed changes in memory at which a delta is written before its period is over."""
    full_after_changes: int
    """Number of changes since the last full snapshot at which the next one is taken: a restore applies changes one by
    one."""
    garbage_collection_period: timedelta
    defragmentation: str = ""


class Snapshotter:
    """Backs up one etcd. ``run`` is called once; ``full`` and ``delta`` may be called at any time."""

    def __init__(
        self,
        etcd: EtcdClient,
        open_store: Callable[[], Store],
        prefix: str,
        schedule: Schedule,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._etcd = etcd
        self._open_store = open_store
        self._store = open_store()
        self._directory = snapshots.directory(prefix)
        self._schedule = schedule
        self._clock = clock
        self._known: list[Snapshot] = []
        self._sizes: dict[str, int] = {}
        """Size of each snapshot in the store, in bytes, by its name."""
        self._writer = DeltaWriter()
        self._recorded = 0
        self._since_full = 0
        self._flush_at_once = asyncio.Event()
        self._advanced = asyncio.Condition()
        # One write at a time: a delta that is written during a full snapshot would be listed out of order.
        self._busy = asyncio.Lock()
        self._lost = asyncio.Event()
        self.fault = "it is starting"
        """Why backups are not up to date; empty if they are."""

    @property
    def known(self) -> list[Snapshot]:
        """Snapshots in the store, as far as this process knows."""
        return list(self._known)

    async def run(self) -> None:
        """Back up until cancelled. After an error of the store or of etcd, retry; ``fault`` holds it meanwhile."""
        delay = _FIRST_DELAY
        while True:
            started = self._clock()
            try:
                await self._session()
            except EtcdError as error:
                self._set_fault(str(error))
                delay = min(delay, _LONGEST_ETCD_DELAY)
            except (StoreError, SnapshotError) as error:
                self._set_fault(str(error))
            await self._reopen_store()
            if self._clock() - started > _LONGEST_DELAY:
                delay = _FIRST_DELAY
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    async def full(self, *, final: bool = False) -> Snapshot:
        """Take a full snapshot. Returns the last one if nothing has changed since, unless a final one is needed.

        Raises SnapshotError.
        """
        try:
            async with self._busy:
                return await self._full(final=final)
        except (EtcdError, StoreError) as error:
            self._set_fault(str(error))
            raise SnapshotError(str(error)) from None

    async def delta(self) -> Snapshot | None:
        """Write all changes up to the current revision as a delta; None if there are none.

        Raises SnapshotError.
        """
        try:
            revision = await self._etcd.revision()
            async with asyncio.timeout(_CATCH_UP_SECONDS), self._advanced:
                await self._advanced.wait_for(lambda: self._recorded >= revision)
            async with self._busy:
                return await self._flush()
        except TimeoutError:
            raise SnapshotError(f"the watch did not reach revision {revision} in {_CATCH_UP_SECONDS:.0f} s") from None
        except (EtcdError, StoreError) as error:
            self._set_fault(str(error))
            raise SnapshotError(str(error)) from None

    async def _reopen_store(self) -> None:
        """Open the store again with the current credentials: outdated ones may have caused the failure."""
        try:
            opened = self._open_store()
        except StoreError as error:
            self._set_fault(str(error))
            return
        async with self._busy:
            self._store = opened

    async def _session(self) -> None:
        """Wait until this member leads and read what the store holds; then watch etcd and write snapshots.

        Ends with the first failure.
        """
        await self._until_leader()
        there = await self._store.list(self._directory)
        self._known = snapshots.parse_all([item.name for item in there])
        self._sizes = {item.name.removeprefix(self._directory): item.size for item in there}
        await self._refuse_if_taken_over()
        stored = snapshots.last_revision(self._known)
        current = await self._etcd.revision()
        if current < stored:
            # Deltas of the new history would not continue those of the old history, and the newest full snapshot would
            # be one of the old history.
            raise SnapshotError(
                f"etcd is at revision {current}, but its backups reach {stored}: its data is older than its "
                "backup; restore it, or give the backup another prefix"
            )
        self._writer = DeltaWriter()
        self._lost.clear()
        self._recorded = stored
        self._since_full = sum(delta.last - delta.first + 1 for delta in snapshots.since_latest_full(self._known)[1])
        if self._full_is_due():
            await self._advance((await self.full()).last)
        parts = [
            self._watch(),
            self._write_deltas(current),
            self._by_schedule(self._schedule.full, self._full),
            self._collect_garbage(),
            self._notice_loss(),
            self._notice_takeover(),
            self._while_leader(),
        ]
        if self._schedule.defragmentation:
            parts.append(self._by_schedule(self._schedule.defragmentation, self._etcd.defragment_all))
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.gather(*tasks)  # no task returns, so this ends with the first failure
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                async for changes in self._etcd.watch(self._recorded + 1):
                    self._set_fault("")
                    for change in changes:
                        self._writer.add(change)
                    if not changes:
                        continue
                    self._since_full += len(changes)
                    await self._advance(changes[-1].revision)
                    if self._overdue():
                        self._flush_at_once.set()
            except Compacted:
                # The watch was interrupted for too long. A full snapshot holds the changes that it can no longer read.
                log.info("changes from revision %d on are compacted; taking a full snapshot", self._recorded + 1)
                await self._advance((await self.full()).last)

    async def _advance(self, revision: int) -> None:
        async with self._advanced:
            self._recorded = max(self._recorded, revision)
            self._advanced.notify_all()

    async def _until_leader(self) -> None:
        """Wait until this pod's member leads: the leader's sidecar backs up, and the other sidecars report no fault."""
        while not (await self._etcd.status()).is_leader:
            self._set_fault("")
            await asyncio.sleep(_LEADERSHIP_SECONDS)

    async def _while_leader(self) -> None:
        while True:
            await asyncio.sleep(_LEADERSHIP_SECONDS)
            if not (await self._etcd.status()).is_leader:
                raise SnapshotError("another member is the leader now, and its sidecar takes the snapshots")

    async def _notice_loss(self) -> None:
        await self._lost.wait()
        raise SnapshotError(_LOST)

    def _overdue(self) -> bool:
        return self._writer.size >= self._schedule.delta_bytes or self._since_full >= self._schedule.full_after_changes

    async def _write_deltas(self, behind: int) -> None:
        """Write deltas by period and size.

        ``behind``: revision up to which an earlier session may not have written all changes. These are written at once,
        because they have waited already.
        """
        async with self._advanced:
            await self._advanced.wait_for(lambda: self._recorded >= behind)
        async with self._busy:
            await self._flush()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._schedule.delta_period.total_seconds()):
                    await self._flush_at_once.wait()
            self._flush_at_once.clear()
            async with self._busy:
                await self._flush()
                if self._since_full >= self._schedule.full_after_changes or self._full_is_outweighed():
                    await self._full()

    async def _by_schedule(self, expression: str, what: Callable[[], Awaitable[object]]) -> None:
        while True:
            now = datetime.fromtimestamp(self._clock(), UTC)
            await asyncio.sleep((cron.next_after(expression, now) - now).total_seconds())
            async with self._busy:
                await what()

    async def _collect_garbage(self) -> None:
        while True:
            await asyncio.sleep(self._schedule.garbage_collection_period.total_seconds())
            async with self._busy:
                for snapshot in snapshots.unneeded(self._known, int(self._clock())):
                    await self._store.delete(self._directory + snapshot.name)
                    self._known.remove(snapshot)

    def _full_is_outweighed(self) -> bool:
        """Whether a restore would read more bytes of deltas than of their full snapshot; deltas also take longer."""
        newest, deltas = snapshots.since_latest_full(self._known)
        full = self._sizes.get(newest.name, 0) if newest else 0
        return sum(self._sizes.get(delta.name, 0) for delta in deltas) > max(full, _LEAST_FULL)

    def _full_is_due(self) -> bool:
        newest = next(iter(snapshots.fulls(self._known)), None)
        if newest is None:
            return True
        return (
            cron.next_after(self._schedule.full, datetime.fromtimestamp(newest.created, UTC)).timestamp()
            < self._clock()
        )

    async def _full(self, *, final: bool = False) -> Snapshot:
        await self._flush()
        # The revision is read before the snapshot, so the snapshot may hold more than its name says, never less.
        revision = await self._etcd.revision()
        newest = next(iter(snapshots.fulls(self._known)), None)
        if newest is not None and newest.last == revision and (newest.final or not final):
            return newest
        snapshot = Snapshot(FULL, 0, revision, int(self._clock()), final=final)
        await self._refuse_if_taken_over()
        size = await self._store.put(self._directory + snapshot.name, _gzip(self._etcd.snapshot()))
        self._known.append(snapshot)
        self._sizes[snapshot.name] = size
        self._since_full = 0
        log.info("full snapshot %s, %d bytes", snapshot.name, size)
        return snapshot

    async def _flush(self) -> Snapshot | None:
        """Write the collected changes as a delta.

        If the store does not accept them, they are lost here, and the next session reads them from etcd again. Nothing
        is written before that: a delta after a gap would hide the gap from the next session.
        """
        if self._lost.is_set():
            raise SnapshotError(_LOST)
        if not self._writer.count:
            return None
        writer, self._writer = self._writer, DeltaWriter()
        snapshot = Snapshot(INCR, writer.first, writer.last, int(self._clock()))
        try:
            await self._refuse_if_taken_over()
            size = await self._store.put(self._directory + snapshot.name, _once(writer.finish()))
        except BaseException:
            self._lost.set()
            raise
        self._known.append(snapshot)
        self._sizes[snapshot.name] = size
        log.info("delta snapshot %s, %d bytes", snapshot.name, size)
        return snapshot

    async def _refuse_if_taken_over(self) -> None:
        """Raise SnapshotError if the bucket holds a takeover marker; after a takeover, make etcd refuse all writes.

        No reader uses snapshots after the marker. An etcd that cannot be backed up must not accept writes, either. If
        the history ended with a final snapshot, etcd serves no client any more and is left as it is, so the final
        snapshot may be requested again.
        """
        there = [item.name for item in await self._store.list(self._directory)]
        if (revision := snapshots.fence(there)) is None:
            return
        if snapshots.taken_over(there) is not None:
            await self._etcd.seal()
        raise SnapshotError(f"this etcd is superseded: another seed has taken over at revision {revision}")

    async def _notice_takeover(self) -> None:
        while True:
            await asyncio.sleep(_TAKEOVER_SECONDS)
            async with self._busy:
                await self._refuse_if_taken_over()

    def _set_fault(self, fault: str) -> None:
        if fault and fault != self.fault:
            log.warning("backups are not up to date: %s", fault)
        if not fault and self.fault:
            log.info("backups are up to date")
        self.fault = fault


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _gzip(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    compress = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    async for chunk in content:
        if piece := compress.compress(chunk):
            yield piece
    yield compress.flush()
