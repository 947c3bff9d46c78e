"""Lifecycle of one Shoot: read it, decide, run one operation, rest, read it again.

This workflow alone decides which operation of a Shoot runs, so two operations of one Shoot never run at a time.
Watchers wake it by a signal; it reads the Shoot itself. Rules: ``workflows.shoot.decision``.
"""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    TerminatedError,
    is_cancelled_exception,
)
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from activities.garden.flows import FlowActivities
    from activities.garden.shoots import ShootActivities
    from api.constants import OPERATION_RECONCILE, OPERATION_RETRY
    from api.contracts.flows import (
        Attempt,
        EditFlow,
        FinishOperation,
        FlowId,
        FlowInput,
        FlowOutcome,
        RecordRepair,
        Refusal,
        ShootView,
        StartedOperation,
        StartOperation,
    )
    from api.contracts.operations import GARDEN_QUEUE, OperationType, ShootRef, ShootTask, lifecycle_id
    from api.contracts.repair import UNKNOWN_USER, Action, Repair
    from api.model import ApiModel
    from workflows import options, visibility
    from workflows.flow import failed_outcome
    from workflows.shoot import decision
    from workflows.shoot.base import ShootFlow
    from workflows.shoot.decision import (
        Abandon,
        Decision,
        FlowKind,
        LifecycleState,
        Reject,
        Release,
        Rest,
        RestKind,
        Run,
    )
    from workflows.shoot.flows import FLOWS
    from workflows.shoot.migrate import falls_back
    from workflows.versioning import long_lived

_REFUSAL_PAUSE = timedelta(minutes=1)
"""Pause after the garden's API server refused a request of the lifecycle with an error that is not retried."""
_SUMMARY_LIMIT = 200
_SUCCESS = {
    OperationType.CREATE: "Shoot cluster has been successfully reconciled.",
    OperationType.RECONCILE: "Shoot cluster has been successfully reconciled.",
    OperationType.DELETE: "Shoot cluster has been successfully deleted.",
    OperationType.MIGRATE: "Shoot cluster has been prepared for its new seed.",
    OperationType.LIVE_MIGRATE: "Shoot cluster has been prepared for its new seed while it served.",
    OperationType.RESTORE: "Shoot cluster has been successfully restored in its new seed.",
}


class LifecycleInput(ApiModel):
    """Input of the lifecycle. Watchers set the Shoot; a run that continues as new sets the other fields."""

    shoot: ShootRef
    memory: LifecycleState = LifecycleState()
    continued: bool = False


class OperationRequest(ApiModel):
    """Operation that a user requests by update, in place of an annotation of the Shoot."""

    operation: str
    """``reconcile`` or ``retry``."""
    by: str = ""
    reason: str = ""


class OperationAnswer(ApiModel):
    text: str


class LifecycleProgress(ApiModel):
    """Answer of the ``progress`` query."""

    resting: str = ""
    """Why nothing runs now, for people."""
    rest: RestKind | None = None
    """Why nothing runs now, for programs; None while an operation runs, and after an error."""
    operation: OperationType | None = None
    attempt: int = 0
    child: FlowId | None = None
    """The running operation."""
    memory: LifecycleState = LifecycleState()


def operation_id(shoot: ShootRef, flow: FlowKind, generation: int, attempt: int) -> str:
    """Workflow id of one attempt of an operation."""
    return f"{lifecycle_id(shoot)}/{flow}/{generation}-{attempt}"


@workflow.defn(versioning_behavior=long_lived())
class ShootLifecycle:
    """One workflow for each Shoot, from its creation to its deletion. Id: ``shoot/<namespace>/<name>/<uid>``."""

    @workflow.init
    def __init__(self, request: LifecycleInput) -> None:
        self._shoot = request.shoot
        self._memory = request.memory
        self._woken = True
        self._progress = LifecycleProgress(memory=request.memory)
        self._random = workflow.random()
        self._child: workflow.ChildWorkflowHandle[Any, FlowOutcome] | None = None
        self._operating = False
        self._preempted = False
        self._canceled: Repair | None = None
        """The intervention that cancels or resets the running operation; None if there is none."""

    @workflow.run
    async def run(self, request: LifecycleInput) -> None:
        if not request.continued:
            # A lifecycle that was terminated may have left an operation that is still ending.
            await workflow.execute_activity_method(
                FlowActivities.await_earlier_operations,
                self._shoot,
                **options.background("Wait for earlier operations"),
            )
        while True:
            self._woken = False
            view = await self._read_shoot()
            if view is None:
                break
            if await self._repair_as_asked(view):
                continue
            step = decision.decide(view, self._memory, workflow.now(), self._random)
            try:
                await self._execute(step, view)
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                self._operating = False
                # The garden's API server refused a write of the lifecycle. That is a fault in our code; the lifecycle
                # must survive it, because nothing starts it again.
                await self._sleep(f"{error.cause or error}", _REFUSAL_PAUSE)
            if isinstance(step, Run) or workflow.info().is_continue_as_new_suggested():
                await self._continue()
        self._show("the Shoot is deleted")
        await workflow.wait_condition(workflow.all_handlers_finished)

    @workflow.signal
    def wake(self) -> None:
        """Read the Shoot again: it, its Seed or a Bastion may have changed."""
        self._woken = True

    @workflow.update
    async def request_operation(self, request: OperationRequest) -> OperationAnswer:
        """Request an operation now; returns once it is accepted, not when it is done."""
        self._memory = self._memory.model_copy(update={"requested": (*self._memory.requested, request.operation)})
        self._woken = True
        return OperationAnswer(text=f"{request.operation} of Shoot {self._shoot} is accepted")

    @request_operation.validator
    def _check_request(self, request: OperationRequest) -> None:
        if request.operation not in (OPERATION_RECONCILE, OPERATION_RETRY):
            raise ValueError(
                f"operation {request.operation!r} of Shoot {self._shoot} is unknown; "
                f"use {OPERATION_RECONCILE} or {OPERATION_RETRY}"
            )
        if self._progress.child is not None:
            raise ValueError(
                f"{self._progress.operation} of Shoot {self._shoot} is running (attempt {self._progress.attempt}); "
                "wait for its end"
            )
        if request.operation == OPERATION_RETRY and (refusal := self._nothing_to_retry()):
            raise ValueError(refusal)

    @workflow.update
    async def repair(self, request: Repair) -> OperationAnswer:
        """Intervene; returns once the intervention is accepted and recorded in an Event, not when it has had effect."""
        if refusal := await self._repair(request):
            raise ApplicationError(refusal, type="Refused", non_retryable=True)
        self._woken = True
        return OperationAnswer(text=f"{request.action} of Shoot {self._shoot} is accepted")

    @repair.validator
    def _check_repair(self, request: Repair) -> None:
        if refusal := self._refusal(request):
            raise ValueError(refusal)

    @workflow.query
    def progress(self) -> LifecycleProgress:
        """The running operation, or why none runs, and the state that the lifecycle keeps."""
        return self._progress.model_copy(update={"memory": self._memory})

    async def _execute(self, step: Decision, view: ShootView) -> None:
        match step:
            case Run():
                await self._operate(view, step)
                self._operating = False
            case Release():
                await workflow.execute_activity_method(
                    ShootActivities.release_shoot, self._shoot, **options.garden_call("Drop the finalizer")
                )
            case Abandon():
                self._add_sources(view.status_seed, view.spec_seed)
                await workflow.execute_activity_method(
                    ShootActivities.abandon_source, self._shoot, **options.garden_call("Abandon the lost seed")
                )
            case Reject():
                await workflow.execute_activity_method(
                    ShootActivities.refuse_operation,
                    Refusal(
                        shoot=self._shoot, description=step.reason, consume=step.operations, event="OperationRejected"
                    ),
                    **options.garden_call("Reject an operation"),
                )
            case Rest():
                await self._rest(step)

    # Operating

    async def _operate(self, view: ShootView, step: Run) -> None:
        memory = self._memory = decision.begin_attempt(self._memory, view, step)
        self._operating, self._preempted, self._canceled = True, False, None
        if OPERATION_RETRY in step.consume:
            retried = Repair(action=Action.RETRY, by=view.asked_by or UNKNOWN_USER, at=workflow.now())
            self._add_repair(retried, memory.attempts)
            memory = self._memory
        started: StartedOperation = await workflow.execute_activity_method(
            ShootActivities.start_operation,
            StartOperation(
                shoot=self._shoot,
                operation=step.operation,
                attempt=memory.attempts,
                consume=step.consume,
                asked_by=view.asked_by,
            ),
            **options.garden_call(f"Start {step.operation}"),
        )
        task = started.task
        if task.generation != memory.generation:
            # The Shoot changed after it was read: this is the first attempt of the new generation.
            memory = self._memory = memory.model_copy(
                update={"generation": task.generation, "attempts": 1, "outcome": FlowOutcome()}
            )
        self._update_memory(facts=started.facts)
        if step.flow in (FlowKind.MIGRATE, FlowKind.RESTORE):
            self._add_sources(task.seed, task.destination)
        outcome, message = await self._run(task, started, step.flow)
        self._update_memory(outcome=outcome or FlowOutcome(), ended=workflow.now())
        if outcome is None and step.flow is not FlowKind.MIGRATE:
            self._update_memory(sources=())
        self._progress, self._child = LifecycleProgress(), None
        if outcome is None or not outcome.canceled:
            await self._finish(task, started, step.flow, outcome, message)
        elif self._preempted:
            return
        elif self._canceled is not None and self._canceled.action is Action.RESET:
            self._add_repair(self._canceled)
            self._update_memory(requested=(OPERATION_RETRY,))
        else:
            if self._canceled is not None:
                self._add_repair(self._canceled)
            await self._finish(task, started, step.flow, outcome, message)

    async def _run(self, task: ShootTask, started: StartedOperation, kind: FlowKind) -> tuple[FlowOutcome | None, str]:
        """Run one attempt; returns its outcome (None if it succeeded) and the message of its failure."""
        attempt = Attempt(
            number=self._memory.attempts,
            trigger=task.trigger,
            deadline=started.retry_cycle_start + decision.RETRY_DURATION,
            kept=self._memory.outcome,
            paused=self._memory.paused,
        )
        child = await workflow.start_child_workflow(
            FLOWS[kind].workflow.run,
            FlowInput(task=task, facts=started.facts, attempt=attempt, sources=self._memory.sources),
            id=operation_id(self._shoot, kind, task.generation, attempt.number),
            task_queue=GARDEN_QUEUE,
            task_timeout=options.WORKFLOW_TASK,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            search_attributes=visibility.of_operation(self._shoot, task.seed, task.operation),
            static_summary=f"{task.operation} {self._shoot}, generation {task.generation}, attempt {attempt.number}",
        )
        self._progress = LifecycleProgress(
            operation=task.operation,
            attempt=attempt.number,
            child=FlowId(workflow_id=child.id, run_id=child.first_execution_run_id or ""),
        )
        self._child = child
        if self._memory.paused is not None and attempt.paused is None:
            await child.signal("pause", self._memory.paused)
        self._show(f"{task.operation} is running: attempt {attempt.number} of generation {task.generation}")
        preempting = asyncio.create_task(self._preempt(child, task, kind))
        try:
            await child
        except ChildWorkflowError as error:
            if is_cancelled_exception(error) or isinstance(error.cause, TerminatedError):
                if workflow.cancellation_reason() is not None:
                    raise
                if self._preempted:
                    return FlowOutcome(canceled=True), ""
                ended = "terminated" if isinstance(error.cause, TerminatedError) else "canceled"
                return await self._outcome_of(child.id), f"{self._canceled or ended}"
            outcome = failed_outcome(error.cause) if error.cause else None
            return outcome or FlowOutcome(), str(error.cause or error)
        finally:
            preempting.cancel()
        return None, ""

    async def _preempt(
        self, child: "workflow.ChildWorkflowHandle[Any, FlowOutcome]", task: ShootTask, kind: FlowKind
    ) -> None:
        """Cancel the running operation once the Shoot needs another one.

        An operation that makes progress goes on; it is canceled when a task fails, retries an error or stands still.
        """
        while True:
            await workflow.wait_condition(lambda: self._woken)
            self._woken = False
            view = await self._read_shoot()
            if view is not None and await self._repair_as_asked(view):
                continue
            if decision.preempts(view, task.generation, kind):
                break
        self._show(
            f"{task.operation} is running; the Shoot has changed: the next operation starts when this one has ended, "
            "or retries an error"
        )
        if self._progress.child is None:
            return
        if not (
            view is not None
            and decision.cancels_at_once(view, kind)
            and (view.source_lost or workflow.patched("turn-round-at-once"))
        ):
            await workflow.execute_activity_method(
                FlowActivities.await_trouble,
                self._progress.child,
                **options.background("Wait until the operation has ended or makes no progress"),
            )
        self._preempted = True
        child.cancel("the Shoot has changed: it needs another operation")

    async def _finish(
        self, task: ShootTask, started: StartedOperation, kind: FlowKind, outcome: FlowOutcome | None, message: str
    ) -> None:
        failed = outcome.failed if outcome else ()
        state, text = "Succeeded", _SUCCESS[task.operation]
        if outcome is not None:
            state = decision.state_after_failure(failed, started.retry_cycle_start, workflow.now())
            if falls_back(started.facts, failed):
                state = "Error"  # the next attempt does without what has failed
            names = ", ".join(each.name for each in failed)
            text = f"{task.operation} failed in {names}." if names else f"{task.operation} failed: {message}"
            if outcome.canceled:
                state, text = (
                    "Failed",
                    f"{task.operation} was ended: {message}. Finished tasks are kept: `retry` runs the others.",
                )
        await workflow.execute_activity_method(
            ShootActivities.finish_operation,
            FinishOperation(
                task=task,
                attempt=self._memory.attempts,
                state=state,
                description=text,
                failed=failed,
                hibernated=started.facts.hibernated,
                workflow_id=operation_id(self._shoot, kind, task.generation, self._memory.attempts),
                tasks=started.facts.tasks,
                live=kind is FlowKind.MIGRATE and started.facts.live,
                falls_back=kind is FlowKind.MIGRATE and falls_back(started.facts, failed),
            ),
            **options.garden_call(f"{task.operation}: {state}"),
        )
        if outcome is None:
            self._memory = self._memory.model_copy(update={"outcome": FlowOutcome()})

    # Repairing

    def _update_memory(self, **changes: Any) -> None:
        self._memory = self._memory.model_copy(update=changes)

    def _add_sources(self, *seeds: str | None) -> None:
        """Record seeds that the control plane moves from or to, until it is complete in one of them."""
        self._update_memory(sources=tuple(sorted({*self._memory.sources, *filter(None, seeds)})))

    def _add_repair(self, repair: Repair, attempt: int = 0) -> None:
        """Record a repair for an attempt; for the next one if none is named."""
        outcome = self._memory.outcome
        repair = repair.model_copy(update={"attempt": attempt or self._memory.attempts + 1})
        self._update_memory(outcome=outcome.model_copy(update={"repairs": (*outcome.repairs, repair)}))

    async def _repair_as_asked(self, view: ShootView) -> bool:
        """Execute the repairs that annotations request; returns whether there were any."""
        for repair in view.repairs:
            if refusal := self._refusal(repair):
                await self._record(repair.model_copy(update={"at": workflow.now()}), refusal)
            else:
                await self._repair(repair)
        return bool(view.repairs)

    async def _repair(self, repair: Repair) -> str:
        """Execute a repair and record it; returns why the running flow refuses it, or empty."""
        made = repair.model_copy(update={"at": workflow.now()})
        child, refusal = self._child, ""
        match made.action:
            case Action.RETRY:
                if made.task:
                    self._add_repair(made)
                self._update_memory(requested=(*self._memory.requested, OPERATION_RETRY))
            case Action.SKIP | Action.PROVIDE if child is not None:
                refusal = await workflow.execute_activity_method(
                    FlowActivities.edit_flow,
                    EditFlow(flow=FlowId(workflow_id=child.id, run_id=child.first_execution_run_id or ""), repair=made),
                    **options.garden_call(f"{made.action} {made.task}"),
                )
            case Action.SKIP | Action.PROVIDE:
                self._add_repair(made)
            case Action.RESET | Action.CANCEL if child is not None:
                await self._record(made, "")  # first: `_preempt`, which reads annotations, ends with the child
                self._canceled = made
                child.cancel(f"{made}")
                return ""
            case Action.RESET:
                self._add_repair(made)
                self._update_memory(requested=(*self._memory.requested, OPERATION_RETRY))
            case Action.PAUSE | Action.RESUME:
                self._update_memory(paused=made if made.action is Action.PAUSE else None)
                if child is not None:
                    await child.signal(str(made.action), made)
                else:
                    self._add_repair(made)
        await self._record(made, refusal)
        return refusal

    async def _record(self, repair: Repair, refused: str) -> None:
        await workflow.execute_activity_method(
            ShootActivities.record_repair,
            RecordRepair(shoot=self._shoot, repair=repair, refused=refused),
            **options.garden_call(f"Record {repair.action} in an Event"),
        )

    def _refusal(self, repair: Repair) -> str:
        """Why this repair is not possible now; empty if it is."""
        if fault := repair.fault:
            return fault
        running, paused = self._child is not None, self._memory.paused
        if self._operating and not running:
            return f"an operation of Shoot {self._shoot} is about to start or to end: try again in a few seconds"
        match repair.action:
            case Action.PAUSE:
                return f"Shoot {self._shoot} is paused already: {paused}" if paused else ""
            case Action.RESUME:
                return "" if paused else f"Shoot {self._shoot} is not paused"
            case Action.CANCEL:
                return "" if running else f"no operation of Shoot {self._shoot} runs"
        if repair.task and (unknown := self._graph().unknown(repair.task)):
            return unknown
        if running:
            if repair.action is not Action.RETRY:
                return ""
            return (
                f"{self._progress.operation} of Shoot {self._shoot} is running; `reset` makes it run a task again, "
                "and all tasks after that"
            )
        if refusal := self._nothing_to_retry():
            return refusal
        finished = {each.name for each in self._memory.outcome.finished}
        if repair.action.by_hand and repair.task in finished:
            return f"task {repair.task} is finished already; `reset` makes it run again"
        return ""

    def _nothing_to_retry(self) -> str:
        outcome = self._memory.outcome
        if outcome.failed or outcome.canceled:
            return ""
        return f"nothing to retry: no operation of Shoot {self._shoot} has failed or was canceled in this generation"

    def _graph(self) -> ShootFlow:
        """The graph of the running operation, or of the last one, for its tasks' names."""
        operation, kind = self._memory.operation or OperationType.RECONCILE, self._memory.flow or FlowKind.RECONCILE
        task = ShootTask(shoot=self._shoot, technical_id="", seed="", generation=0, operation=operation)
        return FLOWS[kind].build(FlowInput(task=task, facts=self._memory.facts, sources=self._memory.sources))

    async def _outcome_of(self, workflow_id: str) -> FlowOutcome:
        """Outcome of an operation that was canceled or terminated; empty if it cannot be read within 2 minutes."""
        try:
            outcome: FlowOutcome = await workflow.execute_activity_method(
                FlowActivities.read_outcome,
                FlowId(workflow_id=workflow_id, run_id=""),
                **options.bounded(options.garden_call("Read the outcome"), minutes=2),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            outcome = FlowOutcome()
        return outcome.model_copy(update={"canceled": True})

    # Reading and resting

    async def _read_shoot(self) -> ShootView | None:
        return await workflow.execute_activity_method(
            ShootActivities.look_at_shoot,
            self._shoot,
            **options.garden_call("Read the Shoot"),
        )

    async def _rest(self, step: Rest) -> None:
        if step.state or step.consume:
            await workflow.execute_activity_method(
                ShootActivities.refuse_operation,
                Refusal(shoot=self._shoot, state=step.state, description=step.reason, consume=step.consume),
                **options.garden_call("Report why no operation starts"),
            )
        await self._sleep(step.reason, step.until, step.kind)

    async def _sleep(self, reason: str, until: timedelta | None, kind: RestKind | None = None) -> None:
        self._show(reason)
        self._progress = LifecycleProgress(resting=reason, rest=kind)
        try:
            await workflow.wait_condition(
                lambda: self._woken, timeout=until, timeout_summary=reason[:_SUMMARY_LIMIT] if until else None
            )
        except TimeoutError:
            self._woken = True

    async def _continue(self) -> None:
        """Continue as new, with an empty history. The next run reads the Shoot first, so no signal is lost."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(LifecycleInput(shoot=self._shoot, memory=self._memory, continued=True))

    def _show(self, text: str) -> None:
        lines = [f"Shoot `{self._shoot}`: {text}"]
        lines += [f"- **{each.name}** (attempt {each.attempt}): {each.message}" for each in self._memory.outcome.failed]
        lines += [f"- {each}" for each in self._memory.outcome.repairs]
        workflow.set_current_details("\n".join(lines))
