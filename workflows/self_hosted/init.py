"""Make the control plane of a self-hosted Shoot on its first machine.

keys of the backup -> secrets -> backup of the keys -> kubelet -> static pods -> API server is ready
-> network, Services and DNS -> node is ready -> exposure has an address, or a DNS record exists -> kubeconfig.

Source: GEP-28 (``gardenadm init``), GEP-36 (exposure).
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.self_hosted.init import SelfHostedActivities as Steps
    from workflows import options


@workflow.defn
class InitSelfHostedShoot:
    """Workflow id: ``init/<technical id of the Shoot>``."""

    @workflow.run
    async def run(self, exposed: bool, named: bool = False) -> None:
        """``exposed``: whether the API server gets an exposure. ``named``: whether it gets a DNS record."""
        exposure = ((Steps.deploy_self_hosted_exposure, 2.0), (Steps.wait_self_hosted_exposure, 5.0))
        for step, minutes in (
            (Steps.restore_self_hosted_keys, 2.0),
            (Steps.make_self_hosted_secrets, 2.0),
            (Steps.back_up_self_hosted_keys, 2.0),
            (Steps.start_self_hosted_kubelet, 5.0),
            (Steps.deploy_self_hosted_control_plane, 2.0),
            # Etcd may restore its data before.
            (Steps.wait_self_hosted_apiserver, 60.0),
            (Steps.deploy_self_hosted_system, 2.0),
            (Steps.wait_self_hosted_node, 10.0),
            *(exposure if exposed else ()),
            *(((Steps.name_self_hosted_apiserver, 5.0),) if named else ()),
            (Steps.write_self_hosted_kubeconfig, 2.0),
        ):
            await workflow.execute_activity_method(step, **options.on_machine(minutes))
