"""The basis of a control plane in its seed: namespace, Cluster object with the desired state, cloud credentials."""

from collections.abc import Mapping
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters, patch_cluster
from activities.errors import permanent
from activities.garden.credentials import cloud_credentials, is_workload_identity
from activities.heartbeat import heartbeating
from activities.seed import workload_identity, zones
from activities.seed.extension_access import ExtensionAccess
from activities.seed.extension_objects import MANAGER
from activities.seed.facts import settled
from api import constants, resources
from api.contracts.operations import ShootRef, ShootTask, TaskResult
from api.decisions.profiles import profile_of, profile_reference
from api.errors import ErrorCode
from api.labels import pod_security
from api.names import project_and_shoot
from kube import namespaces
from kube.cache import Cache
from kube.errors import NotFound

NAMESPACE_DELETION_SECONDS = 15 * 60
"""Source: spec/flows.md 3."""


class NamespaceActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def deploy_namespace(self, task: ShootTask) -> TaskResult:
        """Apply the control-plane namespace and the rights of extensions in it; a second run changes nothing.

        Raises:
            ApplicationError: ``ForeignNamespace`` if the namespace belongs to another Shoot.
        """
        found = await self._clusters.seed.find(resources.NAMESPACE, task.technical_id)
        owner = shoot_uid(found) if found else None
        if owner not in (None, task.shoot.uid):
            raise ApplicationError(
                f"namespace {task.technical_id} in seed {task.seed} belongs to an earlier Shoot of this name; "
                "wait until it is gone",
                type="ForeignNamespace",
            )
        shoot = await self._shoot(task)
        seed = await self._clusters.garden.find(resources.SEED, task.seed)
        project, name = project_and_shoot(task.technical_id)
        provider = shoot["spec"]["provider"]["type"]
        live = await self._clusters.seed.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": task.technical_id,
                    "labels": {
                        "gardener.cloud/role": "shoot",
                        "shoot.gardener.cloud/provider": provider,
                        constants.SHOOT_NAME: name,
                        constants.SHOOT_NAMESPACE: task.shoot.namespace,
                        "project.gardener.cloud/name": project,
                        **_network_label(shoot),
                        **zones.LABELS,
                        # The VPN server creates a tunnel device, which no other level allows. The policy
                        # ``control-plane-pods.gardener.cloud`` allows this device, and no other such access.
                        **pod_security("privileged" if shoot["spec"]["provider"].get("workers") else "restricted"),
                    },
                    "annotations": {constants.SHOOT_UID: task.shoot.uid, **zones.annotations(shoot, seed, found)},
                },
            },
            manager=MANAGER,
        )
        if not live["metadata"].get("deletionTimestamp"):  # nothing can be created in a namespace that is being deleted
            await ExtensionAccess(self._clusters).bind(task.technical_id)
        return TaskResult(note=task.technical_id)

    @activity.defn
    async def sync_cluster(self, task: ShootTask) -> TaskResult:
        """Write the desired state of this operation to the ``Cluster`` object: Shoot, CloudProfile and Seed.

        Extensions see a NamespacedCloudProfile as a CloudProfile that is merged with its parent.

        A second run writes the same or a newer state; the three objects are replaced as a whole. The Cluster stays
        unchanged if only bookkeeping differs: progress, conditions, versions.

        Raises:
            ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if the cloud profile does not exist.
        """
        shoot = await self._shoot(task)
        cloud_profile = await profile_of(shoot, self._clusters.garden.find)
        if cloud_profile is None:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"{profile_reference(shoot) or 'the cloud profile'} of Shoot {task.shoot} does not exist: "
                "create it, or name another one in spec.cloudProfile",
            )
        seed = await self._clusters.garden.get(resources.SEED, task.seed)
        note = TaskResult(note=f"generation {shoot['metadata']['generation']}")
        spec = {
            "shoot": _bare(shoot, "Shoot"),
            "cloudProfile": _bare(cloud_profile, "CloudProfile"),
            "seed": _bare(seed, "Seed"),
        }
        pinned = await self._clusters.seed.find(resources.CLUSTER, task.technical_id)
        if pinned is not None and _settled(pinned["spec"]) == _settled(spec):
            return note
        wanted = {
            "apiVersion": resources.CLUSTER.api_version,
            "kind": "Cluster",
            "metadata": {"name": task.technical_id},
            "spec": spec,
        }
        await self._clusters.seed.apply_blindly(wanted, manager=MANAGER)
        return note

    @activity.defn
    async def deploy_cloud_secret(self, task: ShootTask) -> TaskResult:
        """Copy the user's cloud credentials into the control-plane namespace, or get a token in place of them.

        A second run changes nothing, and keeps the token of a WorkloadIdentity that is still good.

        Raises:
            ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if the binding or its credentials do not exist.
        """
        shoot = await self._shoot(task)
        try:
            source, reason = await cloud_credentials(self._clusters.garden, shoot), "the Shoot names no binding"
        except NotFound as error:
            source, reason = None, str(error)
        if source is None:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"cloud credentials of Shoot {task.shoot} cannot be read: {reason}; "
                "create the binding and its Secret, or name others in the Shoot",
            )
        place, labels = (
            {"name": "cloudprovider", "namespace": task.technical_id},
            {"gardener.cloud/purpose": "cloudprovider"},
        )
        if is_workload_identity(source):
            await workload_identity.deploy_secret(self._clusters, source, shoot, place, labels)
            return TaskResult(note=f"token of WorkloadIdentity {source['metadata']['name']}")
        await workload_identity.drop_token(self._clusters.seed, place["name"], place["namespace"])
        await self._clusters.seed.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {**place, "labels": labels},
                "type": "Opaque",
                "data": source.get("data", {}),
            },
            manager=MANAGER,
        )
        return TaskResult()

    @activity.defn
    async def ensure_cluster_identity(self, task: ShootTask) -> TaskResult:
        """Write ``status.clusterIdentity`` once; a second run finds it."""
        shoot = await self._shoot(task)
        identity = shoot.get("status", {}).get("clusterIdentity")
        if not identity:
            garden = await self._clusters.garden.find(resources.CONFIG_MAP, "cluster-identity", "kube-system")
            garden_identity = garden["data"]["cluster-identity"] if garden else "garden"
            identity = f"{task.technical_id}-{task.shoot.uid}-{garden_identity}"
            await write_shoot_status(self._clusters, task, {"clusterIdentity": identity})
        return TaskResult(note=identity)

    @activity.defn
    async def delete_namespace(self, task: ShootTask) -> TaskResult:
        """Delete the control-plane namespace if it belongs to this Shoot; a second run finds it terminating or gone."""
        await self._clusters.forget_shoot(task.technical_id)
        found = await self._clusters.seed.find(resources.NAMESPACE, task.technical_id)
        if found and shoot_uid(found) == task.shoot.uid:
            await self._clusters.seed.delete(resources.NAMESPACE, task.technical_id, uid=found["metadata"]["uid"])
        return TaskResult()

    @activity.defn
    async def wait_namespace_deleted(self, task: ShootTask) -> TaskResult:
        """Delete the objects in the control-plane namespace and wait until the namespace is gone.

        Raises:
            ApplicationError: after 15 minutes, with the namespace controller's report of the objects left.
        """
        cache = self._clusters.seed_caches.of(resources.NAMESPACE)

        def gone(live: dict[str, Any] | None) -> bool | None:
            return True if live is None or shoot_uid(live) != task.shoot.uid else None

        async def wait() -> None:
            # The etcds of the control plane have stopped before. All other pods may be killed at once.
            async with namespaces.ending(self._clusters.seed, task.technical_id, force_pods=True):
                await cache.wait_for(task.technical_id, None, gone, NAMESPACE_DELETION_SECONDS)

        try:
            await heartbeating(wait())
        except TimeoutError:
            conditions = (cache.get(task.technical_id) or {}).get("status", {}).get("conditions", [])
            left = "; ".join(each["message"] for each in conditions if each["status"] == "True")
            raise ApplicationError(
                f"namespace {task.technical_id} in seed {task.seed} still exists: {left or 'no reason is reported'}",
                type="NotReady",
            ) from None
        return TaskResult()

    @activity.defn
    async def delete_cluster(self, task: ShootTask) -> TaskResult:
        """Delete the Cluster object; a second run finds none."""
        await self._clusters.seed.delete(resources.CLUSTER, task.technical_id)
        return TaskResult()

    async def _shoot(self, task: ShootTask) -> dict[str, Any]:
        shoot = await self._clusters.garden.find(resources.SHOOT, task.shoot.name, task.shoot.namespace)
        if shoot is None or shoot["metadata"]["uid"] != task.shoot.uid:
            raise ApplicationError(
                f"Shoot {task.shoot} with uid {task.shoot.uid} does not exist any more",
                type="ShootGone",
                non_retryable=True,
            )
        return shoot


def shoot_uid(namespace: Mapping[str, Any]) -> str | None:
    """Uid of the Shoot whose control plane a namespace holds; None if it holds none."""
    uid: str | None = (namespace["metadata"].get("annotations") or {}).get(constants.SHOOT_UID)
    return uid


def shoot_of(namespace: Mapping[str, Any]) -> ShootRef | None:
    """The Shoot whose control plane a namespace holds; None if it holds none."""
    uid, labels = shoot_uid(namespace), namespace["metadata"].get("labels") or {}
    if not uid or constants.SHOOT_NAME not in labels or constants.SHOOT_NAMESPACE not in labels:
        return None
    return ShootRef(namespace=labels[constants.SHOOT_NAMESPACE], name=labels[constants.SHOOT_NAME], uid=uid)


def is_foreign(namespaces: Cache, shoot: Mapping[str, Any]) -> bool:
    """Whether ``status.technicalID`` of a Shoot names a namespace of this seed that belongs to another Shoot.

    Gardenlets find control planes by that field, but the field does not prove that they may write there.
    """
    name = (shoot.get("status") or {}).get("technicalID")
    found = namespaces.get(name) if name else None
    return found is not None and shoot_uid(found) != shoot["metadata"]["uid"]


async def write_shoot_status(clusters: Clusters, task: ShootTask, status: dict[str, Any]) -> None:
    """Write fields of the Shoot's status in the garden, and in the Cluster object that extensions read."""
    # With the uid the patch fails if another Shoot has this name now.
    patch = {"metadata": {"uid": task.shoot.uid}, "status": status}
    await clusters.garden.patch(resources.SHOOT, task.shoot.name, task.shoot.namespace, patch, subresource="status")
    await patch_cluster(clusters.seed, task.technical_id, {"spec": {"shoot": {"status": status}}})


def _settled(spec: dict[str, Any]) -> list[Any]:
    """The parts of a Cluster's spec whose change makes it necessary to write the Cluster."""

    def described(part: dict[str, Any]) -> list[Any]:
        metadata = part["metadata"]
        return [metadata.get("name"), metadata.get("annotations"), metadata.get("labels"), part.get("spec")]

    return [settled(spec["shoot"]), described(spec["cloudProfile"]), described(spec["seed"])]


def _bare(live: dict[str, Any], kind: str) -> dict[str, Any]:
    """The object with apiVersion and kind, and without the bookkeeping of the garden's API server."""
    metadata = {key: value for key, value in live["metadata"].items() if key != "managedFields"}
    return {**live, "apiVersion": resources.SHOOT.api_version, "kind": kind, "metadata": metadata}


def _network_label(shoot: dict[str, Any]) -> dict[str, str]:
    type_ = (shoot["spec"].get("networking") or {}).get("type")
    return {"networking.shoot.gardener.cloud/provider": type_} if type_ else {}
