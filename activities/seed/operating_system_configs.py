"""OperatingSystemConfigs of a Shoot's worker pools, and the objects that bring them to the nodes.

Each pool has two extension objects: ``<key>-init`` becomes the user data of new machines; ``<key>-original`` is written
to the shoot as a Secret, which the node agents of the pool apply. Source: spec/extensions.md 3 and 7.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters, ClusterView
from activities.components import node_agent_policy, root_certificates
from activities.components import operating_system_config as config
from activities.components.managed_resource import managed_resource
from activities.components.operating_system_config import NodeConfig
from activities.errors import permanent
from activities.heartbeat import heartbeating
from activities.secrets.manager import SecretsManager
from activities.seed.extension_kinds import OPERATING_SYSTEM_CONFIG
from activities.seed.extension_objects import MANAGER, ExtensionObject
from activities.seed.extension_operations import Extensions
from activities.seed.node_logs import NodeLogs, host
from activities.seed.secrets import ssh_public_keys
from api import constants, resources
from api.contracts.operations import ShootTask, TaskResult
from api.decisions import ssh
from api.decisions.in_place_updates import MANUAL, outdated
from api.errors import ErrorCode
from api.names import (
    container_runtime_labels,
    in_place_hash_of,
    internal_api_domain,
    is_updated_in_place,
    node_agent_secret_name,
    operating_system_config_names,
)
from api.resources import Resource
from kube.cache import Cache
from kube.client import KubeClient

MANAGED_RESOURCE = "shoot-gardener-node-agent"

_FORMER = "gardener-node-agent"
"""Name of the roles and bindings that earlier versions gave all node agents; also the begin of the names of others."""
_QUOTED = 300
"""Maximum number of characters that an error quotes of an annotation of a Node."""
_ARRIVE_SECONDS = 20
"""Seconds that the resource manager may take to write the Secrets of the pools into the shoot."""
_APPLY_SECONDS = 3 * 60
"""Seconds that a node may take to apply its configuration once it is its turn. Source: spec/extensions.md 7, step 8."""


class OperatingSystemConfigActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters, node_logs: NodeLogs | None = None) -> None:
        """``node_logs``: Shoots whose nodes send their logs; None: no Shoot's."""
        self._clusters = clusters
        self._node_logs = node_logs or NodeLogs()

    @activity.defn
    async def deploy_os_configs(self, task: ShootTask) -> TaskResult:
        """Deploy user data and node configuration of all pools; a second run changes nothing."""
        view = await self._clusters.cluster(task.technical_id)
        secrets = await self._secrets(task, view)
        server = f"https://{_api_domain(task, view)}"
        cluster_ca, kubelet_ca = (secrets.get(name).data["bundle.crt"].decode() for name in ("ca", "ca-kubelet"))
        ssh_keys = ssh_public_keys(secrets) if ssh.has_access(view.shoot) else []
        logs_host = host(view, task.technical_id) if self._node_logs.wanted(view) else ""
        wanted = []
        for pool in view.pools:
            provider_config = pool["machine"]["image"].get("providerConfig")
            trusted = root_certificates.bundle(view.cloud_profile["spec"].get("caBundle"), pool.get("caBundle"))
            node = NodeConfig(
                view.shoot,
                pool,
                server,
                cluster_ca,
                kubelet_ca,
                provider_config,
                ssh_keys,
                trusted,
                logs_host=logs_host,
            )
            labels = {constants.WORKER_POOL: pool["name"], **container_runtime_labels(pool)}
            for name, spec in zip(
                operating_system_config_names(view.shoot, pool),
                (config.provision(node), config.reconcile(node)),
                strict=True,
            ):
                wanted.append(ExtensionObject(resources.OPERATING_SYSTEM_CONFIG, name, task.technical_id, spec, labels))
        await Extensions(self._clusters).deploy(OPERATING_SYSTEM_CONFIG, task, wanted)
        return TaskResult(secrets=secrets.generated, note=f"{len(wanted) // 2} pools")

    @activity.defn
    async def deploy_node_agent_resources(self, task: ShootTask) -> TaskResult:
        """Write the pools' configurations to the shoot, with the rights of machines that join.

        Earlier versions gave node agents rights by RBAC; delete these. A second run finds what the first one left.

        Raises:
            ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if a file refers to a Secret or key
                that does not exist; ``NotReady`` (retryable) while the shoot has roles for node agents and its API
                server does not ask the node-agent authorizer: node agents need these roles until then.
        """
        view = await self._clusters.cluster(task.technical_id)
        pool_secrets = []
        for pool in view.pools:
            pool_secrets.append(await _pool_secret(self._clusters.seed, task, view, pool))
        former = await self._former_rights(task)
        objects = [*config.rbac(), *node_agent_policy.objects(), *pool_secrets]
        for item in managed_resource(MANAGED_RESOURCE, task.technical_id, objects):
            await self._clusters.seed.apply(item, manager=MANAGER)
        for kind, name, namespace in former:
            shoot = await self._clusters.shoot(task.technical_id)
            await shoot.delete(kind, name, namespace)
        return TaskResult(note=f"{len(pool_secrets)} pools")

    async def _former_rights(self, task: ShootTask) -> list[tuple[Resource, str, str | None]]:
        """Roles and bindings by which an earlier version gave node agents rights: to all of them, and to each Machine.

        Raises ApplicationError if there are some, and the node-agent authorizer does not decide in their place yet.
        """
        if await self._clusters.seed.find(resources.MANAGED_RESOURCE, MANAGED_RESOURCE, task.technical_id) is None:
            return []  # a new control plane: the gardenlet may have no credentials for the shoot
        shoot = await self._clusters.shoot(task.technical_id)
        places = ((resources.CLUSTER_ROLE_BINDING, None), (resources.ROLE_BINDING, "kube-system"))
        own = await asyncio.gather(
            *(shoot.list(kind, namespace, labels="gardener.cloud/role=node-agent-access") for kind, namespace in places)
        )
        groups = await asyncio.gather(*(shoot.find(kind, _FORMER, namespace) for kind, namespace in places))
        found: list[tuple[Resource, str, str | None]] = []
        for (kind, namespace), of_machines, of_group in zip(places, own, groups, strict=True):
            for binding in (*of_machines, *([of_group] if of_group else ())):
                found.append((kind, binding["metadata"]["name"], namespace))
                role = binding["roleRef"]
                if role["name"].startswith(_FORMER):
                    roles = resources.CLUSTER_ROLE if role["kind"] == "ClusterRole" else resources.ROLE
                    found.append((roles, role["name"], namespace))
        if found and not await _is_authorized(shoot):
            raise ApplicationError(
                f"the API server of shoot {task.technical_id} does not ask the node-agent authorizer yet, so node "
                "agents keep their roles; it reads its files again within minutes. If it does not, read the logs of "
                "kube-apiserver and gardener-resource-manager",
                type="NotReady",
            )
        return list(dict.fromkeys(found))

    @activity.defn
    async def wait_os_configs_applied(self, task: ShootTask) -> TaskResult:
        """Wait until the node agent of every node has applied the configuration of its pool.

        Nodes that are being deleted do not count, nor do those of pools whose manual in-place update is pending.

        Raises:
            ApplicationError: retryable, with the names of the nodes that have not applied it.
        """
        view = await self._clusters.cluster(task.technical_id)
        # The nodes of these pools apply it when their owner lets them.
        worker = await self._clusters.seed.find(resources.WORKER, task.shoot.name, task.technical_id)
        waiting = outdated(view.shoot, worker)[MANUAL]
        pools = [pool for pool in view.pools if pool["name"] not in waiting]
        keys = {pool["name"]: node_agent_secret_name(view.shoot, pool) for pool in pools}
        shoot = await self._clusters.shoot(task.technical_id)
        nodes = Cache(shoot, resources.NODE, keep=_configured)
        secrets = Cache(shoot, resources.SECRET, "kube-system", labels="gardener.cloud/role=operating-system-config")
        behind: list[str] = []
        changed = asyncio.Event()

        async def all_applied() -> None:
            await asyncio.gather(nodes.synced(), secrets.synced())
            while True:
                changed.clear()
                found = {pool: secrets.get(key, "kube-system") for pool, key in keys.items()}
                checksums = {pool: _annotation(it, config.CHECKSUM_OF_SECRET) for pool, it in found.items() if it}
                behind[:] = sorted(_nodes_behind(nodes.list(), checksums))
                if not behind and len(checksums) == len(keys):
                    return
                await changed.wait()

        for cache in (nodes, secrets):
            cache.subscribe(lambda _: changed.set())
        try:
            async with nodes, secrets, asyncio.timeout(view.longest_update_delay + _APPLY_SECONDS):
                await heartbeating(all_applied(), details=lambda: f"behind: {', '.join(behind[:5])}" if behind else "")
        except TimeoutError:
            raise ApplicationError(
                f"nodes of shoot {task.technical_id} have not applied the configuration of their pools: "
                f"{', '.join(behind[:10]) or 'the pool Secrets have not arrived in kube-system'}; "
                "read the journal of gardener-node-agent.service on them",
                type="NotReady",
            ) from None
        return TaskResult(note=f"{len(nodes.list())} nodes")

    async def _secrets(self, task: ShootTask, view: ClusterView) -> SecretsManager:
        return await SecretsManager.of_shoot(self._clusters.seed, task.technical_id, view.shoot)


async def wait_updates_described(clusters: Clusters, task: ShootTask, view: ClusterView) -> None:
    """Wait until the shoot has the present configurations of its pools with in-place updates.

    The Worker is written after that, so that a node agent whose node is released for an update finds the configuration
    that the update is about, and does not report that it has nothing to do. A second run finds the Secrets.

    Raises:
        ApplicationError: ``NotReady`` (retryable) if a Secret does not arrive within 20 s.
    """
    pools = [pool for pool in view.pools if is_updated_in_place(pool)]
    wanted = [await _pool_secret(clusters.seed, task, view, pool) for pool in pools]
    shoot = await clusters.shoot(task.technical_id) if wanted else None
    for each in wanted:
        name, checksum = each["metadata"]["name"], _annotation(each, config.CHECKSUM_OF_SECRET)

        def is_there(live: Mapping[str, Any] | None, checksum: str = checksum) -> bool:
            return live is not None and _annotation(live, config.CHECKSUM_OF_SECRET) == checksum

        assert shoot is not None
        try:
            async with Cache(shoot, resources.SECRET, "kube-system", fields=f"metadata.name={name}") as secrets:
                await heartbeating(secrets.wait_for(name, "kube-system", is_there, _ARRIVE_SECONDS))
        except TimeoutError:
            raise ApplicationError(
                f"Secret kube-system/{name} of shoot {task.technical_id} does not have the configuration of its pool: "
                f"read ManagedResource {task.technical_id}/{MANAGED_RESOURCE} and the log of gardener-resource-manager",
                type="NotReady",
            ) from None


async def _pool_secret(seed: KubeClient, task: ShootTask, view: ClusterView, pool: Mapping[str, Any]) -> dict[str, Any]:
    """The Secret with a pool's configuration. Raises ApplicationError if a file refers to a Secret that is missing."""
    key = node_agent_secret_name(view.shoot, pool)
    _, name = operating_system_config_names(view.shoot, pool)
    osc = await seed.get(resources.OPERATING_SYSTEM_CONFIG, name, task.technical_id)
    update = in_place_hash_of(view.shoot, pool) if is_updated_in_place(pool) else ""
    try:
        return config.pool_secret(osc, pool["name"], key, await _referenced(seed, task, osc), update)
    except KeyError as missing:
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            f"a file of OperatingSystemConfig {task.technical_id}/{name} refers to {missing} of a Secret, "
            "which does not exist",
        ) from None


async def _referenced(seed: KubeClient, task: ShootTask, osc: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """Data, in base64, of the Secrets from which files take their content."""
    files = [*(osc["spec"].get("files") or ()), *((osc.get("status") or {}).get("extensionFiles") or ())]
    names = {file["content"]["secretRef"]["name"] for file in files if file["content"].get("secretRef")}
    found = {}
    for name in sorted(names):
        secret = await seed.find(resources.SECRET, name, task.technical_id)
        found[name] = (secret or {}).get("data") or {}
    return found


async def _is_authorized(shoot: KubeClient) -> bool:
    """Whether the node-agent authorizer decides about node agents: only an authorizer denies, RBAC has no opinion."""
    review = {
        "apiVersion": resources.SUBJECT_ACCESS_REVIEW.api_version,
        "kind": resources.SUBJECT_ACCESS_REVIEW.kind,
        "spec": {
            "user": f"{constants.NODE_AGENT_USER_PREFIX}none",
            "groups": [constants.NODE_AGENTS_GROUP],
            "resourceAttributes": {"verb": "delete", "version": "v1", "resource": "nodes"},
        },
    }
    answer = await shoot.request("POST", resources.SUBJECT_ACCESS_REVIEW.path(), body=review)
    return bool(answer["status"].get("denied"))


def _configured(node: dict[str, Any]) -> dict[str, Any]:
    """The parts of a node that ``_nodes_behind`` reads."""
    metadata = node["metadata"]
    pool = (metadata.get("labels") or {}).get(constants.WORKER_POOL)
    kept = {key: metadata[key] for key in ("name", "resourceVersion", "deletionTimestamp") if key in metadata}
    labels = {} if pool is None else {constants.WORKER_POOL: pool}
    annotations = {
        name: _annotation(node, name)[:_QUOTED] for name in (config.CHECKSUM_APPLIED, constants.REFUSED_CONFIGURATION)
    }
    return {"metadata": {**kept, "labels": labels, "annotations": annotations}}


def _nodes_behind(nodes: Iterable[Mapping[str, Any]], checksums: Mapping[str, str]) -> list[str]:
    """Names of nodes with another checksum than their pool's Secret. Nodes of other pools are about to be deleted."""
    behind = []
    for node in nodes:
        metadata = node["metadata"]
        pool = (metadata.get("labels") or {}).get(constants.WORKER_POOL)
        wanted = checksums.get(pool or "")
        if wanted is None or metadata.get("deletionTimestamp"):
            continue
        if _annotation(node, config.CHECKSUM_APPLIED) != wanted:
            refused, _, why = _annotation(node, constants.REFUSED_CONFIGURATION).partition(": ")
            told = f" (its kubelet does not start with it: {why})" if refused == wanted else ""
            behind.append(f"{metadata['name']}{told}")
    return behind


def _annotation(item: Mapping[str, Any], name: str) -> str:
    return str((item["metadata"].get("annotations") or {}).get(name, ""))


def _api_domain(task: ShootTask, view: ClusterView) -> str:
    return internal_api_domain(task.technical_id, view.seed["spec"]["dns"]["internal"]["domain"])
