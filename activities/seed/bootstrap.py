"""Set up a seed so that it can host control planes.

All objects are applied by name, so a second run changes nothing.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from activities.components import gateway
from activities.errors import transient
from activities.garden.seed_status import write_seed_status
from activities.heartbeat import heartbeating
from activities.seed import extension_objects as extension
from activities.seed.backups import backup_buckets_of
from activities.seed.extension_access import INGRESS_DNS_SECRET, ExtensionAccess
from activities.seed.extension_kinds import BACKUP_ENTRY, INTERNAL_DNS
from activities.seed.extension_objects import MANAGER, ExtensionObject
from activities.seed.gateway import deploy_gateway, gateway_address
from activities.seed.handlers import ExposureClassHandler, Handlers
from activities.seed.system import garden_namespace
from api import resources
from api.constants import (
    GARDEN_NAMESPACE,
    OPERATION,
    OPERATION_RECONCILE,
    SEED_BACKUP_BUCKETS_READY,
    SEED_GARDENLET_READY,
    SEED_SYSTEM_COMPONENTS_HEALTHY,
    TIMESTAMP,
)
from api.contracts.operations import SeedTask, TaskResult
from api.crds import crds
from api.decisions.conditions import Finding, Operation, find_condition, merge
from api.errors import ErrorCode
from api.images import OWN_VERSION
from api.names import dns_record_type
from api.policies import seed_policies
from api.times import timestamp

INGRESS_DNS = "seed-ingress"
"""DNSRecord of the seed's ingress domain."""

GARDENLET_READY = Finding(SEED_GARDENLET_READY, "True", "GardenletReady", "Gardenlet is posting ready status.")
_OLDEST = (1, 30)
"""Oldest minor version of a seed's Kubernetes: its ValidatingAdmissionPolicies limit extensions and their pods."""
_ACCEPTED_SECONDS = 2 * 60.0

_FIXED_DNS_FIELDS = ("type", "class", "name", "recordType")
"""Fields that identify a DNSRecord: if one of them differs, the live DNSRecord is deleted and another one created."""


class SeedActivities:
    """One instance per gardenlet."""

    def __init__(
        self, clusters: Clusters, identity: str = "gardenlet", handlers: Iterable[ExposureClassHandler] = ()
    ) -> None:
        self._clusters = clusters
        self._identity = identity
        self._handlers = Handlers(clusters, handlers)

    @activity.defn
    async def report_seed_processing(self, task: SeedTask) -> TaskResult:
        """Remove the reconcile annotation from the Seed, and write to its status that it is being reconciled.

        An annotation that is written later stays, and a later workflow handles it.

        Raises:
            ApplicationError: the seed runs a version of Kubernetes that lacks what its components need. It passes
                once the seed is upgraded, so the task is retried.
        """
        seed = await self._seed(task)
        annotations = seed["metadata"].get("annotations") or {}
        if annotations.get(OPERATION) == OPERATION_RECONCILE:
            metadata = {"resourceVersion": seed["metadata"]["resourceVersion"], "annotations": {OPERATION: None}}
            seed = await self._clusters.garden.patch(resources.SEED, task.name, None, {"metadata": metadata})
        await self._report(seed, task, "Processing", 0, "Seed reconciliation is running.", ready=False)
        _check_version((await self._clusters.seed.request("GET", "/version"))["gitVersion"])
        return TaskResult()

    @activity.defn
    async def report_seed_ready(self, task: SeedTask) -> TaskResult:
        """Write to the Seed's status that it is ready."""
        seed = await self._seed(task)
        await self._report(seed, task, "Succeeded", 100, "Seed has been reconciled successfully.", ready=True)
        return TaskResult()

    async def _seed(self, task: SeedTask) -> dict[str, Any]:
        """Read the Seed of a task. Raises ApplicationError ``SeedGone`` (final) if the Seed was deleted meanwhile."""
        seed = await self._clusters.garden.find(resources.SEED, task.name)
        if seed is None or seed["metadata"]["uid"] != task.uid:
            raise ApplicationError(
                f"Seed {task.name} with uid {task.uid} does not exist any more", type="SeedGone", non_retryable=True
            )
        return seed

    async def _wanted(self, task: SeedTask) -> dict[str, Any]:
        """Read the Seed that an activity deploys objects for.

        Raises ApplicationError ``SeedDeleting`` (final) if it is being deleted: its deletion would not find what is
        deployed after it has begun.
        """
        seed = await self._clusters.garden.get(resources.SEED, task.name)
        if "deletionTimestamp" in seed["metadata"]:
            raise ApplicationError(f"Seed {task.name} is being deleted", type="SeedDeleting", non_retryable=True)
        return seed

    async def _report(
        self, seed: dict[str, Any], task: SeedTask, state: str, progress: int, description: str, *, ready: bool
    ) -> None:
        """Write the Seed's status.

        A Seed that was ready once keeps its conditions while it is reconciled: its control planes continue to run.
        """
        now = datetime.now(UTC)
        version = await self._clusters.seed.request("GET", "/version")
        identity = await self._clusters.seed.get(resources.NAMESPACE, "kube-system")
        status = seed.get("status") or {}
        known = status.get("conditions") or []
        findings = [GARDENLET_READY]
        was_ready = any(each["type"] == SEED_SYSTEM_COMPONENTS_HEALTHY for each in known)
        if ready or not was_ready:
            said = "True" if ready else "Progressing"
            findings.append(Finding(SEED_SYSTEM_COMPONENTS_HEALTHY, said, "SystemComponents", description))
            if seed["spec"].get("backup"):
                findings.append(Finding(SEED_BACKUP_BUCKETS_READY, said, "BackupBucketsAvailable", description))
        operation = {
            "type": str(task.operation),
            "state": state,
            "progress": progress,
            "description": description,
            "lastUpdateTime": timestamp(now),
        }
        change = {
            "gardener": {"id": self._identity, "name": self._identity, "version": OWN_VERSION},
            "kubernetesVersion": version["gitVersion"],
            "clusterIdentity": identity["metadata"]["uid"],
            "observedGeneration": task.generation,
            "lastOperation": operation,
            "conditions": merge(known, findings, Operation(), {}, now),
        }
        await write_seed_status(self._clusters.garden, seed, change)

    @activity.defn
    async def deploy_seed_crds(self, task: SeedTask) -> TaskResult:
        """Apply the CRDs of extensions, etcds, machines and resource managers, and wait until they are established.

        Also apply the policies that reject deletions without confirmation, control-plane pods with access to their
        host, and ManagedResources by which an extension would get more rights than its own.
        """
        await self._wanted(task)
        seed = self._clusters.seed
        definitions = crds("seed")
        for definition in definitions:
            await seed.apply(definition, manager=MANAGER)
        cache = self._clusters.seed_caches.of(resources.CUSTOM_RESOURCE_DEFINITION)
        for definition in definitions:
            await heartbeating(cache.wait_for(definition["metadata"]["name"], None, _established, 60))
        for policy in seed_policies():
            await seed.apply(policy, manager=MANAGER)
        return TaskResult(note=f"{len(definitions)} kinds")

    @activity.defn
    async def deploy_seed_gateway(self, task: SeedTask) -> TaskResult:
        """Apply the gateway and wait for its address, to which the DNS names of Shoots will point.

        Also apply the gateways of handlers, see ``activities.seed.handlers``. A Shoot waits for the address of its own.
        A second run finds the objects of the first one by name, see ``deploy_gateway``.
        """
        seed = await self._wanted(task)
        await self._clusters.seed.apply(garden_namespace(), manager=MANAGER)
        balancer = (seed["spec"].get("settings") or {}).get("loadBalancerServices")
        domain = seed["spec"]["dns"]["internal"]["domain"]
        replicas = 2 if len((seed["spec"].get("provider") or {}).get("zones") or ()) > 1 else 1
        wanted = gateway.objects(internal_domain=domain, load_balancer=balancer, replicas=replicas)
        await deploy_gateway(self._clusters, wanted)
        handlers = await self._handlers.deploy(seed, replicas)
        address = await gateway_address(self._clusters.seed_caches)
        return TaskResult(note="; ".join(filter(None, (address, handlers))))

    @activity.defn
    async def deploy_seed_ingress_dns(self, task: SeedTask) -> TaskResult:
        """Point ``*.<ingress domain>`` to the seed's gateway, and wait until the DNSRecord is ready.

        Without an ingress domain, delete the DNSRecord of a former one. That DNSRecord, or one of another name or
        type, is deleted while the Secret still holds the credentials that created it.
        """
        seed = await self._wanted(task)
        if not (ingress := seed["spec"].get("ingress")):
            await self._delete_ingress_dns(task)
            await self._clusters.seed.delete(resources.SECRET, INGRESS_DNS_SECRET, GARDEN_NAMESPACE)
            await ExtensionAccess(self._clusters).unshare(INGRESS_DNS_SECRET)
            return TaskResult(note="no ingress domain")
        provider = seed["spec"]["dns"]["provider"]
        address = await gateway_address(self._clusters.seed_caches)
        spec = {
            "type": provider["type"],
            "class": "seed",
            "secretRef": {"name": INGRESS_DNS_SECRET, "namespace": GARDEN_NAMESPACE},
            "name": f"*.{ingress['domain']}",
            "recordType": dns_record_type(address),
            "values": [address],
            "ttl": 120,
        }
        live = await self._clusters.seed.find(resources.DNS_RECORD, INGRESS_DNS, GARDEN_NAMESPACE)
        if live and (
            "deletionTimestamp" in live["metadata"]
            or any(live["spec"].get(field) != spec[field] for field in _FIXED_DNS_FIELDS)
        ):
            await self._delete_ingress_dns(task)
        await ExtensionAccess(self._clusters).hand_over(seed, INGRESS_DNS_SECRET, provider["credentialsRef"])
        wanted = ExtensionObject(resources.DNS_RECORD, INGRESS_DNS, GARDEN_NAMESPACE, spec)
        await extension.apply_extension(self._clusters.seed, wanted, task.trigger)
        await extension.wait_extension_ready(
            self._clusters.seed_caches,
            resources.DNS_RECORD,
            INGRESS_DNS,
            GARDEN_NAMESPACE,
            INTERNAL_DNS.wait,
            trigger=task.trigger,
        )
        return TaskResult(note=f"{spec['name']} is {address}")

    async def _delete_ingress_dns(self, task: SeedTask) -> None:
        place = (resources.DNS_RECORD, INGRESS_DNS, GARDEN_NAMESPACE)
        seed, caches = self._clusters.seed, self._clusters.seed_caches
        await extension.delete_extension(seed, *place, task.trigger)
        await extension.wait_extension_deleted(seed, caches, *place, INTERNAL_DNS.wait, task.trigger)

    @activity.defn
    async def deploy_backup_bucket(self, task: SeedTask) -> TaskResult:
        """Apply the garden's BackupBucket of the seed, request its reconciliation, and wait until it is ready.

        Its name is the Seed's uid. The gardenlet reconciles it (``workers.gardenlet.backup_buckets``). A second run
        finds the timestamp of the first one; it requests one more reconciliation, which changes nothing.
        """
        seed = await self._wanted(task)
        backup = seed["spec"].get("backup")
        if not backup:
            return TaskResult(note="no backup")
        reference = backup["credentialsRef"]
        region = backup.get("region") or seed["spec"]["provider"]["region"]
        settings = {"providerConfig": backup["providerConfig"]} if backup.get("providerConfig") else {}
        await self._clusters.garden.apply(
            {
                "apiVersion": resources.CORE_BACKUP_BUCKET.api_version,
                "kind": "BackupBucket",
                "metadata": {
                    "name": task.uid,
                    "annotations": {OPERATION: OPERATION_RECONCILE, TIMESTAMP: task.trigger},
                },
                "spec": {
                    "provider": {"type": backup["provider"], "region": region},
                    "credentialsRef": {"apiVersion": "v1", "kind": "Secret", **_reference(reference)},
                    "seedName": task.name,
                    **settings,
                },
            },
            manager=MANAGER,
        )

        def accepted(live: dict[str, Any] | None) -> bool:
            annotations = (live or {"metadata": {}})["metadata"].get("annotations") or {}
            return annotations.get(TIMESTAMP) == task.trigger and OPERATION not in annotations

        bucket, cache = (resources.BACKUP_BUCKET, task.uid, None), backup_buckets_of(self._clusters)
        try:
            await heartbeating(cache.wait_for(task.uid, None, accepted, _ACCEPTED_SECONDS))
        except TimeoutError:
            error = ((cache.get(task.uid) or {}).get("status") or {}).get("lastError") or {}
            why = error.get("description") or "the gardenlet's controllers have not taken it up"
            raise transient(
                ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"BackupBucket {task.uid} is not reconciled: {why}"
            ) from None
        trigger = await extension.asked_at(self._clusters.seed, *bucket)
        await extension.wait_extension_ready(self._clusters.seed_caches, *bucket, BACKUP_ENTRY.wait, trigger=trigger)
        return TaskResult(note=f"bucket {task.uid}")


def _check_version(version: str) -> None:
    """Raises ApplicationError if the seed's Kubernetes is older than ``_OLDEST``."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is not None and tuple(map(int, found.groups())) < _OLDEST:
        wanted = ".".join(map(str, _OLDEST))
        text = f"the seed runs Kubernetes {version}, and at least {wanted} is needed: upgrade the seed's cluster"
        raise transient(ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM, text)


def _established(live: dict[str, Any] | None) -> bool | None:
    return find_condition(live, "Established").get("status") == "True" or None


def _reference(reference: dict[str, Any]) -> dict[str, Any]:
    return {"name": reference["name"], "namespace": reference["namespace"]}
