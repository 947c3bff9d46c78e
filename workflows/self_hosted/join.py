"""Let a machine without a control plane join a self-hosted Shoot. Source: GEP-28 (``gardenadm join``)."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.self_hosted.join import JoinActivities as Steps
    from workflows import options


@workflow.defn
class JoinSelfHostedShoot:
    """Workflow id: ``join/<technical id of the Shoot>``."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity_method(Steps.start_joining_kubelet, **options.on_machine(5.0))
        await workflow.execute_activity_method(Steps.wait_joining_node, **options.on_machine(10.0))
