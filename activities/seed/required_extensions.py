"""Check that every extension that a Shoot's flow needs is registered, and runs in this seed.

An extension whose registration has a ControllerDeployment runs if its ControllerInstallation says so. Another one,
which an operator runs, shows by its heartbeat that it does.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from api import resources
from api.contracts.operations import ShootTask, TaskResult
from api.decisions.conditions import find_condition
from api.decisions.installations import deploys
from api.decisions.registrations import required_pairs, responsible

HEARTBEAT = "gardener-extension-heartbeat"
"""Name of the Lease in an extension's namespace; its holder is the name of the extension's registration."""
STALE_AFTER = timedelta(minutes=5)
"""Source: spec/flows.md 10."""
_RUNNING = ("Valid", "Installed", "Healthy")
"""Conditions of a ControllerInstallation that are True while the extension runs."""
_MESSAGE = 500
"""Longest part of a condition's message in an error: errors stay in histories."""
_HEARTBEAT_CHECKS, _PAUSE_SECONDS = 12, 5.0
"""A check every 5 s for 1 min. Source: spec/flows.md 1.5."""


class RequiredExtensionActivities:
    """One instance per gardenlet.

    Args:
        pause: seconds between two checks.
    """

    def __init__(self, clusters: Clusters, *, pause: float = _PAUSE_SECONDS) -> None:
        self._clusters = clusters
        self._pause = pause

    @activity.defn
    async def wait_required_extensions(self, task: ShootTask) -> TaskResult:
        """Wait until all extensions that this Shoot needs are registered and run. It writes nothing.

        Raises:
            ApplicationError: ``ExtensionsNotReady``, retryable, with the extensions that are missing.
        """
        faults: list[str] = []
        for look in range(_HEARTBEAT_CHECKS):
            if look:
                activity.heartbeat(", ".join(faults))
                await asyncio.sleep(self._pause)  # poll: leases of all namespaces are not worth a watch
            names, faults = await self._look(task)
            if not faults:
                return TaskResult(note=", ".join(sorted(names)))
        raise ApplicationError(
            f"extensions that Shoot {task.shoot} needs are not ready on seed {task.seed}: {'; '.join(faults)}",
            type="ExtensionsNotReady",
        )

    async def _look(self, task: ShootTask) -> tuple[set[str], list[str]]:
        view = await self._clusters.cluster(task.technical_id)
        registrations, installations, leases = await asyncio.gather(
            self._clusters.garden.list(resources.CONTROLLER_REGISTRATION),
            self._clusters.garden.list(resources.CONTROLLER_INSTALLATION, fields=f"spec.seedRef.name={task.seed}"),
            self._clusters.seed.list(resources.LEASE, fields=f"metadata.name={HEARTBEAT}"),
        )
        offered = responsible(registrations)
        installed = {each["metadata"]["name"] for each in registrations if deploys(each)}
        heard = heartbeats(leases)
        names: set[str] = set()
        faults = []
        for pair in sorted(required_pairs(view.shoot, view.seed, registrations)):
            if pair in offered:
                names.add(offered[pair])
            else:
                faults.append(f"no ControllerRegistration offers {pair[0]} of type {pair[1]}")
        for name in sorted(names):
            if name in installed:
                fault = installation_fault(name, installations)
            else:
                fault = heartbeat_fault(name, heard, datetime.now(UTC))
            faults += [fault] if fault else []
        return names, faults


def installation_fault(registration: str, installations: list[dict[str, Any]]) -> str | None:
    """Reason why the installation of a registration in this seed does not run; None if it runs."""
    found = [each for each in installations if each["spec"]["registrationRef"]["name"] == registration]
    if not found:
        return f"ControllerRegistration {registration} has no ControllerInstallation on this seed yet"
    installation = max(found, key=lambda each: "deletionTimestamp" not in each["metadata"])
    name = f"ControllerInstallation {installation['metadata']['name']}"
    if "deletionTimestamp" in installation["metadata"]:
        return f"{name} is being deleted"
    for type_ in _RUNNING:
        condition = find_condition(installation, type_)
        if condition.get("status") != "True":
            status, message = condition.get("status", "unknown"), condition.get("message", "")[:_MESSAGE]
            return f"{name}: condition {type_} is {status}" + (f": {message}" if message else "")
    return None


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
