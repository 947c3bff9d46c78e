"""Extension objects of a Shoot: what the flow asks of infrastructure, DNS, backup, network and worker providers.

Each ``deploy_*`` writes its object with this operation's timestamp, so a second run finds the first
one's and writes nothing; each ``wait_*`` only looks; each ``delete_*`` finds an object that is gone or going.
"""

from typing import Any

from temporalio import activity

from activities.kube.clusters import Clusters, ClusterView
from activities.seed import extension_objects as extension
from activities.seed.extension_objects import ExtensionObject, apply_extension
from activities.seed.gateway import gateway_address
from api import resources
from api.constants import TIMESTAMP
from api.names import backup_entry_name, dns_record_name, internal_api_domain, node_agent_secret_name
from api.operations import ShootTask, TaskResult, Wait
from api.resources import Resource

CLOUD_SECRET = "cloudprovider"


class ExtensionActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    # Infrastructure

    @activity.defn
    async def deploy_infrastructure(self, task: ShootTask) -> TaskResult:
        """Order networks and everything else that machines need; again only on a change."""
        view = await self._clusters.cluster(task.technical_id)
        provider = view.shoot["spec"]["provider"]
        spec = {
            "type": provider["type"],
            "region": view.shoot["spec"]["region"],
            "secretRef": _secret_ref(CLOUD_SECRET, task),
            **_optional(providerConfig=provider.get("infrastructureConfig")),
        }
        return await self._apply(task, resources.INFRASTRUCTURE, task.shoot.name, spec, only_on_change=True)

    @activity.defn
    async def wait_infrastructure(self, task: ShootTask) -> TaskResult:
        """Wait for it, then tell the Shoot's networks to the garden and to the Cluster resource."""
        live = await self._ready(
            task, resources.INFRASTRUCTURE, task.shoot.name, extension.INFRASTRUCTURE, maybe_unchanged=True
        )
        view = await self._clusters.cluster(task.technical_id)
        networking = view.shoot["spec"].get("networking") or {}
        reported = live["status"].get("networking") or {}
        nodes = networking.get("nodes") or live["status"].get("nodesCIDR")
        status = {
            "nodes": reported.get("nodes") or ([nodes] if nodes else []),
            "pods": reported.get("pods") or _optional_list(networking.get("pods")),
            "services": reported.get("services") or _optional_list(networking.get("services")),
            **_optional(egressCIDRs=live["status"].get("egressCIDRs")),
        }
        patch = {"status": {"networking": status}}
        if view.shoot.get("status", {}).get("networking") != status:
            await self._clusters.garden.patch(
                resources.SHOOT, task.shoot.name, task.shoot.namespace, patch, subresource="status"
            )
            await self._clusters.seed.patch(resources.CLUSTER, task.technical_id, None, {"spec": {"shoot": patch}})
        return TaskResult(note=f"nodes {', '.join(status['nodes'])}")

    @activity.defn
    async def delete_infrastructure(self, task: ShootTask) -> TaskResult:
        """Release what ``deploy_infrastructure`` ordered."""
        return await self._delete(task, resources.INFRASTRUCTURE, task.shoot.name)

    @activity.defn
    async def wait_infrastructure_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until the provider has released it."""
        return await self._deleted(task, resources.INFRASTRUCTURE, task.shoot.name, extension.INFRASTRUCTURE)

    # DNSRecord

    @activity.defn
    async def deploy_internal_dns(self, task: ShootTask) -> TaskResult:
        """Point ``api.<shoot>.<project>.<internal domain>`` to the seed's gateway and wait for it."""
        view = await self._clusters.cluster(task.technical_id)
        internal = view.seed["spec"]["dns"]["internal"]
        domain = internal_api_domain(task.technical_id, internal["domain"])
        return await self._deploy_dns(task, "internal", domain, internal["type"], internal["credentialsRef"])

    @activity.defn
    async def deploy_external_dns(self, task: ShootTask) -> TaskResult:
        """Point ``api.<spec.dns.domain>`` to the seed's gateway and wait for it; nothing without a domain."""
        view = await self._clusters.cluster(task.technical_id)
        domain = (view.shoot["spec"].get("dns") or {}).get("domain")
        provider = _external_dns_provider(view)
        if not domain or provider is None:
            return TaskResult(note="no external domain")
        type_, credentials = provider
        return await self._deploy_dns(task, "external", f"api.{domain}", type_, credentials)

    @activity.defn
    async def delete_internal_dns(self, task: ShootTask) -> TaskResult:
        """Take the internal name out of the DNS and wait until it is gone."""
        return await self._delete_dns(task, "internal")

    @activity.defn
    async def delete_external_dns(self, task: ShootTask) -> TaskResult:
        """Take the external name out of the DNS and wait until it is gone."""
        return await self._delete_dns(task, "external")

    # Backup

    @activity.defn
    async def deploy_backup_entry(self, task: ShootTask) -> TaskResult:
        """Order the Shoot's place in the seed's bucket; its provider writes Secret ``etcd-backup``.

        The garden shows it as a BackupEntry owned by the Shoot.
        """
        view = await self._clusters.cluster(task.technical_id)
        name = backup_entry_name(task)
        bucket = await self._clusters.seed.get(resources.BACKUP_BUCKET, view.seed["metadata"]["uid"])
        generated = bucket.get("status", {}).get("generatedSecretRef")
        spec = {
            "type": view.seed["spec"]["backup"]["provider"],
            "region": view.seed["spec"]["backup"].get("region") or view.seed["spec"]["provider"]["region"],
            "bucketName": bucket["metadata"]["name"],
            "secretRef": generated or bucket["spec"]["secretRef"],
            **_optional(backupBucketProviderStatus=bucket.get("status", {}).get("providerStatus")),
        }
        await self._clusters.garden.apply(
            {
                "apiVersion": resources.CORE_BACKUP_ENTRY.api_version,
                "kind": "BackupEntry",
                "metadata": {
                    "name": name,
                    "namespace": task.shoot.namespace,
                    "ownerReferences": [_owner(task)],
                },
                "spec": {"bucketName": bucket["metadata"]["name"], "seedName": task.seed},
            },
            manager=extension.MANAGER,
        )
        wanted = ExtensionObject(resources.BACKUP_ENTRY, name, None, spec)
        await apply_extension(self._clusters.seed, wanted, task.trigger)
        return TaskResult()

    @activity.defn
    async def wait_backup_entry(self, task: ShootTask) -> TaskResult:
        """Wait until the entry can be written to."""
        await extension.wait_extension_ready(
            self._clusters.seed_caches,
            resources.BACKUP_ENTRY,
            backup_entry_name(task),
            None,
            extension.BACKUP_ENTRY,
            trigger=task.trigger,
        )
        return TaskResult()

    @activity.defn
    async def delete_backup_entry(self, task: ShootTask) -> TaskResult:
        """Delete the Shoot's backups, in the bucket and as objects of seed and garden."""
        await extension.delete_extension(
            self._clusters.seed, resources.BACKUP_ENTRY, backup_entry_name(task), None, task.trigger
        )
        return TaskResult()

    @activity.defn
    async def wait_backup_entry_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until the backups are gone, then remove the garden's BackupEntry."""
        name = backup_entry_name(task)
        await extension.wait_extension_deleted(
            self._clusters.seed_caches, resources.BACKUP_ENTRY, name, None, extension.BACKUP_ENTRY, task.trigger
        )
        await self._clusters.garden.delete(resources.CORE_BACKUP_ENTRY, name, task.shoot.namespace)
        return TaskResult()

    # ControlPlane

    @activity.defn
    async def deploy_control_plane_extension(self, task: ShootTask) -> TaskResult:
        """Order what the provider adds to the control plane: cloud controllers, storage classes."""
        view = await self._clusters.cluster(task.technical_id)
        provider = view.shoot["spec"]["provider"]
        spec = {
            "type": provider["type"],
            "region": view.shoot["spec"]["region"],
            "secretRef": _secret_ref(CLOUD_SECRET, task),
            **_optional(
                providerConfig=provider.get("controlPlaneConfig"),
                infrastructureProviderStatus=await self._infrastructure_status(task),
            ),
        }
        return await self._apply(task, resources.CONTROL_PLANE, task.shoot.name, spec)

    @activity.defn
    async def wait_control_plane_extension(self, task: ShootTask) -> TaskResult:
        """Wait for it."""
        await self._ready(task, resources.CONTROL_PLANE, task.shoot.name, extension.CONTROL_PLANE)
        return TaskResult()

    @activity.defn
    async def delete_control_plane_extension(self, task: ShootTask) -> TaskResult:
        """Delete it."""
        return await self._delete(task, resources.CONTROL_PLANE, task.shoot.name)

    @activity.defn
    async def wait_control_plane_extension_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until it is gone."""
        return await self._deleted(task, resources.CONTROL_PLANE, task.shoot.name, extension.CONTROL_PLANE)

    # Network

    @activity.defn
    async def deploy_network(self, task: ShootTask) -> TaskResult:
        """Order the pod network."""
        view = await self._clusters.cluster(task.technical_id)
        networking = view.shoot["spec"]["networking"]
        spec = {
            "type": networking["type"],
            "podCIDR": networking["pods"],
            "serviceCIDR": networking["services"],
            "ipFamilies": networking.get("ipFamilies") or ["IPv4"],
            **_optional(providerConfig=networking.get("providerConfig")),
        }
        return await self._apply(task, resources.NETWORK, task.shoot.name, spec)

    @activity.defn
    async def wait_network(self, task: ShootTask) -> TaskResult:
        """Wait for it."""
        await self._ready(task, resources.NETWORK, task.shoot.name, extension.NETWORK)
        return TaskResult()

    @activity.defn
    async def delete_network(self, task: ShootTask) -> TaskResult:
        """Delete it."""
        return await self._delete(task, resources.NETWORK, task.shoot.name)

    @activity.defn
    async def wait_network_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until it is gone."""
        return await self._deleted(task, resources.NETWORK, task.shoot.name, extension.NETWORK)

    # Worker

    @activity.defn
    async def deploy_worker(self, task: ShootTask) -> TaskResult:
        """Order the machines of all pools, each with the user data of its operating system config."""
        view = await self._clusters.cluster(task.technical_id)
        spec = {
            "type": view.shoot["spec"]["provider"]["type"],
            "region": view.shoot["spec"]["region"],
            "secretRef": _secret_ref(CLOUD_SECRET, task),
            "pools": [await self._pool(task, view, pool) for pool in view.shoot["spec"]["provider"]["workers"]],
            **_optional(infrastructureProviderStatus=await self._infrastructure_status(task)),
        }
        return await self._apply(task, resources.WORKER, task.shoot.name, spec)

    @activity.defn
    async def wait_worker(self, task: ShootTask) -> TaskResult:
        """Wait until all machines have joined."""
        live = await self._ready(task, resources.WORKER, task.shoot.name, extension.WORKER)
        deployments = live.get("status", {}).get("machineDeployments") or []
        return TaskResult(note=", ".join(each["name"] for each in deployments))

    @activity.defn
    async def delete_worker(self, task: ShootTask) -> TaskResult:
        """Delete all machines."""
        return await self._delete(task, resources.WORKER, task.shoot.name)

    @activity.defn
    async def wait_worker_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until all machines are gone."""
        return await self._deleted(task, resources.WORKER, task.shoot.name, extension.WORKER)

    # What they have in common

    async def _apply(
        self,
        task: ShootTask,
        kind: Resource,
        name: str,
        spec: dict[str, Any],
        *,
        only_on_change: bool = False,
    ) -> TaskResult:
        wanted = ExtensionObject(kind, name, task.technical_id, spec)
        await apply_extension(self._clusters.seed, wanted, task.trigger, only_on_change=only_on_change)
        return TaskResult()

    async def _ready(
        self,
        task: ShootTask,
        kind: Resource,
        name: str,
        wait: Wait,
        *,
        maybe_unchanged: bool = False,
    ) -> dict[str, Any]:
        trigger: str | None = task.trigger
        if maybe_unchanged:
            # Whoever wrote it last is waited for. Asked of the server: the cache may not have seen it yet, and
            # would show the error of the operation before.
            live = await self._clusters.seed.get(kind, name, task.technical_id)
            trigger = (live["metadata"].get("annotations") or {}).get(TIMESTAMP)
        return await extension.wait_extension_ready(
            self._clusters.seed_caches, kind, name, task.technical_id, wait, trigger=trigger
        )

    async def _delete(self, task: ShootTask, kind: Resource, name: str) -> TaskResult:
        await extension.delete_extension(self._clusters.seed, kind, name, task.technical_id, task.trigger)
        return TaskResult()

    async def _deleted(self, task: ShootTask, kind: Resource, name: str, wait: Wait) -> TaskResult:
        await extension.wait_extension_deleted(
            self._clusters.seed_caches, kind, name, task.technical_id, wait, task.trigger
        )
        return TaskResult()

    async def _deploy_dns(
        self, task: ShootTask, role: str, domain: str, type_: str, credentials: dict[str, str]
    ) -> TaskResult:
        """The credentials travel as a Secret beside the record; the record changes only with its values."""
        address = await gateway_address(self._clusters.seed_caches)
        name = dns_record_name(task.shoot.name, role)
        secret = f"dnsrecord-{name}"
        source = await self._clusters.garden.get(
            resources.SECRET, credentials["name"], credentials.get("namespace") or task.shoot.namespace
        )
        await self._clusters.seed.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": secret, "namespace": task.technical_id},
                "type": "Opaque",
                "data": source.get("data", {}),
            },
            manager=extension.MANAGER,
        )
        spec = {
            "type": type_,
            "secretRef": _secret_ref(secret, task),
            "name": domain,
            "recordType": "A",
            "values": [address],
            "ttl": 120,
        }
        await self._apply(task, resources.DNS_RECORD, name, spec, only_on_change=True)
        await self._ready(task, resources.DNS_RECORD, name, extension.DNS_RECORD, maybe_unchanged=True)
        return TaskResult(note=f"{domain} is {address}")

    async def _delete_dns(self, task: ShootTask, role: str) -> TaskResult:
        name = dns_record_name(task.shoot.name, role)
        await self._delete(task, resources.DNS_RECORD, name)
        return await self._deleted(task, resources.DNS_RECORD, name, extension.DNS_RECORD)

    async def _infrastructure_status(self, task: ShootTask) -> Any:
        live = await self._clusters.seed.find(resources.INFRASTRUCTURE, task.shoot.name, task.technical_id)
        return live.get("status", {}).get("providerStatus") if live else None

    async def _pool(self, task: ShootTask, view: ClusterView, pool: dict[str, Any]) -> dict[str, Any]:
        key = node_agent_secret_name(view.shoot, pool)
        provision = await self._clusters.seed.get(resources.OPERATING_SYSTEM_CONFIG, f"{key}-init", task.technical_id)
        user_data = provision["status"]["cloudConfig"]["secretRef"]["name"]
        version = (pool.get("kubernetes") or {}).get("version") or view.shoot["spec"]["kubernetes"]["version"]
        labels = {
            "worker.gardener.cloud/pool": pool["name"],
            "worker.gardener.cloud/kubernetes-version": version,
            "worker.gardener.cloud/gardener-node-agent-secret-name": key,
            "worker.gardener.cloud/cri-name": (pool.get("cri") or {}).get("name", "containerd"),
            "worker.gardener.cloud/system-components": str(
                (pool.get("systemComponents") or {}).get("allow", True)
            ).lower(),
            "node.kubernetes.io/role": "node",
        }
        kept = [
            "annotations",
            "taints",
            "zones",
            "volume",
            "dataVolumes",
            "kubeletDataVolumeName",
            "providerConfig",
            "machineControllerManager",
            "clusterAutoscaler",
            "priority",
            "updateStrategy",
        ]
        return {
            "name": pool["name"],
            "minimum": pool["minimum"],
            "maximum": pool["maximum"],
            "maxSurge": pool.get("maxSurge", 1),
            "maxUnavailable": pool.get("maxUnavailable", 0),
            "machineType": pool["machine"]["type"],
            "architecture": pool["machine"].get("architecture", "amd64"),
            "machineImage": {key: pool["machine"]["image"][key] for key in ("name", "version")},
            "nodeAgentSecretName": key,
            "userDataSecretRef": {"name": user_data, "key": "cloud_config"},
            "labels": {**(pool.get("labels") or {}), **labels},
            "kubernetesVersion": version,
            **_optional(**{field: pool.get(field) for field in kept}),
        }


def _external_dns_provider(view: ClusterView) -> tuple[str, dict[str, str]] | None:
    """Type and credentials of the provider that serves the Shoot's domain: its own, or the seed's default."""
    dns = view.shoot["spec"].get("dns") or {}
    primary = next((each for each in dns.get("providers") or [] if each.get("primary")), None)
    if primary is not None and primary.get("type") == "unmanaged":
        return None
    if primary is not None and primary.get("credentialsRef"):
        return primary["type"], primary["credentialsRef"]
    for default in view.seed["spec"]["dns"].get("defaults") or []:
        if (dns.get("domain") or "").endswith("." + default["domain"]):
            return default["type"], default["credentialsRef"]
    return None


def _secret_ref(name: str, task: ShootTask) -> dict[str, str]:
    return {"name": name, "namespace": task.technical_id}


def _owner(task: ShootTask) -> dict[str, Any]:
    return {
        "apiVersion": resources.SHOOT.api_version,
        "kind": "Shoot",
        "name": task.shoot.name,
        "uid": task.shoot.uid,
        "blockOwnerDeletion": False,
        "controller": True,
    }


def _optional(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _optional_list(value: str | None) -> list[str]:
    return [value] if value else []
