"""Entries of the audit logs of a cluster's API servers: the user of a change, its time, and its seed.

Kubelets delete the logs with their pods, so they are followed.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from tests.landscape.repeating import repeating
from tests.landscape.shoots import Shoot

_PERIOD = 0.5
_CHANGES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_QUESTIONS = frozenset({"authentication.k8s.io", "authorization.k8s.io"})
"""API groups whose objects are answered at creation and not stored."""


@dataclass(frozen=True)
class Write:
    """A change that an API server accepted."""

    audit_id: str
    what: str
    """User, verb and object."""
    received: datetime
    answered: datetime


@dataclass
class _File:
    content: BinaryIO
    rest: bytes = b""

    def lines(self) -> Iterator[bytes]:
        *whole, self.rest = (self.rest + self.content.read()).split(b"\n")
        yield from whole


@dataclass
class AuditLogs:
    """Audit logs of the kube-apiservers of a Shoot in both seeds."""

    shoot: Shoot
    accepted: dict[str, list[Write]] = field(default_factory=lambda: {"seed-1": [], "seed-2": []})
    """By seed, from now on."""

    def __post_init__(self) -> None:
        self._files: dict[tuple[str, int], _File] = {}
        self._begun = datetime.now(UTC)

    @contextmanager
    def followed(self) -> Iterator["AuditLogs"]:
        with ExitStack() as stack, repeating(partial(self._read, stack), _PERIOD):
            yield self

    def _read(self, stack: ExitStack) -> None:
        for seed in self.accepted:
            for path in self._directory(seed).glob(f"{self.shoot.technical_id}_kube-apiserver-*/*/*.log"):
                self._open(seed, path, stack)
        for (seed, _), file in self._files.items():
            told = filter(None, map(_write, file.lines()))
            self.accepted[seed] += [write for write in told if write.received > self._begun]

    def _directory(self, seed: str) -> Path:
        return self.shoot.landscape.directory / seed / "pod-logs"

    def _open(self, seed: str, path: Path, stack: ExitStack) -> None:
        """Once each, whatever a rotation calls it; what is open is read to its end though it is deleted."""
        with suppress(FileNotFoundError):
            key = seed, path.stat().st_ino
            if key not in self._files:
                self._files[key] = _File(stack.enter_context(path.open("rb")))


def _write(line: bytes) -> Write | None:
    """Entry of a line ``TIME stdout F {...}``; None if the line has no such entry."""
    _, found, event = line.partition(b' stdout F {"kind":"Event","apiVersion":"audit.k8s.io/v1",')
    if not found:
        return None
    said: dict[str, Any] = json.loads(b"{" + event)
    of = said.get("objectRef") or {}
    if (
        (said["stage"], said["verb"] in _CHANGES) != ("ResponseComplete", True)
        or not 200 <= said["responseStatus"]["code"] < 300
        or of.get("apiGroup") in _QUESTIONS
        or of.get("subresource") == "token"
        or "dryRun=" in said["requestURI"]
    ):
        return None
    name = f"{of.get('resource')} {of.get('namespace', '')}/{of.get('name', '')}"
    received, answered = (datetime.fromisoformat(said[each]) for each in ("requestReceivedTimestamp", "stageTimestamp"))
    return Write(said["auditID"], f"{said['user']['username']} {said['verb']} {name}", received, answered)


def assert_one_after_the_other(logs: AuditLogs, source: str, destination: str) -> None:
    """The source received its last request before the destination accepted any; and no request was accepted twice."""
    earlier, later = logs.accepted[source], logs.accepted[destination]
    assert earlier
    assert later
    first = min(later, key=lambda write: write.answered)
    print(f"{len(earlier)} changes in {source}, {len(later)} in {destination}, the first of them {first.what}")
    assert [write for write in earlier if write.received > first.answered] == []
    assert {write.audit_id for write in earlier}.isdisjoint(write.audit_id for write in later)
