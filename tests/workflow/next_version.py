"""A later build of our workflows, for tests that continue workflows of an earlier build with it.

What lives for months takes a step more, behind a patch; what lives for minutes has a task more, as it stays with the
build that it began with.
"""

from datetime import timedelta

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from api.contracts.flows import FlowInput, FlowOutcome, ShootView
    from api.contracts.operations import ShootTask, TaskResult
    from api.contracts.rotation import RotationInput
    from workflows.garden import WORKFLOWS
    from workflows.shoot.lifecycle import LifecycleInput, ShootLifecycle
    from workflows.shoot.reconcile import ReconcileShoot
    from workflows.shoot.rotate import RotateCertificateAuthorities

LOOK_AT_ALERTS = "look-at-alerts"
"""Patch, and activity in the garden."""
CHECK_ALERTS = "check_alerts"
"""Task of a reconciliation, in the seed."""


async def _look_at_alerts(of: str) -> None:
    if workflow.patched(LOOK_AT_ALERTS):
        await workflow.execute_activity(LOOK_AT_ALERTS, of, start_to_close_timeout=timedelta(seconds=30))


class AlertActivities:
    @activity.defn(name=CHECK_ALERTS)
    async def check_alerts(self, task: ShootTask) -> TaskResult:
        return TaskResult()


@workflow.defn(name="ShootLifecycle")
class NextLifecycle(ShootLifecycle):
    """Reads alerts before it reads the Shoot: in the middle of the loop that it runs for months."""

    @workflow.run
    async def run(self, request: LifecycleInput) -> None:
        await super().run(request)

    async def _read_shoot(self) -> ShootView | None:
        await _look_at_alerts("lifecycle")
        return await super()._read_shoot()


@workflow.defn(name="RotateCertificateAuthorities")
class NextRotation(RotateCertificateAuthorities):
    """Reads alerts before it requests the completion."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await super().run(request)

    async def _ask_for(self, operation: str, forced: str = "") -> None:
        await _look_at_alerts("rotation")
        await super()._ask_for(operation, forced)


@workflow.defn(name="ReconcileShoot")
class NextReconcile(ReconcileShoot):
    """One task more, in the middle of the graph."""

    @workflow.init
    def __init__(self, request: FlowInput) -> None:
        super().__init__(request)
        self.graph.add(AlertActivities.check_alerts, after=["wait_apiserver"])

    @workflow.run
    async def run(self, request: FlowInput) -> FlowOutcome:
        return await super().run(request)


_NEXT: dict[type, type] = {
    ShootLifecycle: NextLifecycle,
    RotateCertificateAuthorities: NextRotation,
    ReconcileShoot: NextReconcile,
}
NEXT_WORKFLOWS: list[type] = [_NEXT.get(each, each) for each in WORKFLOWS]
