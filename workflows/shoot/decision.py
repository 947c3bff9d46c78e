"""Which operation a Shoot needs now: pure functions of what is seen. Source: spec/flows.md 1.1 to 1.3.

``docs/flows/decision.md`` shows the same as tables; each of their rows is a test.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random

from api.constants import (
    OPERATION_FORCE_IN_PLACE_UPDATE,
    OPERATION_MAINTAIN,
    OPERATION_RECONCILE,
    OPERATION_RETRY,
    OPERATION_ROLLOUT_WORKERS,
)
from api.errors import ErrorCode
from api.flows import FailedTask, FlowOutcome, LastOperation, ShootFacts, ShootView
from api.maintenance_window import MaintenanceWindow
from api.model import ApiModel
from api.operations import OperationType
from api.repair import Repair
from api.rotation import is_operation as is_rotation

SYNC_JITTER = 0.1
"""Part of the period by which syncs of idle Shoots are spread, so that a restart does not wake all at once."""
RETRY_DURATION = timedelta(hours=12)
"""``controllers.shoot.retryDuration``: until when errors of an operation are transient."""
SEED_GATE_RETRY = timedelta(seconds=15)
"""After an operation was put off because of its seed, or of a Bastion."""
_STOP_LOOK = timedelta(minutes=1)
"""After an operation was put off because its seed is stopped: whole seeds are, so nobody asks often."""
_RATE_LIMIT_PAUSE = (timedelta(minutes=10), timedelta(minutes=5))
"""Before what a cloud's rate limit ended is tried again, and by how much that is spread. Source: spec/flows.md 9."""
_GOING_LOOK = timedelta(minutes=1)
_BACKOFF = (timedelta(seconds=10), timedelta(minutes=10))
"""First and longest pause before an operation in state Error is tried again."""


class FlowKind(StrEnum):
    """Which graph of tasks an operation runs; part of its workflow's id."""

    RECONCILE = "reconcile"
    RESTORE = "restore"
    MIGRATE = "migrate"
    DELETE = "delete"
    FORCE_DELETE = "force-delete"


class Effect(StrEnum):
    """What a value of the annotation ``gardener.cloud/operation`` asks for. Source: spec/flows.md 1.2."""

    RECONCILE = "an operation now; no effect while Failed"
    RETRY = "an operation now, from where the failed one stopped; only while Failed"
    ROTATE = "an operation now, whatever came of the last one, that moves a rotation of credentials on"
    OTHERS = "left to who maintains the Shoot or rolls its workers"
    UNKNOWN = "taken away, with an Event that names it"


_ALONE = frozenset({OPERATION_RETRY, OPERATION_MAINTAIN, OPERATION_FORCE_IN_PLACE_UPDATE})
"""Operations that are not combined with others by ``;``."""


def effect_of(operation: str) -> Effect:
    """What one operation asks for; ``;`` parts several."""
    if operation == OPERATION_RECONCILE:
        return Effect.RECONCILE
    if operation == OPERATION_RETRY:
        return Effect.RETRY
    if is_rotation(operation):
        return Effect.ROTATE
    if operation in _ALONE or operation.startswith(f"{OPERATION_ROLLOUT_WORKERS}="):
        return Effect.OTHERS
    return Effect.UNKNOWN


class Memory(ApiModel):
    """What the lifecycle remembers between operations, also when it continues as new."""

    generation: int = 0
    operation: OperationType | None = None
    flow: FlowKind | None = None
    version: str = ""
    """Of the code that ran the last attempt."""
    attempts: int = 0
    """Of the operation of this generation."""
    outcome: FlowOutcome = FlowOutcome()
    ended: datetime | None = None
    requested: tuple[str, ...] = ()
    """Operations asked for by update that no attempt has answered."""
    paused: Repair | None = None
    """Who wants nothing to be done now."""
    facts: ShootFacts = ShootFacts()
    """Those of the last attempt: they decide which tasks there are."""
    sources: tuple[str, ...] = ()
    """Seeds that the control plane was given to since it was last whole in one. Their gardenlets may have written its
    ShootState."""


@dataclass(frozen=True)
class Run:
    """Start this operation."""

    operation: OperationType
    flow: FlowKind = FlowKind.RECONCILE
    consume: tuple[str, ...] = ()
    """Values of the operation annotation that this answers."""


@dataclass(frozen=True)
class Release:
    """Nothing of the cluster exists (any more): drop the finalizer."""


@dataclass(frozen=True)
class Abandon:
    """The seed that the control plane leaves is lost: the destination acts from now on."""


@dataclass(frozen=True)
class Rest:
    """Do nothing until woken, or for this long."""

    reason: str
    until: timedelta | None = None
    state: str = ""
    """If set, lastOperation says so, with the reason."""
    consume: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reject:
    """Take these operations out of the annotation, say why in an Event, and look again.

    Admission refuses them; they are here if somebody wrote past it, or if they came too late.
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
        # Row 8, too: a control plane that was half taken down is put together again, not just reconciled.
        return OperationType.RESTORE
    return OperationType.RECONCILE


def _has_arrived(last: LastOperation | None) -> bool:
    """Whether a control plane is where it went to: if it was turned round too late, it is restored there first."""
    return last is not None and (
        (last.type is OperationType.MIGRATE and last.state == "Succeeded")
        or (last.type is OperationType.RESTORE and last.state != "Succeeded")
    )


def flow_kind(view: ShootView, operation: OperationType) -> FlowKind:
    """The column "Flow" of the table in spec/flows.md 1.1."""
    match operation:
        case OperationType.DELETE:
            return FlowKind.FORCE_DELETE if view.force_delete else FlowKind.DELETE
        case OperationType.RESTORE:
            return FlowKind.RESTORE
        case OperationType.MIGRATE:
            return FlowKind.MIGRATE
    return FlowKind.RECONCILE


def decide(view: ShootView, memory: Memory, now: datetime, random: Random) -> Decision:
    """What to do now. ``random`` only spreads the next regular sync."""
    last = view.last_operation
    deleted = last is not None and last.type is OperationType.DELETE and last.state == "Succeeded"
    if view.deleting and not view.finalizer:
        return Rest("the Shoot is going once others have dropped their finalizers", until=_GOING_LOOK)
    if view.deleting and (not view.uid_recorded or deleted):
        return Release()
    seed = responsible_seed(view)
    if seed is None:
        return Rest("no seed is chosen yet")
    if (rejected := _rejected(view)) is not None:
        return rejected
    operation = operation_type(view)
    flow = flow_kind(view, operation)
    if flow is FlowKind.MIGRATE and view.source_lost and not view.migration_fault:
        return Abandon()
    if memory.paused is not None:
        return Rest(f"{memory.paused}; it goes on once somebody resumes it")
    if (put_off := _put_off(view, memory, operation, flow, seed, now)) is not None:
        return put_off
    run = Run(operation, flow, tuple(filter(_starts, view.operations)))
    return _due(view, memory, flow, now, random) or _seed_gate(view, seed) or run


def _starts(operation: str) -> bool:
    """Whether it starts one of our operations."""
    return effect_of(operation) in (Effect.RECONCILE, Effect.RETRY, Effect.ROTATE)


def _asked(view: ShootView, memory: Memory) -> frozenset[str]:
    return frozenset(filter(_starts, (*view.operations, *memory.requested)))


def _rejected(view: ShootView) -> Reject | None:
    """Operations that can have no effect."""
    unknown = tuple(each for each in view.operations if effect_of(each) is Effect.UNKNOWN)
    if unknown:
        return Reject(unknown, f"operation {', '.join(unknown)} is unknown")
    alone = [each for each in view.operations if each in _ALONE]
    if alone and len(view.operations) > 1:
        return Reject(view.operations, f"{alone[0]} cannot be combined with other operations: ask for them in turn")
    state = view.last_operation.state if view.last_operation else "none"
    if OPERATION_RETRY in view.operations and state != "Failed":
        return Reject((OPERATION_RETRY,), f"retry is for Shoots whose last operation has state Failed, it is {state}")
    return None


def _put_off(
    view: ShootView, memory: Memory, operation: OperationType, flow: FlowKind, seed: str, now: datetime
) -> Rest | None:
    """Rows 1 to 3 of spec/flows.md 1.3, and what this version does not do."""
    last = view.last_operation
    pending = "Pending" if last is None else ""
    if view.bastions and flow in (FlowKind.DELETE, FlowKind.FORCE_DELETE, FlowKind.MIGRATE):
        names = ", ".join(view.bastions)
        return Rest(f"Bastions exist: {names}; they go first", until=SEED_GATE_RETRY, state="Error")
    if flow is FlowKind.MIGRATE and view.migration_fault:
        return Rest(view.migration_fault, until=SEED_GATE_RETRY, state="Error")
    if view.emergency_stop:
        return Rest(f"operations on Seed {seed} are stopped by annotation", until=_STOP_LOOK, state=pending)
    failed = last is not None and last.state == "Failed" and not _is_newer(view) and _is_of(last.type, operation)
    known = memory.flow or (FlowKind.DELETE if flow is FlowKind.FORCE_DELETE else flow)
    if failed and known is flow and _asked(view, memory) <= {OPERATION_RECONCILE}:
        ineffective = tuple(each for each in view.operations if each == OPERATION_RECONCILE)
        if not view.rate_limited:
            ended = "was canceled" if memory.outcome.canceled else "failed"
            return Rest(f"the last operation {ended}; it waits for a change or `retry`", consume=ineffective)
        if (left := _limited_for(view, now)) > timedelta():
            return Rest("the cloud limits the rate of requests; it is tried again", until=left, consume=ineffective)
    if view.ignored:
        return Rest("the Shoot is to be ignored", state=pending)
    return None


def _limited_for(view: ShootView, now: datetime) -> timedelta:
    """How long to leave the cloud alone whose rate limit ended the last operation."""
    since = (view.last_operation and view.last_operation.updated) or now
    at_least, spread = _RATE_LIMIT_PAUSE
    return since + at_least + spread * _share(view, since) - now


def _due(view: ShootView, memory: Memory, flow: FlowKind, now: datetime, random: Random) -> Rest | None:
    """Rows 4 and 5 of spec/flows.md 1.3: until when to rest; None to run now."""
    last, operation = view.last_operation, operation_type(view)
    if last is None or _asked(view, memory) or _spec_counts(view) or not _is_of(last.type, operation):
        return None
    if operation is not OperationType.RECONCILE:
        # What failed a moment ago waits, unless it is given up.
        given_up = flow is FlowKind.FORCE_DELETE and memory.flow is not flow
        return None if _is_newer(view) or given_up else _pause(view, memory, now)
    if last.state != "Succeeded":
        return None if view.version_changed and not view.in_window_only else _pause(view, memory, now)
    if view.in_window_only and view.window is not None:
        return _window_rest(view, last.updated, now)
    if view.version_changed:
        return None
    due = (last.updated or now) + view.sync_period * (1 + SYNC_JITTER * random.random())
    return Rest("all is done", until=due - now) if due > now else None


def _window_rest(view: ShootView, last_run: datetime | None, now: datetime) -> Rest | None:
    """Once in each maintenance window, at a moment that is the Shoot's own: a restart starts nobody sooner."""
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
    return Random(f"{view.uid}/{begin.isoformat()}").random()


def _seed_gate(view: ShootView, seed: str) -> Rest | None:
    """Row 6 of spec/flows.md 1.3."""
    if view.seed_exists and not view.seed_fault:
        return None
    fault = view.seed_fault or f"Seed {seed} does not exist"
    return Rest(fault, until=SEED_GATE_RETRY, state="Error" if view.last_operation else "Pending")


def _spec_counts(view: ShootView) -> bool:
    """Whether a change of the spec asks for an operation now: a confined one only to hibernate or to wake up."""
    return view.generation != view.observed_generation and _is_not_confined(view)


def _is_not_confined(view: ShootView) -> bool:
    moves = view.status_seed is not None and view.spec_seed != view.status_seed
    return not view.confined or view.hibernation_switched or moves


def _is_newer(view: ShootView) -> bool:
    """Whether the wish, or our code, is another than the last operation's."""
    return _spec_counts(view) or view.version_changed


def _is_of(last: OperationType, operation: OperationType) -> bool:
    return last is operation or OperationType.DELETE not in (last, operation)


def responsible_seed(view: ShootView) -> str | None:
    """Whose gardenlet acts. Source: spec/flows.md 1.1."""
    if view.spec_seed is None:
        return view.status_seed if view.deleting else None
    return view.status_seed or view.spec_seed


def overtakes(view: ShootView | None, generation: int, flow: FlowKind) -> bool:
    """Whether what is seen now asks for another operation than the running one."""
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


def ends_at_once(view: ShootView, flow: FlowKind) -> bool:
    """Whether what overtakes the running operation waits for no task: each would make it harder, or too late."""
    return flow is FlowKind.MIGRATE and (view.source_lost or view.spec_seed == view.status_seed)


def state_after_failure(failed: tuple[FailedTask, ...], cycle_start: datetime, now: datetime) -> str:
    """Failed if trying again does not help or has been tried long enough, else Error. Source: spec/flows.md 1.4."""
    final = any(code in _FINAL for each in failed for code in each.codes)
    return "Failed" if final or now - cycle_start >= RETRY_DURATION else "Error"


def remember(memory: Memory, view: ShootView, step: Run) -> Memory:
    """The memory at the start of an attempt; the outcome only stays within a generation.

    That somebody paused or resumed since the last attempt is told by the next one, of whichever generation.
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


def _counts_on(view: ShootView, memory: Memory, operation: OperationType, flow: FlowKind) -> bool:
    same_flow = memory.flow in (None, flow)  # None: remembered by code that knew one flow for each type
    return memory.generation == view.generation and memory.operation is operation and same_flow


def _same(view: ShootView, memory: Memory, operation: OperationType, flow: FlowKind) -> bool:
    """Whether an outcome may be gone on from: the same wish, by the same code, with the same credentials."""
    rotates = any(map(is_rotation, view.operations))
    return _counts_on(view, memory, operation, flow) and memory.version == view.our_version and not rotates


def _pause(view: ShootView, memory: Memory, now: datetime) -> Rest | None:
    """How long to rest before what ended in Error, or was put off, is tried again."""
    last = view.last_operation
    if last is None or last.state not in ("Error", "Pending"):
        return None
    first, longest = _BACKOFF
    since = memory.ended or last.updated
    if since is None:
        return None
    pause = min(first * 2 ** min(max(memory.attempts - 1, 0), 10), longest)
    left = since + pause - now
    return Rest("an error is tried again later", until=left) if left > timedelta() else None
