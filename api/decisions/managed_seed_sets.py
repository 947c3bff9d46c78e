"""Decides the next step of a ManagedSeedSet: one replica changes at a time. Source: GEP-13; spec/api-core.md 8, 12.

A replica is a Shoot and the ManagedSeed of the same name, ``<set>-<ordinal>``. All facts are in the garden's objects:
the decision needs no memory but the status of the set, so a controller that died goes on where it stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum

from api import constants
from api.decisions.conditions import find_condition
from api.labels import is_true, matches
from api.meta import LabelSelector
from api.resources import SHOOT, Object, ObjectView
from api.seedmanagement.v1alpha1.managed_seed_set import ManagedSeedSet
from api.times import timestamp

DEFAULT_PRIORITY = 3
REPLICAS_READY = "ReplicasReady"
ROLLED_OUT = "RolledOut"


class Stage(IntEnum):
    """Where a replica is on its way to a ready seed. Scale-in removes replicas of lower stages first."""

    SHOOT_RECONCILE_FAILED = 0
    SHOOT_DELETE_FAILED = 1
    SHOOT_RECONCILING = 2
    SHOOT_DELETING = 3
    SHOOT_RECONCILED = 4
    """The Shoot is reconciled, and there is no ManagedSeed."""
    MANAGED_SEED_PREPARING = 5
    MANAGED_SEED_DELETING = 6
    SEED_NOT_READY = 7
    SHOOT_NOT_HEALTHY = 8
    READY = 9


_REASONS = {
    Stage.SHOOT_RECONCILE_FAILED: "ShootReconcileFailed",
    Stage.SHOOT_DELETE_FAILED: "ShootDeleteFailed",
    Stage.SHOOT_RECONCILING: "ShootReconciling",
    Stage.SHOOT_DELETING: "ShootDeleting",
    Stage.SHOOT_RECONCILED: "ManagedSeedPreparing",
    Stage.MANAGED_SEED_PREPARING: "ManagedSeedPreparing",
    Stage.MANAGED_SEED_DELETING: "ManagedSeedDeleting",
    Stage.SEED_NOT_READY: "SeedNotReady",
    Stage.SHOOT_NOT_HEALTHY: "ShootNotHealthy",
}
_EXPLANATIONS = {
    Stage.SHOOT_RECONCILE_FAILED: "the last operation of its Shoot has failed",
    Stage.SHOOT_DELETE_FAILED: "the deletion of its Shoot has failed",
    Stage.SHOOT_RECONCILING: "its Shoot is being reconciled",
    Stage.SHOOT_DELETING: "its Shoot is being deleted",
    Stage.SHOOT_RECONCILED: "its Shoot has no ManagedSeed yet",
    Stage.MANAGED_SEED_PREPARING: "its ManagedSeed has not registered the Seed yet",
    Stage.MANAGED_SEED_DELETING: "its ManagedSeed is being deleted",
    Stage.SEED_NOT_READY: "its Seed is not ready",
    Stage.SHOOT_NOT_HEALTHY: "its Shoot is not healthy",
}
_FAILED = (Stage.SHOOT_RECONCILE_FAILED, Stage.SHOOT_DELETE_FAILED)
_GOING = (Stage.SHOOT_DELETING, Stage.SHOOT_DELETE_FAILED, Stage.MANAGED_SEED_DELETING)


@dataclass(frozen=True)
class Replica:
    """One replica: at least one of Shoot and ManagedSeed exists."""

    ordinal: int
    name: str
    shoot: ObjectView | None = None
    managed_seed: ObjectView | None = None
    seed: ObjectView | None = None
    users: int = 0
    """Number of Shoots whose control planes the Seed hosts or is about to host."""

    @property
    def stage(self) -> Stage:
        if _deleting(self.managed_seed):
            return Stage.MANAGED_SEED_DELETING
        if self.shoot is None:
            # The Shoot is gone for good, and the ManagedSeed must follow it.
            return Stage.SHOOT_DELETING
        if _deleting(self.shoot):
            return Stage.SHOOT_DELETE_FAILED if _has_failed(self.shoot) else Stage.SHOOT_DELETING
        if _has_failed(self.shoot):
            return Stage.SHOOT_RECONCILE_FAILED
        if not _is_reconciled(self.shoot):
            return Stage.SHOOT_RECONCILING
        if self.managed_seed is None:
            return Stage.SHOOT_RECONCILED
        if not _is_registered(self.managed_seed):
            return Stage.MANAGED_SEED_PREPARING
        if not is_seed_ready(self.seed):
            return Stage.SEED_NOT_READY
        return Stage.READY if _is_healthy(self.shoot) else Stage.SHOOT_NOT_HEALTHY

    @property
    def is_ready(self) -> bool:
        return self.stage is Stage.READY

    @property
    def kept_because(self) -> str:
        """Why scale-in does not remove the replica; empty if it may."""
        if self.users:
            return f"its Seed has {self.users} Shoots: move or delete them"
        for kind, obj in (("Shoot", self.shoot), ("ManagedSeed", self.managed_seed)):
            if is_true(_annotations(obj).get(constants.PROTECT_FROM_DELETION)):
                return f"annotation {constants.PROTECT_FROM_DELETION} of its {kind} protects it"
        return ""

    @property
    def revisions(self) -> set[str]:
        """Hashes of the templates that Shoot and ManagedSeed were made of; one hash unless an update is half done."""
        return {_labels(each).get(constants.REVISION_HASH, "") for each in (self.shoot, self.managed_seed) if each}

    def has(self, revision: str) -> bool:
        return self.revisions == {revision}

    @property
    def deletion_order(self) -> tuple[bool, int, Stage, bool, bool, int]:
        """Scale-in removes the replica with the lowest value first. Source: GEP-13; spec/api-core.md 12.

        A replica without ManagedSeed comes before all others. So a removal that has deleted the ManagedSeed, and with
        it the annotation of its priority, goes on with the Shoot of the same replica.
        """
        ready, healthy = is_seed_ready(self.seed), _is_healthy(self.shoot)
        return self.managed_seed is not None, priority(self), self.stage, ready, healthy, self.ordinal


def priority(replica: Replica) -> int:
    """The user's hint on the ManagedSeed, or on the Shoot; 3 if there is none, or if it is no number."""
    for each in (replica.managed_seed, replica.shoot):
        text = _annotations(each).get(constants.SEED_PRIORITY)
        if text is not None:
            return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else DEFAULT_PRIORITY
    return DEFAULT_PRIORITY


def is_seed_ready(seed: ObjectView | None) -> bool:
    """Whether a Seed shows status Ready. Source: spec/api.md 1.1, cell rules."""
    if seed is None or _deleting(seed):
        return False
    found = {each: find_condition(seed, each).get("status") for each in _SEED_CONDITIONS}
    return (
        found[constants.SEED_GARDENLET_READY] == "True"
        and found[constants.SEED_BACKUP_BUCKETS_READY] in (None, "True")
        and found[constants.SEED_EXTENSIONS_READY] in ("True", "Progressing")
        and found[constants.SEED_SYSTEM_COMPONENTS_HEALTHY] not in ("False", "Unknown")
    )


_SEED_CONDITIONS = (
    constants.SEED_GARDENLET_READY,
    constants.SEED_BACKUP_BUCKETS_READY,
    constants.SEED_EXTENSIONS_READY,
    constants.SEED_SYSTEM_COMPONENTS_HEALTHY,
)


# Members of a set


def ordinal_of(set_name: str, name: str) -> int | None:
    """Ordinal in the name of a replica; None if the name is not one of the set's replicas."""
    match = re.fullmatch(r"(.*)-(0|[1-9][0-9]{0,8})", name)
    return int(match[2]) if match and match[1] == set_name else None


@dataclass(frozen=True)
class Members:
    """Objects of a set, and objects that must become its own or stop being so."""

    owned: tuple[ObjectView, ...]
    adopt: tuple[ObjectView, ...]
    release: tuple[ObjectView, ...]


def members(set_: ManagedSeedSet, objects: Iterable[ObjectView]) -> Members:
    """Sort Shoots and ManagedSeeds by owner and labels.

    A set adopts objects without a controller that its selector matches and that have the name of a replica. It
    releases an object whose labels do not match any more. Both objects of a replica go together: a ManagedSeed is
    adopted only with its Shoot, and neither is while the other one belongs elsewhere. A set that is being deleted
    adopts nothing.
    """
    owned: list[ObjectView] = []
    free: list[ObjectView] = []
    elsewhere: set[str] = set()
    """Names of objects that do not match the selector, or that have another owner."""
    for each in objects:
        name, owner = each["metadata"]["name"], controller_of(each)
        fits = matches(set_.spec.selector, _labels(each))
        if owner == set_.metadata.uid:
            owned.append(each)
        elif owner is None and fits and ordinal_of(set_.metadata.name, name) is not None and not _deleting(each):
            free.append(each)
        if not fits or owner not in (None, set_.metadata.uid):
            elsewhere.add(name)
    kept = tuple(each for each in owned if each["metadata"]["name"] not in elsewhere)
    release = tuple(each for each in owned if each["metadata"]["name"] in elsewhere)
    shoots = {each["metadata"]["name"] for each in (*kept, *free) if each["kind"] == SHOOT.kind} - elsewhere
    adopt = tuple(each for each in free if each["metadata"]["name"] in shoots)
    return Members(kept, () if set_.metadata.deletion_timestamp else adopt, release)


def controller_of(obj: ObjectView) -> str | None:
    """Uid of the object that manages this one."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((each["uid"] for each in owners if each.get("controller")), None)


def replicas_of(
    set_name: str, owned: Iterable[ObjectView], seeds: Mapping[str, ObjectView], users: Callable[[str], int]
) -> list[Replica]:
    """Replicas by ordinal. ``users``: the number of Shoots of a Seed, by its name."""
    found: dict[str, dict[str, ObjectView]] = {}
    for each in owned:
        found.setdefault(each["metadata"]["name"], {})[each["kind"]] = each
    replicas = []
    for name, parts in found.items():
        ordinal = ordinal_of(set_name, name)
        if ordinal is not None:
            shoot, managed_seed = parts.get(SHOOT.kind), parts.get("ManagedSeed")
            replicas.append(Replica(ordinal, name, shoot, managed_seed, seeds.get(name), users(name)))
    return sorted(replicas, key=lambda each: each.ordinal)


# The next step


class Action(StrEnum):
    CREATE_SHOOT = "create Shoot"
    CREATE_MANAGED_SEED = "create ManagedSeed"
    UPDATE_SHOOT = "update Shoot"
    UPDATE_MANAGED_SEED = "update ManagedSeed"
    DELETE_SHOOT = "delete Shoot"
    DELETE_MANAGED_SEED = "delete ManagedSeed"
    RETRY_SHOOT = "retry Shoot"


@dataclass(frozen=True)
class Step:
    """One write to one object of a replica."""

    action: Action
    name: str
    """Name of the replica."""
    revision: str = ""
    """Hash of the revision to make the object of."""

    def __str__(self) -> str:
        return f"{self.action} {self.name}"


@dataclass(frozen=True)
class Plan:
    step: Step | None
    intent: Object = field(default_factory=dict)
    """Field of the status that must be stored before the step: which replica is pending."""
    status: Object = field(default_factory=dict)
    """The other fields of the status, without conditions. The ordinal of a new Shoot counts as used."""
    blocked: str = ""
    """Why replicas that are too many stay; empty if none do."""


@dataclass(frozen=True)
class Rules:
    max_shoot_retries: int = 3
    """How many times a failed operation of a Shoot is retried."""


def plan(
    set_: ManagedSeedSet,
    replicas: Sequence[Replica],
    current: str,
    update: str,
    now: datetime,
    rules: Rules = Rules(),
) -> Plan:
    """The next step of a set, and its status.

    ``current`` and ``update``: hashes of the revision that all replicas had last, and of the present templates.
    """
    deleting = set_.metadata.deletion_timestamp is not None
    wanted = 0 if deleting else set_.spec.replicas
    known = _pending(set_)
    number = _next_number(set_, replicas)
    pending, step, blocked = _choose(set_, replicas, wanted, number, (current, update), deleting=deleting)
    retries = 0
    if pending is not None:
        retries = known.get("retries") or 0 if known.get("name") == pending.name else 0
        if pending.stage in _FAILED and step is None and _may_retry(pending, known, retries, rules):
            step, retries = Step(Action.RETRY_SHOOT, pending.name), retries + 1
        elif pending.is_ready or pending.stage not in (*_FAILED, Stage.SHOOT_RECONCILING, Stage.SHOOT_DELETING):
            retries = 0
    name, reason = (pending.name, _reason(pending, step)) if pending is not None else ("", "")
    if step is not None and step.action is Action.CREATE_SHOOT:
        name, reason, number = step.name, _REASONS[Stage.SHOOT_RECONCILING], number + 1
    told = {"name": name, "reason": reason, **({"retries": retries} if retries else {})}
    since = known.get("since") if told == {key: value for key, value in known.items() if key != "since"} else None
    intent = {"pendingReplica": {**told, "since": since or timestamp(now)} if name else None}
    updated = [each for each in replicas if each.has(update)]
    # Without replicas, a partition keeps the revision of the ordinals below it.
    done = (bool(replicas) or not _partition(set_)) and all(each.has(update) and each.is_ready for each in replicas)
    status = {
        "observedGeneration": set_.metadata.generation,
        "nextReplicaNumber": number,
        "replicas": len(replicas),
        "readyReplicas": sum(each.is_ready for each in replicas),
        "currentReplicas": sum(each.has(update if done else current) for each in replicas),
        "updatedReplicas": len(updated),
        "currentRevision": f"{set_.metadata.name}-{update if done else current}",
        "updateRevision": f"{set_.metadata.name}-{update}",
        "selector": selector_text(set_.spec.selector),
    }
    return Plan(step, intent, status, blocked)


def _choose(
    set_: ManagedSeedSet,
    replicas: Sequence[Replica],
    wanted: int,
    number: int,
    revisions: tuple[str, str],
    *,
    deleting: bool,
) -> tuple[Replica | None, Step | None, str]:
    """The pending replica, the step, and why too many replicas stay."""
    going = [each for each in replicas if each.stage in _GOING]
    if going:
        return going[0], _last_steps(going[0]), ""
    blocked = ""
    if len(replicas) > wanted:
        removable = [each for each in replicas if not each.kept_because]
        if removable:
            victim = min(removable, key=lambda each: each.deletion_order)
            return victim, _removal(victim), ""
        reasons = "; ".join(f"{each.name}: {each.kept_because}" for each in replicas)
        blocked = f"{len(replicas) - wanted} replicas too many, but each must stay: {reasons}"
    if deleting:
        return None, None, blocked
    waiting = _unready(replicas, _pending(set_).get("name", ""))
    if waiting is not None:
        return waiting, _progress(waiting, _partition(set_), revisions), blocked
    if len(replicas) < wanted:
        return None, Step(Action.CREATE_SHOOT, f"{set_.metadata.name}-{number}", _target(set_, number, revisions)), ""
    for each in sorted(replicas, key=lambda each: -each.ordinal):
        if step := _update(each, _partition(set_), revisions):
            return each, step, blocked
    return None, None, blocked


def _last_steps(replica: Replica) -> Step | None:
    """Step for a replica that is going: a ManagedSeed must not outlive its Shoot."""
    seed = replica.managed_seed
    if seed is not None and not _deleting(seed) and not replica.users:
        return Step(Action.DELETE_MANAGED_SEED, replica.name)
    return None


def _removal(replica: Replica) -> Step:
    """The ManagedSeed goes first: its gardenlet still needs the Shoot."""
    present = replica.managed_seed is not None
    return Step(Action.DELETE_MANAGED_SEED if present else Action.DELETE_SHOOT, replica.name)


def _unready(replicas: Sequence[Replica], pending: str) -> Replica | None:
    """The replica to wait for: the pending one while it is not ready, else that with the lowest ordinal."""
    unready = [each for each in replicas if not each.is_ready]
    return next((each for each in unready if each.name == pending), unready[0] if unready else None)


def _progress(replica: Replica, partition: int, revisions: tuple[str, str]) -> Step | None:
    """Step that brings a replica nearer to readiness; None if it must be waited for.

    A changed template may be what repairs a replica, so an update does not wait until the replica is ready. It does
    wait for a running operation of the Shoot.
    """
    free = replica.stage is not Stage.SHOOT_RECONCILING or _is_failing(replica.shoot)
    if free and (step := _update(replica, partition, revisions)):
        return step
    if replica.stage is Stage.SHOOT_RECONCILED:
        made_of = _labels(replica.shoot).get(constants.REVISION_HASH, "")
        return Step(Action.CREATE_MANAGED_SEED, replica.name, made_of or revisions[1])
    return None


def _update(replica: Replica, partition: int, revisions: tuple[str, str]) -> Step | None:
    """Step that brings a replica to the present templates: the Shoot first, then the ManagedSeed."""
    _, update = revisions
    if replica.ordinal < partition or replica.has(update):
        return None
    if _labels(replica.shoot).get(constants.REVISION_HASH) != update:
        return Step(Action.UPDATE_SHOOT, replica.name, update)
    if replica.stage < Stage.MANAGED_SEED_PREPARING:
        return None
    return Step(Action.UPDATE_MANAGED_SEED, replica.name, update)


def _target(set_: ManagedSeedSet, ordinal: int, revisions: tuple[str, str]) -> str:
    """Revision of a new replica."""
    current, update = revisions
    return update if ordinal >= _partition(set_) else current


def _may_retry(replica: Replica, known: ObjectView, retries: int, rules: Rules) -> bool:
    """Whether a failed Shoot is retried: not while a retry is requested, nor before its outcome is known."""
    shoot = replica.shoot or {"metadata": {}}
    if retries >= rules.max_shoot_retries or constants.OPERATION in _annotations(shoot):
        return False
    if not retries:
        return True
    failed = _operation(shoot).get("lastUpdateTime") or ""
    return bool(failed) and datetime.fromisoformat(failed) > datetime.fromisoformat(known["since"])


def _reason(replica: Replica, step: Step | None) -> str:
    if step is None:
        return _REASONS.get(replica.stage, "")
    return {
        Action.UPDATE_SHOOT: _REASONS[Stage.SHOOT_RECONCILING],
        Action.UPDATE_MANAGED_SEED: _REASONS[Stage.MANAGED_SEED_PREPARING],
        Action.CREATE_MANAGED_SEED: _REASONS[Stage.MANAGED_SEED_PREPARING],
        Action.DELETE_MANAGED_SEED: _REASONS[Stage.MANAGED_SEED_DELETING],
        Action.DELETE_SHOOT: _REASONS[Stage.SHOOT_DELETING],
    }.get(step.action, _REASONS.get(replica.stage, ""))


def conditions(set_: ManagedSeedSet, replicas: Sequence[Replica], made: Plan, fault: str, rules: Rules) -> list[Object]:
    """ReplicasReady and RolledOut. ``fault``: why the step of the plan failed; empty if it did not."""
    wanted = 0 if set_.metadata.deletion_timestamp is not None else set_.spec.replicas
    ready = sum(each.is_ready for each in replicas)
    pending = made.intent.get("pendingReplica") or {}
    if fault:
        finding = ("False", "StepFailed", f"cannot {made.step}: {fault}")
    elif made.blocked:
        finding = ("False", "ScaleInBlocked", made.blocked)
    elif pending:
        finding = ("False", pending["reason"], _explained(pending, replicas, rules))
    elif len(replicas) == wanted == ready:
        finding = ("True", "AllReplicasReady", f"all {wanted} replicas are ready")
    else:
        finding = ("False", "Scaling", f"{ready} of {wanted} replicas are ready")
    rollout = _rollout(_partition(set_), made.status["updateRevision"], replicas)
    return [_condition(REPLICAS_READY, *finding), _condition(ROLLED_OUT, *rollout)]


def _explained(pending: ObjectView, replicas: Sequence[Replica], rules: Rules) -> str:
    found = next((each for each in replicas if each.name == pending["name"]), None)
    stage = found.stage if found is not None else Stage.SHOOT_RECONCILING
    text = f"replica {pending['name']}: {_EXPLANATIONS.get(stage, 'it is being changed')}"
    if stage in _FAILED and (pending.get("retries") or 0) >= rules.max_shoot_retries:
        text += (
            f", also after {pending['retries']} retries: correct the Shoot or the template, then annotate the Shoot "
            f"with {constants.OPERATION}={constants.OPERATION_RETRY}"
        )
    return text


def _rollout(partition: int, revision: str, replicas: Sequence[Replica]) -> tuple[str, str, str]:
    hash_ = revision.rpartition("-")[2]
    concerned = [each for each in replicas if each.ordinal >= partition]
    left = [each.name for each in concerned if not each.has(hash_)]
    where = f" with ordinals from {partition}" if partition else ""
    if left:
        return "False", "RollingOut", f"replicas{where} that do not have revision {revision} yet: {', '.join(left)}"
    return "True", "RevisionRolledOut", f"all replicas{where} have revision {revision}"


def _condition(type_: str, status: str, reason: str, message: str) -> Object:
    return {"type": type_, "status": status, "reason": reason, "message": message}


def _next_number(set_: ManagedSeedSet, replicas: Sequence[Replica]) -> int:
    """Ordinal of the next replica. Each is used once, also if the status was lost while replicas exist."""
    known = (set_.status.next_replica_number or 0) if set_.status else 0
    return max([known, *(each.ordinal + 1 for each in replicas)])


def selector_text(selector: LabelSelector) -> str:
    """A label selector as text, as the scale subresource shows it."""
    parts = [f"{key}={value}" for key, value in sorted((selector.match_labels or {}).items())]
    for each in selector.match_expressions or ():
        values = f"({','.join(each.values or ())})"
        parts.append(
            {"In": f"{each.key} in {values}", "NotIn": f"{each.key} notin {values}", "Exists": each.key}.get(
                each.operator, f"!{each.key}"
            )
        )
    return ",".join(parts)


def _partition(set_: ManagedSeedSet) -> int:
    strategy = set_.spec.update_strategy
    return strategy.rolling_update.partition if strategy and strategy.rolling_update else 0


def _pending(set_: ManagedSeedSet) -> Object:
    found = set_.status.pending_replica if set_.status else None
    return found.to_wire() if found else {}


# Facts of objects


def _annotations(obj: ObjectView | None) -> Mapping[str, str]:
    return ((obj or {}).get("metadata") or {}).get("annotations") or {}


def _labels(obj: ObjectView | None) -> Mapping[str, str]:
    return ((obj or {}).get("metadata") or {}).get("labels") or {}


def _deleting(obj: ObjectView | None) -> bool:
    return obj is not None and "deletionTimestamp" in obj["metadata"]


def _operation(shoot: ObjectView) -> ObjectView:
    return (shoot.get("status") or {}).get("lastOperation") or {}


def _is_current(obj: ObjectView) -> bool:
    return bool((obj.get("status") or {}).get("observedGeneration") == obj["metadata"].get("generation"))


def _has_failed(shoot: ObjectView) -> bool:
    """Whether the Shoot waits for a retry. A new generation of its spec is tried without one."""
    deleting = _deleting(shoot)
    operation = _operation(shoot)
    return operation.get("state") == "Failed" and (
        operation.get("type") == "Delete" if deleting else _is_current(shoot)
    )


def _is_failing(shoot: ObjectView | None) -> bool:
    return shoot is not None and _operation(shoot).get("state") in ("Error", "Failed")


def _is_reconciled(shoot: ObjectView) -> bool:
    operation = _operation(shoot)
    return (
        _is_current(shoot)
        and operation.get("type") in ("Create", "Reconcile", "Restore")
        and operation.get("state") == "Succeeded"
    )


def _is_healthy(shoot: ObjectView | None) -> bool:
    return _labels(shoot).get(constants.SHOOT_STATUS) == "healthy"


def _is_registered(managed_seed: ObjectView) -> bool:
    return _is_current(managed_seed) and find_condition(managed_seed, "SeedRegistered").get("status") == "True"
