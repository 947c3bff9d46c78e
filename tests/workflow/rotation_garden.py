"""A Shoot's rotation of credentials in memory, and what its workflow has said and asked for."""

import asyncio
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError

from api.contracts.operations import GARDEN_QUEUE, ShootRef
from api.contracts.rotation import (
    ActiveRotation,
    Kind,
    Phase,
    RotationInput,
    RotationStep,
    RotationView,
    Survey,
    SurveyReport,
    SurveyRequest,
    User,
)
from workflows.shoot.rotate import ROTATIONS, rotation_id

SHOOT = ShootRef(namespace="garden-local", name="demo", uid="0f3c")
STARTED = "2026-11-21T10:00:00Z"
SEED = "seed-1"


class RotationGarden:
    """Plays the garden's and the seed's activities of a rotation."""

    def __init__(self) -> None:
        self.view = RotationView()
        self.over = False
        self.changed = asyncio.Event()
        self.users: tuple[User, ...] = ()
        self.unanswered = ""
        """Why the cluster cannot be asked."""
        self.reports: list[Survey] = []
        self.asked: list[tuple[str, str]] = []

    @property
    def of_garden(self) -> list[Any]:
        return [self.await_rotation, self.report_survey, self.request_rotation_step]

    async def start(self, client: Client, kind: Kind) -> "WorkflowHandle[Any, None]":
        request = RotationInput(shoot=SHOOT, kind=kind, initiated=STARTED)
        handle: WorkflowHandle[Any, None] = await client.start_workflow(
            ROTATIONS[kind].run, request, id=rotation_id(request), task_queue=GARDEN_QUEUE
        )
        return handle

    def turn(self, kind: Kind, phase: Phase | None, *, owners_turn: bool = True) -> None:
        rotation = ActiveRotation(kind=kind, phase=phase, initiated=STARTED) if phase else None
        self.view = RotationView(seed=SEED, technical_id="t", rotation=rotation, owners_turn=owners_turn)
        self.over = rotation is None
        self.changed.set()

    def forget(self) -> None:
        """The Shoot is deleted."""
        self.view, self.over = RotationView(), True
        self.changed.set()

    @activity.defn
    async def await_rotation(self, request: RotationInput) -> RotationView:
        while not self.over and (self.view.rotation.phase if self.view.rotation else Phase.NONE) == request.seen:
            self.changed.clear()
            activity.heartbeat()
            try:
                await asyncio.wait_for(self.changed.wait(), 0.2)
            except TimeoutError:
                continue
        return self.view

    @activity.defn
    async def report_survey(self, request: SurveyReport) -> None:
        self.reports.append(request.survey)

    @activity.defn
    async def request_rotation_step(self, request: RotationStep) -> None:
        self.asked.append((request.operation, request.forced))

    @activity.defn
    async def find_users_of_old_credentials(self, request: SurveyRequest) -> Survey:
        if self.unanswered:
            raise ApplicationError(self.unanswered, non_retryable=True)
        return Survey(users=self.users)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 -- what the workflow does is no event here
                await asyncio.sleep(0.02)
