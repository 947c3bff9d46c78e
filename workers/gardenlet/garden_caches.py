"""Caches of the garden in a gardenlet: only objects of its own seed, by field selectors.

So the gardenlet's memory and watches do not grow with the Shoots of other seeds.
"""

from collections.abc import Iterable

from activities.clusters import Clusters
from api import resources
from kube.cache import BY_UID, Cache, uids_of
from kube.client import Object

BY_TECHNICAL_ID = "status.technicalID"
"""Index of Shoots by the namespace of their control plane."""

BY_REGISTRATION = "spec.registrationRef.name"
"""Index of ControllerInstallations by their registration."""


def own_seed(clusters: Clusters) -> Cache:
    """Cache of the gardenlet's own Seed."""
    return clusters.garden_caches.of(resources.SEED, fields=f"metadata.name={clusters.seed_name}")


def shoots_here(clusters: Clusters) -> Cache:
    """Cache of Shoots whose control plane is in this seed. A Shoot that moves to another seed appears as deleted."""
    cache = clusters.garden_caches.of(resources.SHOOT, fields=f"status.seedName={clusters.seed_name}")
    cache.index(BY_TECHNICAL_ID, technical_ids_of)
    cache.index(BY_UID, uids_of)
    return cache


def shoots_wanted_here(clusters: Clusters) -> Cache:
    """Cache of Shoots whose owners want them in this seed; some of them are still in another seed."""
    cache = clusters.garden_caches.of(resources.SHOOT, fields=f"spec.seedName={clusters.seed_name}")
    cache.index(BY_UID, uids_of)
    return cache


def installations_here(clusters: Clusters) -> Cache:
    """Cache of the ControllerInstallations of this seed."""
    fields = f"spec.seedRef.name={clusters.seed_name}"
    cache = clusters.garden_caches.of(resources.CONTROLLER_INSTALLATION, fields=fields)
    cache.index(BY_REGISTRATION, registration_of)
    return cache


def registration_of(installation: Object) -> tuple[str]:
    """Name of the registration of a ControllerInstallation."""
    return (installation["spec"]["registrationRef"]["name"],)


def technical_ids_of(shoot: Object) -> Iterable[str]:
    technical_id = (shoot.get("status") or {}).get("technicalID")
    return (technical_id,) if technical_id else ()
