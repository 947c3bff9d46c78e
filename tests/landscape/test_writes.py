"""Writes of a reconciliation of a Shoot, counted from the audit logs of the API servers it could write to."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.landscape.shoots import Shoot

pytestmark = [pytest.mark.slow, pytest.mark.landscape]

OURS = "gardener-on-temporal"
"""User agent of our clients; writes of other clients are not counted."""
_UNCOUNTED = ("leases", "events", "selfsubjectaccessreviews")
"""Written by the clock, about the operation, and only asked for."""
RECONCILIATION = 120
SETTLE = 60
"""Seconds for care to have said how the cluster is after an operation."""


@dataclass(frozen=True)
class Write:
    cluster: str
    verb: str
    kind: str
    name: str
    user: str

    def __str__(self) -> str:
        return f"{self.cluster}: {self.verb} {self.kind} {self.name} by {self.user}"


def test_a_second_reconciliation_without_a_change_writes_only_status(shoot: Shoot) -> None:
    """Thousands of Shoots are reconciled every hour: what nothing changes in must not load any API server.

    Left, and not to be saved: the operation in the Shoot's status, and the Event that it was asked for and done; and
    for extensions, that it has begun and ended, in the Shoot's Cluster.
    """
    shoot.reconcile(RECONCILIATION)
    settled(shoot)  # what its creation began is written about until it is all there
    begin = datetime.now(UTC)
    shoot.reconcile(RECONCILIATION)
    settled(shoot)

    found = list(writes(shoot, begin))
    written = [str(each) for each in found if not about_the_operation(each, shoot)]
    print(f"{len(found)} writes, {len(written)} of them to anything but the Shoot itself")
    told = f"{shoot.seed}: patch clusters {shoot.technical_id} by landscape-admin"
    assert written == [told] * 2


def settled(shoot: Shoot) -> None:
    """Return when all conditions are True again."""
    deadline = time.monotonic() + SETTLE
    while bad := [each for each in shoot.get()["status"]["conditions"] if each["status"] != "True"]:
        assert time.monotonic() < deadline, bad
        time.sleep(1)


def about_the_operation(write: Write, shoot: Shoot) -> bool:
    """The Shoot itself: its status, and its annotation that asked for the operation."""
    return (write.cluster, write.name) == ("garden", shoot.name) and write.kind.split("/")[0] == "shoots"


def writes(shoot: Shoot, since: datetime) -> Iterator[Write]:
    """By our processes, to anything; what others do all the time, and leases, are not logged."""
    for cluster in ("garden", "cloud", "seed-1", "seed-2"):
        log = shoot.landscape.directory / f"logs/{cluster}-audit.log"
        yield from _ours(cluster, log.read_text().splitlines(), since)
    seconds = int((datetime.now(UTC) - since).total_seconds()) + 1
    logged = shoot.control_plane("logs", "deployment/kube-apiserver", f"--since={seconds}s")
    yield from _ours("shoot", [line for line in logged.splitlines() if '"kind":"Event"' in line], since)


def _ours(cluster: str, lines: list[str], since: datetime) -> Iterator[Write]:
    for line in lines:
        event: dict[str, Any] = json.loads(line)
        what = event.get("objectRef") or {}
        if event["verb"] in ("get", "list", "watch") or what.get("resource") in _UNCOUNTED:
            continue
        if not event.get("userAgent", "").startswith(OURS):
            continue
        if datetime.fromisoformat(event["requestReceivedTimestamp"]) < since:
            continue
        kind = "/".join(filter(None, (what.get("resource"), what.get("subresource"))))
        yield Write(cluster, event["verb"], kind, what.get("name", ""), event["user"]["username"])
