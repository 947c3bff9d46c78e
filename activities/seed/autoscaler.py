"""The cluster autoscaler, for Shoots with a pool that may grow."""

import asyncio
from collections.abc import Sequence

from temporalio import activity

from activities.clusters import Clusters
from activities.components import cluster_autoscaler
from activities.components.managed_resource import managed_resource, managed_resource_parts
from activities.components.operating_system_config import reservations
from activities.secrets.manager import SecretsManager, Which
from activities.seed import rollout
from activities.seed.facts import failure_tolerance, may_grow, replicas_awake
from api import resources
from api.contracts.operations import ShootTask, TaskResult
from api.core.v1beta1.shoot import ClusterAutoscaler
from api.extensions.v1alpha1.worker import MachineDeploymentStatus

_IN_SHOOT = f"shoot-core-{cluster_autoscaler.NAME}"
_POD_SECONDS = 60
_UNWANTED = TaskResult(note="no pool has a maximum above its minimum")


class AutoscalerActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def deploy_autoscaler(self, task: ShootTask) -> TaskResult:
        """Apply the cluster autoscaler for the machine deployments in the Worker's status, and its rights in the shoot.

        Delete all these objects if no pool may grow. A second run applies the same objects again.
        """
        namespace, seed = task.technical_id, self._clusters.seed
        view = await self._clusters.cluster(namespace)
        if not may_grow(view.shoot):
            await self._delete(namespace)
            return _UNWANTED
        secrets = await SecretsManager.of_shoot(seed, namespace, view.shoot)
        node_groups = await self._node_groups(task)
        wanted = cluster_autoscaler.Autoscaler(
            namespace=namespace,
            generic_kubeconfig=secrets.get("generic-token-kubeconfig", Which.CURRENT).name,
            settings=ClusterAutoscaler.model_validate(view.shoot["spec"]["kubernetes"].get("clusterAutoscaler") or {}),
            node_groups=node_groups,
            kubelets={
                pool["name"]: reservations(view.shoot, pool) for pool in view.shoot["spec"]["provider"]["workers"]
            },
            max_nodes=(view.cloud_profile["spec"].get("limits") or {}).get("maxNodesTotal") or 0,
            replicas=replicas_awake(view),
            failure_tolerance=failure_tolerance(view),
        )
        in_shoot = managed_resource(_IN_SHOOT, namespace, cluster_autoscaler.shoot_objects(node_groups))
        await asyncio.gather(rollout.apply(seed, in_shoot), rollout.deploy(seed, cluster_autoscaler.objects(wanted)))
        bounds = ", ".join(f"{each.name} {each.minimum}-{each.maximum}" for each in node_groups)
        return TaskResult(note=bounds, secrets=secrets.generated)

    @activity.defn
    async def delete_autoscaler(self, task: ShootTask) -> TaskResult:
        """Delete the cluster autoscaler and wait until its pods have ended. A second run continues to wait.

        Raises TimeoutError if the pods have not ended after a minute.
        """
        await self._delete(task.technical_id)
        await rollout.wait_pods_gone(
            self._clusters.seed_caches, task.technical_id, cluster_autoscaler.SELECT, _POD_SECONDS
        )
        return TaskResult()

    async def _node_groups(self, task: ShootTask) -> Sequence[MachineDeploymentStatus]:
        worker = await self._clusters.seed.get(resources.WORKER, task.shoot.name, task.technical_id)
        found = (worker.get("status") or {}).get("machineDeployments") or []
        return [MachineDeploymentStatus.model_validate(each) for each in found]

    async def _delete(self, namespace: str) -> None:
        seed = self._clusters.seed
        await rollout.delete(seed, managed_resource_parts(_IN_SHOOT), namespace)
        await rollout.delete_component(seed, cluster_autoscaler.NAME, namespace, cluster_autoscaler.SELECT, own=True)
