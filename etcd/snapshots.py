"""Names of snapshots, which of them to restore, and which are not needed any more.

Layout: ``<prefix>/v2/{Full|Incr}-<first revision>-<last revision>-<Unix time>[.gz][.final]``, as
in etcd-backup-restore. Standard library only: etcd's wrapper imports this module before etcd starts.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FULL, INCR = "Full", "Incr"

_NAME = re.compile(r"(Full|Incr)-(\d{8,})-(\d{8,})-(\d+)(\.gz)?(\.final)?")
_FENCE = re.compile(r"Fence-(\d{8,})")

_HOUR = 3600
_DAY = 24 * _HOUR
_WEEK = 7 * _DAY


@dataclass(frozen=True)
class Snapshot:
    """One snapshot in the store. A full snapshot covers all revisions up to ``last``; a delta ``first`` to ``last``."""

    kind: str
    first: int
    last: int
    created: int
    """Unix seconds."""
    compressed: bool = True
    final: bool = False
    """Taken after the API server had stopped: no change can follow in this seed."""

    @property
    def name(self) -> str:
        """Name of the object in the store, without directory."""
        ending = (".gz" if self.compressed else "") + (".final" if self.final else "")
        return f"{self.kind}-{self.first:08d}-{self.last:08d}-{self.created}{ending}"

    @property
    def is_full(self) -> bool:
        return self.kind == FULL


def directory(prefix: str) -> str:
    """Directory of the snapshots of one etcd in the bucket."""
    return f"{prefix.strip('/')}/v2/"


def parse(name: str) -> Snapshot | None:
    """The snapshot with this object name, with or without directory; None if the object is no snapshot."""
    match = _NAME.fullmatch(name.rsplit("/", 1)[-1])
    if match is None:
        return None
    kind, first, last, created, compressed, final = match.groups()
    return Snapshot(kind, int(first), int(last), int(created), bool(compressed), bool(final))


def parse_all(names: Iterable[str]) -> list[Snapshot]:
    """The snapshots with these object names, in order of time; objects that are no snapshots are left out."""
    found = [snapshot for name in names if (snapshot := parse(name))]
    return sorted(found, key=lambda snapshot: (snapshot.created, snapshot.last, snapshot.first))


def fence_name(revision: int) -> str:
    """Name of the takeover marker, without directory.

    With this object another seed states that it goes on from this revision, and that snapshots written here later do
    not count. The name holds everything, so the marker is written completely or not at all.
    """
    return f"Fence-{revision:08d}"


def fence(names: Iterable[str]) -> int | None:
    """Revision in the takeover marker; None if there is no marker. Of several markers, the lowest revision counts."""
    found = [int(match[1]) for name in names if (match := _FENCE.fullmatch(name.rsplit("/", 1)[-1]))]
    return min(found, default=None)


def silence_name(revision: int) -> str:
    """Name of the object that another seed writes beside its takeover marker, without directory.

    The object states that the time is over in which the source's etcd had to stop.
    """
    return f"Silent-{revision:08d}"


def may_serve(names: Iterable[str]) -> bool:
    """Whether the source's etcd may still serve: another seed has taken over, but has not waited long enough yet."""
    names = list(names)
    revision = taken_over(names)
    return revision is not None and not any(name.endswith(silence_name(revision)) for name in names)


def end_of(names: Iterable[str]) -> int | None:
    """Revision at which the history of these objects ends; None while the history may go on.

    The takeover marker has precedence over a final snapshot: a lost source may still come back and take one.
    """
    names = list(names)
    if (fenced := fence(names)) is not None:
        return fenced
    final = next((each for each in fulls(parse_all(names)) if each.final), None)
    return final.last if final else None


def taken_over(names: Iterable[str]) -> int | None:
    """Revision at which another seed has taken over without a final snapshot of the source; None if none has."""
    names = list(names)
    fenced = fence(names)
    handed_over = any(each.final and each.last == fenced for each in parse_all(names))
    return None if handed_over else fenced


def counted(names: Iterable[str]) -> list[Snapshot]:
    """Like ``parse_all``, without the snapshots beyond the end of the history."""
    names = list(names)
    end = end_of(names)
    return [each for each in parse_all(names) if end is None or each.last <= end]


def fulls(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """Full snapshots, the newest first; of two with the same revision, the one created later comes first."""
    found = [snapshot for snapshot in snapshots if snapshot.is_full]
    return sorted(found, key=lambda snapshot: (snapshot.last, snapshot.created), reverse=True)


def last_revision(snapshots: Iterable[Snapshot]) -> int:
    """The newest revision that the store holds; 0 if it is empty."""
    return max((snapshot.last for snapshot in snapshots), default=0)


@dataclass(frozen=True)
class Plan:
    """Steps of a restore to a revision: a full snapshot, then deltas one after the other."""

    full: Snapshot
    deltas: tuple[Snapshot, ...] = ()

    @property
    def revision(self) -> int:
        return max([self.full.last, *(delta.last for delta in self.deltas)])


def plans(snapshots: Sequence[Snapshot]) -> list[Plan]:
    """Ways to restore, best first: the highest revision reached, then the newest full snapshot.

    An older full snapshot may be the only way if the newest cannot be read; with the deltas in between it
    leads to the same revision. Deltas after a gap cannot be used: missing changes must not be skipped.
    """
    found = [Plan(full, chain(full.last, snapshots)) for full in fulls(snapshots)]
    return sorted(found, key=lambda plan: (plan.revision, plan.full.last, plan.full.created), reverse=True)


def chain(revision: int, snapshots: Iterable[Snapshot]) -> tuple[Snapshot, ...]:
    """Deltas that continue from a revision, one after the other, up to the first gap."""
    deltas = sorted((item for item in snapshots if not item.is_full), key=lambda item: (item.first, -item.last))
    found = []
    for delta in deltas:
        if delta.last <= revision:
            continue
        if delta.first > revision + 1:
            break
        found.append(delta)
        revision = delta.last
    return tuple(found)


def since_latest_full(snapshots: Sequence[Snapshot]) -> tuple[Snapshot | None, tuple[Snapshot, ...]]:
    """The newest full snapshot and its deltas."""
    newest = next(iter(fulls(snapshots)), None)
    return newest, chain(newest.last, snapshots) if newest else ()


def unneeded(snapshots: Sequence[Snapshot], now: int) -> list[Snapshot]:
    """Snapshots that exponential garbage collection removes.

    It keeps all full snapshots of the current hour, then the newest of each hour for 24 hours, of each
    day for 7 days, of each week for 4 weeks, and always the newest two with all deltas since the older
    of them: if the newest cannot be read, the older one and its deltas lead to the same revision.
    """
    kept = set(fulls(snapshots)[:2])
    periods: set[tuple[int, int]] = set()
    by_time = sorted((item for item in snapshots if item.is_full), key=lambda item: item.created, reverse=True)
    for full in by_time:
        age = now - full.created
        if full.created // _HOUR == now // _HOUR or age < 0:
            kept.add(full)
            continue
        for limit, period in ((_DAY, _HOUR), (7 * _DAY, _DAY), (4 * _WEEK, _WEEK)):
            if age < limit:
                if (period, full.created // period) not in periods:
                    periods.add((period, full.created // period))
                    kept.add(full)
                break
    start = min((full.last for full in fulls(snapshots)[:2]), default=0)
    return [item for item in snapshots if item not in kept and (item.is_full or item.last <= start)]
