"""Maintenance of a Shoot in its maintenance window, or when its owner requests it.

Source: spec/api-core.md 12, "Shoot maintenance".
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio import activity

from activities.garden.events import MESSAGE_LIMIT, record
from activities.garden.live import find_shoot, staying
from api import constants, resources
from api.contracts.operations import ShootRef, TaskResult
from api.contracts.schedules import ScheduledTime
from api.core.v1beta1.cloud_profile import CloudProfile
from api.decisions.maintenance import Plan, plan_maintenance
from api.decisions.maintenance_window import MaintenanceWindow
from api.decisions.profiles import profile_of
from api.decisions.rotation import SINGLE
from api.labels import is_true
from api.times import timestamp
from kube.client import KubeClient
from kube.edit import patch_as_read
from kube.errors import Forbidden, Invalid

_TASKS = (
    constants.TASK_DEPLOY_DNS_INTERNAL,
    constants.TASK_DEPLOY_DNS_EXTERNAL,
    constants.TASK_DEPLOY_DNS_INGRESS,
    constants.TASK_RESTART_CONTROL_PLANE_PODS,
)
"""Tasks that a maintenance adds to an ordinary reconciliation, once in each maintenance window."""
_ALONE = (constants.OPERATION_RETRY, constants.OPERATION_MAINTAIN)
"""Operations that cannot wait for the maintenance window, and cannot be combined with other operations."""
_OPERATIONS = (constants.OPERATION, constants.MAINTENANCE_OPERATION)
_FAILED = "MaintenanceFailed"
_PROCESSING, _SUCCEEDED = "Processing", "Succeeded"


class MaintenanceActivities:
    """One instance per controller-manager."""

    def __init__(self, garden: KubeClient) -> None:
        self._garden = garden

    @activity.defn
    async def maintain_shoot(self, request: ScheduledTime) -> TaskResult:
        """Update versions according to the CloudProfile, start due rotations, and request a reconciliation.

        Spec and annotations are one write: if admission refuses it, the maintenance fails, not the Shoot. A second run
        after that write finds nothing to update, or only records that the maintenance is done.

        Raises:
            Conflict: the Shoot changed meanwhile; the next attempt reads it again.
        """
        shoot = request.shoot
        live = staying(await find_shoot(self._garden, shoot))
        if live is None:
            return TaskResult(note="the Shoot is deleted or being deleted")
        now = max(request.now, datetime.now(UTC))
        if is_asked_for(live) or _in_window(live, now):
            return await self._maintain(shoot, live, now)
        last = (live.get("status") or {}).get("lastMaintenance") or {}
        if last.get("state") == _PROCESSING:
            await self._say(shoot, {**last, "state": _SUCCEEDED})
            return TaskResult(note="an earlier attempt has done the maintenance")
        return TaskResult(note="not now: the maintenance window is over")

    async def _maintain(self, shoot: ShootRef, live: dict[str, Any], now: datetime) -> TaskResult:
        plan = await self._plan(live, now)
        intent = "; ".join(map(str, plan.updates)) or "there was nothing to update"
        last = {"description": intent[:MESSAGE_LIMIT], "triggeredTime": timestamp(now), "state": _PROCESSING}
        live = await self._say(shoot, last, version=live["metadata"]["resourceVersion"])
        annotations = annotations_after(live, plan.operations)
        wanted = {"metadata": {"annotations": annotations}, **({"spec": plan.spec} if plan.spec else {})}
        try:
            await self._write(live, wanted)
        except (Forbidden, Invalid) as error:
            why = error.message or error.reason
            live = await self._fail(shoot, last, "could not be carried out", why)
            await self._write(live, {"metadata": {"annotations": answered(live)}})
            return TaskResult(note=f"refused: {why}"[:MESSAGE_LIMIT])
        for update in plan.updates:
            await record(self._garden, shoot, f"{update}/{timestamp(now)}", "Normal", update.kind, str(update))
        if plan.failures:
            total = len(plan.failures) + len(plan.updates)
            text = f"({len(plan.failures)}/{total}) maintenance operations failed"
            await self._fail(shoot, last, text, "; ".join(map(str, plan.failures)))
        else:
            await self._say(shoot, {**last, "state": _SUCCEEDED})
        return TaskResult(note=intent[:MESSAGE_LIMIT])

    async def _plan(self, live: Mapping[str, Any], now: datetime) -> Plan:
        found = await profile_of(live, self._garden.find)
        if found is None:
            return Plan()  # the next reconciliation reports the missing cloud profile, and what to do
        profile = CloudProfile.of(found)
        if _is_failed(live):  # start no rotation: a failed Shoot is not reconciled, or only retried
            return plan_maintenance(live, profile, now, tuple(SINGLE))
        asked = [each for name in _OPERATIONS for each in _listed(live, name, ";")]
        return plan_maintenance(live, profile, now, asked)

    async def _write(self, live: Mapping[str, Any], patch: dict[str, Any]) -> None:
        """Patch the Shoot. Raises Conflict if it has changed since it was read; the next attempt makes a new plan."""
        await patch_as_read(self._garden, resources.SHOOT, live, patch)

    async def _fail(self, shoot: ShootRef, last: dict[str, str], what: str, why: str) -> dict[str, Any]:
        failed = {"description": f"Maintenance: {what}: {last['description']}", "state": "Failed", "failureReason": why}
        live = await self._say(shoot, {**last, **{key: text[:MESSAGE_LIMIT] for key, text in failed.items()}})
        identity = f"{_FAILED}/{last['triggeredTime']}"
        await record(self._garden, shoot, identity, "Warning", _FAILED, f"Maintenance: {what}: {why}")
        return live

    async def _say(self, shoot: ShootRef, last: dict[str, str], version: str = "") -> dict[str, Any]:
        """Write ``status.lastMaintenance``.

        ``version``: resourceVersion of the Shoot for which the plan was made; raises Conflict if the Shoot has another.
        """
        # With the uid, the patch fails if another Shoot has this name now.
        metadata = {"uid": shoot.uid, **({"resourceVersion": version} if version else {})}
        patch = {"metadata": metadata, "status": {"lastMaintenance": {"failureReason": None, **last}}}
        return await self._garden.patch(resources.SHOOT, shoot.name, shoot.namespace, patch, subresource="status")


def is_asked_for(live: Mapping[str, Any]) -> bool:
    """Whether the Shoot's owner requests a maintenance now."""
    return constants.OPERATION_MAINTAIN in _listed(live, constants.OPERATION, ";")


def answered(live: Mapping[str, Any]) -> dict[str, str | None]:
    """Merge patch of the annotations that removes the owner's request for a maintenance."""
    return {constants.OPERATION: ";".join(_asked(live)) or None}


def annotations_after(live: Mapping[str, Any], due: Sequence[str]) -> dict[str, str | None]:
    """Merge patch of the annotations that requests a reconciliation and the operations that waited for the window.

    ``due``: operations that are due without a request.
    """
    if _is_failed(live):
        if not is_true((live["metadata"].get("annotations") or {}).get(constants.SHOOT_NEEDS_RETRY)):
            return answered(live)
        return {constants.OPERATION: constants.OPERATION_RETRY, constants.SHOOT_NEEDS_RETRY: None}
    put_off = [each for each in _listed(live, constants.MAINTENANCE_OPERATION, ";") if each not in _ALONE]
    tasks = [*([constants.TASK_DEPLOY_INFRASTRUCTURE] if live["spec"]["provider"].get("workers") else ()), *_TASKS]
    return {
        constants.OPERATION: ";".join(dict.fromkeys([*_asked(live), *put_off, *due])) or constants.OPERATION_RECONCILE,
        constants.MAINTENANCE_OPERATION: None,
        constants.SHOOT_TASKS: ",".join(dict.fromkeys([*_listed(live, constants.SHOOT_TASKS, ","), *tasks])),
    }


def _is_failed(live: Mapping[str, Any]) -> bool:
    return ((live.get("status") or {}).get("lastOperation") or {}).get("state") == "Failed"


def _asked(live: Mapping[str, Any]) -> list[str]:
    return [each for each in _listed(live, constants.OPERATION, ";") if each != constants.OPERATION_MAINTAIN]


def _listed(live: Mapping[str, Any], annotation: str, separator: str) -> list[str]:
    text = (live["metadata"].get("annotations") or {}).get(annotation, "")
    return [each.strip() for each in text.split(separator) if each.strip()]


def _in_window(live: Mapping[str, Any], now: datetime) -> bool:
    window = (live["spec"].get("maintenance") or {}).get("timeWindow")
    if not window:
        return False
    try:
        return MaintenanceWindow.parse(window["begin"], window["end"]).effective.contains(now)
    except ValueError:  # admission refuses such a time window
        return False
