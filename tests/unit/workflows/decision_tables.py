"""Rules for when an operation of a Shoot runs, as tables: spec/flows.md 1.1 to 1.3, one test for each row.

``test_decision.py`` tests the rows, ``docs/flows/generate.py`` prints them.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from api.contracts.flows import LastOperation, ShootView
from api.contracts.operations import OperationType
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
    decide,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
C, R, D, M, S = (
    OperationType.CREATE,
    OperationType.RECONCILE,
    OperationType.DELETE,
    OperationType.MIGRATE,
    OperationType.RESTORE,
)


def last(type_: OperationType, state: str, ago: timedelta = timedelta()) -> LastOperation:
    return LastOperation(type=type_, state=state, updated=NOW - ago)


def seen(**fields: Any) -> ShootView:
    """A Shoot whose last operation succeeded and that has not changed, except for these fields."""
    done: dict[str, Any] = {
        "generation": 3,
        "observed_generation": 3,
        "uid_recorded": True,
        "uid": "0f3c",
        "spec_seed": "a",
        "status_seed": "a",
        "last_operation": last(R, "Succeeded"),
        "gardener_version": "v1",
        "our_version": "v1",
    }
    return ShootView.model_validate(done | fields)


def decided(view: ShootView, memory: LifecycleState | None = None, now: datetime = NOW) -> Decision:
    return decide(view, memory or LifecycleState(), now, Random(0))


@dataclass(frozen=True)
class Between:
    """A Rest that ends within this time."""

    begin: datetime
    end: datetime

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rest) and other.until is not None and self.begin <= NOW + other.until < self.end


@dataclass(frozen=True)
class Row:
    """Expected decision for a Shoot whose last operation succeeded and that has not changed, except for ``fields``."""

    number: str
    condition: str
    """Condition of the row, as the document shows it."""
    effect: str
    """Effect of the row, as the document shows it."""
    answer: Decision | Between
    fields: dict[str, Any] = field(default_factory=dict)
    memory: LifecycleState = field(default_factory=LifecycleState)

    @property
    def decided(self) -> Decision:
        return decided(seen(**self.fields), self.memory)


def _ran(operation: OperationType, flow: FlowKind = FlowKind.RECONCILE, *consume: str) -> Run:
    return Run(operation, flow, consume)


_SUCCEEDED = last(R, "Succeeded")
_FAILED = last(R, "Failed")
_IDLE = Rest(
    "the last operation succeeded; the next regular sync is not due",
    until=timedelta(hours=1) * (1 + 0.1 * Random(0).random()),
    kind=RestKind.IDLE,
)
_WAITS = Rest("the last operation failed; it waits for a change of the spec or `retry`")
_MOVES = _ran(M, FlowKind.MIGRATE)
_RESTORES = _ran(S, FlowKind.RESTORE)
_DEAD = {"deleting": True, "generation": 4}

WHICH = (
    Row("1", "deleted, and Gardener's finalizer is removed", "none; read the Shoot again until it is gone",
        Rest("Gardener has deleted the cluster; the Shoot is kept by finalizers of others", until=timedelta(minutes=1)),
        {"deleting": True, "finalizer": False}),
    Row("2a", "deleted, and `status.uid` is empty", "no flow: the finalizer is removed", Release(),
        {"deleting": True, "uid_recorded": False}),
    Row("2b", "deleted, and the last operation is Delete, Succeeded", "no flow: the finalizer is removed", Release(),
        {"deleting": True, "last_operation": last(D, "Succeeded")}),
    Row("3", "deleted, `confirmation.gardener.cloud/force-deletion` is true", "force-delete; type Delete",
        _ran(D, FlowKind.FORCE_DELETE),
        {**_DEAD, "force_delete": True}),
    Row("4", "deleted", "delete; type Delete", _ran(D, FlowKind.DELETE), _DEAD),
    Row("5", "`spec.seedName` and `status.seedName` differ", "migrate, on the source; type Migrate", _MOVES,
        {"generation": 4, "status_seed": "b"}),
    Row("5, source lost", "… and `shoot.gardener.cloud/control-plane-migration=bad-case`",
        "no flow: Migrate, Aborted; the destination restores", Abandon(),
        {"generation": 4, "status_seed": "b", "source_lost": True}),
    Row("6a", "the last operation is Migrate, Succeeded", "restore; type Restore", _RESTORES,
        {"last_operation": last(M, "Succeeded")}),
    Row("6b", "the last operation is Migrate, Aborted", "restore; type Restore", _RESTORES,
        {"last_operation": last(M, "Aborted")}),
    Row("7a", "there is no last operation", "reconcile; type Create", _ran(C),
        {"last_operation": None, "observed_generation": 0}),
    Row("7b", "the last operation is Create, not Succeeded", "reconcile; type Create", _ran(C),
        {"last_operation": last(C, "Processing")}),
    Row("8", "the last operation is Migrate in another state, `spec.seedName` was set back",
        "restore the partly deleted control plane; type Restore", _RESTORES,
        {"last_operation": last(M, "Error"), "generation": 4}),
    Row("8, too late", "… and the backups are handed over to the other seed", "the move goes on; type Migrate", _MOVES,
        {"last_operation": last(M, "Error"), "generation": 4, "prepared_at": "b"}),
    Row("6, too late", "… and the move has succeeded", "restore it there, and then move it back; type Restore",
        _RESTORES, {"last_operation": last(M, "Succeeded"), "generation": 4, "status_seed": "b"}),
    Row("9, too late", "… and that restoration has not succeeded", "restore; type Restore", _RESTORES,
        {"last_operation": last(S, "Processing"), "generation": 4, "status_seed": "b"}),
    Row("9", "the last operation is Restore, not Succeeded", "restore; type Restore", _RESTORES,
        {"last_operation": last(S, "Processing")}),
    Row("10a", "else", "reconcile; type Reconcile", _ran(R), {"generation": 4}),
    Row("10b", "else, after a Create that Succeeded", "reconcile; type Reconcile", _ran(R),
        {"generation": 4, "last_operation": last(C, "Succeeded")}),
)  # fmt: skip
"""Section 1.1: type and flow of an operation. First match wins."""

_CONFINED = {"confined": True, "in_window_only": True, "window": ("220000+0000", "230000+0000")}
_OUTSIDE = Between(NOW.replace(hour=22), NOW.replace(hour=22, minute=45))

STARTS = (
    Row("spec", "the spec changes", "at once", _ran(R), {"generation": 4}),
    Row("spec, confined", "… under `confineSpecUpdateRollout`", "in the next maintenance window", _OUTSIDE,
        {**_CONFINED, "generation": 4}),
    Row("hibernation, confined", "… and `spec.hibernation.enabled` changes, too", "at once", _ran(R),
        {**_CONFINED, "generation": 4, "hibernation_switched": True}),
    Row("binding", "`shoots/binding` sets `spec.seedName`", "at once", _ran(C),
        {"last_operation": None, "observed_generation": 1, "generation": 2, "status_seed": None}),
    Row("binding, confined", "… of a Shoot that has another, under `confineSpecUpdateRollout`", "at once (1.1, row 5)",
        _MOVES, {**_CONFINED, "generation": 4, "spec_seed": "b"}),
    Row("deletion", "the Shoot is deleted", "at once, in any state of the last operation", _ran(D, FlowKind.DELETE),
        {**_DEAD, **_CONFINED, "last_operation": _FAILED}),
    Row("force-deletion", "`confirmation.gardener.cloud/force-deletion=true`, after a deletion that Failed",
        "at once (1.1, row 3)", _ran(D, FlowKind.FORCE_DELETE),
        {"deleting": True, "last_operation": last(D, "Failed"), "force_delete": True}),
    Row("migrated", "status says Migrate, Succeeded or Aborted", "at once (1.1, row 6)", _RESTORES,
        {"last_operation": last(M, "Aborted")}),
    Row("sync period", "the sync period (1 h, spread by 10 %) is over", "a regular reconcile", _ran(R),
        {"last_operation": last(R, "Succeeded", timedelta(hours=2))}),
    Row("sync period, not over", "the sync period is not over", "rests until its end", _IDLE),
    Row("version", "our version differs from that of the last operation", "at once", _ran(R), {"our_version": "v2"}),
    Row("reconcile", "`gardener.cloud/operation=reconcile`", "at once; removed",
        _ran(R, FlowKind.RECONCILE, "reconcile"), {"operations": ("reconcile",)}),
    Row("reconcile, confined", "… under `confineSpecUpdateRollout`, outside of the window", "at once; removed",
        _ran(R, FlowKind.RECONCILE, "reconcile"), {**_CONFINED, "operations": ("reconcile",)}),
    Row("reconcile, Failed", "… while Failed", "no effect; removed",
        Rest(_WAITS.reason, consume=("reconcile",)), {"last_operation": _FAILED, "operations": ("reconcile",)}),
    Row("retry", "`=retry` while Failed", "at once, from the failed task; removed",
        _ran(R, FlowKind.RECONCILE, "retry"), {"last_operation": _FAILED, "operations": ("retry",)}),
    Row("retry, not Failed", "`=retry` in another state", "rejected with an Event; removed",
        Reject(("retry",), "retry needs a last operation in state Failed; its state is Succeeded"),
        {"operations": ("retry",)}),
    Row("maintain", "`=maintain`", "none here: the maintenance handles it", _IDLE, {"operations": ("maintain",)}),
    Row("rotate", "`=rotate-…`",
        "at once, also while Failed, and no finished task is kept; the rotation of credentials advances",
        _ran(R, FlowKind.RECONCILE, "rotate-ca-start"),
        {"last_operation": _FAILED, "operations": ("rotate-ca-start",)}),
    Row("rollout", "`=rollout-workers=<pools or *>`", "none here: the rollout of workers handles it", _IDLE,
        {"operations": ("rollout-workers=*",)}),
    Row("in-place", "`=force-in-place-update`", "none: admission lets the spec of pending pools change", _IDLE,
        {"operations": ("force-in-place-update",)}),
    Row("in-place, over", "… and no in-place update is pending", "removed",
        replace(_IDLE, consume=("force-in-place-update",)),
        {"operations": ("force-in-place-update",), "in_place_pending": False}),
    Row("in-place, changed", "… and the spec has changed", "at once; kept until the update is over", _ran(R),
        {"operations": ("force-in-place-update",), "in_place_pending": False, "generation": 4}),
    Row("parallel", "`=reconcile;rollout-workers=*`", "each has its effect; each removes only its own value",
        _ran(R, FlowKind.RECONCILE, "reconcile"), {"operations": ("reconcile", "rollout-workers=*")}),
    Row("parallel, alone", "`=retry;reconcile`, `maintain;…`, `force-in-place-update;…`",
        "rejected with an Event: these cannot be combined",
        Reject(("retry", "reconcile"),
            "retry cannot be combined with other operations: request them one after another"),
        {"last_operation": _FAILED, "operations": ("retry", "reconcile")}),
    Row("unknown", "`=recnocile`", "rejected with an Event that names it; others have their effect",
        Reject(("recnocile",), "operation recnocile is unknown"), {"operations": ("recnocile", "reconcile")}),
    Row("update", "update `request_operation` of the lifecycle's workflow", "same as the annotation", _ran(R),
        {"last_operation": _FAILED}, LifecycleState(requested=("retry",))),
)  # fmt: skip
"""Section 1.2: events that start an operation."""

_STOPPED = Rest(
    "annotation shoot.gardener.cloud/emergency-stop-reconciliations of Seed a is set: no operation starts there",
    until=timedelta(minutes=1),
)
_BASTIONS = Rest("Bastions exist: b-1; they must be deleted first", until=timedelta(minutes=10), state="Error")
_IGNORED = "annotation shoot.gardener.cloud/ignore of the Shoot is true: no operation starts"
_UNREADY = Rest("Seed a is not ready", until=timedelta(minutes=10), state="Error")
_OPEN = {"confined": True, "in_window_only": True, "window": ("113000+0000", "140000+0000")}
"""Window around ``NOW``, which is noon: 30 of 135 minutes of the effective window are over."""

PREVENTS = (
    Row("1a", "deleted while Bastions exist", "Error; decided again when one is deleted, or after 10 min", _BASTIONS,
        {**_DEAD, "bastions": ("b-1",)}),
    Row("1b", "migrating while Bastions exist", "Error; decided again when one is deleted, or after 10 min", _BASTIONS,
        {"generation": 4, "status_seed": "b", "bastions": ("b-1",)}),
    Row("1b, forced", "force-deleted while Bastions exist, which are force-deleted, too",
        "Error; decided again when one is deleted, or after 10 min", _BASTIONS,
        {**_DEAD, "force_delete": True, "bastions": ("b-1",)}),
    Row("1c", "migrating while constraint `ReadyForMigration` is not True",
        "Error; decided again when the Seed gets ready, or after 10 min",
        Rest("Seed b is not healthy", until=timedelta(minutes=10), state="Error"),
        {"generation": 4, "status_seed": "b", "migration_fault": "Seed b is not healthy"}),
    Row("2", "the Seed is annotated `shoot.gardener.cloud/emergency-stop-reconciliations`",
        "no operation, not even a deletion", _STOPPED, {**_DEAD, "emergency_stop": True}),
    Row("2, new", "… and nothing has run yet", "Pending",
        Rest(_STOPPED.reason, until=_STOPPED.until, state="Pending"), {"last_operation": None, "emergency_stop": True}),
    Row("3a", "Failed, generation observed, same version", "no operation, without limit of time", _WAITS,
        {"last_operation": last(R, "Failed", timedelta(days=30))}),
    Row("3b", "… and a new generation", "runs", _ran(R), {"last_operation": _FAILED, "generation": 4}),
    Row("3c", "… and a new version", "runs", _ran(R), {"last_operation": _FAILED, "our_version": "v2"}),
    Row("3d", "… and the spec changed under `confineSpecUpdateRollout`",
        "no operation until the maintenance requests `retry`", _WAITS,
        {**_CONFINED, "last_operation": _FAILED, "generation": 4}),
    Row("3e", "a deletion that Failed", "no operation until `retry`", _WAITS,
        {"deleting": True, "last_operation": last(D, "Failed")}),
    Row("3i", "Failed with ERR_INFRA_RATE_LIMITS_EXCEEDED", "retried 10 to 15 minutes later, from the failed task",
        Between(NOW + timedelta(minutes=9), NOW + timedelta(minutes=14)),
        {"last_operation": last(R, "Failed", timedelta(minutes=1)), "rate_limited": True}),
    Row("3j", "… 15 minutes later", "now", _ran(R),
        {"last_operation": last(R, "Failed", timedelta(minutes=15)), "rate_limited": True}),
    Row("3f", "`shoot.gardener.cloud/ignore=true`, where this annotation has effect", "no operation", Rest(_IGNORED),
        {"generation": 4, "ignored": True}),
    Row("3g", "… and nothing has run yet", "Pending", Rest(_IGNORED, state="Pending"),
        {"last_operation": None, "ignored": True}),
    Row("3h", "`shoot.gardener.cloud/sync-period=4h`, where this annotation has effect",
        "rests until 4 h after the last operation",
        Between(NOW + timedelta(hours=2), NOW + timedelta(hours=2.4)),
        {"last_operation": last(R, "Succeeded", timedelta(hours=2)), "sync_period": timedelta(hours=4)}),
    Row("4a", "the type is not Reconcile", "row 5 does not apply", _ran(C),
        {**_CONFINED, "last_operation": last(C, "Processing")}),
    Row("4b", "the generation is not observed", "row 5 does not apply", _ran(R),
        {"in_window_only": True, "window": _CONFINED["window"], "generation": 4}),
    Row("4c", "the last operation has not Succeeded", "row 5 does not apply", _ran(R),
        {**_CONFINED, "last_operation": last(R, "Processing")}),
    Row("5a", "`reconcileInMaintenanceOnly` or `confineSpecUpdateRollout`, outside of the effective window",
        "rests until a random time of the next one", _OUTSIDE,
        {**_CONFINED, "last_operation": last(R, "Succeeded", timedelta(days=2))}),
    Row("5b", "… inside of it, at its own random time", "runs", _ran(R),
        {**_OPEN, "last_operation": last(R, "Succeeded", timedelta(days=1)), "uid": "early-10"}),
    Row("5c", "… inside of it, before its own random time, also after a restart", "rests until then",
        Between(NOW, NOW.replace(hour=13, minute=45)),
        {**_OPEN, "last_operation": last(R, "Succeeded", timedelta(days=1)), "uid": "later"}),
    Row("5d", "… inside of it, and it has run in it", "rests until a random time of the next one",
        Between(NOW.replace(day=2, hour=11, minute=30), NOW.replace(day=2, hour=13, minute=45)),
        {**_OPEN, "last_operation": last(R, "Succeeded", timedelta(minutes=5))}),
    Row("5e", "in the last 15 minutes of the window", "rests until a random time of the next one",
        Between(NOW.replace(day=2, hour=11), NOW.replace(day=2, hour=11, minute=55)),
        {**_OPEN, "window": ("110000+0000", "121000+0000"), "last_operation": last(R, "Succeeded", timedelta(days=1))}),
    Row("6a", "the Seed does not exist, belongs to another version, has an unseen generation, or is not ready",
        "Error, never Failed; decided again when the Seed gets ready, or after 10 min", _UNREADY,
        {"generation": 4, "seed_fault": "Seed a is not ready"}),
    Row("6b", "… and nothing has run yet", "Pending",
        Rest("Seed a does not exist", until=timedelta(minutes=10), state="Pending"),
        {"last_operation": None, "seed_exists": False}),
    Row("6c", "the Seed is ready, and the Shoot is being deleted", "runs", _ran(D, FlowKind.DELETE), _DEAD),
    Row("6d", "the Seed is not ready, and no operation is due", "rests; the state of the Seed has no effect", _IDLE,
        {"seed_fault": "Seed a is not ready"}),
)  # fmt: skip
"""Section 1.3: reasons to start no operation, in this order."""

TABLES = {
    "Which operation runs": (WHICH, "First match wins. Source: spec/flows.md 1.1."),
    "Events that start an operation": (STARTS, "Source: spec/flows.md 1.2."),
    "Reasons to start no operation": (PREVENTS, "In this order. Source: spec/flows.md 1.3."),
}
