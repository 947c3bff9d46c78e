"""Decides which operation a Shoot needs now: pure functions of a ``ShootView``. Source: spec/flows.md 1.1 to 1.3.

``docs/flows/decision.md`` shows the same rules as tables; each row of them is a test.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random

from api.constants import (
    EMERGENCY_STOP,
    OPERATION_FORCE_IN_PLACE_UPDATE,
    OPERATION_MAINTAIN,
    OPERATION_RECONCILE,
    OPERATION_RETRY,
    OPERATION_ROLLOUT_WORKERS,
    SHOOT_IGNORE,
)
from api.contracts.flows import FailedTask, FlowOutcome, LastOperation, ShootFacts, ShootView
from api.contracts.operations import OperationType
from api.contracts.repair import Repair
from api.decisions.maintenance_window import MaintenanceWindow
from api.decisions.rotation import is_operation as is_rotation
from api.errors import ErrorCode
from api.model import ApiModel

SYNC_JITTER = 0.1
"""Fraction of the sync period by which regular syncs are delayed at random, so that a restart of the controller-manager
does not start the syncs of all Shoots at once."""
RETRY_DURATION = timedelta(hours=12)
"""``controllers.shoot.retryDuration``: an operation that still fails after this time gets state Failed."""
SEED_GATE_RETRY = timedelta(minutes=10)
"""Pause before the next decision if the seed is not ready or Bastions exist. A signal of the controller-manager ends it
earlier: when the seed gets ready, or when a Bastion is deleted."""
_EMERGENCY_STOP_RECHECK = timedelta(minutes=1)
"""Pause before the next decision if an annotation stops operations on the seed. An emergency stop holds all Shoots of a
seed, so each of them is checked rarely."""
_RATE_LIMIT_PAUSE = (timedelta(minutes=10), timedelta(minutes=5))
"""Shortest pause after an operation failed at a cloud's rate limit, and the random time that is added to it, at most.
Source: spec/flows.md 9."""
_FINALIZERS_RECHECK = timedelta(minutes=1)
"""Pause before a deleted Shoot that only has finalizers of others is read again."""
_BACKOFF = (timedelta(seconds=10), timedelta(minutes=10))
"""First and longest pause before an operation in state Error is retried."""


class FlowKind(StrEnum):
    """Graph of tasks; part of the id of its workflow. Definitions: ``workflows.shoot.flows``."""

    RECONCILE = "reconcile"
    RESTORE = "restore"
    MIGRATE = "migrate"
    DELETE = "delete"
    FORCE_DELETE = "force-delete"
    FORGET = "forget"
    """Not of the lifecycle: the controller-manager starts it."""
    DELETE_BACKUPS = "delete-backups"
    """Not of the lifecycle: the controller-manager starts it."""


class Effect(StrEnum):
    """Effect of a value of the annotation ``gardener.cloud/operation``. Source: spec/flows.md 1.2."""

    RECONCILE = "starts an operation now; no effect while Failed"
    RETRY = "starts an operation now, from where the failed one stopped; only while Failed"
    ROTATE = "starts an operation now, in any state of the last one; it advances a rotation of credentials"
    OTHERS = "left to the maintenance of the Shoot or to the rollout of its workers"
    UNKNOWN = "removed, with an Event that names it"


_NOT_COMBINABLE = frozenset({OPERATION_RETRY, OPERATION_MAINTAIN, OPERATION_FORCE_IN_PLACE_UPDATE})
"""Operations that cannot be combined with others by ``;``."""


def effect_of(operation: str) -> Effect:
    """Effect of one operation: the annotation's value, split at ``;``."""
    if operation == OPERATION_RECONCILE:
        return Effect.RECONCILE
    if operation == OPERATION_RETRY:
        return Effect.RETRY
    if is_rotation(operation):
        return Effect.ROTATE
    if operation in _NOT_COMBINABLE or operation.startswith(f"{OPERATION_ROLLOUT_WORKERS}="):
        return Effect.OTHERS
    return Effect.UNKNOWN


class LifecycleState(ApiModel):
    """State that the lifecycle keeps between operations, also when it continues as new."""

    generation: int = 0
    operation: OperationType | None = None
    flow: FlowKind | None = None
    version: str = ""
    """Version of our code that ran the last attempt."""
    attempts: int = 0
    """Number of attempts of the operation of this generation."""
    outcome: FlowOutcome = FlowOutcome()
    ended: datetime | None = None
    requested: tuple[str, ...] = ()
    """Operations requested by the update ``request_operation`` that no attempt has answered."""
    paused: Repair | None = None
    """The intervention that pauses operations; None if they are not paused."""
    facts: ShootFacts = ShootFacts()
    """Facts of the last attempt: they decide which tasks the flow has."""
    sources: tuple[str, ...] = ()
    """Seeds that operations moved the control plane from or to since it was last complete in one seed. Their gardenlets
    may have written its ShootState."""


@dataclass(frozen=True)
class Run:
    """Start this operation."""

    operation: OperationType
    flow: FlowKind = FlowKind.RECONCILE
    consume: tuple[str, ...] = ()
    """Values of the operation annotation that this operation answers; they are removed."""


@dataclass(frozen=True)
class Release:
    """Remove the finalizer: nothing of the cluster exists, or exists any more."""


@dataclass(frozen=True)
class Abandon:
    """Hand the Shoot to its destination: the seed that the control plane leaves is lost."""


class RestKind(StrEnum):
    """Why a lifecycle rests, for programs; ``Rest.reason`` is the text for people."""

    IDLE = "Idle"
    """The last operation succeeded, and the next regular sync is not due."""
    WAITING = "Waiting"
    """The lifecycle waits for a time, a change or another object."""


@dataclass(frozen=True)
class Rest:
    """Start nothing until a signal wakes the lifecycle, or until this time has passed."""

    reason: str
    until: timedelta | None = None
    state: str = ""
    """State that lastOperation gets, with the reason as its description; empty to leave lastOperation as it is."""
    consume: tuple[str, ...] = ()
    kind: RestKind = RestKind.WAITING


@dataclass(frozen=True)
class Reject:
    """Remove these operations from the annotation, report the reason in an Event, and decide again.

    Admission refuses them. They exist if a client wrote while admission was not asked, or if they came too late.
    """

    operations: tuple[str, ...]
    reason: str


Decision = Run | Release | Abandon | Rest | Reject


def operation_type(view: ShootView) -> OperationType:
    """Rows 3 to 10 of the table in spec/flows.md 1.1, first match wins."""
    last = view.last_operation
    if view.deleting:
        return OperationType.DELETE
    if view.spec_seed and view.status_seed and view.spec_seed != view.status_seed and not _has_arrived(last):
        return OperationType.MIGRATE
    if last is None:
        return OperationType.CREATE
    if last.type is OperationType.MIGRATE and last.state in ("Succeeded", "Aborted"):
        return OperationType.RESTORE
    if last.type is OperationType.CREATE and last.state != "Succeeded":
        return OperationType.CREATE
    if last.type is OperationType.MIGRATE and view.prepared_at:
        return OperationType.MIGRATE
    if last.type is OperationType.MIGRATE or (last.type is OperationType.RESTORE and last.state != "Succeeded"):
        # Row 8, too: a control plane that was partly deleted needs a restore; a reconcile does not suffice.
        return OperationType.RESTORE
    return OperationType.RECONCILE


def _has_arrived(last: LastOperation | None) -> bool:
    """Whether the control plane is in its destination. A move that was aborted too late is restored there first."""
    return last is not None and (
        (last.type is OperationType.MIGRATE and last.state == "Succeeded")
        or (last.type is OperationType.RESTORE and last.state != "Succeeded")
    )


def flow_kind(view: ShootView, operation: OperationType) -> FlowKind:
    """Flow of an operation: the column "Flow" of the table in spec/flows.md 1.1."""
    match operation:
        case OperationType.DELETE:
            return FlowKind.FORCE_DELETE if view.force_delete else FlowKind.DELETE
        case OperationType.RESTORE:
            return FlowKind.RESTORE
        case OperationType.MIGRATE:
            return FlowKind.MIGRATE
    return FlowKind.RECONCILE


def decide(view: ShootView, memory: LifecycleState, now: datetime, random: Random) -> Decision:
    """Decide what the lifecycle does now. ``random`` only spreads the next regular sync."""
    last = view.last_operation
    deleted = last is not None and last.type is OperationType.DELETE and last.state == "Succeeded"
    if view.deleting and not view.finalizer:
        return Rest(
            "Gardener has deleted the cluster; the Shoot is kept by finalizers of others", until=_FINALIZERS_RECHECK
        )
    if view.deleting and (not view.uid_recorded or deleted):
        return Release()
    seed = responsible_seed(view)
    if seed is None:
        return Rest("the scheduler has assigned no seed yet; an Event of the Shoot names the reason")
    if (rejected := _rejected(view)) is not None:
        return rejected
    operation = operation_type(view)
    flow = flow_kind(view, operation)
    if flow is FlowKind.MIGRATE and view.source_lost and not view.migration_fault:
        return Abandon()
    if memory.paused is not None:
        return Rest(f"{memory.paused}; no operation starts until a user resumes the Shoot")
    if (put_off := _put_off(view, memory, operation, flow, seed, now)) is not None:
        return put_off
    run = Run(operation, flow, tuple(filter(_starts, view.operations)))
    step = _due(view, memory, flow, now, random) or _seed_gate(view, seed) or run
    return _without_forced(step, view) if isinstance(step, Rest) else step


def _without_forced(step: Rest, view: ShootView) -> Rest:
    """A Rest that also removes the operation which allows changes of pending pools, once no update is pending."""
    last = view.last_operation
    over = last is not None and last.state == "Succeeded" and view.generation == view.observed_generation
    if not over or view.in_place_pending or OPERATION_FORCE_IN_PLACE_UPDATE not in view.operations:
        return step
    return replace(step, consume=(*step.consume, OPERATION_FORCE_IN_PLACE_UPDATE))


def _starts(operation: str) -> bool:
    """Whether a value of the annotation starts one of our operations."""
    return effect_of(operation) in (Effect.RECONCILE, Effect.RETRY, Effect.ROTATE)


def _asked(view: ShootView, memory: LifecycleState) -> frozenset[str]:
    return frozenset(filter(_starts, (*view.operations, *memory.requested)))


def _rejected(view: ShootView) -> Reject | None:
    """Rejects operations that can have no effect; None if there are none."""
    unknown = tuple(each for each in view.operations if effect_of(each) is Effect.UNKNOWN)
    if unknown:
        return Reject(unknown, f"operation {', '.join(unknown)} is unknown")
    alone = [each for each in view.operations if each in _NOT_COMBINABLE]
    if alone and len(view.operations) > 1:
        return Reject(
            view.operations, f"{alone[0]} cannot be combined with other operations: request them one after another"
        )
    state = view.last_operation.state if view.last_operation else "none"
    if OPERATION_RETRY in view.operations and state != "Failed":
        return Reject((OPERATION_RETRY,), f"retry needs a last operation in state Failed; its state is {state}")
    return None


def _put_off(
    view: ShootView, memory: LifecycleState, operation: OperationType, flow: FlowKind, seed: str, now: datetime
) -> Rest | None:
    """Rows 1 to 3 of spec/flows.md 1.3: reasons to start nothing; None if there are none."""
    last = view.last_operation
    pending = "Pending" if last is None else ""
    if view.bastions and flow in (FlowKind.DELETE, FlowKind.FORCE_DELETE, FlowKind.MIGRATE):
        names = ", ".join(view.bastions)
        return Rest(f"Bastions exist: {names}; they must be deleted first", until=SEED_GATE_RETRY, state="Error")
    if flow is FlowKind.MIGRATE and view.migration_fault:
        return Rest(view.migration_fault, until=SEED_GATE_RETRY, state="Error")
    if view.emergency_stop:
        return Rest(
            f"annotation {EMERGENCY_STOP} of Seed {seed} is set: no operation starts there",
            until=_EMERGENCY_STOP_RECHECK,
            state=pending,
        )
    failed = last is not None and last.state == "Failed" and not _is_newer(view) and _is_of(last.type, operation)
    known = memory.flow or (FlowKind.DELETE if flow is FlowKind.FORCE_DELETE else flow)
    if failed and known is flow and _asked(view, memory) <= {OPERATION_RECONCILE}:
        ineffective = tuple(each for each in view.operations if each == OPERATION_RECONCILE)
        if not view.rate_limited:
            ended = "was canceled" if memory.outcome.canceled else "failed"
            reason = f"the last operation {ended}; it waits for a change of the spec or `retry`"
            return Rest(reason, consume=ineffective)
        if (left := _limited_for(view, now)) > timedelta():
            return Rest(
                "the cloud limits the rate of requests; the operation is retried later", until=left, consume=ineffective
            )
    if view.ignored:
        return Rest(f"annotation {SHOOT_IGNORE} of the Shoot is true: no operation starts", state=pending)
    return None


def _limited_for(view: ShootView, now: datetime) -> timedelta:
    """Time left until an operation that failed at the cloud's rate limit is retried."""
    since = (view.last_operation and view.last_operation.updated) or now
    at_least, spread = _RATE_LIMIT_PAUSE
    return since + at_least + spread * _share(view, since) - now


def _due(view: ShootView, memory: LifecycleState, flow: FlowKind, now: datetime, random: Random) -> Rest | None:
    """Rows 4 and 5 of spec/flows.md 1.3: how long to rest; None to run now."""
    last, operation = view.last_operation, operation_type(view)
    if last is None or _asked(view, memory) or _spec_counts(view) or not _is_of(last.type, operation):
        return None
    if operation is not OperationType.RECONCILE:
        # An operation that has just failed waits for its backoff, unless a force-deletion replaces it.
        forced = flow is FlowKind.FORCE_DELETE and memory.flow is not flow
        return None if _is_newer(view) or forced else _pause(view, memory, now)
    if last.state != "Succeeded":
        return None if view.version_changed and not view.in_window_only else _pause(view, memory, now)
    if view.in_window_only and view.window is not None:
        return _window_rest(view, last.updated, now)
    if view.version_changed:
        return None
    due = (last.updated or now) + view.sync_period * (1 + SYNC_JITTER * random.random())
    if due <= now:
        return None
    return Rest("the last operation succeeded; the next regular sync is not due", until=due - now, kind=RestKind.IDLE)


def _window_rest(view: ShootView, last_run: datetime | None, now: datetime) -> Rest | None:
    """Rest until the Shoot's own moment in the maintenance window; None if it is reached and nothing ran in this one.

    The moment follows from the Shoot's uid and the window, so a restart of the controller-manager changes it for no
    Shoot.
    """
    window = MaintenanceWindow.parse(*view.window or ("", "")).effective
    begun = window.latest_begin(now)
    if window.contains(now) and (last_run is None or last_run < begun):
        planned = begun + window.length * _share(view, begun)
    else:
        begin = window.next_begin(now)
        planned = begin + window.length * _share(view, begin)
    if planned <= now:
        return None
    return Rest(f"changes wait for the maintenance window, {planned:%Y-%m-%d %H:%M} UTC", until=planned - now)


def _share(view: ShootView, begin: datetime) -> float:
    """Number from 0 to 1 that is the same each time for one Shoot and one moment."""
    return Random(f"{view.uid}/{begin.isoformat()}").random()


def _seed_gate(view: ShootView, seed: str) -> Rest | None:
    """Row 6 of spec/flows.md 1.3: rest while the seed is not ready; None if it is."""
    if view.seed_exists and not view.seed_fault:
        return None
    fault = view.seed_fault or f"Seed {seed} does not exist"
    return Rest(fault, until=SEED_GATE_RETRY, state="Error" if view.last_operation else "Pending")


def _spec_counts(view: ShootView) -> bool:
    """Whether a change of the spec starts an operation now.

    A change that is confined to the maintenance window does so only if it hibernates, wakes up or moves the Shoot.
    """
    return view.generation != view.observed_generation and _is_not_confined(view)


def _is_not_confined(view: ShootView) -> bool:
    moves = view.status_seed is not None and view.spec_seed != view.status_seed
    return not view.confined or view.hibernation_switched or moves


def _is_newer(view: ShootView) -> bool:
    """Whether the spec, or our version, has changed since the last operation."""
    return _spec_counts(view) or view.version_changed


def _is_of(last: OperationType, operation: OperationType) -> bool:
    return last is operation or OperationType.DELETE not in (last, operation)


def responsible_seed(view: ShootView) -> str | None:
    """Seed whose gardenlet runs the operation; None if there is none. Source: spec/flows.md 1.1."""
    if view.spec_seed is None:
        return view.status_seed if view.deleting else None
    return view.status_seed or view.spec_seed


def preempts(view: ShootView | None, generation: int, flow: FlowKind) -> bool:
    """Whether the Shoot now needs another operation than the running one."""
    if view is None:
        return False
    if view.deleting:
        deletion = flow_kind(view, OperationType.DELETE)
        return flow is not deletion and flow is not FlowKind.FORCE_DELETE
    if flow is FlowKind.MIGRATE and view.source_lost:
        return True
    if flow is FlowKind.MIGRATE and view.prepared_at:
        return False
    return view.generation > generation and _is_not_confined(view)


def cancels_at_once(view: ShootView, flow: FlowKind) -> bool:
    """Whether the running operation is canceled without waiting until one of its tasks fails or it makes no progress.

    So it is for a migration that is aborted or whose source is lost: each further task would make the way back longer,
    or impossible.
    """
    return flow is FlowKind.MIGRATE and (view.source_lost or view.spec_seed == view.status_seed)


def state_after_failure(failed: tuple[FailedTask, ...], cycle_start: datetime, now: datetime) -> str:
    """State after a failure: Failed if an error code is final or ``RETRY_DURATION`` is over, else Error.

    Source: spec/flows.md 1.4.
    """
    final = any(code in _FINAL for each in failed for code in each.codes)
    return "Failed" if final or now - cycle_start >= RETRY_DURATION else "Error"


def begin_attempt(memory: LifecycleState, view: ShootView, step: Run) -> LifecycleState:
    """State of the lifecycle at the start of an attempt; the outcome is kept within one generation only.

    Pauses and resumes since the last attempt are kept in any case, so that the next attempt shows them.
    """
    attempts = memory.attempts + 1 if _counts_on(view, memory, step.operation, step.flow) else 1
    same = _same(view, memory, step.operation, step.flow)
    pauses = (each for each in memory.outcome.repairs if each.attempt > memory.attempts and each.is_pause)
    return memory.model_copy(
        update={
            "generation": view.generation,
            "operation": step.operation,
            "flow": step.flow,
            "version": view.our_version,
            "attempts": attempts,
            "outcome": memory.outcome if same else FlowOutcome(repairs=tuple(pauses)),
            "requested": (),
        }
    )


_FINAL = frozenset(str(code) for code in ErrorCode if not code.retryable)


def _counts_on(view: ShootView, memory: LifecycleState, operation: OperationType, flow: FlowKind) -> bool:
    same_flow = memory.flow in (None, flow)  # None: written by an earlier version, which had one flow for each type
    return memory.generation == view.generation and memory.operation is operation and same_flow


def _same(view: ShootView, memory: LifecycleState, operation: OperationType, flow: FlowKind) -> bool:
    """Whether an attempt may keep finished tasks of the last one: generation, version and credentials are the same."""
    rotates = any(map(is_rotation, view.operations))
    return _counts_on(view, memory, operation, flow) and memory.version == view.our_version and not rotates


def _pause(view: ShootView, memory: LifecycleState, now: datetime) -> Rest | None:
    """Backoff before an operation in state Error or Pending is retried; None if it is over."""
    last = view.last_operation
    if last is None or last.state not in ("Error", "Pending"):
        return None
    first, longest = _BACKOFF
    since = memory.ended or last.updated
    if since is None:
        return None
    pause = min(first * 2 ** min(max(memory.attempts - 1, 0), 10), longest)
    left = since + pause - now
    return Rest("the last operation did not succeed; it is retried later", until=left) if left > timedelta() else None
