"""Activities of a rotation's workflow: they read the rotation from the Shoot and write requests and reports to it."""

from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.garden import events
from activities.garden.live import control_plane_of, staying, the_same
from activities.heartbeat import heartbeating
from api import constants, resources
from api.contracts.rotation import RotationInput, RotationStep, RotationView, SurveyReport
from api.decisions.conditions import set_conditions
from api.decisions.rotation import FORCED_COMPLETION, constraint_of, phase_of, status_of, view_of
from api.times import timestamp
from kube.cache import Caches
from kube.client import KubeClient
from kube.edit import edit
from kube.errors import ApiError

_LOOK_AGAIN = 30 * 60.0
"""Seconds after which ``await_rotation`` returns an unchanged rotation, for a new survey of old credentials' users."""
_MESSAGE_LIMIT = 1000
_REFUSED = frozenset({400, 403, 422})


class GardenRotationActivities:
    """One instance per controller-manager."""

    def __init__(self, garden: KubeClient, caches: Caches) -> None:
        self._garden = garden
        self._caches = caches

    @activity.defn
    async def await_rotation(self, request: RotationInput) -> RotationView:
        """Return the rotation once its phase, the seed or ``owners_turn`` differs from what was seen last.

        Without a difference, return it after half an hour.
        """
        cache = self._caches.of(resources.SHOOT)
        shoot = request.shoot

        def changed(live: dict[str, Any] | None) -> RotationView | None:
            view = self._view(live, request)
            phase = view.rotation.phase if view.rotation else None
            moved = request.seen_in not in ("", view.seed)
            turned = view.owners_turn != request.seen_turn
            return view if phase != request.seen or moved or turned else None

        try:
            view = await heartbeating(cache.wait_for(shoot.name, shoot.namespace, changed, _LOOK_AGAIN))
        except TimeoutError:
            view = self._view(cache.get(shoot.name, shoot.namespace), request)
        if not view.technical_id:
            return view  # the Shoot has no control plane yet
        return view.model_copy(update={"technical_id": await control_plane_of(self._garden, shoot)})

    def _view(self, live: dict[str, Any] | None, request: RotationInput) -> RotationView:
        here = staying(the_same(live, request.shoot))
        return view_of(here, request.kind, request.initiated) if here is not None else RotationView()

    @activity.defn
    async def report_survey(self, request: SurveyReport) -> None:
        """Write the survey's result as a constraint of the Shoot; a second run writes the same, or nothing."""
        users = request.survey.users
        found = {
            "type": constraint_of(request.kind),
            "status": "False" if users else "True",
            "reason": "InUse" if users else "NotInUse",
            "message": str(request.survey)[:_MESSAGE_LIMIT] or "no known client uses the old credentials",
        }

        def reported(live: dict[str, Any]) -> dict[str, Any] | None:
            known = (live.get("status") or {}).get("constraints") or []
            constraints = set_conditions(known, [found], timestamp())
            return {"status": {"constraints": constraints}} if constraints != known else None

        shoot = request.shoot
        await edit(
            self._garden, resources.SHOOT, shoot.name, shoot.namespace, reported, uid=shoot.uid, subresource="status"
        )

    @activity.defn
    async def request_rotation_step(self, request: RotationStep) -> None:
        """Request an operation by annotation and keep other requests; a second run finds the request, or its result.

        Raises:
            ApplicationError: ``OperationRefused`` (final) with the garden's reason.
        """
        requested = False

        def with_request(live: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal requested
            requested = False
            if phase_of(status_of(live), request.kind) is not request.phase:
                return None
            annotations = live["metadata"].get("annotations") or {}
            asked = [each for each in annotations.get(constants.OPERATION, "").split(";") if each]
            if request.operation in asked:
                return None
            change = {constants.OPERATION: ";".join([*asked, request.operation])}
            if request.forced:
                change[FORCED_COMPLETION] = request.forced
            requested = True
            return {"metadata": {"annotations": change}}

        shoot = request.shoot
        try:
            live = await edit(self._garden, resources.SHOOT, shoot.name, shoot.namespace, with_request, uid=shoot.uid)
        except ApiError as error:
            if error.status not in _REFUSED:
                raise
            raise ApplicationError(str(error), type="OperationRefused", non_retryable=True) from None
        if live is not None and requested and request.forced:
            await self._record(request)

    async def _record(self, request: RotationStep) -> None:
        """Record an Event for users of the old credentials: the reason of the completion, and the user to ask."""
        identity = f"{request.operation}/{request.forced}"
        message = f"The old {request.kind.words} are dropped although known clients use them: {request.forced}"
        await events.record(self._garden, request.shoot, identity, "Warning", "OldCredentialsLeftBehind", message)
