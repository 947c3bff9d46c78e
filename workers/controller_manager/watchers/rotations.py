"""Start the workflow of each rotation that a Shoot's status shows to be under way."""

import logging

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from api import resources
from api.contracts.operations import GARDEN_QUEUE, ShootRef
from api.contracts.rotation import ActiveRotation, RotationInput
from api.decisions.rotation import active, status_of
from kube.cache import Caches, Key
from kube.client import WatchEvent
from kube.controller import Controller
from workflows import fairness, options, visibility
from workflows.shoot.rotate import ROTATIONS, rotation_id

log = logging.getLogger(__name__)


class RotationWatcher:
    """A rotation that has its workflow keeps it; one that lost it gets another, which sees the same status."""

    def __init__(self, garden: Caches, temporal: Client) -> None:
        self._shoots = garden.of(resources.SHOOT)
        self._temporal = temporal
        self._seen: dict[str, tuple[ActiveRotation, ...]] = {}
        self._controller = Controller("rotations", self._start, workers=4)
        self._controller.watch(self._shoots, when=self._concerns)

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._controller.run()

    def _concerns(self, event: WatchEvent) -> bool:
        metadata = event.object["metadata"]
        found = active(status_of(event.object)) if event.type != "DELETED" else ()
        if not found or "deletionTimestamp" in metadata:
            self._seen.pop(metadata["uid"], None)
            return False
        if self._seen.get(metadata["uid"]) == found:
            return False
        self._seen[metadata["uid"]] = found
        return True

    async def _start(self, key: Key) -> None:
        shoot = self._shoots.get(key.name, key.namespace)
        if shoot is None or "deletionTimestamp" in shoot["metadata"]:
            return
        ref = ShootRef.of(shoot)
        for each in active(status_of(shoot)):
            request = RotationInput(shoot=ref, kind=each.kind, initiated=each.initiated)
            workflow = ROTATIONS[each.kind]
            try:
                await self._temporal.start_workflow(
                    workflow.run,
                    request,
                    id=rotation_id(request),
                    task_queue=GARDEN_QUEUE,
                    task_timeout=options.WORKFLOW_TASK,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    search_attributes=visibility.of_shoot(ref),
                    priority=fairness.of_shoot(ref),
                    static_summary=f"Rotation of the {each.kind.words} of Shoot {ref}, begun {each.initiated}",
                )
            except RPCError as error:
                log.warning("starting the rotation of Shoot %s: %s; trying again", ref, error.status.name)
                raise
