"""Validation of pools whose machines are updated in place. Source: spec/api-core.md 1.2, 10.2; GEP-31."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api import constants
from api.core.v1beta1.cloud_profile import MachineImageVersion
from api.core.v1beta1.shoot import Shoot, Worker
from api.decisions.in_place_updates import pending_of
from api.decisions.versions import Version, is_version, minors_between
from api.defaulting.shoot import is_in_place
from api.names import in_place_hash_of
from api.validation.field import Faults, Path

FORCED = f"{constants.OPERATION}={constants.OPERATION_FORCE_IN_PLACE_UPDATE}"
_FIXED = (
    ("machine.type", "machine type"),
    ("machine.architecture", "architecture"),
    ("machine.image.name", "machine image"),
    ("cri", "container runtime"),
    ("volume", "volume"),
    ("dataVolumes", "data volumes"),
    ("kubeletDataVolumeName", "volume of the kubelet"),
)
"""Fields that only new machines can get, each with its words in a message."""


def check_bounds(pool: Worker, path: Path, faults: Faults) -> None:
    """Faults of the settings of an update that the strategy of the pool does not read."""
    if pool.update_strategy == "ManualInPlaceUpdate":
        for name, amount in (("maxSurge", pool.max_surge), ("maxUnavailable", pool.max_unavailable)):
            if amount is not None:
                faults.forbidden(path / name, "must be unset in a pool whose nodes are updated by hand")
    settings = pool.machine_controller_manager
    if settings and settings.in_place_update_timeout and not is_in_place(pool):
        faults.forbidden(
            path / "machineControllerManager" / "inPlaceUpdateTimeout",
            "needs updateStrategy AutoInPlaceUpdate or ManualInPlaceUpdate",
        )


def check_strategy_kept(pool: Worker, old: Worker, path: Path, faults: Faults) -> None:
    """Faults of a change between replaced and updated machines, and of fields that only new machines can get."""
    if is_in_place(pool) != is_in_place(old):
        detail = (
            f"cannot change from {old.update_strategy} to {pool.update_strategy}: machines of a pool are either "
            "replaced or updated in place; make another pool"
        )
        faults.forbidden(path / "updateStrategy", detail)
        return
    if not is_in_place(pool):
        return
    new_wire, old_wire = pool.to_wire(), old.to_wire()
    for field, words in _FIXED:
        if _value(new_wire, field) != _value(old_wire, field):
            here = path
            for part in field.split("."):
                here = here / part
            faults.forbidden(here, f"the {words} of a pool that is updated in place cannot change: make another pool")


def check_no_minor_skipped(pool: Worker, ran: str, runs: str, path: Path, faults: Faults) -> None:
    """Fault of a kubelet that would skip a minor version: a node with pods is updated minor by minor."""
    if is_in_place(pool) and is_version(ran) and is_version(runs) and (minors_between(ran, runs) or 0) > 1:
        detail = f"upgrade from {ran} to {runs} skips a minor version, and the pool is updated in place"
        faults.forbidden(path / "kubernetes" / "version", detail)


def check_nothing_pending(shoot: Shoot, old: Shoot, path: Path, faults: Faults) -> None:
    """Faults of changes of pools whose update is pending: nodes would get a configuration that no one has seen whole.

    ``path``: of the pools. Only an operation that forces the change allows it.
    """
    asked = shoot.metadata.annotations.get(constants.OPERATION, "").split(";")
    if constants.OPERATION_FORCE_IN_PLACE_UPDATE in asked:
        return
    new_wire, old_wire = shoot.to_wire(), old.to_wire()
    pending = frozenset().union(*pending_of(old_wire).values())
    before = {pool["name"]: pool for pool in old_wire["spec"]["provider"].get("workers") or ()}
    for index, pool in enumerate(new_wire["spec"]["provider"].get("workers") or ()):
        was = before.get(pool["name"])
        if was is None or pool["name"] not in pending:
            continue
        if pool != was or in_place_hash_of(new_wire, pool) != in_place_hash_of(old_wire, was):
            detail = (
                f"an in-place update of pool {pool['name']} is pending, so neither the pool nor the Kubernetes version "
                f"or kubelet settings that it takes from the Shoot can change; wait until status.inPlaceUpdates does "
                f"not name the pool, or annotate the Shoot with {FORCED}"
            )
            faults.forbidden(path @ index, detail)


def check_image(pool: Worker, before: str | None, version: MachineImageVersion, path: Path, faults: Faults) -> None:
    """Faults of a machine image version that a pool with in-place updates cannot get.

    ``before``: version that its machines have; None for a new pool.
    """
    if not is_in_place(pool):
        return
    offered = version.in_place_updates
    if offered is None or not offered.supported:
        detail = f"does not support in-place updates, which strategy {pool.update_strategy} needs"
        faults.invalid(path, version.version, detail)
        return
    least, has = offered.min_version_for_update, before or version.version
    if least and is_version(has) and Version(has) < Version(least):
        detail = f"is reached in place from version {least} or newer, and the pool has {has}"
        faults.invalid(path, version.version, detail)


def _value(wire: Mapping[str, Any], field: str) -> Any:
    found: Any = wire
    for part in field.split("."):
        found = (found or {}).get(part)
    return found
