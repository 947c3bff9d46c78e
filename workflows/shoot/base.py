"""Base of the operations of a Shoot: queries, updates and signals of a flow, and defaults of its tasks."""

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.garden.flows import FlowActivities
    from activities.garden.shoot_states import ShootStateSealingActivities
    from activities.seed.secrets import CleanupSecrets, SecretActivities
    from activities.seed.survey import SurveyActivities
    from api.contracts.flows import FlowInput, FlowOutcome, FlowProgress, ReportProgress, Survey
    from api.contracts.operations import ResealShootState, ShootTask, seed_queue
    from api.contracts.repair import Repair
    from workflows import options
    from workflows.flow import EVERYTHING, Call, Flow, Skip

ShootFlow = Flow[ShootTask]


class OperationWorkflow:
    """Base of a workflow that runs one flow."""

    graph: Flow[Any] | None = None

    @workflow.query
    def progress(self) -> FlowProgress:
        """State and times of all tasks."""
        return self.graph.progress() if self.graph else FlowProgress()

    @workflow.query
    def outcome(self) -> FlowOutcome:
        """Tasks that have finished and failed up to now; answered for canceled and terminated flows, too."""
        return self.graph.outcome if self.graph else FlowOutcome()

    @workflow.update
    def repair(self, request: Repair) -> None:
        """Skip a task, or provide its result, while the flow runs."""
        if self.graph is not None:
            self.graph.repair(request)

    @repair.validator
    def _check_repair(self, request: Repair) -> None:
        if self.graph is None:
            raise ValueError("the operation has no tasks yet, it reads the state of the seed first: try again later")
        if refusal := self.graph.refusal(request):
            raise ValueError(refusal)

    @workflow.signal
    async def pause(self, request: Repair) -> None:
        """Start no new task."""
        await workflow.wait_condition(lambda: self.graph is not None)
        if self.graph is not None:
            self.graph.pause(request)

    @workflow.signal
    async def resume(self, request: Repair) -> None:
        """Start tasks again."""
        await workflow.wait_condition(lambda: self.graph is not None)
        if self.graph is not None:
            self.graph.resume(request)

    async def run_surveyed(self, request: FlowInput, flow_of: Callable[[FlowInput, Survey], ShootFlow]) -> FlowOutcome:
        """Run a flow whose tasks depend on the objects that exist in the seed."""
        self.report(request.task)
        survey = await workflow.execute_activity_method(
            SurveyActivities.survey, request.task, **options.survey(seed_queue(request.task.seed))
        )
        self.graph = flow_of(request, survey)
        return await self.graph.run()

    def report(self, task: ShootTask) -> None:
        """Start the activity that writes the progress of this workflow into the Shoot's status.

        It reads the ``progress`` query, so that reports add nothing to the history. It ends with the workflow.
        """
        workflow.start_activity_method(
            FlowActivities.report_progress,
            ReportProgress(task=task),
            **options.report("Report progress in the Shoot's status"),
        )


def shoot_flow(request: FlowInput) -> ShootFlow:
    """An empty flow for one Shoot; by default its tasks run in the task queue of the seed."""
    task = request.task
    return Flow(
        str(task.operation),
        task,
        queue=seed_queue(task.seed),
        options=options.seed_call(),
        attempt=request.attempt,
    )


def add_reseal(
    flow: ShootFlow, request: FlowInput, seed: str, name: str, *, after: Sequence[str] = (), unless: Skip = None
) -> str:
    """Add the task that encrypts the ShootState with the key of a seed. It runs in the garden, which has all keys."""
    sources = request.sources
    return flow.add(
        Call(
            ShootStateSealingActivities.reseal_shoot_state,
            lambda: ResealShootState(shoot=request.task.shoot, seed=seed, sources=sources),
        ),
        name=name,
        after=after,
        unless=unless,
        inputs=[seed, *sources],
        **options.garden_call(f"Encrypt the ShootState for {seed}"),
    )


def add_cleanup(flow: ShootFlow, task: ShootTask) -> str:
    """Add the task that deletes the Secrets that no task reported, after all other tasks."""
    return flow.add(
        Call(SecretActivities.cleanup_secrets, lambda: CleanupSecrets(task=task, names=flow.secrets)),
        after=EVERYTHING,
        skip_after_manual_repair=True,
    )
