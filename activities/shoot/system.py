"""System components of a shoot: written as ManagedResources, which the resource manager applies to the shoot."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from temporalio import activity

from activities.clusters import Clusters, ClusterView
from activities.components import (
    apiserver_proxy,
    base,
    coredns,
    exporters,
    gateway,
    kube_proxy,
    metrics_server,
    node_local_dns,
    node_problem_detector,
    shoot_system,
    vpn_shoot,
)
from activities.components.managed_resource import ORIGIN, ORIGIN_LABEL, managed_resource, managed_resource_parts
from activities.heartbeat import heartbeating
from activities.secrets.manager import SecretsManager, Which
from activities.seed import rollout
from activities.seed.facts import (
    ApiNames,
    Networks,
    is_observed,
    taints_of_system_pools,
    vpn_servers,
    zones_of_system_pools,
)
from activities.seed.secrets import METRICS_SERVER, VPN_CLIENT
from api import constants, resources
from api.contracts.operations import ShootTask, TaskResult
from api.core.v1beta1.shoot import NodeLocalDNS
from api.decisions import dual_stack
from api.decisions.encryption import Encryption
from kube.client import KubeClient
from kube.errors import ApiError
from kube.objects import label_selector

MINUTE = 60.0
# Source: spec/flows.md 2 and 3.
_NAMESPACES_SECONDS = 2 * MINUTE
_VPN_SECONDS = 10 * MINUTE
_TUNNEL_SECONDS = 15 * MINUTE
_DELETION_SECONDS = 10 * MINUTE

_NAMESPACES = "shoot-core-namespaces"
_VPN = "shoot-core-vpn-shoot"
_KUBE_PROXY = "shoot-core-kube-proxy"
_METRICS_SERVER = "shoot-core-metrics-server"
_NODE_LOCAL_DNS = "shoot-core-node-local-dns"
_NODE_EXPORTER = "shoot-core-node-exporter"
_BLACKBOX_EXPORTER = "shoot-core-blackbox-exporter"


class ShootSystemActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def deploy_shoot_namespaces(self, task: ShootTask) -> TaskResult:
        """Label the namespaces in which system components run."""
        view = await self._clusters.cluster(task.technical_id)
        zones = None if view.workerless else zones_of_system_pools(view.pools)
        await self._hand_over(task, _NAMESPACES, shoot_system.namespaces(zones))
        return TaskResult()

    @activity.defn
    async def wait_shoot_namespaces(self, task: ShootTask) -> TaskResult:
        """Wait until these namespaces are applied, which shows that the resource manager works."""
        await rollout.wait_managed_resource(
            self._clusters.seed_caches, _NAMESPACES, task.technical_id, _NAMESPACES_SECONDS
        )
        return TaskResult()

    @activity.defn
    async def deploy_shoot_system(self, task: ShootTask) -> TaskResult:
        """Give owners, viewers and the API server itself their rights in the shoot."""
        view = await self._clusters.cluster(task.technical_id)
        encrypted = Encryption.wanted(view.shoot).resources | Encryption.at_rest(view.shoot).resources
        objects = shoot_system.objects(workers=not view.workerless, encrypted=sorted(encrypted))
        await self._hand_over(task, "shoot-core-system", objects)
        return TaskResult()

    @activity.defn
    async def deploy_cluster_identity(self, task: ShootTask) -> TaskResult:
        """Write the cluster identity to the shoot, where pods read it.

        The identity is read from the garden: when the operation began and the Cluster object was written, the Shoot
        may not have had an identity yet.
        """
        shoot = await self._clusters.garden.get(resources.SHOOT, task.shoot.name, task.shoot.namespace)
        identity = shoot["status"]["clusterIdentity"]
        await self._hand_over(task, "shoot-core-cluster-identity", [shoot_system.cluster_identity(identity)])
        return TaskResult(note=identity)

    @activity.defn
    async def deploy_kube_proxy(self, task: ShootTask) -> TaskResult:
        """Run kube-proxy on all nodes, or remove it if the Shoot disables it.

        Nodes of a version or a pool that the Shoot no longer has keep their kube-proxy until they are gone, so that
        their pods still reach Services while the nodes are drained. A later run removes what no node needs any more.
        """
        view = await self._clusters.cluster(task.technical_id)
        settings = view.shoot["spec"]["kubernetes"].get("kubeProxy") or {}
        if settings.get("enabled") is False:
            await self._take_back(task, _KUBE_PROXY)
            return TaskResult(note="switched off")
        secrets, shoot = await self._secrets(task, view), await self._clusters.shoot(task.technical_id)
        wanted = kube_proxy.KubeProxy(
            api_server=ApiNames.of(view).internal,
            ca_bundle=secrets.get("ca").data["bundle.crt"],
            pod_cidrs=Networks.of(view).pods,
            pools=sorted({*_pools(view), *_pools_of(await shoot.list(resources.NODE, metadata_only=True))}),
            settings=settings,
        )
        await self._hand_over(task, _KUBE_PROXY, kube_proxy.objects(wanted))
        return TaskResult(secrets=secrets.generated)

    @activity.defn
    async def deploy_apiserver_proxy(self, task: ShootTask) -> TaskResult:
        """Run apiserver-proxy on each node: through it pods reach their API server."""
        view = await self._clusters.cluster(task.technical_id)
        wanted = apiserver_proxy.ApiServerProxy(
            control_plane=task.technical_id,
            gateway_host=ApiNames.of(view).internal,
            ipv6=dual_stack.is_ipv6_alone(view.shoot),
        )
        await self._hand_over(task, "shoot-core-apiserver-proxy", apiserver_proxy.objects(wanted))
        return TaskResult()

    @activity.defn
    async def deploy_coredns(self, task: ShootTask) -> TaskResult:
        """Run the shoot's cluster DNS.

        Replace its pods if the owner asks for it (task ``restartCoreAddons``), or if they have one address only while
        the Shoot changes from IPv4 to both IP families. A second run writes the time of the same operation.
        """
        view = await self._clusters.cluster(task.technical_id)
        settings = (view.shoot["spec"].get("systemComponents") or {}).get("coreDNS") or {}
        wanted = coredns.CoreDns(
            service_cidr=Networks.of(view).services[0],
            api_server=ApiNames.of(view).internal,
            families=dual_stack.dns_families(view.shoot),
            restarted_at=await self._dns_restart(task, view),
            common_suffixes=(settings.get("rewriting") or {}).get("commonSuffixes") or (),
        )
        await self._hand_over(task, "shoot-core-coredns", coredns.objects(wanted))
        return TaskResult()

    @activity.defn
    async def deploy_node_local_dns(self, task: ShootTask) -> TaskResult:
        """Run a DNS server on each node, or remove it if it is not wanted; a second run applies the same objects."""
        view = await self._clusters.cluster(task.technical_id)
        spec = view.shoot["spec"]
        if not node_local_dns.is_wanted(spec):
            await self._take_back(task, _NODE_LOCAL_DNS)
            return TaskResult(note="not wanted")
        wanted = node_local_dns.Server(
            settings=NodeLocalDNS.model_validate(node_local_dns.settings_of(spec)),
            cluster_dns=coredns.cluster_dns_address(Networks.of(view).services[0]),
            ipvs=kube_proxy.uses_ipvs(spec),
        )
        await self._hand_over(task, _NODE_LOCAL_DNS, node_local_dns.objects(wanted))
        return TaskResult()

    @activity.defn
    async def deploy_node_problem_detector(self, task: ShootTask) -> TaskResult:
        """Run node-problem-detector on each node: it reports problems of the kernel. May run twice."""
        view = await self._clusters.cluster(task.technical_id)
        objects = node_problem_detector.objects(ApiNames.of(view).internal)
        await self._hand_over(task, "shoot-core-node-problem-detector", objects)
        return TaskResult()

    @activity.defn
    async def deploy_node_exporter(self, task: ShootTask) -> TaskResult:
        """Run node-exporter on each node, or remove it if the Shoot has no Prometheus. May run twice."""
        return await self._hand_over_observed(task, _NODE_EXPORTER, exporters.node_exporter())

    @activity.defn
    async def deploy_blackbox_exporter(self, task: ShootTask) -> TaskResult:
        """Run blackbox-exporter, which probes URLs as a pod would, or remove it without a Prometheus. May run twice."""
        return await self._hand_over_observed(task, _BLACKBOX_EXPORTER, exporters.blackbox_exporter())

    @activity.defn
    async def deploy_metrics_server(self, task: ShootTask) -> TaskResult:
        """Run metrics-server and register its API."""
        view = await self._clusters.cluster(task.technical_id)
        secrets = await self._secrets(task, view)
        certificate = await secrets.generate(METRICS_SERVER)
        wanted = metrics_server.MetricsServer(
            api_server=ApiNames.of(view).internal,
            certificate=certificate.data,
            ca_bundle=secrets.get("ca-metrics-server").data["bundle.crt"],
            kubelet_ca_bundle=secrets.get("ca-kubelet").data["bundle.crt"],
        )
        await self._hand_over(task, _METRICS_SERVER, metrics_server.objects(wanted))
        return TaskResult(secrets=secrets.generated)

    @activity.defn
    async def deploy_vpn_shoot(self, task: ShootTask) -> TaskResult:
        """Run the VPN client, the shoot's end of the tunnel."""
        view = await self._clusters.cluster(task.technical_id)
        secrets = await self._secrets(task, view)
        certificate = await secrets.generate(VPN_CLIENT)
        wanted = vpn_shoot.VpnShoot(
            control_plane=task.technical_id,
            gateway_host=ApiNames.of(view).internal,
            certificate=certificate.data,
            ca_bundle=secrets.get("ca-vpn").data["bundle.crt"],
            tls_auth=secrets.get("vpn-seed-server-tlsauth", Which.CURRENT).data["vpn.tlsauth"],
            servers=gateway.VPN_SERVERS[: vpn_servers(view)],
            ipv6=dual_stack.is_ipv6_alone(view.shoot),
        )
        await self._hand_over(task, _VPN, vpn_shoot.objects(wanted))
        return TaskResult(secrets=secrets.generated)

    @activity.defn
    async def wait_vpn_shoot(self, task: ShootTask) -> TaskResult:
        """Wait until the tunnel's pod runs in the shoot; the pod needs a node."""
        await rollout.wait_managed_resource(self._clusters.seed_caches, _VPN, task.technical_id, _VPN_SECONDS)
        return TaskResult()

    @activity.defn
    async def wait_tunnel(self, task: ShootTask) -> TaskResult:
        """Wait until the API server reaches a kubelet through the tunnel.

        Raises TimeoutError after 15 minutes, with the last answer.
        """
        probe = _TunnelProbe(await self._clusters.shoot(task.technical_id))
        try:
            async with asyncio.timeout(_TUNNEL_SECONDS):
                node = await heartbeating(probe.run(), details=lambda: probe.state)
        except TimeoutError:
            raise TimeoutError(f"tunnel to shoot {task.technical_id}: {probe.state}") from None
        return TaskResult(note=f"the API server reaches node {node}")

    @activity.defn
    async def wait_system_components(self, task: ShootTask) -> TaskResult:
        """Wait until all our ManagedResources for the shoot are applied, healthy and rolled out."""
        found = await self._ours(task)
        await asyncio.gather(
            *(
                rollout.wait_managed_resource(self._clusters.seed_caches, name, task.technical_id, _VPN_SECONDS)
                for name in found
            )
        )
        return TaskResult(note=f"{len(found)} components")

    @activity.defn
    async def delete_metrics_server(self, task: ShootTask) -> TaskResult:
        """Remove metrics-server and its API from the shoot.

        Without nodes no pod serves the API, and no namespace ends while an API does not answer.
        """
        await self._take_back(task, _METRICS_SERVER)
        return TaskResult()

    @activity.defn
    async def delete_managed_resources(self, task: ShootTask) -> TaskResult:
        """Delete all our ManagedResources for the shoot: the resource manager then deletes their objects."""
        found = await self._ours(task)
        await asyncio.gather(*(self._take_back(task, name) for name in found))
        return TaskResult(note=f"{len(found)} components")

    @activity.defn
    async def wait_managed_resources_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until all our ManagedResources for the shoot are gone, then delete the Secrets with their manifests.

        Raises TimeoutError after 10 minutes, with the names of the ManagedResources that are left.
        """
        await self._wait_gone(task, _is_ours)
        seed = self._clusters.seed
        secrets = await seed.list(resources.SECRET, task.technical_id, labels=f"{ORIGIN_LABEL}={ORIGIN}")
        names = [item["metadata"]["name"] for item in secrets]
        await rollout.delete(
            seed,
            [(resources.SECRET, name) for name in names if name.startswith("managedresource-")],
            task.technical_id,
        )
        return TaskResult()

    @activity.defn
    async def wait_shoot_managed_resources_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until all ManagedResources for the shoot are gone, including those of extensions.

        Raises TimeoutError after 10 minutes, with the names of the ManagedResources that are left.
        """
        await self._wait_gone(task, _is_for_shoot)
        return TaskResult()

    # Shared by these activities

    async def _wait_gone(self, task: ShootTask, concerns: Callable[[Mapping[str, Any]], bool]) -> None:
        await rollout.wait_none_left(
            self._clusters.seed_caches,
            resources.MANAGED_RESOURCE,
            task.technical_id,
            _DELETION_SECONDS,
            what="ManagedResources",
            concerns=concerns,
        )

    async def _dns_restart(self, task: ShootTask, view: ClusterView) -> str:
        """Time of the last restart of CoreDNS; this operation's if it restarts CoreDNS."""
        asked = view.annotations.get(constants.SHOOT_TASKS, "").split(",")
        if constants.TASK_RESTART_CORE_ADDONS in asked:
            return task.trigger
        shoot = await self._clusters.shoot(task.technical_id)
        if dual_stack.is_wanted(view.shoot):
            pods = await shoot.list(resources.POD, coredns.NAMESPACE, labels=label_selector(coredns.SELECT))
            if dual_stack.restarts_dns(view.shoot, pods):
                return task.trigger
        live = await shoot.find(resources.DEPLOYMENT, coredns.NAME, coredns.NAMESPACE)
        annotations = live["spec"]["template"]["metadata"].get("annotations") or {} if live else {}
        return str(annotations.get(coredns.RESTARTED_AT, ""))

    async def _secrets(self, task: ShootTask, view: ClusterView) -> SecretsManager:
        return await SecretsManager.of_shoot(self._clusters.seed, task.technical_id, view.shoot)

    async def _hand_over(self, task: ShootTask, name: str, objects: Sequence[Mapping[str, Any]]) -> None:
        view = await self._clusters.cluster(task.technical_id)
        tolerant = base.tolerating(objects, taints_of_system_pools(view.pools))
        await rollout.apply(self._clusters.seed, managed_resource(name, task.technical_id, tolerant))

    async def _hand_over_observed(self, task: ShootTask, name: str, objects: Sequence[Mapping[str, Any]]) -> TaskResult:
        """Write a ManagedResource with exporters, or delete it if the Shoot has no Prometheus."""
        if not is_observed(await self._clusters.cluster(task.technical_id)):
            await self._take_back(task, name)
            return TaskResult(note="not wanted")
        await self._hand_over(task, name, objects)
        return TaskResult()

    async def _take_back(self, task: ShootTask, name: str) -> None:
        await rollout.delete(self._clusters.seed, managed_resource_parts(name), task.technical_id)

    async def _ours(self, task: ShootTask) -> list[str]:
        labels = f"{ORIGIN_LABEL}={ORIGIN}"
        found = await self._clusters.seed.list(resources.MANAGED_RESOURCE, task.technical_id, labels=labels)
        return [item["metadata"]["name"] for item in found if _is_ours(item)]


class _TunnelProbe:
    """Asks kubelets for their health, through the API server and the tunnel."""

    _PAUSE = 0.5

    def __init__(self, shoot: KubeClient) -> None:
        self._shoot = shoot
        self.state = "not tried yet"

    async def run(self) -> str:
        """Return the name of the first node that answers; never end if no node does."""
        while True:
            try:
                for node in await self._shoot.list(resources.NODE, metadata_only=True):
                    if answered := await self._ask(node["metadata"]["name"]):
                        return answered
            except ApiError as error:
                self.state = str(error)
            await asyncio.sleep(self._PAUSE)

    async def _ask(self, node: str) -> str | None:
        try:
            async with asyncio.timeout(5):
                await self._shoot.request("GET", f"/api/v1/nodes/{node}:10250/proxy/healthz")
            return node
        except ApiError as error:
            self.state = str(error)
        except TimeoutError:
            self.state = f"node {node} did not answer within 5 s"
        return None


def _is_ours(managed: Mapping[str, Any]) -> bool:
    """Whether a ManagedResource is for the shoot, and is ours and not an extension's."""
    labels = managed["metadata"].get("labels") or {}
    return labels.get(ORIGIN_LABEL) == ORIGIN and _is_for_shoot(managed)


def _is_for_shoot(managed: Mapping[str, Any]) -> bool:
    """Whether a ManagedResource is for the shoot: one with a class is for the seed."""
    return not managed["spec"].get("class")


def _pools(view: ClusterView) -> list[tuple[str, str]]:
    """Name and Kubernetes version of each worker pool."""
    return [
        (
            pool["name"],
            str((pool.get("kubernetes") or {}).get("version") or view.kubernetes_version),
        )
        for pool in view.shoot["spec"]["provider"].get("workers") or []
    ]


def _pools_of(nodes: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Name and Kubernetes version of the pools that nodes were made for."""
    labels = [node["metadata"].get("labels") or {} for node in nodes]
    names = (constants.WORKER_POOL, constants.WORKER_KUBERNETES_VERSION)
    return {(each[names[0]], each[names[1]]) for each in labels if all(name in each for name in names)}
