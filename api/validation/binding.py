"""Validation of a move of a control plane to another seed. Source: spec/flows.md 1.3 and 7.

A change of ``spec.seedName`` requests the move. Gardener has the subresource ``shoots/binding`` for that.
"""

from __future__ import annotations

from api.constants import SEED_BACKUP_BUCKETS_READY, SEED_GARDENLET_READY, SEED_SYSTEM_COMPONENTS_HEALTHY
from api.contracts.operations import MIGRATIONS
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.labels import condition_status
from api.validation.field import Faults, Path

_SEED_NAME = Path("spec") / "seedName"
_NEEDED = (SEED_GARDENLET_READY, SEED_SYSTEM_COMPONENTS_HEALTHY, SEED_BACKUP_BUCKETS_READY)


def is_moving(shoot: Shoot) -> bool:
    """Whether the control plane is being moved from one seed to another."""
    status = shoot.status
    if status is None or shoot.spec.seed_name is None:
        return False
    if status.seed_name and status.seed_name != shoot.spec.seed_name:
        return True
    last = status.last_operation
    return last is not None and (
        last.type in MIGRATIONS or (last.type == "Restore" and last.state not in ("Succeeded", "Aborted"))
    )


def check_while_moving(shoot: Shoot, old: Shoot, backups_at: str | None) -> Faults:
    """All faults of a change of the spec while the control plane moves.

    Args:
        backups_at: seed in the Shoot's BackupEntry, or in the entry ``source-…`` by which the destination reads the
            source's bucket. Once that is the destination, the move cannot be aborted.
    """
    faults = Faults()
    home = old.status.seed_name if old.status else None
    wanted, before = shoot.spec.seed_name, old.spec.seed_name
    if wanted != before and wanted == home:
        if backups_at != home:
            faults.forbidden(
                _SEED_NAME,
                f"the move cannot be aborted: the backups are handed over to seed {backups_at}. Wait for its end, then "
                f"move back to {home}",
            )
    elif wanted not in (before, backups_at):
        faults.forbidden(_SEED_NAME, f"the control plane moves from {home} to {before}: wait for the end of the move")
    if shoot.spec.model_copy(update={"seed_name": before}) != old.spec:
        faults.forbidden(Path("spec"), f"the control plane moves to {before}: change the spec after the move")
    return faults


def check_move(shoot: Shoot, old: Shoot, source: Seed | None, destination: Seed | None) -> Faults:
    """All faults of a new move, except those that hold for any assignment of a seed."""
    faults = Faults()
    name, before = shoot.spec.seed_name, old.spec.seed_name
    if shoot.spec.model_copy(update={"seed_name": before}) != old.spec:
        faults.forbidden(_SEED_NAME, "must be the only change: change the rest of the spec before or after the move")
    status = old.status
    if status is None or status.last_operation is None or not status.uid:
        faults.forbidden(_SEED_NAME, f"the control plane in {before} is not created yet: wait for its creation")
    elif status.last_operation.type == "Create" and status.last_operation.state != "Succeeded":
        faults.forbidden(
            _SEED_NAME, f"the creation in {before} has not succeeded: wait until it has, or delete the Shoot"
        )
    hibernating = bool(shoot.spec.hibernation and shoot.spec.hibernation.enabled)
    if status is not None and hibernating != bool(status.hibernated):
        doing = "is being hibernated" if hibernating else "wakes up"
        faults.forbidden(_SEED_NAME, f"the cluster {doing}: wait until that is done")
    if source is not None and source.spec.backup is None:
        faults.forbidden(_SEED_NAME, f"seed {before} has no backup, which is needed to move etcd's data")
    if destination is None:
        return faults  # other rules report a seed that does not exist
    if destination.spec.backup is None:
        faults.forbidden(_SEED_NAME, f"seed {name} has no backup, which is needed to move etcd's data")
    elif source is not None and source.spec.backup and source.spec.backup.provider != destination.spec.backup.provider:
        faults.forbidden(
            _SEED_NAME,
            f"seed {name} has backups of provider {destination.spec.backup.provider}, "
            f"seed {before} of {source.spec.backup.provider}: etcd's data cannot move",
        )
    if destination.metadata.deletion_timestamp is not None:
        faults.forbidden(_SEED_NAME, f"seed {name} is being deleted")
    conditions = destination.status.conditions if destination.status else None
    for type_ in _NEEDED:
        if (state := condition_status(conditions, type_)) != "True":
            faults.forbidden(_SEED_NAME, f"seed {name} is not ready: condition {type_} is {state or 'not reported'}")
    if source is not None and source.spec.dns.internal.domain != destination.spec.dns.internal.domain:
        faults.forbidden(
            _SEED_NAME,
            f"seed {name} has internal domain {destination.spec.dns.internal.domain}, seed {before} "
            f"{source.spec.dns.internal.domain}: nodes would not find their API server",
        )
    return faults
