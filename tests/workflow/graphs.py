"""The tasks of each operation, as the tests' Shoot has them."""

import pytest

from api.contracts.flows import FlowInput, ShootFacts
from api.contracts.operations import OperationType, ShootRef, ShootTask
from tests.workflow.world import DESTINATION, SEED, SHOOT
from workflows.flow import Flow
from workflows.shoot.decision import FlowKind
from workflows.shoot.flows import FLOWS

FACTS = ShootFacts(credentials="1", managed_issuer=True, ssh_access=False)
NO_RETURN = "deploy_source_backup_entry_there"
"""The first trace of the destination: from then on a move cannot be aborted."""


def asked(what: OperationType, shoot: ShootRef = SHOOT) -> FlowInput:
    destination = DESTINATION if what is OperationType.MIGRATE else ""
    task = ShootTask(shoot=shoot, technical_id="shoot--local--demo", seed=SEED, generation=1, operation=what,
                     destination=destination)  # fmt: skip
    sources = () if what is OperationType.DELETE else tuple(sorted(filter(None, (SEED, destination))))
    return FlowInput(task=task, facts=FACTS, sources=sources)


def graph(what: OperationType, shoot: ShootRef = SHOOT) -> Flow:
    kinds = {OperationType.DELETE: FlowKind.DELETE, OperationType.MIGRATE: FlowKind.MIGRATE}
    return FLOWS[kinds.get(what, FlowKind.RECONCILE)].build(asked(what, shoot))


def one_of_four(number: int) -> list[pytest.MarkDecorator]:
    """Marks of a case with this number, where a normal run has one of four cases, and the slow tests the others."""
    return [] if number % 4 == 0 else [pytest.mark.slow]


def before_no_return() -> list[str]:
    flow = graph(OperationType.MIGRATE)
    return [name for name in flow.names if flow.comes_after(NO_RETURN, name) and not flow.skipped(name)]
