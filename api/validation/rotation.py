"""Validation of requests to rotate credentials of a Shoot. Source: spec/credentials.md 3, table "Validation"."""

from collections.abc import Mapping, Sequence
from typing import Any

from api.contracts.rotation import Kind, Phase
from api.decisions import encryption
from api.decisions.rotation import (
    CREDENTIALS_COMPLETE,
    CREDENTIALS_START,
    CREDENTIALS_START_WITHOUT_ROLLOUT,
    FORCED_COMPLETION,
    ONE_STEP,
    PHASED,
    ROLLING,
    SINGLE,
    RotationFacts,
    Verb,
    constraint_of,
    is_operation,
    phase_of,
    pools_of,
    status_of,
    steps_of,
)

_ALLOWED_WHILE_ASLEEP = (Kind.CERTIFICATE_AUTHORITIES, *ONE_STEP)
_ENCRYPTION = "rotate-etcd-encryption-key"


def rotation_faults(shoot: Mapping[str, Any], asked: Sequence[str], elsewhere: Sequence[str]) -> list[str]:
    """Messages why operations cannot be requested now; empty if they can.

    Args:
        shoot: the Shoot as the API has it.
        asked: operations that one annotation requests.
        elsewhere: operations that the other operation annotation requests.
    """
    facts, rotation = RotationFacts.of_shoot(shoot), status_of(shoot)
    faults = _combinations(asked, elsewhere, facts)
    for operation in filter(is_operation, asked):
        faults += [f"{operation}: {fault}" for fault in _faults(operation, shoot, rotation, facts)]
    return faults


def hibernation_faults(shoot: Mapping[str, Any]) -> list[str]:
    """Messages why a Shoot cannot be hibernated now; empty if it can."""
    rotation = status_of(shoot)
    stored = phase_of(rotation, Kind.ETCD_ENCRYPTION_KEY)
    key = phase_of(rotation, Kind.SERVICE_ACCOUNT_KEY)
    faults = []
    if stored in (Phase.PREPARING, Phase.COMPLETING):
        faults.append(f"the rotation of the etcd encryption key is {stored}; wait until it is done")
    if key.preparing or key is Phase.COMPLETING:
        faults.append(f"the rotation of the service account key is {key}; wait until it is done")
    if encryption.changes(shoot):
        faults.append("resources are being re-encrypted after a change of encryptionConfig; wait until it is done")
    return faults


def _faults(operation: str, shoot: Mapping[str, Any], rotation: Mapping[str, Any], facts: RotationFacts) -> list[str]:
    if "deletionTimestamp" in shoot.get("metadata", {}):
        return ["the Shoot is being deleted"]
    steps = steps_of(operation, facts)
    pools = pools_of(operation)
    faults = []
    if asleep := _asleep(shoot):
        kinds = {kind for kind, _ in steps}
        if operation not in SINGLE or not kinds <= set(_ALLOWED_WHILE_ASLEEP):
            faults.append(f"the Shoot is {asleep}; wake it up and wait until it has woken up")
    if operation in (f"{_ENCRYPTION}-start", f"{_ENCRYPTION}-complete") and facts.automatic_encryption:
        faults.append(f"from Kubernetes 1.34 on, {_ENCRYPTION} does both steps: use that")
    if pools or operation.startswith("rotate-rollout-workers"):
        faults += _rollout_faults(pools, rotation, facts)
    starts = [kind for kind, verb in steps if verb.starts]
    if starts:
        faults += _start_faults(starts, shoot, rotation)
    if any(kind is Kind.ETCD_ENCRYPTION_KEY for kind in starts) and encryption.changes(shoot):
        faults.append("resources are being re-encrypted after a change of encryptionConfig; wait until it is done")
    completes = [kind for kind, verb in steps if verb is Verb.COMPLETE]
    for kind in completes:
        phase = phase_of(rotation, kind)
        if phase is not Phase.PREPARED:
            faults.append(f"the rotation of the {kind.words} is {phase or 'not started'}, must be {Phase.PREPARED}")
    if completes and not faults:
        faults += _users_of_old(shoot, completes)
    return faults


def _start_faults(kinds: Sequence[Kind], shoot: Mapping[str, Any], rotation: Mapping[str, Any]) -> list[str]:
    faults = []
    last = (shoot.get("status") or {}).get("lastOperation") or {}
    ready = last.get("type") == "Reconcile" or (
        last.get("type") in ("Create", "Restore") and last.get("state") == "Succeeded"
    )
    if not ready:
        seen = f"{last['type']} {last['state']}" if last else "none"
        faults.append(f"the Shoot must have been created or restored; its last operation is {seen}")
    for kind in kinds:
        phase = phase_of(rotation, kind) if kind in PHASED else Phase.NONE
        if not phase.idle:
            faults.append(f"a rotation of the {kind.words} is under way (phase {phase}); complete it first")
    pending = ((shoot.get("status") or {}).get("inPlaceUpdates") or {}).get("pendingWorkerUpdates")
    if pending and set(kinds) & set(ROLLING):
        faults.append("in-place updates of worker pools are pending; wait until they are done")
    return faults


def _rollout_faults(pools: Sequence[str], rotation: Mapping[str, Any], facts: RotationFacts) -> list[str]:
    faults = []
    phases = {phase_of(rotation, kind) for kind in ROLLING}
    if Phase.WAITING_FOR_WORKERS_ROLLOUT not in phases:
        faults.append(f"no rotation is in phase {Phase.WAITING_FOR_WORKERS_ROLLOUT}")
    if not any(pools):
        faults.append("must name worker pools, as in rotate-rollout-workers=pool-a,pool-b")
    for pool in dict.fromkeys(filter(None, pools)):
        if pool not in facts.pools:
            faults.append(f"worker pool {pool} does not exist; the Shoot has {', '.join(facts.pools) or 'none'}")
        if pools.count(pool) > 1:
            faults.append(f"worker pool {pool} is named twice")
    return faults


def _users_of_old(shoot: Mapping[str, Any], kinds: Sequence[Kind]) -> list[str]:
    """Clients that used the old credentials at the last check; an annotation with a reason overrides this."""
    if (shoot["metadata"].get("annotations") or {}).get(FORCED_COMPLETION, "").strip():
        return []
    types = set(map(constraint_of, kinds))
    return [
        f"{each['message']}; see `gardener credentials status`. To complete the rotation anyway, write the reason into "
        f"annotation {FORCED_COMPLETION}"
        for each in (shoot.get("status") or {}).get("constraints") or ()
        if each["type"] in types and each["status"] == "False"
    ]


def _combinations(asked: Sequence[str], elsewhere: Sequence[str], facts: RotationFacts) -> list[str]:
    faults = []
    starts: dict[Kind, set[tuple[Verb, str]]] = {}
    for operation in asked:
        for kind, verb in steps_of(operation, facts):
            if verb.starts and kind in PHASED:
                starts.setdefault(kind, set()).add((verb, operation))
    for kind, found in starts.items():
        if kind in ROLLING and len({verb for verb, _ in found}) > 1:
            names = " and ".join(sorted(operation for _, operation in found))
            faults.append(f"{names} contradict each other about the worker pools")
    if _ENCRYPTION in asked and f"{_ENCRYPTION}-start" in asked:
        faults.append(f"{_ENCRYPTION} and {_ENCRYPTION}-start contradict each other")
    for operation in filter(is_operation, asked):
        if operation in elsewhere:
            faults.append(f"{operation} is requested by both annotations")
    combined = (CREDENTIALS_START, CREDENTIALS_START_WITHOUT_ROLLOUT, CREDENTIALS_COMPLETE)
    for one, other in ((asked, elsewhere), (elsewhere, asked)):
        for operation in one:
            if operation not in combined:
                continue
            covered = {(kind, verb.starts) for kind, verb in steps_of(operation, facts)}
            faults += [
                f"{each} is part of {operation}, which the other annotation requests"
                for each in other
                if each in SINGLE and (SINGLE[each][0], SINGLE[each][1].starts) in covered
            ]
    return faults


def _asleep(shoot: Mapping[str, Any]) -> str:
    if (shoot["spec"].get("hibernation") or {}).get("enabled"):
        return "hibernated"
    return "waking up" if (shoot.get("status") or {}).get("hibernated") else ""
