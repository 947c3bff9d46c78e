"""Check that every extension that a Shoot's flow needs is registered, and runs in this seed."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from api import resources
from api.contracts.operations import ShootTask, TaskResult
from api.decisions.registrations import required_pairs, responsible

HEARTBEAT = "gardener-extension-heartbeat"
"""Name of the Lease in an extension's namespace; its holder is the name of the extension's registration."""
STALE_AFTER = timedelta(minutes=5)
"""Source: spec/flows.md 10."""
_LOOKS, _PAUSE_SECONDS = 12, 5.0
"""A check every 5 s for 1 min. Source: spec/flows.md 1.5."""


class RequiredExtensionActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def wait_required_extensions(self, task: ShootTask) -> TaskResult:
        """Wait until all extensions that this Shoot needs are registered and send heartbeats.

        Raises:
            ApplicationError: ``ExtensionsNotReady``, retryable, with the extensions that are missing.
        """
        faults: list[str] = []
        for look in range(_LOOKS):
            if look:
                activity.heartbeat(", ".join(faults))
                await asyncio.sleep(_PAUSE_SECONDS)  # poll: leases of all namespaces are not worth a watch
            names, faults = await self._look(task)
            if not faults:
                return TaskResult(note=", ".join(sorted(names)))
        raise ApplicationError(
            f"extensions that Shoot {task.shoot} needs are not ready on seed {task.seed}: {'; '.join(faults)}",
            type="ExtensionsNotReady",
        )

    async def _look(self, task: ShootTask) -> tuple[set[str], list[str]]:
        view = await self._clusters.cluster(task.technical_id)
        registrations, leases = await asyncio.gather(
            self._clusters.garden.list(resources.CONTROLLER_REGISTRATION),
            self._clusters.seed.list(resources.LEASE, fields=f"metadata.name={HEARTBEAT}"),
        )
        offered = responsible(registrations)
        heard = heartbeats(leases)
        names: set[str] = set()
        faults = []
        for pair in sorted(required_pairs(view.shoot, view.seed, registrations)):
            if pair in offered:
                names.add(offered[pair])
            else:
                faults.append(f"no ControllerRegistration offers {pair[0]} of type {pair[1]}")
        faults += [fault for name in sorted(names) if (fault := heartbeat_fault(name, heard, datetime.now(UTC)))]
        return names, faults


def heartbeats(leases: list[dict[str, Any]]) -> dict[str, datetime]:
    """Time of the last heartbeat of each extension of a seed, by the extension's name."""
    heard: dict[str, datetime] = {}
    for lease in leases:
        spec = lease.get("spec") or {}
        holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
        if holder and renewed:
            at = datetime.fromisoformat(renewed)
            heard[holder] = max(at, heard.get(holder, at))
    return heard


def heartbeat_fault(name: str, heard: Mapping[str, datetime], now: datetime) -> str | None:
    """Reason why an extension counts as not running; None if it runs."""
    at = heard.get(name)
    if at is None:
        return f"{name} sends no heartbeat: it is not installed on this seed"
    if now - at > STALE_AFTER:
        return f"{name} has sent no heartbeat since {at:%H:%M:%S} UTC"
    return None
