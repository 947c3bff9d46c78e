"""Names of snapshots, what to restore from them, and which are not needed any more.

Layout: ``<prefix>/v2/{Full|Incr}-<first revision>-<last revision>-<Unix time>[.gz][.final]``, as
etcd-backup-restore has it. Standard library only: etcd's wrapper imports this before etcd starts.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

FULL, INCR = "Full", "Incr"

_NAME = re.compile(r"(Full|Incr)-(\d{8,})-(\d{8,})-(\d+)(\.gz)?(\.final)?")
_FENCE = re.compile(r"Fence-(\d{8,})")

_HOUR = 3600
_DAY = 24 * _HOUR
_WEEK = 7 * _DAY


@dataclass(frozen=True)
class Snapshot:
    """One object of the store. A full one covers everything up to ``last``; a delta ``first`` to ``last``."""

    kind: str
    first: int
    last: int
    created: int
    """Unix seconds."""
    compressed: bool = True
    final: bool = False
    """Taken after the API server had stopped: nothing can follow it on this seed."""

    @property
    def name(self) -> str:
        """Without directory."""
        ending = (".gz" if self.compressed else "") + (".final" if self.final else "")
        return f"{self.kind}-{self.first:08d}-{self.last:08d}-{self.created}{ending}"

    @property
    def is_full(self) -> bool:
        return self.kind == FULL


def directory(prefix: str) -> str:
    """Where the snapshots of one etcd lie in the bucket."""
    return f"{prefix.strip('/')}/v2/"


def parse(name: str) -> Snapshot | None:
    """The snapshot of an object's name, with or without directory; None if it is something else."""
    match = _NAME.fullmatch(name.rsplit("/", 1)[-1])
    if match is None:
        return None
    kind, first, last, created, compressed, final = match.groups()
    return Snapshot(kind, int(first), int(last), int(created), bool(compressed), bool(final))


def parse_all(names: Iterable[str]) -> list[Snapshot]:
    """In order of time; what is no snapshot is left out."""
    found = [snapshot for name in names if (snapshot := parse(name))]
    return sorted(found, key=lambda snapshot: (snapshot.created, snapshot.last, snapshot.first))


def fence_name(revision: int) -> str:
    """The object by which another seed says: I go on from this revision, and what is written here later counts nothing.

    Without directory. Its name says all, so it is there whole or not at all.
    """
    return f"Fence-{revision:08d}"


def fence(names: Iterable[str]) -> int | None:
    """The revision that another seed goes on from; None if nobody has taken over. Of several, the first counts."""
    found = [int(match[1]) for name in names if (match := _FENCE.fullmatch(name.rsplit("/", 1)[-1]))]
    return min(found, default=None)


def silence_name(revision: int) -> str:
    """The object by which another seed says of its fence: who was given up has had its time to stop.

    Without directory.
    """
    return f"Silent-{revision:08d}"


def may_serve(names: Iterable[str]) -> bool:
    """Whether who was given up may serve still: another seed has taken over, and has not waited long enough since."""
    names = list(names)
    revision = taken_over(names)
    return revision is not None and not any(name.endswith(silence_name(revision)) for name in names)


def end_of(names: Iterable[str]) -> int | None:
    """The revision at which the history of these objects ends; None while it may go on.

    A fence counts more than a final snapshot: who has been given up may still come and take one.
    """
    names = list(names)
    if (fenced := fence(names)) is not None:
        return fenced
    final = next((each for each in fulls(parse_all(names)) if each.final), None)
    return final.last if final else None


def taken_over(names: Iterable[str]) -> int | None:
    """The revision at which another seed has taken over, without being handed the history in good order."""
    names = list(names)
    fenced = fence(names)
    handed_over = any(each.final and each.last == fenced for each in parse_all(names))
    return None if handed_over else fenced


def counted(names: Iterable[str]) -> list[Snapshot]:
    """As ``parse_all``, without what was written after the end."""
    names = list(names)
    end = end_of(names)
    return [each for each in parse_all(names) if end is None or each.last <= end]


def fulls(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """Full snapshots, the newest first; of two with one revision the later."""
    found = [snapshot for snapshot in snapshots if snapshot.is_full]
    return sorted(found, key=lambda snapshot: (snapshot.last, snapshot.created), reverse=True)


def last_revision(snapshots: Iterable[Snapshot]) -> int:
    """The newest revision that the store holds; 0 if it is empty."""
    return max((snapshot.last for snapshot in snapshots), default=0)


@dataclass(frozen=True)
class Plan:
    """How to get to a revision: a full snapshot, then deltas one after the other."""

    full: Snapshot
    deltas: tuple[Snapshot, ...] = ()

    @property
    def revision(self) -> int:
        return max([self.full.last, *(delta.last for delta in self.deltas)])


def plans(snapshots: Sequence[Snapshot]) -> list[Plan]:
    """Ways to restore, best first: the highest revision reached, then the newest full snapshot.

    An older full one may be the only way if the newest cannot be read; with the deltas in between it
    leads to the same revision. Deltas behind a gap are of no use: what is missing cannot be skipped.
    """
    found = [Plan(full, chain(full.last, snapshots)) for full in fulls(snapshots)]
    return sorted(found, key=lambda plan: (plan.revision, plan.full.last, plan.full.created), reverse=True)


def chain(revision: int, snapshots: Iterable[Snapshot]) -> tuple[Snapshot, ...]:
    """Deltas that lead on from a revision, one after the other, up to the first gap."""
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
    """What exponential garbage collection removes.

    Kept are all full snapshots of the current hour, then the newest of each hour for 24 hours, of each
    day for 7 days, of each week for 4 weeks, and always the newest two with all deltas since the older
    of them: if the newest turns out to be unreadable, the other one leads as far.
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


def as_final(snapshot: Snapshot, created: int) -> Snapshot:
    """The same content, marked as the last of its seed."""
    return replace(snapshot, created=created, final=True)
