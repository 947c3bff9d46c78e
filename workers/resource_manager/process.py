"""The resource manager process: clients, caches and the controllers that the configuration enables."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from api.resources import CONFIG_MAP, NODE, SECRET
from kube.cache import Cache, Caches
from kube.client import Keep, KubeClient, Object
from kube.errors import NotFound
from workers.lib.leader import run_while_leader
from workers.lib.runtime import ConfigError, Health, adjust_logging, load_config, run_until_signal
from workers.resource_manager.config import NodeCriticalComponentsController, ResourceManagerConfig
from workers.resource_manager.connections import source_client, target_client
from workers.resource_manager.managed_resources import ManagedResourceController
from workers.resource_manager.webhooks import Webhooks

_log = logging.getLogger(__name__)

_NAME = "gardener-resource-manager"
_FROM_CLUSTER, _FROM_CLUSTER_IF_ANY = "<cluster>", "<default>"


async def run(config_path: str) -> None:
    """Run until a signal ends the process."""
    config = load_config(ResourceManagerConfig, config_path)
    adjust_logging(config.log_level, config.log_format)
    for text in config.lacking():
        _log.warning("%s", text)
    health = Health()
    async with contextlib.AsyncExitStack() as stack:
        for address in filter(None, (config.server.health, config.server.metrics)):
            server = await health.serve(address.of_health)
            stack.push_async_callback(server.cleanup)
        await run_until_signal(_serve(config, health))


async def _serve(config: ResourceManagerConfig, health: Health) -> None:
    source = source_client(config.source_client_connection)
    connection = config.target_client_connection
    target = await target_client(connection) if connection is not None else source
    # The webhooks go on when this replica no longer leads, the controllers do not: each have caches of their own.
    source_caches, target_caches = _caches(source, target, of_nodes=_slim)
    webhooks = Webhooks(config, source=source, source_caches=source_caches, target=target, target_caches=target_caches)

    async def control() -> None:
        await webhooks.ready.wait()
        cluster_id = await _cluster_id(config.controllers.cluster_id, source)
        nodes = target_caches.of(NODE) if config.webhooks.high_availability_config.enabled else None
        health.ready = config.leader_election.leader_elect  # a replica that is not the leader is ready, too

        async def lead() -> None:
            of_source, of_target = _caches(source, target)
            try:
                await _side_by_side(
                    _controllers(config, cluster_id, source, of_source, target, of_target, nodes, health)
                )
            finally:
                await of_source.close()
                await of_target.close()

        await run_while_leader(source, config.leader_election, _NAME, lead)

    parts = [asyncio.create_task(each) for each in (webhooks.run(), control())]
    try:
        await asyncio.gather(*parts)
    finally:
        for each in parts:
            each.cancel()
        # A leader needs the client of the source until it has released its Lease.
        await asyncio.gather(*parts, return_exceptions=True)
        await source_caches.close()
        await target_caches.close()
        await source.close()
        await target.close()


def _caches(source: KubeClient, target: KubeClient, of_nodes: Keep | None = None) -> tuple[Caches, Caches]:
    """Caches of the source and of the target cluster, which may be the same. ``of_nodes``: what to keep of a Node."""

    def keep(obj: Object) -> Object | None:
        return of_nodes(obj) if of_nodes is not None and obj.get("kind") == NODE.kind else obj

    def keep_of_source(obj: Object) -> Object | None:
        return keep(_without_secrets(obj))

    of_source = Caches(source, keep=keep_of_source)
    return of_source, of_source if target is source else Caches(target, keep=keep)


def _slim(node: Object) -> Object:
    """The part of a Node that webhooks read: a Node in full also names all images there."""
    metadata = {name: node["metadata"].get(name) for name in ("name", "uid", "resourceVersion", "labels")}
    taints = (node.get("spec") or {}).get("taints") or []
    return {"apiVersion": node["apiVersion"], "kind": node["kind"], "metadata": metadata, "spec": {"taints": taints}}


def _without_secrets(obj: Object) -> Object:
    """The part of an object to keep in memory: of a Secret only its metadata. A seed has the Secrets of all shoots."""
    if obj.get("kind") != SECRET.kind:
        return obj
    return {key: obj[key] for key in ("apiVersion", "kind", "metadata")}


def _controllers(
    config: ResourceManagerConfig,
    cluster_id: str,
    source: KubeClient,
    source_caches: Caches,
    target: KubeClient,
    target_caches: Caches,
    nodes: Cache | None,
    health: Health,
) -> list[Coroutine[Any, Any, None]]:
    """The controllers that the configuration enables. ``nodes``: those of the target cluster, as webhooks see them."""
    wanted = config.controllers
    namespaces: tuple[str | None, ...] = config.source_client_connection.namespaces or (None,)
    managed_resources = ManagedResourceController(
        wanted,
        source=source,
        source_caches=source_caches,
        target=target,
        target_caches=target_caches,
        namespaces=namespaces,
        cluster_id=cluster_id,
    )

    async def become_ready() -> None:
        await managed_resources.synced()
        health.ready = True

    parts = [managed_resources.run(), become_ready()]
    # Imported only if enabled: most processes of this kind are small pods with a memory limit.
    if wanted.token_requestor.enabled:
        from workers.lib.token_requestor import TokenRequestor

        requestor = TokenRequestor(
            source=source,
            source_caches=source_caches,
            target=target,
            namespaces=namespaces,
            secret_class=wanted.token_requestor.class_,
            workers=wanted.token_requestor.concurrent_syncs,
            resync=config.source_client_connection.cache_resync_period.total_seconds(),
        )
        parts.append(requestor.run())
    if wanted.token_invalidator.enabled:
        from workers.resource_manager.token_invalidator import TokenInvalidator

        parts.append(
            TokenInvalidator(
                target, target_caches, _target_namespaces(config), workers=wanted.token_invalidator.concurrent_syncs
            ).run()
        )
    if wanted.csr_approver.enabled:
        from workers.resource_manager.csr_approver import CSRApprover

        approver = CSRApprover(
            source=source,
            target=target,
            target_caches=target_caches,
            machine_namespace=wanted.csr_approver.machine_namespace,
            workers=wanted.csr_approver.concurrent_syncs,
        )
        parts.append(approver.run())
    if (delay := wanted.node_agent_reconciliation_delay).enabled:
        from workers.resource_manager.node_agent_delays import NodeAgentDelays

        shortest, longest = delay.min_delay.total_seconds(), delay.max_delay.total_seconds()
        connection = config.target_client_connection or config.source_client_connection
        resync = connection.cache_resync_period.total_seconds()
        parts.append(NodeAgentDelays(target, target_caches, shortest, longest, resync=resync).run())
    if (critical := wanted.node_critical_components).enabled:
        parts.append(_critical_components(target, critical))
    if nodes is not None:
        from workers.resource_manager.strict_spreading import StrictSpreading

        shoot = config.target_client_connection is not None
        parts.append(StrictSpreading(target, nodes, _target_namespaces(config), shoot=shoot).run())
    if wanted.network_policy.enabled:
        from workers.resource_manager.network_policies import NetworkPolicies

        parts.append(NetworkPolicies(target, target_caches, wanted.network_policy).run())
    if wanted.garbage_collector.enabled:
        from workers.resource_manager.garbage_collector import GarbageCollector

        swept = _target_namespaces(config)
        parts.append(GarbageCollector(target, swept, wanted.garbage_collector.sync_period).run())
    return parts


def _target_namespaces(config: ResourceManagerConfig) -> tuple[str | None, ...]:
    chosen = config.target_client_connection.namespaces if config.target_client_connection else ()
    return chosen or (None,)


async def _critical_components(target: KubeClient, config: NodeCriticalComponentsController) -> None:
    """Run the controller with caches of its own, which keep a small part of each object."""
    from workers.resource_manager.critical_components import CriticalComponents, slim

    caches = Caches(target, keep=slim)
    try:
        backoff = config.backoff.total_seconds()
        await CriticalComponents(target, caches, workers=config.concurrent_syncs, backoff=backoff).run()
    finally:
        await caches.close()


async def _side_by_side(parts: list[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part)


async def _cluster_id(wanted: str, source: KubeClient) -> str:
    """Prefix of origins: the configured one, or the identity that the cluster has stored."""
    if wanted not in (_FROM_CLUSTER, _FROM_CLUSTER_IF_ANY):
        return wanted
    try:
        config_map = await source.get(CONFIG_MAP, "cluster-identity", "kube-system")
        return str(config_map["data"]["cluster-identity"])
    except (NotFound, KeyError):
        if wanted == _FROM_CLUSTER:
            raise ConfigError("clusterID is <cluster>, but kube-system/cluster-identity names none") from None
        return ""
