"""Activities for an etcd that has members in two seeds while a control plane moves live.

Each runs in the source, or in the destination, or in both. To undo a handover, they run with the seeds exchanged.
Why: docs/decisions/0026-members-of-two-seeds-in-one-cluster.md.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any, NoReturn

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from activities.components import apiserver, etcd, etcd_between_seeds
from activities.heartbeat import heartbeating
from activities.seed import rollout
from activities.seed.gateway import gateway_address
from activities.seed.sidecar import ask_sidecar
from api import resources
from api.contracts.operations import OtherMembers, ShootTask, TaskResult
from api.decisions.conditions import find_condition
from etcd.access import tls_of
from etcd.client import EtcdClient, EtcdError
from etcd.handover import Unsafe, let_others_lead, remove_all_but
from kube.client import KubeClient, Object
from kube.objects import label_selector

_NAME = etcd.name_of(etcd.MAIN)
_JOINED_SECONDS = 8 * 60.0
"""How long three members join. They join one by one, each within seconds if the etcd is not large."""
_SERVING_SECONDS = 5 * 60.0
_UNAVAILABLE = "LiveMigrationUnavailable"


class EtcdBetweenSeedsActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def expose_etcd_members(self, task: ShootTask) -> TaskResult:
        """Make this seed's gateway route to the members of etcd-main. Note: the gateway's address, the members' prefix.

        A second run applies the same again.

        Raises:
            ApplicationError: ``LiveMigrationUnavailable`` (final) if the gateway has no IP address.
        """
        live = await self._clusters.seed.find(resources.ETCD, _NAME, task.technical_id)
        prefix = _prefix(live) if live else etcd_between_seeds.member_prefix(task.seed)
        address = await gateway_address(self._clusters.seed_caches)
        try:
            ip_address(address)
        except ValueError:
            _refuse(f"the gateway of seed {task.seed} has the address {address}, and etcd needs an IP address")
        await rollout.apply(
            self._clusters.seed, etcd_between_seeds.own_members(task.technical_id, prefix, etcd.MEMBERS)
        )
        return TaskResult(note=f"{address} {prefix}".strip())

    @activity.defn
    async def name_other_etcd_members(self, request: OtherMembers) -> TaskResult:
        """Give the members in the other seed their names here, with the address of that seed's gateway."""
        task = request.task
        wanted = etcd_between_seeds.other_members(task.technical_id, request.prefix, etcd.MEMBERS, request.gateway)
        await rollout.apply(self._clusters.seed, wanted)
        return TaskResult(note=f"at {request.gateway}")

    @activity.defn
    async def hide_etcd_members(self, task: ShootTask) -> TaskResult:
        """Delete what the two activities above have made; a second run deletes what is left."""
        await hide_members(self._clusters.seed, task.technical_id)
        return TaskResult()

    @activity.defn
    async def wait_etcd_joined(self, task: ShootTask) -> TaskResult:
        """Wait until all members of etcd-main in this seed have joined the other seed's members: each has a vote.

        Raises:
            ApplicationError: ``LiveMigrationUnavailable`` (final) after 8 minutes.
        """
        cache = self._clusters.seed_caches.of(resources.ETCD)
        fault = "it does not exist"

        def joined(live: Object | None) -> bool:
            nonlocal fault
            if live is None:
                return False
            condition = find_condition(live, "AllMembersReady")
            fault = str(find_condition(live, "Ready").get("message") or "no member serves")
            return condition.get("status") == "True"

        try:
            await heartbeating(cache.wait_for(_NAME, task.technical_id, joined, _JOINED_SECONDS), details=lambda: fault)
        except TimeoutError:
            _refuse(f"the members in seed {task.seed} have not joined {_NAME} in {_JOINED_SECONDS:.0f} s: {fault}")
        return TaskResult()

    @activity.defn
    async def wait_apiserver_beside(self, task: ShootTask) -> TaskResult:
        """Wait until the API server in this seed is ready, while the one in the source serves.

        Raises:
            ApplicationError: ``LiveMigrationUnavailable`` (final) after 5 minutes, or if its pods fail.
        """
        caches = self._clusters.seed_caches
        try:
            await rollout.wait_deployment(caches, apiserver.NAME, task.technical_id, _SERVING_SECONDS)
        except (TimeoutError, ApplicationError) as error:
            _refuse(f"the API server in seed {task.seed} does not become ready: {error}")
        return TaskResult()

    @activity.defn
    async def let_other_seed_lead(self, task: ShootTask) -> TaskResult:
        """Transfer leadership of etcd-main to a member in the other seed, so that no client waits for an election.

        A second run finds that no member here leads.

        Raises:
            ApplicationError: ``EtcdNotHandedOver`` if no other member may lead, or the leader refuses.
        """
        async with _members(self._clusters.seed, task) as clients:
            try:
                leader = await heartbeating(let_others_lead(clients.values(), set(clients)))
            except (Unsafe, EtcdError) as error:
                raise _not_handed_over(task, error) from None
        return TaskResult(note=f"{leader} leads" if leader else "no member here leads")

    @activity.defn
    async def remove_other_etcd_members(self, task: ShootTask) -> TaskResult:
        """Remove the members in the other seed from the cluster. Before each removal all members here must serve.

        A second run asks the cluster which members are left.

        Raises:
            ApplicationError: ``EtcdNotHandedOver`` if a member here does not serve, or the cluster refuses.
        """
        try:
            removed = await heartbeating(remove_others(self._clusters.seed, task))
        except (Unsafe, EtcdError) as error:
            raise _not_handed_over(task, error) from None
        return TaskResult(note=f"removed {', '.join(removed)}" if removed else "no other member is left")

    @activity.defn
    async def back_up_handed_over_etcd(self, task: ShootTask) -> TaskResult:
        """Take a full snapshot into this seed's bucket: from then on the source's backups are not needed.

        A second run takes another one, unless nothing has changed.

        Raises:
            ApplicationError: ``ERR_RETRYABLE_INFRA_DEPENDENCIES`` if the sidecar does not answer, or its store fails.
        """
        doing = f"full snapshot of {task.technical_id}/{_NAME}"
        info = await heartbeating(ask_sidecar(self._clusters.seed, task.technical_id, "snapshot/full", doing))
        return TaskResult(note=str(info.get("snapName", "")))


async def remove_others(seed: KubeClient, task: ShootTask) -> list[str]:
    """Remove the members of etcd-main that are in another seed; returns their names.

    Raises:
        Unsafe: a member here is missing, does not serve, or has no vote.
        EtcdError: the cluster does not answer, or refuses.
    """
    async with _members(seed, task) as clients:
        if len(clients) < etcd.MEMBERS:
            raise Unsafe(f"only {len(clients)} of {etcd.MEMBERS} members run here")
        return await remove_all_but(clients)


@contextlib.asynccontextmanager
async def _members(seed: KubeClient, task: ShootTask) -> AsyncIterator[dict[str, EtcdClient]]:
    """Clients of the members that run in this seed, by the names of these members; none without an Etcd."""
    namespace = task.technical_id
    live = await seed.find(resources.ETCD, _NAME, namespace)
    if live is None:
        yield {}
        return
    prefix, names = _prefix(live), [f"{_NAME}-{number}" for number in range(etcd.MEMBERS)]
    tls = await tls_of(seed, live)
    pods = await asyncio.gather(*(seed.find(resources.POD, each, namespace) for each in names))
    port = live["spec"]["etcd"].get("clientPort", etcd.CLIENT_PORT)
    async with contextlib.AsyncExitStack() as opened:
        clients = {}
        for name, pod in zip(names, pods, strict=True):
            if host := ((pod or {}).get("status") or {}).get("podIP"):
                url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
                client = EtcdClient(url, tls, server_name=f"{_NAME}-local")
                clients[f"{prefix}{name}"] = await opened.enter_async_context(client)
        yield clients


async def hide_members(seed: KubeClient, namespace: str) -> None:
    """Delete the names and routes of members in two seeds."""
    for kind in (resources.CONFIG_MAP, resources.SERVICE, resources.ENDPOINT_SLICE):
        found = await seed.list(kind, namespace, labels=label_selector(etcd_between_seeds.LABELS))
        await rollout.delete(seed, [(kind, each["metadata"]["name"]) for each in found], namespace)


def _prefix(live: Object) -> str:
    return str((live.get("spec") or {}).get("memberNamePrefix") or "")


def _refuse(message: str) -> NoReturn:
    """End the attempt to move live: the control plane then moves as without it."""
    raise ApplicationError(message, type=_UNAVAILABLE, non_retryable=True)


def _not_handed_over(task: ShootTask, why: Any) -> ApplicationError:
    return ApplicationError(f"{_NAME} of shoot {task.technical_id}: {why}", type="EtcdNotHandedOver")
