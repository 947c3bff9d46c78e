"""Hibernate and wake up a Shoot according to its schedules. Source: spec/api-core.md 12, "Shoot hibernation"."""

from datetime import UTC, datetime

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.garden.events import record
from activities.garden.live import find_shoot, staying
from api import resources
from api.contracts.operations import ShootRef, TaskResult
from api.contracts.schedules import ScheduledTime
from api.decisions.conditions import hibernation_possible
from api.decisions.hibernation import DEADLINE, Tick, edges, latest_tick
from api.times import timestamp
from kube.client import KubeClient
from kube.edit import patch_as_read
from kube.errors import Forbidden, Invalid


class SwitchActivities:
    """One instance per controller-manager."""

    def __init__(self, garden: KubeClient) -> None:
        self._garden = garden

    @activity.defn
    async def switch_hibernation(self, request: ScheduledTime) -> TaskResult:
        """Write ``spec.hibernation.enabled`` according to the latest due schedule that was not carried out yet.

        The activity writes the spec first, then the time in the status: a second run writes the same again, or finds
        both written. A later change by a user stays.

        Raises:
            Conflict: the Shoot changed meanwhile; the next attempt reads it again.
            ApplicationError: care has not yet checked after an operation whether the Shoot may hibernate.
        """
        shoot = request.shoot
        live = staying(await find_shoot(self._garden, shoot))
        if live is None:
            return TaskResult(note="the Shoot is deleted or being deleted")
        status = live.get("status") or {}
        now = max(request.now, datetime.now(UTC))
        obeyed = status.get("lastHibernationTriggerTime") or live["metadata"]["creationTimestamp"]
        tick = latest_tick(edges(live["spec"]), max(datetime.fromisoformat(obeyed), now - DEADLINE), now)
        if tick is None:
            return TaskResult(note="no schedule is due")
        if (status.get("lastOperation") or {}).get("state") == "Failed":
            return TaskResult(note=f"{tick.edge}: not now, the last operation of the Shoot failed")
        wanted = {"enabled": tick.edge.hibernate}
        changes = bool((live["spec"].get("hibernation") or {}).get("enabled")) != tick.edge.hibernate
        if changes:
            try:
                await patch_as_read(self._garden, resources.SHOOT, live, {"spec": {"hibernation": wanted}})
            except (Forbidden, Invalid) as error:
                if hibernation_possible(live) == "Progressing":
                    raise ApplicationError(error.message or error.reason, type="NotReady") from None
                return await self._refused(shoot, tick, error.message or error.reason)
        obeyed_now = {"lastHibernationTriggerTime": timestamp(now)}
        identity = {"metadata": {"uid": shoot.uid}}
        await self._garden.patch(
            resources.SHOOT, shoot.name, shoot.namespace, {**identity, "status": obeyed_now}, subresource="status"
        )
        if not changes:
            return TaskResult(note=f"{tick.edge}: spec.hibernation.enabled has this value already")
        reason = "Hibernated" if tick.edge.hibernate else "WokenUp"
        text = f"{tick.edge}, {tick.at:%Y-%m-%d %H:%M} UTC, asked to {'hibernate' if wanted['enabled'] else 'wake up'}"
        await record(self._garden, shoot, f"{reason}/{tick.at.isoformat()}", "Normal", reason, text)
        return TaskResult(note=str(tick.edge))

    async def _refused(self, shoot: ShootRef, tick: Tick, why: str) -> TaskResult:
        """Record that the garden refused the change. Only the Shoot's owner can fix that; the next schedule retries."""
        text = f"{tick.edge} of Shoot {shoot} was refused: {why}"
        await record(self._garden, shoot, f"refused/{tick.at.isoformat()}", "Warning", "HibernationFailed", text)
        return TaskResult(note=text)
