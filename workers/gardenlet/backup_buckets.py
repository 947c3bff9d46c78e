"""Reconciles the garden's BackupBucket of this seed: the extension object, the Secrets, the status, and the end of all.

The Seed's reconciliation writes the BackupBucket into the garden and requests its reconciliation. The controller here
copies the credentials into the seed, writes the extension object, and reports what the extension says. The extension
may make a Secret with credentials of this bucket only: it is copied into the garden. Source: spec/api-core.md 6.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from activities.errors import transient
from activities.seed import extension_objects as extension
from activities.seed.backups import backup_bucket_spec, backup_buckets_of
from activities.seed.extension_access import BACKUP_SECRET, ExtensionAccess
from activities.seed.extension_objects import MANAGER, ExtensionObject
from activities.seed.retention import is_marked
from api import resources
from api.constants import FINALIZER, GARDEN_NAMESPACE, INPUTS_DIGEST, OPERATION, OPERATION_RECONCILE, TIMESTAMP
from api.errors import ErrorCode
from api.resources import Object
from api.times import micro_timestamp, timestamp
from kube.cache import Key
from kube.controller import Controller, TryAgain
from kube.edit import patch_as_read
from kube.errors import NotFound
from kube.finalizers import ensure_finalizer, has_finalizer, remove_finalizer
from kube.objects import owner_reference
from workers.gardenlet.garden_caches import own_seed

log = logging.getLogger(__name__)

_KIND = resources.BACKUP_BUCKET


class BackupBucketController:
    """One per gardenlet. A second run finds the objects of the first one."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._buckets = backup_buckets_of(clusters)
        self._objects = clusters.seed_caches.of(_KIND)
        self._seeds = own_seed(clusters)

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(*(each.synced() for each in (self._buckets, self._objects, self._seeds)))
        controller = Controller("backup buckets", self._reconcile, workers=1)
        controller.watch(self._buckets)
        controller.watch(self._objects)
        await controller.run()

    async def _reconcile(self, key: Key) -> None:
        if self._buckets.get(key.name) is None:
            return
        # Not from the caches, which may not know what the last call wrote: that would be written again.
        bucket, found = await asyncio.gather(
            self._clusters.garden.find(resources.CORE_BACKUP_BUCKET, key.name),
            self._clusters.seed.find(_KIND, key.name),
        )
        if bucket is None:
            return
        try:
            if is_marked(bucket):
                await self._delete(bucket, found)
            else:
                await self._deploy(bucket, found)
        except ApplicationError as error:
            await self._report(bucket, failed(bucket, error))
            raise TryAgain(error.message) from None

    async def _deploy(self, bucket: Object, found: Object | None) -> None:
        name, asked = bucket["metadata"]["name"], _operation(bucket)
        secret = await self._copy_secret(bucket["spec"]["credentialsRef"])
        spec, version = backup_bucket_spec(bucket), str(secret["metadata"]["resourceVersion"])
        wanted = ExtensionObject(_KIND, name, None, spec, inputs=version)
        if asked or found is None or not _is(found, wanted):
            bucket = await ensure_finalizer(self._clusters.garden, resources.CORE_BACKUP_BUCKET, bucket, FINALIZER)
            if found is not None and _is(found, wanted):
                annotations = {OPERATION: OPERATION_RECONCILE, TIMESTAMP: micro_timestamp()}
                await patch_as_read(self._clusters.seed, _KIND, found, {"metadata": {"annotations": annotations}})
            else:
                await extension.apply_extension(self._clusters.seed, wanted, micro_timestamp())
            await self._accept(bucket)
            return  # the event of this write calls this function again
        reported = found.get("status") or {}
        status = {**_reported(found), "providerStatus": reported.get("providerStatus")}
        if extension.fault_of(found) is None:
            status["generatedSecretRef"] = await self._publish(bucket, reported.get("generatedSecretRef"))
            status["observedGeneration"] = bucket["metadata"]["generation"]
        await self._report(bucket, status)

    async def _accept(self, bucket: Object) -> None:
        """Remove the operation annotation after the request. Raises Conflict if another one is set."""
        if _operation(bucket):
            patch = {"metadata": {"annotations": {OPERATION: None}}}
            await patch_as_read(self._clusters.garden, resources.CORE_BACKUP_BUCKET, bucket, patch)

    async def _copy_secret(self, reference: Mapping[str, Any]) -> Object:
        """Copy the credentials into namespace ``garden`` of the seed, and let the responsible extensions read them."""
        seed = self._seeds.get(self._clusters.seed_name)
        if seed is None:
            raise transient("NotReady", f"Seed {self._clusters.seed_name} is not registered yet")
        try:
            return await ExtensionAccess(self._clusters).hand_over(seed, BACKUP_SECRET, reference)
        except NotFound:
            place = f"{reference['namespace']}/{reference['name']}"
            code = ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM
            raise transient(code, f"Secret {place} of the garden does not exist: write it again") from None

    async def _publish(self, bucket: Object, reference: Mapping[str, str] | None) -> dict[str, str] | None:
        """Copy the Secret that the extension has made into the garden; returns its place there, None without one."""
        name = bucket["metadata"]["name"]
        place = {"name": generated_name(name), "namespace": GARDEN_NAMESPACE}
        made = reference and await self._clusters.seed.find(resources.SECRET, reference["name"], reference["namespace"])
        if not made:
            return None
        owner = owner_reference(resources.CORE_BACKUP_BUCKET, name, bucket["metadata"]["uid"])
        copy = {"apiVersion": "v1", "kind": "Secret", "metadata": {**place, "ownerReferences": [owner]}}
        data = {"type": "Opaque", "data": made.get("data") or {}}
        await self._clusters.garden.apply({**copy, **data}, manager=MANAGER)
        return place

    async def _delete(self, bucket: Object, found: Object | None) -> None:
        name = bucket["metadata"]["name"]
        if not has_finalizer(bucket, FINALIZER):
            return
        if found is not None:
            if not is_marked(found) or _operation(bucket):
                await extension.delete_extension(self._clusters.seed, _KIND, name, None, micro_timestamp())
                await self._accept(bucket)
            else:
                await self._report(bucket, _reported(found))
            return  # the event of its end calls this function again
        await self._clusters.garden.delete(resources.SECRET, generated_name(name), GARDEN_NAMESPACE)
        await ExtensionAccess(self._clusters).unshare(BACKUP_SECRET)
        await self._clusters.seed.delete(resources.SECRET, BACKUP_SECRET, GARDEN_NAMESPACE)
        await remove_finalizer(self._clusters.garden, resources.CORE_BACKUP_BUCKET, bucket, FINALIZER)
        log.info("BackupBucket %s is deleted", name)

    async def _report(self, bucket: Object, status: Mapping[str, Any]) -> None:
        known = bucket.get("status") or {}
        if any(known.get(field) != value for field, value in status.items()):
            patch = {"status": status}
            await patch_as_read(
                self._clusters.garden, resources.CORE_BACKUP_BUCKET, bucket, patch, subresource="status"
            )


def generated_name(bucket_name: str) -> str:
    """Name of the Secret in the garden with the credentials that an extension has made for a bucket."""
    return f"generated-bucket-{bucket_name}"


def failed(bucket: Mapping[str, Any], error: ApplicationError) -> dict[str, Any]:
    """Fields of the status if the gardenlet itself cannot go on. The same error again changes no field."""
    known = bucket.get("status") or {}
    codes = [error.type] if error.type in set(ErrorCode) else []
    if (known.get("lastError") or {}).get("description") == error.message:
        return {}
    type_ = "Delete" if is_marked(bucket) else "Reconcile" if known.get("observedGeneration") else "Create"
    now = timestamp()
    operation = {"type": type_, "state": "Error", "progress": 0, "description": error.message, "lastUpdateTime": now}
    return {
        "lastOperation": operation,
        "lastError": {"description": error.message, "codes": codes, "lastUpdateTime": now},
    }


def _reported(found: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the status that the extension reports."""
    reported = found.get("status") or {}
    operation = {"lastOperation": reported["lastOperation"]} if reported.get("lastOperation") else {}
    return {"lastError": reported.get("lastError"), **operation}


def _is(found: Mapping[str, Any], wanted: ExtensionObject) -> bool:
    """Whether the extension object has the wanted spec, and was written with the present credentials."""
    digest = (found["metadata"].get("annotations") or {}).get(INPUTS_DIGEST)
    return digest == wanted.digest and all(found["spec"].get(key) == value for key, value in wanted.spec.items())


def _operation(obj: Mapping[str, Any]) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(OPERATION) or "")
