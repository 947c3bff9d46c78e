"""What a gardenlet caches of the garden: objects of its own seed, by field selectors.

So its memory and its watches do not grow with the Shoots of other seeds.
"""

from collections.abc import Iterable

from activities.clusters import Clusters
from api import resources
from kube.cache import BY_UID, Cache, uids_of
from kube.client import Object

BY_TECHNICAL_ID = "status.technicalID"
"""Index of Shoots by the namespace of their control plane."""


def own_seed(clusters: Clusters) -> Cache:
    """The gardenlet's Seed alone."""
    return clusters.garden_caches.of(resources.SEED, fields=f"metadata.name={clusters.seed_name}")


def shoots_here(clusters: Clusters) -> Cache:
    """Shoots that have their control plane in this seed. A Shoot that moves out is seen as deleted."""
    cache = clusters.garden_caches.of(resources.SHOOT, fields=f"status.seedName={clusters.seed_name}")
    cache.index(BY_TECHNICAL_ID, technical_ids_of)
    cache.index(BY_UID, uids_of)
    return cache


def shoots_wanted_here(clusters: Clusters) -> Cache:
    """Shoots whose owners want them in this seed; some of them are in another one still."""
    cache = clusters.garden_caches.of(resources.SHOOT, fields=f"spec.seedName={clusters.seed_name}")
    cache.index(BY_UID, uids_of)
    return cache


def backup_entries_here(clusters: Clusters) -> Cache:
    """BackupEntries that this seed looks after: of its own backups, and of those that it copies from."""
    return clusters.garden_caches.of(resources.CORE_BACKUP_ENTRY, fields=f"spec.seedName={clusters.seed_name}")


def technical_ids_of(shoot: Object) -> Iterable[str]:
    technical_id = (shoot.get("status") or {}).get("technicalID")
    return (technical_id,) if technical_id else ()
