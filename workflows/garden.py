"""Workflows that a worker of task queue ``garden`` runs."""

from workflows.seed import ReconcileSeed
from workflows.shoot.flows import FLOWS
from workflows.shoot.hibernation import SwitchHibernation
from workflows.shoot.lifecycle import ShootLifecycle
from workflows.shoot.maintenance import MaintainShoot
from workflows.shoot.rotate import ROTATIONS

WORKFLOWS: list[type] = [
    ShootLifecycle,
    *dict.fromkeys(flow.workflow for flow in FLOWS.values()),
    SwitchHibernation,
    MaintainShoot,
    *ROTATIONS.values(),
    ReconcileSeed,
]
