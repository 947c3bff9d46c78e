"""Workflows of a Shoot."""

from workflows.shoot.delete import DeleteShoot
from workflows.shoot.delete_backups import DeleteBackups
from workflows.shoot.force_delete import ForceDeleteShoot
from workflows.shoot.forget import ForgetShoot
from workflows.shoot.hibernation import SwitchHibernation
from workflows.shoot.lifecycle import ShootLifecycle
from workflows.shoot.maintenance import MaintainShoot
from workflows.shoot.migrate import MigrateShoot
from workflows.shoot.reconcile import ReconcileShoot
from workflows.shoot.rotate import ROTATIONS

WORKFLOWS: list[type] = [
    ShootLifecycle,
    ReconcileShoot,
    MigrateShoot,
    DeleteShoot,
    ForceDeleteShoot,
    ForgetShoot,
    DeleteBackups,
    SwitchHibernation,
    MaintainShoot,
    *ROTATIONS.values(),
]
"""Workflows that a worker of task queue ``garden`` registers."""
