"""Hibernate a control plane: none of its pods runs, and no data are lost.

A reconciliation hibernates the Shoot at its end if the spec enables hibernation; otherwise it wakes the Shoot up. While
hibernation is enabled, the API server and its etcds keep the replicas that they have, and components that need the API
server have no replicas once the API server has none. So a reconciliation of a hibernated Shoot starts no pod.
Order: spec/flows.md 6, invariant 13.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from temporalio import activity

from activities.clusters import Clusters, ClusterView
from activities.components import (
    apiserver,
    cluster_autoscaler,
    controller_manager,
    gateway,
    machine_controller_manager,
    scheduler,
)
from activities.components import etcd as etcd_component
from activities.heartbeat import heartbeating
from activities.seed import rollout
from activities.seed.facts import Networks
from activities.seed.sidecar import ask_sidecar
from api import constants, resources
from api.contracts.operations import LEAVING, ShootTask, TaskResult
from kube.cache import Cache
from kube.client import KubeClient, Object
from kube.errors import NotFound
from kube.objects import label_selector

_EMPTY_SECONDS = 120.0
"""Seconds in which nodes and pods must be gone. Source: spec/flows.md 2, 2 min per attempt."""
_STOP_SECONDS = 90.0
"""Seconds in which the pods of one stage must end."""
_NAMED = 5
"""Maximum number of objects that a message names."""
_RUNNING = "status.phase=Running"
"""Field selector for pods."""
_LEADERS = (controller_manager.NAME, scheduler.NAME)
"""Components that leave their Lease behind when they stop. After a wake-up they would wait 15 s for its end."""
_CONTROL_PLANE = "gardener.cloud/role=controlplane"
_MANAGED_SLICES = "endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io"


def wanted_asleep(view: ClusterView, task: ShootTask) -> bool:
    """Whether the Shoot is to be hibernated. A deletion and a migration wake the Shoot up."""
    return view.hibernated and task.operation not in LEAVING


async def is_asleep(seed: KubeClient, view: ClusterView, task: ShootTask) -> bool:
    """Whether the Shoot is to be hibernated and its API server has no replicas: components that need it are idle."""
    if not wanted_asleep(view, task):
        return False
    live = await seed.find(resources.DEPLOYMENT, apiserver.NAME, task.technical_id)
    return live is None or not live["spec"].get("replicas")


async def apiserver_replicas(seed: KubeClient, view: ClusterView, task: ShootTask, awake: int) -> int:
    """Replicas of the API server: while the Shoot is to be hibernated the present number, 0 without a Deployment."""
    if not wanted_asleep(view, task):
        return awake
    live = await seed.find(resources.DEPLOYMENT, apiserver.NAME, task.technical_id)
    return int(live["spec"].get("replicas") or 0) if live else 0


class HibernationActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def scale_autoscaler_to_zero(self, task: ShootTask) -> TaskResult:
        """Stop the cluster autoscaler before machines are deleted: it would request new ones. May run twice."""
        await heartbeating(self._stop(task.technical_id, lambda name: name == cluster_autoscaler.NAME))
        return TaskResult()

    @activity.defn
    async def scale_machine_controller_manager_to_zero(self, task: ShootTask) -> TaskResult:
        """Stop the machine-controller-manager, when no machine is left. A second run finds it stopped."""
        await heartbeating(self._stop(task.technical_id, lambda name: name == machine_controller_manager.NAME))
        return TaskResult()

    @activity.defn
    async def hibernate_control_plane(self, task: ShootTask) -> TaskResult:
        """Stop the components that need the API server, then the API server, then its etcds.

        The data of the etcds stay, and are backed up. A second run stops what still runs.

        Raises:
            TimeoutError: nodes, running pods or their addresses are left in the cluster, or a pod does not end.
        """
        namespace = task.technical_id
        view = await self._clusters.cluster(namespace)
        asleep = await is_asleep(self._clusters.seed, view, task)
        if not asleep:
            await self._await_empty(namespace, Networks.of(view).pods)
        await heartbeating(self._stop(namespace, lambda name: name != apiserver.NAME))
        if not asleep:
            shoot = await self._clusters.shoot(namespace)
            for name in _LEADERS:
                await shoot.delete(resources.LEASE, name, "kube-system")
        await self._clusters.forget_shoot(namespace)
        await heartbeating(self._stop(namespace, lambda name: name == apiserver.NAME))
        await rollout.delete(self._clusters.seed, [(resources.CONFIG_MAP, gateway.EXPOSURE)], namespace)
        await heartbeating(asyncio.gather(*(self._stop_etcd(namespace, role) for role in etcd_component.ROLES)))
        return TaskResult()

    # An empty cluster

    async def _await_empty(self, namespace: str, pod_cidrs: Sequence[str]) -> None:
        """Wait until no node, no running pod and no address of a pod is left.

        Controllers must observe that before they stop. Otherwise they would take the old state for the present one
        after the wake-up, and the API server would call webhooks at addresses where no pod answers.
        """
        shoot = await self._clusters.shoot(namespace)
        holds = _holds(pod_cidrs)
        nodes = Cache(shoot, resources.NODE, keep=_named)
        pods = Cache(shoot, resources.POD, fields=_RUNNING, keep=_named)
        addresses = Cache(
            shoot,
            resources.ENDPOINT_SLICE,
            labels=_MANAGED_SLICES,
            keep=lambda each: _named(each) if holds(each) else None,
        )

        async def gone(cache: Cache, what: str) -> None:
            await heartbeating(
                _none_left(cache, what, _any, _EMPTY_SECONDS), details=lambda: f"waiting until no {what} are left"
            )

        async with nodes, pods, addresses:
            await gone(nodes, "nodes")
            await _delete_lost_pods(shoot)
            await gone(pods, "running pods")
            await gone(addresses, "pod addresses")
        await _delete_drivers(shoot)
        for attachment in await shoot.list(resources.VOLUME_ATTACHMENT, metadata_only=True):
            await _release(shoot, attachment)

    # Stages

    async def _stop(self, namespace: str, chosen: Callable[[str], bool]) -> None:
        """Scale the chosen Deployments of the control plane to zero and wait until their pods have ended."""
        seed = self._clusters.seed
        found = await seed.list(resources.DEPLOYMENT, namespace, labels=_CONTROL_PLANE)
        doomed = [each for each in found if chosen(each["metadata"]["name"])]
        await asyncio.gather(*(self._scale_to_zero(each) for each in doomed))
        await asyncio.gather(*(self._await_stopped(each) for each in doomed))

    async def _scale_to_zero(self, deployment: Object) -> None:
        if deployment["spec"].get("replicas") != 0:
            metadata = deployment["metadata"]
            await self._clusters.seed.patch(
                resources.DEPLOYMENT, metadata["name"], metadata["namespace"], {"spec": {"replicas": 0}}
            )

    async def _await_stopped(self, deployment: Object) -> None:
        name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
        deployments = self._clusters.seed_caches.of(resources.DEPLOYMENT)
        await deployments.wait_for(name, namespace, _is_scaled_to_zero, _STOP_SECONDS)
        await self._await_no_pods(namespace, deployment["spec"]["selector"]["matchLabels"])

    async def _stop_etcd(self, namespace: str, role: str) -> None:
        name = etcd_component.name_of(role)
        seed = self._clusters.seed
        live = await seed.find(resources.ETCD, name, namespace)
        if live is None:
            return
        if live["spec"]["replicas"]:
            if (live["spec"].get("backup") or {}).get("store"):
                # Take a last delta snapshot: hibernation may last for days, and if the seed is lost meanwhile, changes
                # that are not in the bucket are lost.
                await ask_sidecar(seed, namespace, "snapshot/delta", f"last snapshot of {namespace}/{name}")
            ask = {constants.OPERATION: constants.OPERATION_RECONCILE}
            live = await seed.patch(
                resources.ETCD, name, namespace, {"metadata": {"annotations": ask}, "spec": {"replicas": 0}}
            )
        generation = live["metadata"]["generation"]
        stopped = await self._clusters.seed_caches.of(resources.ETCD).wait_for(
            name, namespace, lambda etcd: _etcd_at_rest(etcd, generation), _STOP_SECONDS
        )
        await self._await_no_pods(namespace, stopped["status"]["labelSelector"]["matchLabels"])

    async def _await_no_pods(self, namespace: str, labels: Mapping[str, str]) -> None:
        pods = self._clusters.seed_caches.of(resources.POD, namespace, labels=label_selector(labels))
        await _none_left(pods, "pods", _any, _STOP_SECONDS)


async def _none_left(cache: Cache, what: str, counts: Callable[[Object], bool], timeout: float) -> None:
    """Wait until ``counts`` holds for no object of the cache. Raises TimeoutError with the names of those left."""
    try:
        await cache.wait_until(lambda each: not any(map(counts, each.list())), timeout)
    except TimeoutError as error:
        left = ", ".join(sorted(_name(each) for each in cache.list() if counts(each))[:_NAMED])
        raise TimeoutError(f"{what} are left after {timeout:.0f} s: {left}" if left else str(error)) from None


async def _delete_lost_pods(shoot: KubeClient) -> None:
    """Delete the pods of a cluster without nodes at once: the machines that ran them are gone.

    Without that, kube-controller-manager deletes them 40 to 60 s later.
    """
    for pod in await shoot.list(resources.POD, fields=_RUNNING, metadata_only=True):
        metadata = pod["metadata"]
        await shoot.delete(resources.POD, metadata["name"], metadata["namespace"], uid=metadata["uid"], grace_seconds=0)


async def _delete_drivers(shoot: KubeClient) -> None:
    """Delete the lists of CSI drivers of the nodes that are gone.

    kube-controller-manager may stop before it does that. After a wake-up, a machine with the name of an earlier one
    would find that one's list, and its kubelet would refuse the drivers until the list is deleted.
    """
    for drivers in await shoot.list(resources.CSI_NODE, metadata_only=True):
        await shoot.delete(resources.CSI_NODE, drivers["metadata"]["name"], uid=drivers["metadata"]["uid"])


async def _release(shoot: KubeClient, attachment: Object) -> None:
    """Delete the attachment of a volume to a machine that is gone: the volume's driver runs no more to do that."""
    metadata = attachment["metadata"]
    await shoot.delete(resources.VOLUME_ATTACHMENT, metadata["name"], uid=metadata["uid"])
    if metadata.get("finalizers"):
        try:
            patch = {"metadata": {"uid": metadata["uid"], "finalizers": None}}
            await shoot.patch(resources.VOLUME_ATTACHMENT, metadata["name"], None, patch)
        except NotFound:
            return


def _named(obj: Object) -> Object:
    """Name and version of an object: the cache only has to know that the object exists."""
    metadata = obj["metadata"]
    return {"metadata": {key: metadata[key] for key in ("name", "namespace", "resourceVersion") if key in metadata}}


def _any(_: Object) -> bool:
    return True


def _holds(cidrs: Iterable[str]) -> Callable[[Object], bool]:
    """Return a function that tells whether an EndpointSlice has an address in one of these networks."""
    networks = [ipaddress.ip_network(cidr) for cidr in cidrs]

    def holds(endpoint_slice: Object) -> bool:
        if endpoint_slice.get("addressType") == "FQDN":
            return False
        addresses = (each for one in endpoint_slice.get("endpoints") or () for each in one.get("addresses") or ())
        return any(ipaddress.ip_address(address) in network for address in addresses for network in networks)

    return holds


def _is_scaled_to_zero(deployment: Object | None) -> bool:
    if deployment is None:
        return True
    status = deployment.get("status") or {}
    seen = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    return bool(seen and not deployment["spec"].get("replicas") and not status.get("replicas"))


def _etcd_at_rest(etcd: Object | None, generation: int) -> Object | None:
    """The Etcd, if its controller has rolled this generation out and no member is left; None otherwise."""
    if etcd is None or etcd["metadata"]["generation"] < generation:
        return None
    status = etcd.get("status") or {}
    asked = (etcd["metadata"].get("annotations") or {}).get(constants.OPERATION)
    done = not asked and status.get("observedGeneration") == etcd["metadata"]["generation"]
    return etcd if done and not status.get("replicas") and "labelSelector" in status else None


def _name(obj: Mapping[str, Any]) -> str:
    metadata = obj["metadata"]
    return "/".join(part for part in (metadata.get("namespace"), metadata["name"]) if part)
