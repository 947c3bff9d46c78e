"""Checks the seed itself, and writes the results into the conditions of its Seed.

Source: spec/api-core.md 12, "Seed backup-bucket check" and "Seed extensions check".
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from activities.clusters import Clusters
from activities.components import gateway, resource_manager
from activities.components.gateway import Place
from activities.garden.seed_status import write_seed_status
from activities.seed.bootstrap import INGRESS_DNS
from api import constants, resources
from api.decisions.conditions import Finding, Operation, merge
from api.decisions.extension_charts import INSTALLATION_LABEL
from api.resources import Object
from kube.cache import Key
from kube.controller import Controller, Requeue
from workers.gardenlet.care.checks import managed_resource_fault
from workers.gardenlet.config import SeedCareConfig, ShootCareConfig
from workers.gardenlet.extensions_ready import UsedExtensions, extensions_ready
from workers.gardenlet.garden_caches import own_seed
from workers.lib import health

_SETTLED = Operation("Reconcile", "Succeeded")
"""A running operation of the Seed is no reason to show a failed check as Progressing."""
_RESOURCE_MANAGER = Key(constants.GARDEN_NAMESPACE, resource_manager.NAME)


class SeedCare:
    """Checks the seed in each ``seedCare.syncPeriod``, and when an object changes on which a condition depends.

    One per gardenlet. Writes the conditions that have changed.
    """

    def __init__(
        self,
        clusters: Clusters,
        config: SeedCareConfig,
        shoot_care: ShootCareConfig,
        gateways: Iterable[Place] = (gateway.OWN,),
    ) -> None:
        self._clusters = clusters
        self._config = config
        self._gateways = tuple(gateways)
        self._progressing_for = shoot_care.managed_resource_progressing_threshold
        self._thresholds = {each.type: each.duration for each in config.condition_thresholds}
        self._seeds = own_seed(clusters)
        self._used = UsedExtensions(clusters, shoot_care.stale_extension_health_checks_threshold)
        self._installations = clusters.garden_caches.of(
            resources.CONTROLLER_INSTALLATION, fields=f"spec.seedRef.name={clusters.seed_name}"
        )
        caches = clusters.seed_caches
        self._deployments = caches.of(resources.DEPLOYMENT)
        self._records = caches.of(resources.DNS_RECORD)
        self._buckets = caches.of(resources.BACKUP_BUCKET)
        self._managed_resources = caches.of(resources.MANAGED_RESOURCE)

    async def run(self) -> None:
        """Run until cancelled."""
        garden = (self._seeds, self._installations, self._used.heartbeats.registrations)
        seed = (self._used.heartbeats.leases, self._buckets)
        others = (self._deployments, self._records, self._managed_resources)
        await asyncio.gather(*(each.synced() for each in (*garden, *seed, *others)))
        controller = Controller("seed care", self._check, workers=1)
        ours = Key(None, self._clusters.seed_name)
        for cache in (*garden, *seed):
            controller.watch(cache, keys=lambda _: [ours])
        for cache in others:
            # Control planes have such objects, too, and these change often.
            controller.watch(cache, keys=lambda _: [ours], when=lambda event: self._is_of_seed(event.object))
        await controller.run()

    async def _check(self, key: Key) -> Requeue | None:
        seed = self._seeds.get(key.name)
        known = ((seed or {}).get("status") or {}).get("conditions") or []
        if seed is None or not known:
            return None  # the Seed's first reconciliation writes the first conditions
        now = datetime.now(UTC)
        findings = [extensions_ready(self._installations.list(), self._used.faults()), self._components(seed, now)]
        if seed["spec"].get("backup"):
            findings.append(backup_bucket(self._buckets.get(seed["metadata"]["uid"])))
        conditions = merge(known, findings, _SETTLED, self._thresholds, now)
        if conditions != known:
            await write_seed_status(self._clusters.garden, seed, {"conditions": conditions})
        return Requeue(self._config.sync_period.total_seconds())

    def _components(self, seed: Object, now: datetime) -> Finding:
        """Condition SeedSystemComponentsHealthy: Deployments, DNS name of the gateway, ManagedResources of the seed.

        Those of ControllerInstallations count in condition ExtensionsReady. Operations wait for the components, and an
        extension that never gets healthy would stop the operations of all Shoots, also of those that do not use it.
        """
        wanted = (*(Key(each.namespace, gateway.NAME) for each in self._gateways), _RESOURCE_MANAGER)
        faults = [_deployment_fault(each, self._deployments.get(each.name, each.namespace)) for each in wanted]
        codes: tuple[str, ...] = ()
        if seed["spec"].get("ingress"):
            record = self._records.get(INGRESS_DNS, constants.GARDEN_NAMESPACE)
            faults.append(_record_fault(record))
            codes = tuple(_error(record or {}).get("codes") or ())
        for each in self._managed_resources.list(constants.GARDEN_NAMESPACE):
            labels = each["metadata"].get("labels") or {}
            if each["spec"].get("class") != constants.SEED_CLASS or INSTALLATION_LABEL in labels:
                continue
            if fault := managed_resource_fault(each, self._progressing_for, now):
                faults.append(f"ManagedResource {each['metadata']['name']}: {fault[1]}")
        return system_components([each for each in faults if each], codes)

    def _is_of_seed(self, obj: Object) -> bool:
        namespaces = (constants.GARDEN_NAMESPACE, *(each.namespace for each in self._gateways))
        return obj["metadata"].get("namespace") in namespaces


def system_components(faults: Iterable[str], codes: tuple[str, ...] = ()) -> Finding:
    """Condition SeedSystemComponentsHealthy of a seed with these faults. ``codes``: of errors of extensions."""
    type_ = constants.SEED_SYSTEM_COMPONENTS_HEALTHY
    if text := "; ".join(faults):
        return Finding(type_, "False", "SystemComponentsUnhealthy", text, codes)
    return Finding(type_, "True", "SystemComponentsRunning", "All system components are healthy.")


def backup_bucket(bucket: Object | None) -> Finding:
    """Condition BackupBucketsReady of a seed with this BackupBucket."""
    type_ = constants.SEED_BACKUP_BUCKETS_READY
    if bucket is None:
        return Finding(type_, "Unknown", "BackupBucketsGone", "The seed has no BackupBucket.")
    if error := _error(bucket):
        text = f"BackupBucket {bucket['metadata']['name']}: {error.get('description', '')}"
        return Finding(type_, "False", "BackupBucketsError", text, tuple(error.get("codes") or ()))
    return Finding(type_, "True", "BackupBucketsAvailable", "The BackupBucket of the seed is available.")


def _error(extension: Object) -> dict[str, Any]:
    """The error that an extension reports for its object; a running operation is none."""
    return (extension.get("status") or {}).get("lastError") or {}


def _deployment_fault(key: Key, deployment: Object | None) -> str | None:
    name = f"Deployment {key}"
    if deployment is None:
        return f"{name} does not exist"
    fault = health.unhealthy({**deployment, "apiVersion": "apps/v1", "kind": "Deployment"})
    return fault and f"{name}: {fault}"


def _record_fault(record: Object | None) -> str | None:
    name = f"DNSRecord {constants.GARDEN_NAMESPACE}/{INGRESS_DNS}"
    if record is None:
        return f"{name} does not exist"
    error = _error(record)
    return f"{name}: {error.get('description', '')}" if error else None
