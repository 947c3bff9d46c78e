"""Which operation a Shoot needs now: pure functions of what is seen. Source: spec/flows.md 1.1 to 1.3."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from api.errors import ErrorCode
from api.flows import FailedTask, FlowOutcome, ShootView
from api.model import ApiModel
from api.operations import OperationType

RECONCILE = "reconcile"
RETRY = "retry"

SYNC_PERIOD = timedelta(hours=1)
"""``controllers.shoot.syncPeriod``."""
SYNC_JITTER = 0.1
"""Part of the period by which syncs of idle Shoots are spread, so that a restart does not wake all at once."""
RETRY_DURATION = timedelta(hours=12)
"""``controllers.shoot.retryDuration``: until when errors of an operation are transient."""
SEED_GATE_RETRY = timedelta(seconds=15)
"""After an operation was put off because of its seed."""
_GOING_LOOK = timedelta(minutes=1)
_BACKOFF = (timedelta(seconds=10), timedelta(minutes=10))
"""First and longest pause before an operation in state Error is tried again."""

IGNORED_NAMESPACE = "garden"
"""Where ``shoot.gardener.cloud/ignore`` counts. Source: spec/flows.md 1.3."""


class Memory(ApiModel):
    """What the lifecycle remembers between operations, also when it continues as new."""

    generation: int = 0
    operation: OperationType | None = None
    forced: bool = False
    """It was a deletion that gives up what the cloud holds."""
    version: str = ""
    """Of the code that ran the last attempt."""
    attempts: int = 0
    """Of the operation of this generation."""
    outcome: FlowOutcome = FlowOutcome()
    ended: datetime | None = None
    requested: tuple[str, ...] = ()
    """Operations asked for by update that no attempt has answered."""


@dataclass(frozen=True)
class Run:
    """Start this operation."""

    operation: OperationType
    consume: tuple[str, ...] = ()
    """Values of the operation annotation that this answers."""
    resume: bool = False
    """Go on from the outcome of the attempt before."""
    forced: bool = False
    """A deletion that gives up what the cloud holds."""


@dataclass(frozen=True)
class Release:
    """Nothing of the cluster exists (any more): drop the finalizer."""


@dataclass(frozen=True)
class Rest:
    """Do nothing until woken, or for this long."""

    reason: str
    until: timedelta | None = None
    state: str = ""
    """If set, lastOperation says so, with the reason."""
    consume: tuple[str, ...] = ()


Decision = Run | Release | Rest


def operation_type(view: ShootView) -> OperationType:
    """Rows 3 to 10 of the table in spec/flows.md 1.1, first match wins."""
    last = view.last_operation
    if view.deleting:
        return OperationType.DELETE
    if view.spec_seed and view.status_seed and view.spec_seed != view.status_seed:
        return OperationType.MIGRATE
    if last is None:
        return OperationType.CREATE
    if last.type is OperationType.MIGRATE and last.state in ("Succeeded", "Aborted"):
        return OperationType.RESTORE
    if last.type is OperationType.CREATE and last.state != "Succeeded":
        return OperationType.CREATE
    if last.type is OperationType.MIGRATE:
        return OperationType.MIGRATE
    if last.type is OperationType.RESTORE and last.state != "Succeeded":
        return OperationType.RESTORE
    return OperationType.RECONCILE


def decide(view: ShootView, memory: Memory, now: datetime, random: Random) -> Decision:
    """What to do now. ``random`` only spreads the next regular sync."""
    last = view.last_operation
    asked = frozenset(view.operations) | frozenset(memory.requested)
    deleted = last is not None and last.type is OperationType.DELETE and last.state == "Succeeded"
    if view.deleting and not view.finalizer:
        return Rest("the Shoot is going once others have dropped their finalizers", until=_GOING_LOOK)
    if view.deleting and (not view.uid_recorded or deleted):
        return Release()
    seed = responsible_seed(view)
    if seed is None:
        return Rest("no seed is chosen yet")
    operation = operation_type(view)
    if operation in (OperationType.MIGRATE, OperationType.RESTORE):
        return Rest(
            f"{operation} of a control plane is not offered by this version", state="Pending" if not last else ""
        )
    if view.ignored:
        return Rest("the Shoot is to be ignored", state="Pending" if last is None else "")
    forced = view.deleting and view.force_delete
    newly_forced = forced and not (memory.forced and _counts_on(view, memory, operation))
    failed = last is not None and last.state == "Failed"
    if failed and _up_to_date(view, operation) and RETRY not in asked and not newly_forced:
        ineffective = tuple(each for each in view.operations if each == RECONCILE)
        return Rest("the last operation failed; it waits for a change or `retry`", consume=ineffective)
    if not view.seed_exists or view.seed_fault:
        fault = view.seed_fault or f"Seed {seed} does not exist"
        return Rest(fault, until=SEED_GATE_RETRY, state="Error" if last else "Pending")
    consume = tuple(each for each in view.operations if each in (RECONCILE, RETRY))
    resume = _same(view, memory, operation) and bool(memory.outcome.failed or memory.outcome.canceled)
    run = Run(operation, consume, resume, forced)
    if newly_forced or asked & {RECONCILE, RETRY} or last is None or not _up_to_date(view, operation):
        return run
    if last.state in ("Error", "Pending"):
        pause = _pause(view, memory, now)
        return Rest("an error is tried again later", until=pause) if pause else run
    if last.state != "Succeeded":
        return run
    due = (last.updated or now) + SYNC_PERIOD * (1 + SYNC_JITTER * random.random())
    return Rest("all is done", until=due - now) if due > now else run


def responsible_seed(view: ShootView) -> str | None:
    """Whose gardenlet acts. Source: spec/flows.md 1.1."""
    if view.spec_seed is None:
        return view.status_seed if view.deleting else None
    return view.status_seed or view.spec_seed


def overtakes(view: ShootView | None, generation: int, operation: OperationType, *, forced: bool = False) -> bool:
    """Whether what is seen now asks for another operation than the running one."""
    if view is None:
        return False
    deletes_otherwise = operation is not OperationType.DELETE or (view.force_delete and not forced)
    return view.generation > generation or (view.deleting and deletes_otherwise)


def state_after_failure(failed: tuple[FailedTask, ...], cycle_start: datetime, now: datetime) -> str:
    """Failed if trying again does not help or has been tried long enough, else Error. Source: spec/flows.md 1.4."""
    final = any(code in _FINAL for each in failed for code in each.codes)
    return "Failed" if final or now - cycle_start >= RETRY_DURATION else "Error"


def remember(memory: Memory, view: ShootView, operation: OperationType) -> Memory:
    """The memory at the start of an attempt; the outcome only stays within a generation."""
    attempts = memory.attempts + 1 if _counts_on(view, memory, operation) else 1
    return memory.model_copy(
        update={
            "generation": view.generation,
            "operation": operation,
            "forced": view.deleting and view.force_delete,
            "version": view.our_version,
            "attempts": attempts,
            "outcome": memory.outcome if _same(view, memory, operation) else FlowOutcome(),
            "requested": (),
        }
    )


_FINAL = frozenset(str(code) for code in ErrorCode if not code.retryable)


def _up_to_date(view: ShootView, operation: OperationType) -> bool:
    return (
        view.observed_generation == view.generation
        and view.gardener_version == view.our_version
        and view.last_operation is not None
        and (view.last_operation.type is OperationType.DELETE or not view.deleting)
        and operation is not OperationType.MIGRATE
    )


def _counts_on(view: ShootView, memory: Memory, operation: OperationType) -> bool:
    same_kind = memory.operation is operation and memory.forced == (view.deleting and view.force_delete)
    return memory.generation == view.generation and same_kind


def _same(view: ShootView, memory: Memory, operation: OperationType) -> bool:
    """Whether an outcome may be gone on from: the same wish, by the same code."""
    return _counts_on(view, memory, operation) and memory.version == view.our_version


def _pause(view: ShootView, memory: Memory, now: datetime) -> timedelta | None:
    first, longest = _BACKOFF
    since = memory.ended or (view.last_operation.updated if view.last_operation else None)
    if since is None:
        return None
    pause = min(first * 2 ** min(max(memory.attempts - 1, 0), 10), longest)
    left = since + pause - now
    return left if left > timedelta() else None
