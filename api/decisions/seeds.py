"""Decisions about Seeds: which operation one needs, which objects use it, and which Secrets every seed gets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from api.constants import (
    BACKUP_ENTRY_FORCE_DELETION,
    FINALIZER,
    OPERATION,
    OPERATION_RECONCILE,
    OPERATION_RETRY,
    ROLE,
)
from api.contracts.operations import OperationType
from api.decisions.wildcard_certificates import WILDCARD_ROLE, is_for

_ASKED = (OPERATION_RECONCILE, OPERATION_RETRY)
"""Values of the operation annotation that start an operation of a Seed."""
_COPIED = (
    "alerting",
    "global-monitoring",
    "helm-pull-secret",
    "oci-ca-bundle",
    "shoot-service-account-issuer",
)
"""Roles of Secrets that every seed needs. The others stay in namespace ``garden``: credentials of domains, which a seed
gets by a label of an operator, and the certificate of the garden itself."""
_SHOWN = 5
"""Number of users that a message names."""


def needed_operation(seed: Mapping[str, Any]) -> OperationType | None:
    """The operation that a Seed needs; None if it needs none.

    A Seed needs a reconciliation if its present generation has not been reconciled, or if an annotation requests it.
    """
    metadata, status = seed["metadata"], seed.get("status") or {}
    if "deletionTimestamp" in metadata:
        return OperationType.DELETE if FINALIZER in (metadata.get("finalizers") or ()) else None
    last = status.get("lastOperation") or {}
    done = (status.get("observedGeneration"), last.get("state"))
    if not is_asked(seed) and done == (metadata["generation"], "Succeeded"):
        return None
    begun = last.get("type") == OperationType.RECONCILE or last.get("state") == "Succeeded"
    return OperationType.RECONCILE if begun else OperationType.CREATE


def is_asked(seed: Mapping[str, Any]) -> bool:
    """Whether an annotation requests an operation of the Seed."""
    return (seed["metadata"].get("annotations") or {}).get(OPERATION) in _ASKED


def hindrances(
    seed: str,
    uid: str,
    shoots: Iterable[Mapping[str, Any]],
    entries: Iterable[Mapping[str, Any]],
    managed_seeds: Iterable[Mapping[str, Any]],
) -> list[str]:
    """Reasons for which a Seed cannot be deleted, each with what to do; empty if nothing uses it.

    ``managed_seeds``: a ManagedSeed has the name of its Seed. Its deletion deletes the Seed, and is no hindrance.
    """
    told = []
    hosted = [each for each in shoots if seed in _homes(each)]
    if hosted:
        told.append(
            f"it hosts Shoots: {_names(hosted)}; move them to other seeds (`gardener seed evacuate {seed}`), or delete "
            "them"
        )
    kept = [each for each in entries if seed == each["spec"].get("seedName") or uid == each["spec"].get("bucketName")]
    if kept and not hosted:
        told.append(
            f"it keeps backups of deleted Shoots: {_names(kept)}; wait until their grace period is over, or annotate "
            f"these BackupEntries with {BACKUP_ENTRY_FORCE_DELETION}=true"
        )
    owners = [
        each
        for each in managed_seeds
        if each["metadata"]["name"] == seed and "deletionTimestamp" not in each["metadata"]
    ]
    if owners:
        told.append(f"a ManagedSeed would create it again: {_names(owners)}; delete the ManagedSeed instead")
    return told


def is_copied(secret: Mapping[str, Any], ingress_domain: str) -> bool:
    """Whether a seed with this ingress domain gets a copy of a Secret of namespace ``garden``.

    A certificate of control planes goes only to the seed that it is for.
    """
    role = (secret["metadata"].get("labels") or {}).get(ROLE)
    return role in _COPIED or (role == WILDCARD_ROLE and is_for(secret, ingress_domain))


def ingress_domain_of(seed: Mapping[str, Any]) -> str:
    """Ingress domain of a Seed; empty if it has none."""
    return str((seed["spec"].get("ingress") or {}).get("domain") or "")


def _homes(shoot: Mapping[str, Any]) -> set[str | None]:
    return {shoot["spec"].get("seedName"), (shoot.get("status") or {}).get("seedName")}


def _names(users: Sequence[Mapping[str, Any]]) -> str:
    names = sorted(f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in users)
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
