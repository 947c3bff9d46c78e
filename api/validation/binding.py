"""Whether a control plane may move to another seed. Source: spec/flows.md 1.3 and 7.

A change of ``spec.seedName`` is what Gardener has the subresource ``shoots/binding`` for.
"""

from __future__ import annotations

from api.constants import SEED_BACKUP_BUCKETS_READY, SEED_GARDENLET_READY, SEED_SYSTEM_COMPONENTS_HEALTHY
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.labels import condition_status
from api.validation.field import Faults, Path

_SEED_NAME = Path("spec") / "seedName"
_NEEDED = (SEED_GARDENLET_READY, SEED_SYSTEM_COMPONENTS_HEALTHY, SEED_BACKUP_BUCKETS_READY)


def is_moving(shoot: Shoot) -> bool:
    """Whether the control plane is on its way from one seed to another."""
    status = shoot.status
    if status is None or shoot.spec.seed_name is None:
        return False
    if status.seed_name and status.seed_name != shoot.spec.seed_name:
        return True
    last = status.last_operation
    return last is not None and (
        last.type == "Migrate" or (last.type == "Restore" and last.state not in ("Succeeded", "Aborted"))
    )


def check_while_moving(shoot: Shoot, old: Shoot, backups_at: str | None) -> Faults:
    """All faults of a change of the spec while the control plane moves.

    Args:
        backups_at: Seed that the Shoot's BackupEntry names, or its way to the bucket of the seed that it leaves, which
            is the point of no return.
    """
    faults = Faults()
    home = old.status.seed_name if old.status else None
    wanted, before = shoot.spec.seed_name, old.spec.seed_name
    if wanted != before and wanted == home:
        if backups_at != home:
            faults.forbidden(
                _SEED_NAME,
                f"the backups are handed over to {backups_at}: the move can only go on, "
                f"back to {home} leads another move once it is done",
            )
    elif wanted not in (before, backups_at):
        faults.forbidden(_SEED_NAME, f"the control plane moves from {home} to {before}: wait for the end of that")
    if shoot.spec.model_copy(update={"seed_name": before}) != old.spec:
        faults.forbidden(Path("spec"), f"the control plane moves to {before}: change the spec when it is there")
    return faults


def check_move(shoot: Shoot, old: Shoot, source: Seed | None, destination: Seed | None) -> Faults:
    """All faults of a move that begins, beside what binds any choice of a seed."""
    faults = Faults()
    name, before = shoot.spec.seed_name, old.spec.seed_name
    if shoot.spec.model_copy(update={"seed_name": before}) != old.spec:
        faults.forbidden(_SEED_NAME, "must be the only change: change the rest of the spec before or after the move")
    status = old.status
    if status is None or status.last_operation is None or not status.uid:
        faults.forbidden(_SEED_NAME, f"the control plane in {before} is not created yet: wait for that")
    elif status.last_operation.type == "Create" and status.last_operation.state != "Succeeded":
        faults.forbidden(_SEED_NAME, f"the creation in {before} has not succeeded: let it, or delete the Shoot")
    wanted_asleep = bool(shoot.spec.hibernation and shoot.spec.hibernation.enabled)
    if status is not None and wanted_asleep != bool(status.hibernated):
        faults.forbidden(_SEED_NAME, f"the cluster {'falls asleep' if wanted_asleep else 'wakes up'}: wait for that")
    if source is not None and source.spec.backup is None:
        faults.forbidden(_SEED_NAME, f"seed {before} has no backup, by which etcd's data would move")
    if destination is None:
        return faults  # that it does not exist is said elsewhere
    if destination.spec.backup is None:
        faults.forbidden(_SEED_NAME, f"seed {name} has no backup, by which etcd's data would move")
    elif source is not None and source.spec.backup and source.spec.backup.provider != destination.spec.backup.provider:
        faults.forbidden(
            _SEED_NAME,
            f"seed {name} has its backups with {destination.spec.backup.provider}, "
            f"{before} with {source.spec.backup.provider}",
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
            f"seed {name} has internal domain {destination.spec.dns.internal.domain}, {before} "
            f"{source.spec.dns.internal.domain}: nodes would not find their API server",
        )
    return faults
