"""BackupBuckets and BackupEntries of a seed, in the garden and in the seed."""

from collections.abc import Mapping
from typing import Any

from activities.clusters import Clusters
from activities.seed.extension_access import BACKUP_SECRET
from api import resources
from api.constants import GARDEN_NAMESPACE
from kube.cache import Cache


def backup_entries_of(clusters: Clusters) -> Cache:
    """Cache of BackupEntries that this seed reconciles: of its own backups, and of backups that it copies from."""
    return clusters.garden_caches.of(resources.CORE_BACKUP_ENTRY, fields=f"spec.seedName={clusters.seed_name}")


def backup_buckets_of(clusters: Clusters) -> Cache:
    """Cache of the garden's BackupBuckets that this seed reconciles."""
    return clusters.garden_caches.of(resources.CORE_BACKUP_BUCKET, fields=f"spec.seedName={clusters.seed_name}")


def backup_bucket_spec(bucket: Mapping[str, Any]) -> dict[str, Any]:
    """Spec of the extension's BackupBucket. ``bucket``: the garden's BackupBucket."""
    spec = bucket["spec"]
    return {
        **spec["provider"],
        "secretRef": {"name": BACKUP_SECRET, "namespace": GARDEN_NAMESPACE},
        **({"providerConfig": spec["providerConfig"]} if spec.get("providerConfig") else {}),
    }


def backup_entry_spec(seed: Mapping[str, Any], bucket: Mapping[str, Any]) -> dict[str, Any]:
    """Spec of a BackupEntry in this seed's bucket. ``seed``: the garden's Seed; ``bucket``: the seed's BackupBucket."""
    backup, status = seed["spec"]["backup"], bucket.get("status") or {}
    optional = {
        "backupBucketProviderStatus": status.get("providerStatus"),
        "providerConfig": bucket["spec"].get("providerConfig"),
    }
    return {
        "type": backup["provider"],
        "region": backup.get("region") or seed["spec"]["provider"]["region"],
        "bucketName": bucket["metadata"]["name"],
        "secretRef": status.get("generatedSecretRef") or bucket["spec"]["secretRef"],
        **{field: value for field, value in optional.items() if value},
    }
