"""Register the seed, keep its lease and say in its status how it is."""

import asyncio
import logging
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from activities.kube.clusters import Clusters
from activities.kube.errors import ApiError, NotFound
from api import resources
from api.images import OWN_VERSION
from api.operations import GARDEN_QUEUE, SeedTask
from api.times import micro_timestamp
from workers.gardenlet.config import SeedConfig
from workflows.seed import ReconcileSeed, seed_workflow_id

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "gardener-system-seed-lease"
LEASE_SECONDS = 10
"""A lease that is not renewed for 40 s makes GardenletReady Unknown. Source: spec/api-core.md 12."""
MANAGER = "gardenlet"


class SeedController:
    """Registers the Seed at its start; reconciles it by a workflow; renews its lease."""

    def __init__(self, clusters: Clusters, temporal: Client, config: SeedConfig, identity: str) -> None:
        self._clusters = clusters
        self._temporal = temporal
        self._config = config
        self._identity = identity

    async def run(self) -> None:
        """Until cancelled."""
        seed = await self._register()
        await asyncio.gather(self._reconcile(seed), self._keep_lease(seed))

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

    async def _reconcile(self, seed: dict[str, Any]) -> None:
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
        log.info("seed %s is ready for control planes", task.name)

    async def _report(self, seed: dict[str, Any], state: str, progress: int, description: str, *, ready: bool) -> None:
        now = micro_timestamp()
        version = await self._clusters.seed.request("GET", "/version")
        identity = await self._clusters.seed.get(resources.NAMESPACE, "kube-system")
        known = {each["type"]: each for each in seed.get("status", {}).get("conditions") or []}
        status = {
            "gardener": {"id": self._identity, "name": self._identity, "version": OWN_VERSION},
            "kubernetesVersion": version["gitVersion"],
            "clusterIdentity": identity["metadata"]["uid"],
            "observedGeneration": seed["metadata"]["generation"],
            "lastOperation": {
                "type": "Reconcile" if known else "Create",
                "state": state,
                "progress": progress,
                "description": description,
                "lastUpdateTime": now,
            },
            "conditions": [
                _condition("GardenletReady", True, "GardenletReady", "Gardenlet is posting ready status.", now),
                _condition("SeedSystemComponentsHealthy", ready, "SystemComponents", description, now),
                *(
                    [_condition("BackupBucketsReady", ready, "BackupBucketsAvailable", description, now)]
                    if seed["spec"].get("backup")
                    else []
                ),
                _condition("ExtensionsReady", True, "ControllerInstallationsReady", "Extensions are registered.", now),
            ],
        }
        await self._clusters.garden.patch(
            resources.SEED, seed["metadata"]["name"], None, {"status": status}, subresource="status"
        )

    async def _keep_lease(self, seed: dict[str, Any]) -> None:
        while True:
            try:
                await self._renew_lease(seed)
            except ApiError as error:
                log.warning("renewing the seed's lease: %s", error)
            await asyncio.sleep(LEASE_SECONDS)  # a lease is renewed by the clock

    async def _renew_lease(self, seed: dict[str, Any]) -> None:
        name = seed["metadata"]["name"]
        lease = {
            "apiVersion": resources.LEASE.api_version,
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": LEASE_NAMESPACE,
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
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}, manager=MANAGER
            )
            await self._clusters.garden.apply_blindly(lease, manager=MANAGER)


def _condition(type_: str, fulfilled: bool, reason: str, message: str, now: str) -> dict[str, Any]:
    return {
        "type": type_,
        "status": "True" if fulfilled else "Progressing",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
        "lastUpdateTime": now,
    }
