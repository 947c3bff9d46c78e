"""Renew certificates of a control plane's machine that end soon.

secrets -> files of the static pods -> kubelet -> API server is ready -> static pods run -> kubeconfig.

The kubelet and the pods whose certificates have changed start again. API server and etcd go on: their certificates end
with their authorities. A kubelet that has just started must not find a static pod changed: it waits two minutes for the
volumes of the old pod before it stops it.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.self_hosted.init import SelfHostedActivities as Steps
    from workflows import options


@workflow.defn
class RenewSelfHostedShoot:
    """Workflow id: ``renew/<technical id of the Shoot>``."""

    @workflow.run
    async def run(self, exposed: bool) -> None:
        """``exposed``: whether the kubeconfig has the address of an exposure."""
        for step, minutes in (
            (Steps.make_self_hosted_secrets, 2.0),
            (Steps.deploy_self_hosted_control_plane, 2.0),
            (Steps.start_self_hosted_kubelet, 5.0),
            (Steps.wait_self_hosted_apiserver, 5.0),
            (Steps.wait_self_hosted_pods, 5.0),
            *(((Steps.wait_self_hosted_exposure, 5.0),) if exposed else ()),
            (Steps.write_self_hosted_kubeconfig, 2.0),
        ):
            await workflow.execute_activity_method(step, **options.on_machine(minutes))
