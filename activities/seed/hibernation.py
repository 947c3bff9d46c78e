"""A control plane asleep: no pod of it runs, and nothing of its data is lost.

A Shoot falls asleep at the end of a reconciliation that finds it wanted so, and wakes in one that does not. While it
is wanted asleep, the API server and its etcds keep the replicas they have, and what lives on the API server has none
once that has none: a reconciliation of a sleeping Shoot wakes nothing. Order: spec/flows.md 6, invariant 13.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from temporalio import activity

from activities.clusters import Clusters, ClusterView
from activities.components import apiserver, cluster_autoscaler, gateway, machine_controller_manager
from activities.components import etcd as etcd_component
from activities.heartbeat import heartbeating
from activities.seed import rollout
from activities.seed.facts import Networks
from activities.seed.sidecar import ask_sidecar
from api import constants, resources
from api.operations import OperationType, ShootTask, TaskResult
from kube.cache import Cache
from kube.client import KubeClient, Object
from kube.errors import NotFound

_EMPTY_SECONDS = 120.0
"""For nodes and pods to go. Source: spec/flows.md 2, 2 min a try; the controller manager ends lost pods after 80 s."""
_STOP_SECONDS = 90.0
"""For the pods of one stage to end."""
_NAMED = 5
"""Objects that a message names."""
_CONTROL_PLANE = "gardener.cloud/role=controlplane"
_MANAGED_SLICES = "endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io"


def wanted_asleep(view: ClusterView, task: ShootTask) -> bool:
    """Whether the owner wants the Shoot asleep; it is woken to be deleted, and to leave its seed."""
    return view.hibernated and task.operation not in (OperationType.DELETE, OperationType.MIGRATE)


async def is_asleep(seed: KubeClient, view: ClusterView, task: ShootTask) -> bool:
    """Whether the Shoot is wanted asleep and its API server is: what lives on it has nothing to do."""
    if not wanted_asleep(view, task):
        return False
    live = await seed.find(resources.DEPLOYMENT, apiserver.NAME, task.technical_id)
    return live is None or not live["spec"].get("replicas")


async def apiserver_replicas(seed: KubeClient, view: ClusterView, task: ShootTask, awake: int) -> int:
    """As many as there are while the Shoot falls asleep or sleeps, none if there never were any."""
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
        """Stop it before the machines go: it would have new ones made. A second run finds it stopped."""
        await heartbeating(self._stop(task.technical_id, lambda name: name == cluster_autoscaler.NAME))
        return TaskResult()

    @activity.defn
    async def scale_machine_controller_manager_to_zero(self, task: ShootTask) -> TaskResult:
        """Stop it, when no machine is left for it to look after. A second run finds it stopped."""
        await heartbeating(self._stop(task.technical_id, lambda name: name == machine_controller_manager.NAME))
        return TaskResult()

    @activity.defn
    async def hibernate_control_plane(self, task: ShootTask) -> TaskResult:
        """Stop what lives on the API server, then the API server, then its etcds. Their data stay, and are backed up.

        A second run goes on with what still runs.

        Raises:
            TimeoutError: nodes, running pods or their addresses are left in the cluster, or a pod does not end.
        """
        namespace = task.technical_id
        view = await self._clusters.cluster(namespace)
        if not await is_asleep(self._clusters.seed, view, task):
            await self._await_empty(namespace, Networks.of(view).pods)
        await self._clusters.forget_shoot(namespace)
        await heartbeating(self._stop(namespace, lambda name: name != apiserver.NAME))
        await heartbeating(self._stop(namespace, lambda name: name == apiserver.NAME))
        await rollout.delete(self._clusters.seed, [(resources.CONFIG_MAP, gateway.EXPOSURE)], namespace)
        await heartbeating(asyncio.gather(*(self._stop_etcd(namespace, role) for role in etcd_component.ROLES)))
        return TaskResult()

    # An empty cluster

    async def _await_empty(self, namespace: str, pod_cidrs: Sequence[str]) -> None:
        """Return when no node, running pod or pod's address is left.

        Controllers must have seen that before they stop: after the awakening they would take the old state for
        the new one, and webhooks would be called where nobody answers.
        """
        shoot = await self._clusters.shoot(namespace)
        holds = _holds(pod_cidrs)
        stages = (
            (Cache(shoot, resources.NODE, keep=_named), "nodes"),
            (Cache(shoot, resources.POD, fields="status.phase=Running", keep=_named), "running pods"),
            (
                Cache(
                    shoot,
                    resources.ENDPOINT_SLICE,
                    labels=_MANAGED_SLICES,
                    keep=lambda each: _named(each) if holds(each) else None,
                ),
                "pod addresses",
            ),
        )
        async with contextlib.AsyncExitStack() as stack:
            for cache, _ in stages:
                await stack.enter_async_context(cache)
            for cache, what in stages:
                await heartbeating(_none_left(cache, what, _any, _EMPTY_SECONDS), details=partial(_waiting_for, what))
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
                # It sleeps for days, perhaps; were its seed lost meanwhile, its last changes would be.
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
        pods = self._clusters.seed_caches.of(resources.POD, namespace, labels=rollout.selector(labels))
        await _none_left(pods, "pods", _any, _STOP_SECONDS)


def _waiting_for(what: str) -> str:
    return f"waiting until no {what} are left"


async def _none_left(cache: Cache, what: str, counts: Callable[[Object], bool], timeout: float) -> None:
    """Return when no object of the cache counts any more. Raises TimeoutError that names what is left."""
    try:
        await cache.wait_until(lambda each: not any(map(counts, each.list())), timeout)
    except TimeoutError as error:
        left = ", ".join(sorted(_name(each) for each in cache.list() if counts(each))[:_NAMED])
        raise TimeoutError(f"{what} are left after {timeout:.0f} s: {left}" if left else str(error)) from None


async def _release(shoot: KubeClient, attachment: Object) -> None:
    """Forget that a volume was attached to a machine that is gone: its driver runs no more to say so."""
    metadata = attachment["metadata"]
    await shoot.delete(resources.VOLUME_ATTACHMENT, metadata["name"], uid=metadata["uid"])
    if metadata.get("finalizers"):
        try:
            patch = {"metadata": {"uid": metadata["uid"], "finalizers": None}}
            await shoot.patch(resources.VOLUME_ATTACHMENT, metadata["name"], None, patch)
        except NotFound:
            return


def _named(obj: Object) -> Object:
    """Name and version of an object: whether it is there is all that is asked."""
    metadata = obj["metadata"]
    return {"metadata": {key: metadata[key] for key in ("name", "namespace", "resourceVersion") if key in metadata}}


def _any(_: Object) -> bool:
    return True


def _holds(cidrs: Iterable[str]) -> Callable[[Object], bool]:
    """Whether an EndpointSlice has an address in one of these networks."""
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
    """The Etcd once its controller has rolled this generation out and no member is left."""
    if etcd is None or etcd["metadata"]["generation"] < generation:
        return None
    status = etcd.get("status") or {}
    asked = (etcd["metadata"].get("annotations") or {}).get(constants.OPERATION)
    done = not asked and status.get("observedGeneration") == etcd["metadata"]["generation"]
    return etcd if done and not status.get("replicas") and "labelSelector" in status else None


def _name(obj: Mapping[str, Any]) -> str:
    metadata = obj["metadata"]
    return "/".join(part for part in (metadata.get("namespace"), metadata["name"]) if part)
