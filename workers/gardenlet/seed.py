"""Register the seed, keep its lease and say in its status how it is."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from activities.kube.cache import Key
from activities.kube.client import KubeClient, Object, WatchEvent
from activities.kube.clusters import Clusters
from activities.kube.controller import Controller
from activities.kube.errors import ApiError, NotFound
from api import resources
from api.conditions import Finding, Operation, merge
from api.constants import (
    OPERATION,
    OPERATION_RECONCILE,
    SEED_BACKUP_BUCKETS_READY,
    SEED_GARDENLET_READY,
    SEED_LEASE_NAMESPACE,
    SEED_SYSTEM_COMPONENTS_HEALTHY,
)
from api.images import OWN_VERSION
from api.operations import GARDEN_QUEUE, SeedTask
from api.times import micro_timestamp, timestamp
from workers.gardenlet.config import SeedConfig
from workflows.seed import ReconcileSeed, seed_workflow_id

log = logging.getLogger(__name__)

LEASE_SECONDS = 10
"""A lease that is not renewed for 40 s makes GardenletReady Unknown. Source: spec/api-core.md 12."""
MANAGER = "gardenlet"
_READY = Finding(SEED_GARDENLET_READY, "True", "GardenletReady", "Gardenlet is posting ready status.")


class SeedController:
    """Registers the Seed; reconciles it by a workflow at its start, when it changes and when asked; keeps its lease."""

    def __init__(self, clusters: Clusters, temporal: Client, config: SeedConfig, identity: str) -> None:
        self._clusters = clusters
        self._temporal = temporal
        self._config = config
        self._identity = identity
        self._seeds = clusters.garden_caches.of(resources.SEED)
        self._reconciled = 0
        """Generation that we have reconciled since our start."""

    async def run(self) -> None:
        """Until cancelled."""
        seed = await self._register()
        controller = Controller("seed", self._reconcile, workers=1)
        controller.watch(self._seeds, when=self._is_news)
        await asyncio.gather(controller.run(), self._keep_lease(seed))

    async def _register(self) -> dict[str, Any]:
        return await self._clusters.garden.apply(
            {
                "apiVersion": resources.SEED.api_version,
                "kind": "Seed",
                "metadata": self._config.metadata,
                "spec": self._config.spec,
            },
            manager=MANAGER,
        )

    def _is_news(self, event: WatchEvent) -> bool:
        metadata = event.object["metadata"]
        ours: bool = metadata["name"] == self._clusters.seed_name
        return ours and (metadata["generation"] != self._reconciled or _is_asked(event.object))

    async def _reconcile(self, key: Key) -> None:
        seed = self._seeds.get(key.name)
        if seed is None or (seed["metadata"]["generation"] == self._reconciled and not _is_asked(seed)):
            return
        if _is_asked(seed):
            # Heard before it is done: whoever starts after us reconciles in any case.
            heard = {"metadata": {"annotations": {OPERATION: None}}}
            await self._clusters.garden.patch(resources.SEED, key.name, None, heard)
        task = SeedTask(
            name=seed["metadata"]["name"],
            uid=seed["metadata"]["uid"],
            generation=seed["metadata"]["generation"],
            trigger=micro_timestamp(),
        )
        await self._report(seed, "Processing", 0, "Seed reconciliation is running.", ready=False)
        handle = await self._temporal.start_workflow(
            ReconcileSeed.run,
            task,
            id=seed_workflow_id(task),
            task_queue=GARDEN_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"Seed {task.name}",
        )
        await handle.result()
        await self._report(seed, "Succeeded", 100, "Seed has been reconciled successfully.", ready=True)
        self._reconciled = task.generation
        log.info("seed %s is ready for control planes", task.name)

    async def _report(self, seed: dict[str, Any], state: str, progress: int, description: str, *, ready: bool) -> None:
        """Write the status. A Seed that was ready once stays so while it is reconciled: its control planes go on."""
        now = datetime.now(UTC)
        version = await self._clusters.seed.request("GET", "/version")
        identity = await self._clusters.seed.get(resources.NAMESPACE, "kube-system")
        known = seed.get("status", {}).get("conditions") or []
        findings = [
            _READY,
            Finding("ExtensionsReady", "True", "ControllerInstallationsReady", "Extensions are registered."),
        ]
        if ready or not known:
            status = "True" if ready else "Progressing"
            findings.append(Finding(SEED_SYSTEM_COMPONENTS_HEALTHY, status, "SystemComponents", description))
            if seed["spec"].get("backup"):
                findings.append(Finding(SEED_BACKUP_BUCKETS_READY, status, "BackupBucketsAvailable", description))
        change = {
            "gardener": {"id": self._identity, "name": self._identity, "version": OWN_VERSION},
            "kubernetesVersion": version["gitVersion"],
            "clusterIdentity": identity["metadata"]["uid"],
            "observedGeneration": seed["metadata"]["generation"],
            "lastOperation": {
                "type": "Reconcile" if known else "Create",
                "state": state,
                "progress": progress,
                "description": description,
                "lastUpdateTime": timestamp(now),
            },
            "conditions": merge(known, findings, Operation(), {}, now),
        }
        await self._clusters.garden.patch(
            resources.SEED, seed["metadata"]["name"], None, {"status": change}, subresource="status"
        )

    async def _keep_lease(self, seed: dict[str, Any]) -> None:
        while True:
            try:
                await self._renew_lease(seed)
                await self._deny_doubts(seed["metadata"]["name"])
            except ApiError as error:
                log.warning("renewing the seed's lease: %s", error)
            await asyncio.sleep(LEASE_SECONDS)  # a lease is renewed by the clock

    async def _deny_doubts(self, name: str) -> None:
        """Say that we are ready, if the garden has given us up meanwhile: who was silent is not asked again."""
        seed = self._seeds.get(name)
        known = ((seed or {}).get("status") or {}).get("conditions") or []
        conditions = merge(known, [_READY], Operation(), {}, datetime.now(UTC))
        if seed is not None and known and conditions != known:
            await write_conditions(self._clusters.garden, seed, conditions)

    async def _renew_lease(self, seed: dict[str, Any]) -> None:
        name = seed["metadata"]["name"]
        lease = {
            "apiVersion": resources.LEASE.api_version,
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": SEED_LEASE_NAMESPACE,
                "ownerReferences": [
                    {
                        "apiVersion": resources.SEED.api_version,
                        "kind": "Seed",
                        "name": name,
                        "uid": seed["metadata"]["uid"],
                    }
                ],
            },
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": 40,
                "renewTime": micro_timestamp(),
            },
        }
        try:
            await self._clusters.garden.apply_blindly(lease, manager=MANAGER)
        except NotFound:
            await self._clusters.garden.apply(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SEED_LEASE_NAMESPACE}}, manager=MANAGER
            )
            await self._clusters.garden.apply_blindly(lease, manager=MANAGER)


async def write_conditions(garden: KubeClient, seed: Object, conditions: list[dict[str, Any]]) -> None:
    """Of a Seed as we know it. Raises Conflict if it has changed since."""
    metadata = seed["metadata"]
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": {"conditions": conditions}}
    await garden.patch(resources.SEED, metadata["name"], None, patch, subresource="status")


def _is_asked(seed: dict[str, Any]) -> bool:
    return bool((seed["metadata"].get("annotations") or {}).get(OPERATION) == OPERATION_RECONCILE)
