"""Objects of a Shoot that exist in its seed. Source: spec/flows.md 3."""

from temporalio import activity

from activities.clusters import Clusters
from activities.seed.namespace import shoot_uid
from api import resources
from api.contracts.flows import Survey
from api.contracts.operations import ShootTask, backup_entry_name


class SurveyActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def survey(self, task: ShootTask) -> Survey:
        """Read which objects of the Shoot exist: the result decides which tasks a deletion or migration has."""
        seed, namespace = self._clusters.seed, task.technical_id
        frame = await seed.find(resources.NAMESPACE, namespace)
        if frame is None or "deletionTimestamp" in frame["metadata"] or shoot_uid(frame) != task.shoot.uid:
            foreign = frame is not None and shoot_uid(frame) != task.shoot.uid
            return Survey(
                namespace=False, cluster=False, control_plane=False, controller_manager=False, foreign=foreign
            )
        api_server = await seed.find(resources.DEPLOYMENT, "kube-apiserver", namespace)
        manager = await seed.find(resources.DEPLOYMENT, "kube-controller-manager", namespace)
        infrastructure = await seed.find(resources.INFRASTRUCTURE, task.shoot.name, namespace)
        control_plane = await seed.find(resources.CONTROL_PLANE, task.shoot.name, namespace)
        shoot = (await self._clusters.cluster(namespace)).shoot
        entry = await self._clusters.garden.find(
            resources.CORE_BACKUP_ENTRY, backup_entry_name(task), task.shoot.namespace
        )
        workerless = not shoot["spec"]["provider"].get("workers")
        return Survey(
            namespace=True,
            cluster=api_server is not None and (workerless or infrastructure is not None),
            control_plane=control_plane is not None
            and "deletionTimestamp" not in control_plane["metadata"]
            and bool((infrastructure or {}).get("status", {}).get("providerStatus")),
            controller_manager=manager is not None,
            api_server=api_server is not None,
            backups=entry is not None and entry["spec"].get("seedName") == task.seed,
        )
