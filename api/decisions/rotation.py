"""Rotation of a Shoot's credentials: how operations and reconciles change ``status.credentials.rotation``.

Pure functions of the status and the time, on objects as the API has them. Source: spec/credentials.md 3.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from api import constants
from api.contracts.operations import MIGRATIONS
from api.contracts.rotation import ActiveRotation, Kind, Phase, RotationView
from api.decisions import encryption, ssh
from api.decisions.versions import Version, is_version

Status = Mapping[str, Any]
"""``Shoot.status.credentials.rotation``."""

FORCED_COMPLETION = "credentials.gardener.cloud/forced-completion"
"""Annotation of a Shoot: reason to drop old credentials although clients still use them."""
ROLLOUT = "rotate-rollout-workers"
AUTOMATIC_ENCRYPTION_MINOR = 34
"""From this minor version of Kubernetes 1 on, the rotation of the etcd encryption key completes automatically."""


class Verb(StrEnum):
    """Effect of an operation on one kind of credentials."""

    START = "start"
    START_WITHOUT_ROLLOUT = "start without rollout"
    START_AUTOMATIC = "start, then complete"
    COMPLETE = "complete"
    ONCE = "rotate"

    @property
    def starts(self) -> bool:
        return self is not Verb.COMPLETE


COMPLETION = {
    Kind.CERTIFICATE_AUTHORITIES: "rotate-ca-complete",
    Kind.SERVICE_ACCOUNT_KEY: "rotate-serviceaccount-key-complete",
    Kind.ETCD_ENCRYPTION_KEY: "rotate-etcd-encryption-key-complete",
}
ROLLING = (Kind.CERTIFICATE_AUTHORITIES, Kind.SERVICE_ACCOUNT_KEY)
"""Kinds whose rotation replaces the machines."""
PHASED = (*ROLLING, Kind.ETCD_ENCRYPTION_KEY)
ONE_STEP = (Kind.SSH_KEYPAIR, Kind.OBSERVABILITY)
"""Kinds that the next reconcile rotates in one step."""

CREDENTIALS_START = "rotate-credentials-start"
CREDENTIALS_START_WITHOUT_ROLLOUT = "rotate-credentials-start-without-workers-rollout"
CREDENTIALS_COMPLETE = "rotate-credentials-complete"
COMBINED = (CREDENTIALS_START, CREDENTIALS_START_WITHOUT_ROLLOUT, CREDENTIALS_COMPLETE)

Steps = tuple[tuple[Kind, Verb], ...]
SINGLE: Mapping[str, tuple[Kind, Verb]] = {
    "rotate-ca-start": (Kind.CERTIFICATE_AUTHORITIES, Verb.START),
    "rotate-ca-start-without-workers-rollout": (Kind.CERTIFICATE_AUTHORITIES, Verb.START_WITHOUT_ROLLOUT),
    "rotate-ca-complete": (Kind.CERTIFICATE_AUTHORITIES, Verb.COMPLETE),
    "rotate-serviceaccount-key-start": (Kind.SERVICE_ACCOUNT_KEY, Verb.START),
    "rotate-serviceaccount-key-start-without-workers-rollout": (
        Kind.SERVICE_ACCOUNT_KEY,
        Verb.START_WITHOUT_ROLLOUT,
    ),
    "rotate-serviceaccount-key-complete": (Kind.SERVICE_ACCOUNT_KEY, Verb.COMPLETE),
    "rotate-etcd-encryption-key": (Kind.ETCD_ENCRYPTION_KEY, Verb.START_AUTOMATIC),
    "rotate-etcd-encryption-key-start": (Kind.ETCD_ENCRYPTION_KEY, Verb.START),
    "rotate-etcd-encryption-key-complete": (Kind.ETCD_ENCRYPTION_KEY, Verb.COMPLETE),
    "rotate-ssh-keypair": (Kind.SSH_KEYPAIR, Verb.ONCE),
    "rotate-observability-credentials": (Kind.OBSERVABILITY, Verb.ONCE),
}
"""Kind of credentials and effect of each operation that is for one kind."""


@dataclass(frozen=True)
class RotationFacts:
    """Facts of a Shoot that its rotations depend on, except the rotations themselves."""

    pools: tuple[str, ...] = ()
    ssh_access: bool = True
    observability: bool = True
    automatic_encryption: bool = True
    """The Kubernetes version completes the rotation of the etcd encryption key automatically."""
    encryption_changes: bool = False
    """The spec wants another encryption of resources in etcd than the present one, which needs a new key."""
    asleep: bool = False
    manual_in_place_pending: bool = False

    @classmethod
    def of_shoot(cls, shoot: Mapping[str, Any]) -> "RotationFacts":
        """Facts of a Shoot, given as the API has it."""
        spec, status = shoot["spec"], shoot.get("status") or {}
        pools = tuple(pool["name"] for pool in spec["provider"].get("workers") or ())
        version = str(spec["kubernetes"].get("version") or "")  # other rules report an invalid one
        pending = (status.get("inPlaceUpdates") or {}).get("pendingWorkerUpdates") or {}
        return cls(
            pools=pools,
            ssh_access=ssh.has_access(shoot),
            observability=spec.get("purpose") != constants.PURPOSE_TESTING,
            automatic_encryption=is_version(version) and Version(version).minor >= AUTOMATIC_ENCRYPTION_MINOR,
            encryption_changes=encryption.changes(shoot),
            asleep=bool((spec.get("hibernation") or {}).get("enabled")),
            manual_in_place_pending=bool(pending.get("manualInPlaceUpdate")),
        )

    def has(self, kind: Kind) -> bool:
        """Whether the Shoot has credentials of this kind."""
        return {Kind.SSH_KEYPAIR: self.ssh_access, Kind.OBSERVABILITY: self.observability}.get(kind, True)


def constraint_of(kind: Kind) -> str:
    """Type of a constraint that a Shoot has in phase Prepared: True if no known client uses the old credentials."""
    return f"Old{kind[0].upper()}{kind[1:]}Unused"


def status_of(shoot: Mapping[str, Any]) -> Status:
    """``status.credentials.rotation`` of a Shoot as the API has it."""
    found: Status = ((shoot.get("status") or {}).get("credentials") or {}).get("rotation") or {}
    return found


def phase_of(rotation: Status, kind: Kind) -> Phase:
    """Phase of the rotation of one kind."""
    return Phase((rotation.get(kind) or {}).get("phase") or "")


def active(rotation: Status) -> tuple[ActiveRotation, ...]:
    """The rotations that are in progress."""
    found = [_phased(rotation, kind) for kind in PHASED if not phase_of(rotation, kind).idle]
    found += [
        ActiveRotation(kind=kind, phase=Phase.PREPARING, initiated=rotation[kind]["lastInitiationTime"])
        for kind in _unfinished(rotation)
    ]
    return tuple(found)


def _unfinished(rotation: Status) -> list[Kind]:
    """Kinds with a rotation in one step that no reconcile has completed yet."""
    states = {kind: rotation[kind] for kind in ONE_STEP if rotation.get(kind)}
    return [
        kind for kind, state in states.items() if (state.get("lastCompletionTime") or "") < state["lastInitiationTime"]
    ]


def _phased(rotation: Status, kind: Kind) -> ActiveRotation:
    state = rotation[kind]
    return ActiveRotation(
        kind=kind,
        phase=phase_of(rotation, kind),
        initiated=state["lastInitiationTime"],
        initiation_finished=state.get("lastInitiationFinishedTime") or "",
        automatic=bool(state.get("autoCompleteAfterPrepared")),
        pending_pools=tuple(each["name"] for each in state.get("pendingWorkersRollouts") or ()),
    )


def is_operation(operation: str) -> bool:
    """Whether a value of the operation annotation is an operation of a rotation."""
    return operation in SINGLE or operation in COMBINED or operation.startswith(f"{ROLLOUT}=")


def pools_of(operation: str) -> tuple[str, ...]:
    """Pools that ``rotate-rollout-workers=p1,p2`` names; empty for other operations."""
    name, _, pools = operation.partition("=")
    return tuple(pools.split(",")) if name == ROLLOUT else ()


def steps_of(operation: str, facts: RotationFacts) -> Steps:
    """Kinds of credentials that an operation affects, each with the effect."""
    if operation in SINGLE:
        return (SINGLE[operation],)
    if operation == CREDENTIALS_COMPLETE:
        kinds = ROLLING if facts.automatic_encryption else PHASED
        return tuple((kind, Verb.COMPLETE) for kind in kinds)
    if operation not in COMBINED:
        return ()
    verb = Verb.START if operation == CREDENTIALS_START else Verb.START_WITHOUT_ROLLOUT
    start = Verb.START_AUTOMATIC if facts.automatic_encryption else Verb.START
    return (
        *((kind, verb) for kind in ROLLING),
        (Kind.ETCD_ENCRYPTION_KEY, start),
        *((kind, Verb.ONCE) for kind in ONE_STEP if facts.has(kind)),
    )


def begin(rotation: Status, operations: Iterable[str], facts: RotationFacts, now: str) -> dict[str, Any]:
    """The status at the start of an operation that answers these requests.

    A request that does not fit the phase is ignored: admission has checked it, and it may be read twice.
    """
    new: dict[str, Any] = {kind: dict(state) for kind, state in rotation.items() if state}
    rolled: set[str] = set()
    for operation in operations:
        rolled.update(pools_of(operation))
        for kind, verb in steps_of(operation, facts):
            if kind in ONE_STEP:
                if facts.has(kind):
                    new[kind] = {**new.get(kind, {}), "lastInitiationTime": now}
            elif verb.starts and phase_of(new, kind).idle:
                new[kind] = _started(new.get(kind, {}), verb, facts, now)
            elif verb is Verb.COMPLETE and phase_of(new, kind) is Phase.PREPARED:
                new[kind] = {**new[kind], "phase": Phase.COMPLETING, "lastCompletionTriggeredTime": now}
    key = Kind.ETCD_ENCRYPTION_KEY
    if phase_of(new, key) is Phase.PREPARED and (
        facts.automatic_encryption or new[key].get("autoCompleteAfterPrepared")
    ):
        new[key] = {**new[key], "phase": Phase.COMPLETING, "lastCompletionTriggeredTime": now}
    elif phase_of(new, key).idle and facts.encryption_changes and not facts.asleep:
        new[key] = _started(new.get(key, {}), Verb.START_AUTOMATIC, facts, now)
    for kind in ONE_STEP:
        if not facts.has(kind):
            new.pop(kind, None)
    return _pruned(new, facts, rolled)


def succeed(rotation: Status, facts: RotationFacts, now: str) -> dict[str, Any]:
    """The status after a successful reconcile."""
    new = _pruned({kind: dict(state) for kind, state in rotation.items() if state}, facts, set())
    for kind in PHASED:
        phase, state = phase_of(new, kind), new.get(kind, {})
        waiting = kind in ROLLING and facts.manual_in_place_pending
        if phase is Phase.PREPARING and not waiting:
            new[kind] = {**state, "phase": Phase.PREPARED, "lastInitiationFinishedTime": now}
        elif phase is Phase.PREPARING_WITHOUT_WORKERS_ROLLOUT:
            new[kind] = {**state, "phase": Phase.WAITING_FOR_WORKERS_ROLLOUT}
        elif phase is Phase.WAITING_FOR_WORKERS_ROLLOUT and not (waiting or state.get("pendingWorkersRollouts")):
            new[kind] = {**state, "phase": Phase.PREPARED, "lastInitiationFinishedTime": now}
        elif phase is Phase.COMPLETING:
            done = {**state, "phase": Phase.COMPLETED, "lastCompletionTime": now}
            for name in ("lastInitiationFinishedTime", "lastCompletionTriggeredTime", "autoCompleteAfterPrepared"):
                done.pop(name, None)
            new[kind] = done
    for kind in _unfinished(new):
        new[kind] = {**new[kind], "lastCompletionTime": now}
    return new


def view_of(shoot: Mapping[str, Any], kind: Kind, initiated: str) -> RotationView:
    """The view of a rotation, from its Shoot as the API has it."""
    status, facts = shoot.get("status") or {}, RotationFacts.of_shoot(shoot)
    found = next((each for each in active(status_of(shoot)) if each.kind is kind and each.initiated == initiated), None)
    return RotationView(
        seed=status.get("seedName") or "",
        technical_id=status.get("technicalID") or "",
        rotation=found,
        owners_turn=found is None or not _can_advance(found, facts, status.get("lastOperation") or {}),
    )


def _can_advance(each: ActiveRotation, facts: RotationFacts, last: Mapping[str, Any]) -> bool:
    """Whether the rotation advances by a reconcile that nothing else starts. ``last``: the last operation.

    A reconcile that ends while nodes wait for an in-place update by their owner leaves the rotation as it is. So
    another reconcile is needed after the last of these nodes.
    """
    if each.kind not in ROLLING:
        return not each.phase.in_progress and not needs_request(each, facts)
    rolled = each.phase is Phase.PREPARING or (
        each.phase is Phase.WAITING_FOR_WORKERS_ROLLOUT and not each.pending_pools
    )
    ended = last.get("state") == "Succeeded" and last.get("type") not in MIGRATIONS
    return rolled and ended and not facts.manual_in_place_pending


def needs_request(each: ActiveRotation, facts: RotationFacts) -> bool:
    """Whether a user must request the next step; otherwise the next reconcile advances the rotation."""
    if each.phase is Phase.PREPARED:
        automatic = each.automatic or facts.automatic_encryption
        return not (each.kind is Kind.ETCD_ENCRYPTION_KEY and automatic)
    return each.phase is Phase.WAITING_FOR_WORKERS_ROLLOUT and bool(each.pending_pools)


def patch_of(old: Status, new: Status) -> dict[str, Any]:
    """Merge patch from ``old`` to ``new``; empty if they are the same."""
    patch: dict[str, Any] = {}
    for kind in {**old, **new}:
        before, after = old.get(kind) or {}, new.get(kind)
        if after is None:
            patch[kind] = None
        elif before != after:
            patch[kind] = {**dict.fromkeys(before), **after}
    return patch


def normalized(operations: Sequence[str], facts: RotationFacts) -> list[str]:
    """Operations without those that a combined one among them includes, and without those that have no effect."""
    covered = {
        single
        for combined in operations
        if combined in COMBINED
        for single, (kind, verb) in SINGLE.items()
        if (kind, verb.starts) in {(each, does.starts) for each, does in steps_of(combined, facts)}
        and (verb, combined) not in _TWINS
    }
    covered.update(single for single, (kind, _) in SINGLE.items() if not facts.has(kind))
    return [each for each in dict.fromkeys(operations) if each not in covered]


_TWINS = (
    (Verb.START_WITHOUT_ROLLOUT, CREDENTIALS_START),
    (Verb.START, CREDENTIALS_START_WITHOUT_ROLLOUT),
)
"""Contradictory pairs of operations: admission refuses them, so they must not be dropped here."""


def _started(before: Mapping[str, Any], verb: Verb, facts: RotationFacts, now: str) -> dict[str, Any]:
    state: dict[str, Any] = {"phase": Phase.PREPARING, "lastInitiationTime": now}
    if before.get("lastCompletionTime"):
        state["lastCompletionTime"] = before["lastCompletionTime"]
    if verb is Verb.START_WITHOUT_ROLLOUT:
        state["phase"] = Phase.PREPARING_WITHOUT_WORKERS_ROLLOUT
        last = before.get("lastInitiationTime")
        state["pendingWorkersRollouts"] = [
            {"name": pool, **({"lastInitiationTime": last} if last else {})} for pool in facts.pools
        ]
    if verb is Verb.START_AUTOMATIC:
        state["autoCompleteAfterPrepared"] = True
    return state


def _pruned(new: dict[str, Any], facts: RotationFacts, rolled: set[str]) -> dict[str, Any]:
    """The status without pending pools that are rolled out now, are deleted, or have no machines in hibernation."""
    for kind in ROLLING:
        pending = (new.get(kind) or {}).get("pendingWorkersRollouts")
        if pending is None:
            continue
        left = [each for each in pending if each["name"] in facts.pools and each["name"] not in rolled]
        if facts.asleep:
            left = []
        new[kind] = {**new[kind], "pendingWorkersRollouts": left}
        if not left:
            del new[kind]["pendingWorkersRollouts"]
    return new
