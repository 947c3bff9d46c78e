"""When an operation of a Shoot runs, as tables: spec/flows.md 1.1 to 1.3, one test per row.

``test_decision.py`` runs over them, ``docs/flows/generate.py`` prints them.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from api.flows import LastOperation, ShootView
from api.operations import OperationType
from workflows.shoot.decision import Abandon, Decision, FlowKind, Memory, Reject, Release, Rest, Run, decide

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
    """A Shoot that is done and unchanged, but for these fields."""
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


def decided(view: ShootView, memory: Memory | None = None, now: datetime = NOW) -> Decision:
    return decide(view, memory or Memory(), now, Random(0))


@dataclass(frozen=True)
class Between:
    """It rests until a moment of this time."""

    begin: datetime
    end: datetime

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rest) and other.until is not None and self.begin <= NOW + other.until < self.end


@dataclass(frozen=True)
class Row:
    """A Shoot that is done and unchanged but for ``fields`` is to be answered by ``answer``."""

    number: str
    condition: str
    """For people."""
    effect: str
    """For people."""
    answer: Decision | Between
    fields: dict[str, Any] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    @property
    def decided(self) -> Decision:
        return decided(seen(**self.fields), self.memory)


def _ran(operation: OperationType, flow: FlowKind = FlowKind.RECONCILE, *consume: str) -> Run:
    return Run(operation, flow, consume)


_SUCCEEDED = last(R, "Succeeded")
_FAILED = last(R, "Failed")
_IDLE = Rest("all is done", until=timedelta(hours=1) * (1 + 0.1 * Random(0).random()))
_WAITS = Rest("the last operation failed; it waits for a change or `retry`")
_MOVES = _ran(M, FlowKind.MIGRATE)
_RESTORES = _ran(S, FlowKind.RESTORE)
_DEAD = {"deleting": True, "generation": 4}

WHICH = (
    Row("1", "deleted, and Gardener's finalizer is off", "nothing; look again until it is gone",
        Rest("the Shoot is going once others have dropped their finalizers", until=timedelta(minutes=1)),
        {"deleting": True, "finalizer": False}),
    Row("2a", "deleted, and `status.uid` is empty", "no flow: the finalizer is dropped", Release(),
        {"deleting": True, "uid_recorded": False}),
    Row("2b", "deleted, and the last operation is Delete, Succeeded", "no flow: the finalizer is dropped", Release(),
        {"deleting": True, "last_operation": last(D, "Succeeded")}),
    Row("3", "deleted, `confirmation.gardener.cloud/force-deletion` is true", "force-delete; type Delete",
        _ran(D, FlowKind.FORCE_DELETE),
        {**_DEAD, "force_delete": True}),
    Row("4", "deleted", "delete; type Delete", _ran(D, FlowKind.DELETE), _DEAD),
    Row("5", "`spec.seedName` and `status.seedName` differ", "migrate, on the source; type Migrate", _MOVES,
        {"generation": 4, "status_seed": "b"}),
    Row("5, source lost", "… and `shoot.gardener.cloud/control-plane-migration=bad-case`",
        "the source is given up: Migrate, Aborted", Abandon(),
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
        "restore what is half dismantled; type Restore", _RESTORES,
        {"last_operation": last(M, "Error"), "generation": 4}),
    Row("8, too late", "… and the other seed has begun to take it over", "the move goes on; type Migrate", _MOVES,
        {"last_operation": last(M, "Error"), "generation": 4, "prepared_at": "b"}),
    Row("6, too late", "… and the move has succeeded", "restore it there, and then move it back; type Restore",
        _RESTORES, {"last_operation": last(M, "Succeeded"), "generation": 4, "status_seed": "b"}),
    Row("9, too late", "… and that has not succeeded", "restore; type Restore", _RESTORES,
        {"last_operation": last(S, "Processing"), "generation": 4, "status_seed": "b"}),
    Row("9", "the last operation is Restore, not Succeeded", "restore; type Restore", _RESTORES,
        {"last_operation": last(S, "Processing")}),
    Row("10a", "else", "reconcile; type Reconcile", _ran(R), {"generation": 4}),
    Row("10b", "else, after a Create that Succeeded", "reconcile; type Reconcile", _ran(R),
        {"generation": 4, "last_operation": last(C, "Succeeded")}),
)  # fmt: skip
"""Section 1.1: which operation it is. First match wins."""

_CONFINED = {"confined": True, "in_window_only": True, "window": ("220000+0000", "230000+0000")}
_OUTSIDE = Between(NOW.replace(hour=22), NOW.replace(hour=22, minute=45))

WHAT_STARTS = (
    Row("spec", "the spec changes", "at once", _ran(R), {"generation": 4}),
    Row("spec, confined", "… under `confineSpecUpdateRollout`", "in the next maintenance window", _OUTSIDE,
        {**_CONFINED, "generation": 4}),
    Row("hibernation, confined", "… but `spec.hibernation.enabled` does", "at once", _ran(R),
        {**_CONFINED, "generation": 4, "hibernation_switched": True}),
    Row("binding", "`shoots/binding` sets `spec.seedName`", "at once", _ran(C),
        {"last_operation": None, "observed_generation": 1, "generation": 2, "status_seed": None}),
    Row("binding, confined", "… of a Shoot that has another, under `confineSpecUpdateRollout`", "at once (1.1, row 5)",
        _MOVES, {**_CONFINED, "generation": 4, "spec_seed": "b"}),
    Row("deletion", "it is deleted", "at once, whatever state the last operation has", _ran(D, FlowKind.DELETE),
        {**_DEAD, **_CONFINED, "last_operation": _FAILED}),
    Row("force-deletion", "`confirmation.gardener.cloud/force-deletion=true`, after a deletion that Failed",
        "at once (1.1, row 3)", _ran(D, FlowKind.FORCE_DELETE),
        {"deleting": True, "last_operation": last(D, "Failed"), "force_delete": True}),
    Row("migrated", "status says Migrate, Succeeded or Aborted", "at once (1.1, row 6)", _RESTORES,
        {"last_operation": last(M, "Aborted")}),
    Row("sync period", "the sync period (1 h, spread by 10 %) is over", "a regular reconcile", _ran(R),
        {"last_operation": last(R, "Succeeded", timedelta(hours=2))}),
    Row("sync period, not over", "… is not over", "rests until then", _IDLE),
    Row("version", "our version is another than the last operation's", "at once", _ran(R), {"our_version": "v2"}),
    Row("reconcile", "`gardener.cloud/operation=reconcile`", "at once; taken away",
        _ran(R, FlowKind.RECONCILE, "reconcile"), {"operations": ("reconcile",)}),
    Row("reconcile, confined", "… under `confineSpecUpdateRollout`, outside of the window", "at once; taken away",
        _ran(R, FlowKind.RECONCILE, "reconcile"), {**_CONFINED, "operations": ("reconcile",)}),
    Row("reconcile, Failed", "… while Failed", "no effect; taken away",
        Rest(_WAITS.reason, consume=("reconcile",)), {"last_operation": _FAILED, "operations": ("reconcile",)}),
    Row("retry", "`=retry` while Failed", "at once, from the failed task; taken away",
        _ran(R, FlowKind.RECONCILE, "retry"), {"last_operation": _FAILED, "operations": ("retry",)}),
    Row("retry, not Failed", "`=retry` in another state", "rejected with an Event; taken away",
        Reject(("retry",), "retry is for Shoots whose last operation has state Failed, it is Succeeded"),
        {"operations": ("retry",)}),
    Row("maintain", "`=maintain`", "left to the maintenance controller", _IDLE, {"operations": ("maintain",)}),
    Row("rotate", "`=rotate-…`", "now, also while Failed, with nothing kept; moves the rotation of credentials on",
        _ran(R, FlowKind.RECONCILE, "rotate-ca-start"),
        {"last_operation": _FAILED, "operations": ("rotate-ca-start",)}),
    Row("rollout", "`=rollout-workers=<pools or *>`", "left to the rollout of workers", _IDLE,
        {"operations": ("rollout-workers=*",)}),
    Row("in-place", "`=force-in-place-update`", "left to the update of workers", _IDLE,
        {"operations": ("force-in-place-update",)}),
    Row("parallel", "`=reconcile;rollout-workers=*`", "each has its effect; each takes only its own value away",
        _ran(R, FlowKind.RECONCILE, "reconcile"), {"operations": ("reconcile", "rollout-workers=*")}),
    Row("parallel, alone", "`=retry;reconcile`, `maintain;…`, `force-in-place-update;…`",
        "rejected with an Event: these stand alone",
        Reject(("retry", "reconcile"), "retry cannot be combined with other operations: ask for them in turn"),
        {"last_operation": _FAILED, "operations": ("retry", "reconcile")}),
    Row("unknown", "`=recnocile`", "rejected with an Event that names it; others have their effect",
        Reject(("recnocile",), "operation recnocile is unknown"), {"operations": ("recnocile", "reconcile")}),
    Row("update", "`request_operation` of the lifecycle's workflow", "as the annotation of that name", _ran(R),
        {"last_operation": _FAILED}, Memory(requested=("retry",))),
)  # fmt: skip
"""Section 1.2: what starts an operation."""

_STOPPED = Rest("operations on Seed a are stopped by annotation", until=timedelta(minutes=1))
_BASTIONS = Rest("Bastions exist: b-1; they go first", until=timedelta(seconds=15), state="Error")
_UNREADY = Rest("Seed a is not ready", until=timedelta(seconds=15), state="Error")
_OPEN = {"confined": True, "in_window_only": True, "window": ("113000+0000", "140000+0000")}
"""It is noon: 30 of 135 minutes of the effective window have gone."""

WHAT_PREVENTS = (
    Row("1a", "deleted while Bastions exist", "Error; looked at again after 15 s", _BASTIONS,
        {**_DEAD, "bastions": ("b-1",)}),
    Row("1b", "migrating while Bastions exist", "Error; looked at again after 15 s", _BASTIONS,
        {"generation": 4, "status_seed": "b", "bastions": ("b-1",)}),
    Row("1b, forced", "force-deleted while Bastions exist, which are given up, too",
        "Error; looked at again after 15 s", _BASTIONS, {**_DEAD, "force_delete": True, "bastions": ("b-1",)}),
    Row("1c", "migrating while constraint `ReadyForMigration` is not True", "Error; looked at again after 15 s",
        Rest("Seed b is not healthy", until=timedelta(seconds=15), state="Error"),
        {"generation": 4, "status_seed": "b", "migration_fault": "Seed b is not healthy"}),
    Row("2", "the Seed is annotated `shoot.gardener.cloud/emergency-stop-reconciliations`", "nothing, also no deletion",
        _STOPPED, {**_DEAD, "emergency_stop": True}),
    Row("2, new", "… and nothing has run yet", "Pending",
        Rest(_STOPPED.reason, until=_STOPPED.until, state="Pending"), {"last_operation": None, "emergency_stop": True}),
    Row("3a", "Failed, generation observed, same version", "nothing, ever", _WAITS,
        {"last_operation": last(R, "Failed", timedelta(days=30))}),
    Row("3b", "… and a new generation", "ends it", _ran(R), {"last_operation": _FAILED, "generation": 4}),
    Row("3c", "… and a new version", "ends it", _ran(R), {"last_operation": _FAILED, "our_version": "v2"}),
    Row("3d", "… and the spec changed under `confineSpecUpdateRollout`", "nothing until the window's `retry`", _WAITS,
        {**_CONFINED, "last_operation": _FAILED, "generation": 4}),
    Row("3e", "a deletion that Failed", "nothing until `retry`", _WAITS,
        {"deleting": True, "last_operation": last(D, "Failed")}),
    Row("3i", "Failed with ERR_INFRA_RATE_LIMITS_EXCEEDED", "tried again 10 to 15 minutes later, from the failed task",
        Between(NOW + timedelta(minutes=9), NOW + timedelta(minutes=14)),
        {"last_operation": last(R, "Failed", timedelta(minutes=1)), "rate_limited": True}),
    Row("3j", "… 15 minutes later", "now", _ran(R),
        {"last_operation": last(R, "Failed", timedelta(minutes=15)), "rate_limited": True}),
    Row("3f", "`shoot.gardener.cloud/ignore`, where it counts", "nothing", Rest("the Shoot is to be ignored"),
        {"generation": 4, "ignored": True}),
    Row("3g", "… and nothing has run yet", "Pending", Rest("the Shoot is to be ignored", state="Pending"),
        {"last_operation": None, "ignored": True}),
    Row("3h", "`shoot.gardener.cloud/sync-period=4h`, where it counts", "syncs are further apart",
        Between(NOW + timedelta(hours=2), NOW + timedelta(hours=2.4)),
        {"last_operation": last(R, "Succeeded", timedelta(hours=2)), "sync_period": timedelta(hours=4)}),
    Row("4a", "the type is not Reconcile", "row 5 does not count", _ran(C),
        {**_CONFINED, "last_operation": last(C, "Processing")}),
    Row("4b", "the generation is not observed", "row 5 does not count", _ran(R),
        {"in_window_only": True, "window": _CONFINED["window"], "generation": 4}),
    Row("4c", "the last operation has not Succeeded", "row 5 does not count", _ran(R),
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
    Row("5e", "… in the last 15 minutes of the window", "rests until a random time of the next one",
        Between(NOW.replace(day=2, hour=11), NOW.replace(day=2, hour=11, minute=55)),
        {**_OPEN, "window": ("110000+0000", "121000+0000"), "last_operation": last(R, "Succeeded", timedelta(days=1))}),
    Row("6a", "the Seed does not exist, belongs to another version, has an unseen generation, or is not ready",
        "Error, never Failed; looked at again after 15 s", _UNREADY,
        {"generation": 4, "seed_fault": "Seed a is not ready"}),
    Row("6b", "… and nothing has run yet", "Pending",
        Rest("Seed a does not exist", until=timedelta(seconds=15), state="Pending"),
        {"last_operation": None, "seed_exists": False}),
    Row("6c", "… but it is being deleted", "runs", _ran(D, FlowKind.DELETE), _DEAD),
    Row("6d", "… and no operation is due", "rests; the Seed does not matter", _IDLE,
        {"seed_fault": "Seed a is not ready"}),
)  # fmt: skip
"""Section 1.3: when not to act, in this order."""

TABLES = {
    "Which operation it is": (WHICH, "First match wins. Source: spec/flows.md 1.1."),
    "What starts one": (WHAT_STARTS, "Source: spec/flows.md 1.2."),
    "What prevents it": (WHAT_PREVENTS, "In this order. Source: spec/flows.md 1.3."),
}
