"""Indexes of the garden's objects: admission and the seed authorizer find objects by them, without a list.

The process that runs the server keeps them up to date by the events of its caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from api import resources
from api.decisions.credentials import BINDINGS
from api.decisions.profiles import parent_of, profile_reference
from api.decisions.quota import named_quotas
from api.names import domains_above, plain
from api.resources import Resource
from api.validation.garden import domains_of_seed
from api.validation.references import references_in

Object = dict[str, Any]


@dataclass(frozen=True)
class Index:
    """Index of the objects of one kind."""

    resource: Resource
    name: str
    values: Callable[[Object], Iterable[str]]
    """Returns the values by which an object is found."""


def place(namespace: str | None, name: str | None, resource: Resource = resources.SECRET) -> str:
    """Value of an index for an object that other objects refer to."""
    return f"{resource} {namespace or ''}/{name or ''}"


def homes(shoot: Mapping[str, Any]) -> set[str | None]:
    """Seed that hosts the control plane of a Shoot, and seed that the control plane moves to."""
    return {shoot["spec"].get("seedName"), (shoot.get("status") or {}).get("seedName")}


def _of_spec(*fields: str) -> Callable[[Object], Iterable[str]]:
    """Returns the function that reads one field of a spec, if the field is set."""

    def values(obj: Object) -> Iterable[str]:
        found: Any = obj.get("spec")
        for each in fields:
            found = (found or {}).get(each)
        return (found,) if found else ()

    return values


def _uid(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["uid"],)


def _homes(shoot: Object) -> Iterable[str]:
    return [each for each in homes(shoot) if each]


def _references(shoot: Object) -> Iterable[str]:
    return {place(each.namespace, each.name, each.resource) for each in references_in(shoot)}


def _profile(shoot: Object) -> Iterable[str]:
    found = profile_reference(shoot)
    return (place(found.namespace, found.name, found.resource),) if found else ()


def _domain(shoot: Object) -> Iterable[str]:
    return (plain(domain),) if (domain := _domain_of(shoot)) else ()


def _at_or_above(shoot: Object) -> Iterable[str]:
    return domains_above(domain) if (domain := _domain_of(shoot)) else ()


def _domain_of(shoot: Object) -> str:
    return (shoot["spec"].get("dns") or {}).get("domain") or ""


def _seed_domains(seed: Object) -> Iterable[str]:
    return {plain(each) for each in domains_of_seed(seed)}


def _above_seed_domains(seed: Object) -> Iterable[str]:
    return {above for each in domains_of_seed(seed) for above in domains_above(each)}


def _default_domains(seed: Object) -> Iterable[str]:
    return {plain(each["domain"]) for each in seed["spec"]["dns"].get("defaults") or ()}


def _credentials_of(resource: Resource) -> Callable[[Object], Iterable[str]]:
    """Returns the function that reads the credentials of a binding of one of the two kinds."""

    def values(binding: Object) -> Iterable[str]:
        found = BINDINGS[resource].credentials(binding)
        try:
            kind = resources.resource_of(found.api_version, found.kind)
        except resources.UnknownKind:
            return ()
        return (place(found.namespace, found.name, kind),)

    return values


def _quotas(binding: Object) -> Iterable[str]:
    return {place(each.namespace, each.name, resources.QUOTA) for each in named_quotas(binding)}


def _secret_of_plant(plant: Object) -> Iterable[str]:
    return (place(plant["metadata"]["namespace"], plant["spec"]["secretRef"]["name"]),)


def _registered_kinds(registration: Object) -> Iterable[str]:
    return {each["kind"] for each in (registration.get("spec") or {}).get("resources") or ()}


SHOOTS_BY_UID = Index(resources.SHOOT, "uid", _uid)
SHOOTS_BY_SEED = Index(resources.SHOOT, "seed", _homes)
"""By the seed of the control plane, and by the destination of a move."""
SHOOTS_BY_REFERENCE = Index(resources.SHOOT, "reference", _references)
"""By the ``place`` of each binding, Secret, ConfigMap and WorkloadIdentity that the spec names."""
SHOOTS_BY_PROFILE = Index(resources.SHOOT, "cloud profile", _profile)
"""By the ``place`` of the CloudProfile or NamespacedCloudProfile that the spec names."""
PROFILES_BY_PARENT = Index(resources.NAMESPACED_CLOUD_PROFILE, "parent", lambda profile: (parent_of(profile),))
SHOOTS_BY_DOMAIN = Index(resources.SHOOT, "domain", _domain)
SHOOTS_BELOW_DOMAIN = Index(resources.SHOOT, "domains at or above", _at_or_above)
"""By the Shoot's domain and each domain above it."""
SEEDS_BY_DOMAIN = Index(resources.SEED, "domain", _seed_domains)
SEEDS_BELOW_DOMAIN = Index(resources.SEED, "domains at or above", _above_seed_domains)
SEEDS_BY_DEFAULT_DOMAIN = Index(resources.SEED, "default domain", _default_domains)
PROJECTS_BY_NAMESPACE = Index(resources.PROJECT, "namespace", _of_spec("namespace"))
BINDINGS_BY_CREDENTIALS = {each: Index(each, "credentials", _credentials_of(each)) for each in BINDINGS}
"""By the ``place`` of the credentials; one index for each kind of binding."""
BINDINGS_BY_QUOTA = {each: Index(each, "quota", _quotas) for each in BINDINGS}
"""By the ``place`` of each Quota that the binding names."""
ENTRIES_BY_BUCKET = Index(resources.CORE_BACKUP_ENTRY, "bucket", _of_spec("bucketName"))
ENTRIES_BY_SEED = Index(resources.CORE_BACKUP_ENTRY, "seed", _of_spec("seedName"))
PLANTS_BY_SECRET = Index(resources.PLANT, "secret", _secret_of_plant)
MANAGED_SEEDS_BY_SHOOT = Index(resources.MANAGED_SEED, "shoot", _of_spec("shoot", "name"))
INSTALLATIONS_BY_SEED = Index(resources.CONTROLLER_INSTALLATION, "seed", _of_spec("seedRef", "name"))
REGISTRATIONS_BY_KIND = Index(resources.CONTROLLER_REGISTRATION, "kind", _registered_kinds)

INDEXES = (
    *(SHOOTS_BY_UID, SHOOTS_BY_SEED, SHOOTS_BY_REFERENCE, SHOOTS_BY_PROFILE, SHOOTS_BY_DOMAIN, SHOOTS_BELOW_DOMAIN),
    *(SEEDS_BY_DOMAIN, SEEDS_BELOW_DOMAIN, SEEDS_BY_DEFAULT_DOMAIN, PROJECTS_BY_NAMESPACE),
    *BINDINGS_BY_CREDENTIALS.values(),
    *BINDINGS_BY_QUOTA.values(),
    *(
        PLANTS_BY_SECRET,
        ENTRIES_BY_BUCKET,
        ENTRIES_BY_SEED,
        INSTALLATIONS_BY_SEED,
        REGISTRATIONS_BY_KIND,
        PROFILES_BY_PARENT,
        MANAGED_SEEDS_BY_SHOOT,
    ),
)
