"""Which pools of a Shoot wait for an in-place update: decisions about ``status.inPlaceUpdates``. Pure functions."""

from collections.abc import Collection, Mapping
from typing import Any

from api.names import in_place_hash_of, is_updated_in_place

AUTO, MANUAL = "autoInPlaceUpdate", "manualInPlaceUpdate"
_FIELDS = {"AutoInPlaceUpdate": AUTO, "ManualInPlaceUpdate": MANUAL}

Pending = dict[str, frozenset[str]]
"""Names of pools, by the field of ``pendingWorkerUpdates`` that lists them."""


def pending_of(shoot: Mapping[str, Any]) -> Pending:
    """Pending pools as the status of a Shoot names them."""
    found = (((shoot.get("status") or {}).get("inPlaceUpdates") or {}).get("pendingWorkerUpdates")) or {}
    return {field: frozenset(found.get(field) or ()) for field in (AUTO, MANUAL)}


def outdated(shoot: Mapping[str, Any], worker: Mapping[str, Any] | None) -> Pending:
    """Pools whose machines have not the settings that the Shoot wants, as the status of its Worker says.

    A pool of which the Worker names no hash is new: its first machines have the newest settings.
    """
    status = (worker or {}).get("status") or {}
    hashes = (status.get("inPlaceUpdates") or {}).get("workerPoolToHashMap") or {}
    found: dict[str, set[str]] = {AUTO: set(), MANUAL: set()}
    for pool in shoot["spec"]["provider"].get("workers") or ():
        if is_updated_in_place(pool) and hashes.get(pool["name"], "") not in ("", in_place_hash_of(shoot, pool)):
            found[_FIELDS[pool["updateStrategy"]]].add(pool["name"])
    return {field: frozenset(pools) for field, pools in found.items()}


def begun(shoot: Mapping[str, Any], worker: Mapping[str, Any] | None, before: Pending) -> Pending:
    """Pending pools before the Worker is written: an update that is pending stays so until its end was seen."""
    names = {pool["name"] for pool in shoot["spec"]["provider"].get("workers") or ()}
    new = outdated(shoot, worker)
    return {field: (before[field] & names) | new[field] for field in (AUTO, MANUAL)}


def ended(shoot: Mapping[str, Any], worker: Mapping[str, Any] | None) -> Pending:
    """Pending pools once the Worker is ready: no automatic update is left, and the manual ones that are not done."""
    return {AUTO: frozenset(), MANUAL: outdated(shoot, worker)[MANUAL]}


def settled(shoot: Mapping[str, Any], worker: Mapping[str, Any] | None) -> Pending:
    """Pending pools of a Shoot that nothing reconciles, without those whose owner has updated the last node since."""
    before = pending_of(shoot)
    return {AUTO: before[AUTO], MANUAL: before[MANUAL] & outdated(shoot, worker)[MANUAL]}


def status_of(pending: Mapping[str, Collection[str]]) -> dict[str, Any] | None:
    """Merge patch of ``status.inPlaceUpdates``; None if no update is pending."""
    if not any(pending.values()):
        return None
    return {"pendingWorkerUpdates": {field: sorted(pools) or None for field, pools in pending.items()}}
