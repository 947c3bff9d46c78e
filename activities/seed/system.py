"""Components that the gardenlet deploys into namespace ``garden`` of its seed, for the seed itself.

All objects are applied by name, so a second run changes nothing. Each deployment has a deletion for a seed that is
retired.
"""

from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from activities.components import excess_capacity, priority, resource_manager, resource_manager_webhooks
from activities.seed import rollout
from activities.seed.extension_objects import MANAGER
from api import resources
from api.constants import GARDEN_NAMESPACE, SEED_CLASS
from api.contracts.operations import SeedTask, TaskResult
from api.labels import pod_security
from api.network_policies import SERVICE_NAME
from kube.client import KubeClient
from kube.objects import label_selector

_MINUTE = 60.0
_MANAGED_RESOURCES = f"{resources.MANAGED_RESOURCE.plural}.{resources.MANAGED_RESOURCE.group}"
"""Name of the kind's CustomResourceDefinition. A seed that was never reconciled does not have it."""


class SeedSystemActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters, *, network_policies: bool = False) -> None:
        """``network_policies``: whether the resource manager makes NetworkPolicies."""
        self._clusters = clusters
        self._network_policies = network_policies

    @activity.defn
    async def deploy_seed_priority_classes(self, task: SeedTask) -> TaskResult:
        """Apply the PriorityClasses of control planes and of the seed's components."""
        await apply_priority_classes(self._clusters.seed)
        return TaskResult()

    @activity.defn
    async def delete_seed_priority_classes(self, task: SeedTask) -> TaskResult:
        """Delete the PriorityClasses, after all components. Pods keep the priority that they got from a class."""
        doomed = [(resources.PRIORITY_CLASS, each["metadata"]["name"]) for each in priority.objects()]
        await rollout.delete(self._clusters.seed, doomed, None)
        return TaskResult()

    @activity.defn
    async def deploy_seed_resource_manager(self, task: SeedTask) -> TaskResult:
        """Deploy the resource manager that applies ManagedResources of class ``seed``, and wait until it is ready.

        Raises:
            ApplicationError: ``ForeignDeployment``, while the resource manager of an earlier version, which operators
                installed by a chart, has the name. The attempt that finds it uninstalled succeeds.
        """
        await self._clusters.seed.apply(garden_namespace(), manager=MANAGER)
        live = await self._clusters.seed.find(resources.DEPLOYMENT, resource_manager.NAME, GARDEN_NAMESPACE)
        if live is not None and live["spec"]["selector"].get("matchLabels") != resource_manager.SELECT:
            release = (live["metadata"].get("labels") or {}).get("app.kubernetes.io/instance", "resource-manager")
            raise ApplicationError(
                f"Deployment {GARDEN_NAMESPACE}/{resource_manager.NAME} selects other pods than the gardenlet's:"
                f" uninstall the chart that brought it (helm uninstall {release} -n {GARDEN_NAMESPACE})",
                type="ForeignDeployment",
            )
        replicas = await self._replicas()
        wanted = resource_manager.seed_objects(replicas, policies=self._network_policies)
        await rollout.deploy(self._clusters.seed, wanted)
        await rollout.wait_deployment(self._clusters.seed_caches, resource_manager.NAME, GARDEN_NAMESPACE, 5 * _MINUTE)
        if not self._network_policies:
            await self._delete_network_policies()
        return TaskResult(note=f"{replicas} replicas")

    @activity.defn
    async def delete_seed_resource_manager(self, task: SeedTask) -> TaskResult:
        """Wait until the seed has no ManagedResource of class ``seed``, and delete the resource manager.

        The resource manager deletes the objects of a ManagedResource, and then removes its finalizer: without the
        resource manager both would stay. A second run finds nothing left to delete.
        """
        seed = self._clusters.seed
        if await seed.find(resources.CUSTOM_RESOURCE_DEFINITION, _MANAGED_RESOURCES) is not None:
            await rollout.wait_none_left(
                self._clusters.seed_caches,
                resources.MANAGED_RESOURCE,
                None,
                5 * _MINUTE,
                what=f"ManagedResources of class {SEED_CLASS}",
                concerns=lambda each: each["spec"].get("class") == SEED_CLASS,
            )
        await rollout.delete_component(seed, resource_manager.NAME, GARDEN_NAMESPACE, resource_manager.SELECT)
        # A process that still runs would make its Secret and its webhooks again.
        await rollout.wait_pods_gone(self._clusters.seed_caches, GARDEN_NAMESPACE, resource_manager.SELECT, 2 * _MINUTE)
        await self._delete_network_policies()
        others = (resources.SERVICE, resources.SERVICE_ACCOUNT, resources.LEASE)
        webhooks = (resources.SERVICE, resources.SECRET)
        doomed = [
            *((each, resource_manager.NAME) for each in others),
            *((each, resource_manager_webhooks.SEED_SERVICE) for each in webhooks),
        ]
        await rollout.delete(seed, doomed, GARDEN_NAMESPACE)
        roles = [
            # The resource manager registers its webhooks itself, and does not run any more.
            (resources.MUTATING_WEBHOOK_CONFIGURATION, resource_manager_webhooks.OF_SEED),
            (resources.CLUSTER_ROLE_BINDING, resource_manager.SEED_ROLE),
            (resources.CLUSTER_ROLE, resource_manager.SEED_ROLE),
        ]
        await rollout.delete(seed, roles, None)
        return TaskResult()

    @activity.defn
    async def deploy_seed_excess_capacity(self, task: SeedTask) -> TaskResult:
        """Apply the placeholders that the Seed wants, and delete others.

        It does not wait for them: placeholders run only where there is room. A second run changes nothing.
        """
        seed = await self._clusters.garden.get(resources.SEED, task.name)
        wanted = excess_capacity.objects(seed)
        for each in wanted:
            await self._clusters.seed.apply(each, manager=MANAGER)
        await self._delete_placeholders(kept={each["metadata"]["name"] for each in wanted})
        return TaskResult(note=f"{len(wanted)} reservations")

    @activity.defn
    async def delete_seed_excess_capacity(self, task: SeedTask) -> TaskResult:
        """Delete all placeholders. A second run finds none."""
        await self._delete_placeholders(kept=set())
        return TaskResult()

    async def _delete_placeholders(self, kept: set[str]) -> None:
        labels = label_selector(excess_capacity.SELECT)
        live = await self._clusters.seed.list(resources.DEPLOYMENT, GARDEN_NAMESPACE, labels=labels)
        names = [each["metadata"]["name"] for each in live if each["metadata"]["name"] not in kept]
        await rollout.delete(self._clusters.seed, [(resources.DEPLOYMENT, name) for name in names], GARDEN_NAMESPACE)

    async def _delete_network_policies(self) -> None:
        """Delete the NetworkPolicies that the resource manager has made, when it makes none any more."""
        seed = self._clusters.seed
        for each in await seed.list(resources.NETWORK_POLICY, labels=SERVICE_NAME, metadata_only=True):
            metadata = each["metadata"]
            await seed.delete(resources.NETWORK_POLICY, metadata["name"], metadata["namespace"], uid=metadata["uid"])

    async def _replicas(self) -> int:
        """Replicas of a component: two if they can run on two nodes; two on one node would be lost together."""
        nodes = await self._clusters.seed.list(resources.NODE, metadata_only=True)
        return min(2, max(1, len(nodes)))


async def apply_priority_classes(seed: KubeClient) -> None:
    """Apply the PriorityClasses of the seed.

    A gardenlet does so at its start, too. Its tasks name the classes in pods, and a pod of an unknown class is not
    created: etcd would stop if an earlier controller-manager, whose flow of the seed lacks the classes, were in place.
    """
    for each in priority.objects():
        await seed.apply(each, manager=MANAGER)


def garden_namespace() -> dict[str, Any]:
    """Namespace ``garden`` of a seed. Operators run pods of their own there, for example log collectors."""
    labels = {"gardener.cloud/role": GARDEN_NAMESPACE, **pod_security("baseline")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": GARDEN_NAMESPACE, "labels": labels}}
