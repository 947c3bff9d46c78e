"""Workflows that a worker of task queue ``garden`` runs."""

from workflows.earlier import ReconcileSeed
from workflows.seed import SEED_FLOWS
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
    *(flow.workflow for flow in SEED_FLOWS.values()),
    ReconcileSeed,
]
