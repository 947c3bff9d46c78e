"""Validation of a Shoot against the objects that it refers to. Source: spec/api-core.md 10.1, 10.2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from api import resources
from api.constants import GARDEN_NAMESPACE, KUBE_RESERVED, TAINT_SEED_PROTECTED
from api.core.v1beta1.cloud_profile import CloudProfile, ExpirableVersion, MachineType, Region
from api.core.v1beta1.controller_registration import ControllerRegistration
from api.core.v1beta1.project import Project
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import DNS, Shoot, Worker
from api.decisions.scheduling import ZONES_FOR_ZONE_FAILURES, has_zones, unmet
from api.decisions.seed_ranking import Candidate
from api.decisions.versions import Version, architecture_of, capabilities_of, find, image_fits, is_version, stage
from api.defaulting.shoot import workerless
from api.names import overlap, same_or_below
from api.quantities import is_less, parse_quantity
from api.resources import Resource
from api.validation.cloud_profile import used_and_gone
from api.validation.field import Faults, Path
from api.validation.in_place import check_image as check_in_place
from api.validation.nodes import effective_kubelet, reserved_of
from api.validation.pools import WORKERS, kubelet_version

SPEC = Path("spec")


@dataclass(frozen=True)
class Reference:
    """A field that names another object."""

    path: Path
    resource: Resource
    namespace: str | None
    name: str


@dataclass(frozen=True)
class ProfileChange:
    """A Shoot that goes from one cloud profile to another one."""

    profile: CloudProfile | None
    """The profile before the change; None if it does not exist any more."""
    root_before: str | None
    """CloudProfile at the root of the profile before the change."""
    root_after: str | None


@dataclass(frozen=True)
class World:
    """Objects that a Shoot refers to. An object that does not exist is None, or listed in ``missing``."""

    project: Project | None
    profile: CloudProfile | None
    seed: Seed | None
    shoots_on_seed: int
    registrations: tuple[ControllerRegistration, ...]
    """Registrations of the kinds of extension objects that the Shoot needs."""
    binding_provider: str | None
    """Provider types of the binding, separated by commas."""
    missing: tuple[Reference, ...]
    now: datetime
    default_domains: frozenset[str] = frozenset()
    """Default domains of Seeds; those that are not above the Shoot's domain may be missing."""
    other_domains: Mapping[str, str] = field(default_factory=dict)
    """Domains of other Shoots, by ``namespace/name``; those that do not overlap the Shoot's domain may be missing."""
    left: ProfileChange | None = None
    """The cloud profile that the Shoot leaves; None if it keeps its profile."""
    seed_domains: frozenset[str] = frozenset()
    """Domains below which Seeds have names; those that do not overlap the Shoot's domain may be missing."""


def references(shoot: Shoot) -> list[Reference]:
    """Objects that must exist, except cloud profile and seed."""
    return references_in(shoot.to_wire())


def references_in(shoot: Mapping[str, Any]) -> list[Reference]:
    """Like ``references``, for a Shoot as JSON: an index of all Shoots reads it, and models would be slow."""
    spec, namespace = shoot["spec"], shoot["metadata"].get("namespace")
    found = []

    def add(path: Path, resource: Resource, name: str | None) -> None:
        if name:
            found.append(Reference(path, resource, namespace, name))

    add(SPEC / "credentialsBindingName", resources.CREDENTIALS_BINDING, spec.get("credentialsBindingName"))
    add(SPEC / "secretBindingName", resources.SECRET_BINDING, spec.get("secretBindingName"))
    for index, resource in enumerate(spec.get("resources") or ()):
        reference = resource["resourceRef"]
        if kind := _REFERABLE.get(reference["kind"]):
            add(SPEC / "resources" @ index / "resourceRef", kind, reference["name"])
    for index, provider in enumerate((spec.get("dns") or {}).get("providers") or ()):
        here = SPEC / "dns" / "providers" @ index
        credentials = provider.get("credentialsRef") or {}
        kind = _REFERABLE.get(credentials.get("kind") or "Secret", resources.SECRET)
        add(here / "credentialsRef", kind, credentials.get("name"))
        add(here / "secretName", resources.SECRET, provider.get("secretName"))
    server = spec["kubernetes"].get("kubeAPIServer") or {}
    here = SPEC / "kubernetes" / "kubeAPIServer"
    policy = ((server.get("auditConfig") or {}).get("auditPolicy") or {}).get("configMapRef") or {}
    add(here / "auditConfig" / "auditPolicy", resources.CONFIG_MAP, policy.get("name"))
    authentication = server.get("structuredAuthentication") or {}
    add(here / "structuredAuthentication", resources.CONFIG_MAP, authentication.get("configMapName"))
    authorization = server.get("structuredAuthorization") or {}
    add(here / "structuredAuthorization", resources.CONFIG_MAP, authorization.get("configMapName"))
    for each in authorization.get("kubeconfigs") or ():
        add(here / "structuredAuthorization" / "kubeconfigs", resources.SECRET, each.get("secretName"))
    for index, plugin in enumerate(server.get("admissionPlugins") or ()):
        path = here / "admissionPlugins" @ index / "kubeconfigSecretName"
        add(path, resources.SECRET, plugin.get("kubeconfigSecretName"))
    return found


_REFERABLE = {
    "Secret": resources.SECRET,
    "ConfigMap": resources.CONFIG_MAP,
    "WorkloadIdentity": resources.WORKLOAD_IDENTITY,
}


def check_references(shoot: Shoot, old: Shoot | None, world: World) -> Faults:
    """All faults of a new Shoot, or of a change of its spec; unchanged fields of an existing Shoot are not checked."""
    faults = Faults()
    spec = shoot.spec
    if old is None:
        _check_project(shoot, world.project, faults)
    known = {(each.resource, each.name) for each in references(old)} if old else set()
    for each in world.missing:
        if (each.resource, each.name) not in known:
            where = f" in namespace {each.namespace}" if each.namespace else ""
            faults.not_found(each.path, each.name, f"there is no such {each.resource.kind}{where}")
    if world.profile is None:
        reference = spec.cloud_profile
        if reference is not None:
            faults.not_found(SPEC / "cloudProfile" / "name", reference.name, f"there is no such {reference.kind}")
    else:
        if world.profile.metadata.deletion_timestamp and (old is None or world.left is not None):
            faults.forbidden(
                SPEC / "cloudProfile", f"{world.profile.metadata.name} is being deleted: choose another one"
            )
        _check_profile_change(shoot, world.profile, world.left, faults)
        _check_profile(shoot, old, world.profile, world.now, faults)
        _check_pinning(shoot, old, world.profile, faults)
    _check_binding(shoot, old, world.binding_provider, faults)
    _check_seed(shoot, old, world, faults)
    _check_tolerations(shoot, old, world.project, faults)
    _check_extensions(shoot, old, world.registrations, faults)
    _check_domain(shoot, old, world, faults)
    return faults


def _check_pinning(shoot: Shoot, old: Shoot | None, profile: CloudProfile, faults: Faults) -> None:
    """Faults of zones of the control plane that the cloud profile does not let its users choose."""
    before, zones = ((each and each.spec.control_plane and each.spec.control_plane.zones) for each in (old, shoot))
    allowed = profile.spec.control_plane and profile.spec.control_plane.allow_zone_pinning
    if zones and zones != before and not allowed:
        detail = f"cloud profile {profile.metadata.name} does not allow it (spec.controlPlane.allowZonePinning)"
        faults.forbidden(SPEC / "controlPlane" / "zones", f"{detail}: leave it out")


def _check_tolerations(shoot: Shoot, old: Shoot | None, project: Project | None, faults: Faults) -> None:
    """Faults of tolerations that operators have not allowed for the Project: taints reserve seeds for some projects."""
    tolerations = project.spec.tolerations if project else None
    granted = {(each.key, each.value) for each in (tolerations and tolerations.whitelist) or []}
    if shoot.metadata.namespace == GARDEN_NAMESPACE:
        granted.add((TAINT_SEED_PROTECTED, None))
    kept = {(each.key, each.value) for each in (old and old.spec.tolerations) or []}
    for index, each in enumerate(shoot.spec.tolerations or []):
        if {(each.key, each.value), (each.key, None)} & granted or (each.key, each.value) in kept:
            continue
        faults.forbidden(
            SPEC / "tolerations" @ index,
            f"{each.key} is not in spec.tolerations.whitelist of the Project: ask an operator to add it",
        )


def _check_project(shoot: Shoot, project: Project | None, faults: Faults) -> None:
    path, namespace = Path("metadata") / "namespace", shoot.metadata.namespace
    if project is None:
        faults.forbidden(path, f"namespace {namespace} belongs to no Project")
    elif project.metadata.deletion_timestamp:
        faults.forbidden(path, f"Project {project.metadata.name} is being deleted")


def _check_binding(shoot: Shoot, old: Shoot | None, provider: str | None, faults: Faults) -> None:
    name = "credentials_binding_name" if shoot.spec.credentials_binding_name else "secret_binding_name"
    if provider is None or (old is not None and getattr(old.spec, name) == getattr(shoot.spec, name)):
        return
    if shoot.spec.provider.type not in provider.split(","):
        detail = f"the binding is for provider type {provider}, the Shoot for {shoot.spec.provider.type}"
        faults.invalid(SPEC / _wire_binding(name), getattr(shoot.spec, name), detail)


def _wire_binding(name: str) -> str:
    return "credentialsBindingName" if name == "credentials_binding_name" else "secretBindingName"


# The cloud profile


def _check_profile_change(shoot: Shoot, new: CloudProfile, left: ProfileChange | None, faults: Faults) -> None:
    """Faults of a change to a profile of another root, or to one that lacks what the Shoot uses."""
    if left is None:
        return
    path, name = SPEC / "cloudProfile", new.metadata.name
    if left.root_before != left.root_after:
        faults.forbidden(path, f"must stay {left.root_before}, or a NamespacedCloudProfile that extends it")
    elif left.profile is not None:
        for _, what in used_and_gone(shoot, left.profile, new):
            faults.forbidden(path, f"{name} does not offer {what}, which the Shoot uses")


def _check_profile(shoot: Shoot, old: Shoot | None, profile: CloudProfile, now: datetime, faults: Faults) -> None:
    spec = shoot.spec
    if spec.provider.type != profile.spec.type:
        supported = [profile.spec.type]
        faults.unsupported(SPEC / "provider" / "type", spec.provider.type, supported)
    before = old.spec.kubernetes.version if old else None
    if spec.kubernetes.version != before:
        _check_kubernetes_version(spec.kubernetes.version, profile, now, SPEC / "kubernetes" / "version", faults)
    region = next((each for each in profile.spec.regions if each.name == spec.region), None)
    if region is None:
        if old is None:
            faults.unsupported(SPEC / "region", spec.region, [each.name for each in profile.spec.regions])
        return
    offered = {each.name for each in region.access_restrictions or []}
    for index, restriction in enumerate(spec.access_restrictions or []):
        if restriction.name not in offered:
            faults.unsupported(SPEC / "accessRestrictions" @ index / "name", restriction.name, sorted(offered))
    known = {pool.name: pool for pool in (old.spec.provider.workers if old else None) or []}
    kubelets = {name: kubelet_version(pool, old) for name, pool in known.items() if old}
    pools = spec.provider.workers or []
    for index, pool in enumerate(pools):
        here = WORKERS @ index
        _check_pool(pool, known.get(pool.name), profile, region, now, here, faults)
        _check_reserved(pool, shoot, known.get(pool.name), old, profile, here, faults)
        kubelet = kubelet_version(pool, shoot)
        again = kubelet != kubelets.get(pool.name)
        _check_image(pool, known.get(pool.name), kubelet, again, profile, now, here / "machine" / "image", faults)
    limit = profile.spec.limits.max_nodes_total if profile.spec.limits else None
    wanted = sum(pool.minimum for pool in pools)
    if limit is not None and wanted > limit:
        detail = f"the pools have at least {wanted} machines; cloud profile {profile.metadata.name} allows {limit}"
        faults.forbidden(WORKERS, detail)


def _check_kubernetes_version(version: str, profile: CloudProfile, now: datetime, path: Path, faults: Faults) -> None:
    found = find(profile.spec.kubernetes.versions, version)
    if found is None or stage(found, now) in ("expired", "unavailable"):
        _unsupported_version(version, found, profile.spec.kubernetes.versions, now, path, faults)


def _unsupported_version(
    version: str,
    found: ExpirableVersion | None,
    offered: Iterable[ExpirableVersion],
    now: datetime,
    path: Path,
    faults: Faults,
) -> None:
    usable = [each.version for each in offered if stage(each, now) not in ("expired", "unavailable")]
    usable.sort(key=Version, reverse=True)
    detail = f"the version is {stage(found, now)}; supported versions: {', '.join(usable)}" if found else ""
    faults.unsupported(path, version, usable, detail)


def _check_pool(
    pool: Worker,
    old: Worker | None,
    profile: CloudProfile,
    region: Region,
    now: datetime,
    path: Path,
    faults: Faults,
) -> None:
    kind = next((each for each in profile.spec.machine_types if each.name == pool.machine.type), None)
    changed = old is None or old.machine.type != pool.machine.type
    if changed and (kind is None or not kind.usable):
        usable = [each.name for each in profile.spec.machine_types if each.usable]
        faults.unsupported(path / "machine" / "type", pool.machine.type, usable)
    if kind is not None and pool.machine.architecture not in (None, architecture_of(profile, kind)):
        supported = [architecture_of(profile, kind)]
        faults.unsupported(path / "machine" / "architecture", pool.machine.architecture, supported)
    _check_zones(pool, old, region, path, faults)
    _check_volumes(pool, old, kind, profile, path, faults)
    version = pool.kubernetes.version if pool.kubernetes else None
    if version and (old is None or old.kubernetes is None or old.kubernetes.version != version):
        _check_kubernetes_version(version, profile, now, path / "kubernetes" / "version", faults)


def _check_zones(pool: Worker, old: Worker | None, region: Region, path: Path, faults: Faults) -> None:
    zones = {each.name: each for each in region.zones or []}
    for index, zone in enumerate(pool.zones or []):
        if old is not None and zone in (old.zones or []):
            continue
        if zone not in zones:
            faults.unsupported(path / "zones" @ index, zone, zones)
            continue
        if pool.machine.type in (zones[zone].unavailable_machine_types or []):
            faults.invalid(path / "zones" @ index, zone, f"machine type {pool.machine.type} is not available in it")
        for volume in [pool.volume, *(pool.data_volumes or [])]:
            if volume is not None and volume.type in (zones[zone].unavailable_volume_types or []):
                faults.invalid(path / "zones" @ index, zone, f"volume type {volume.type} is not available in it")


def _check_reserved(
    pool: Worker,
    shoot: Shoot,
    old: Worker | None,
    old_shoot: Shoot | None,
    profile: CloudProfile,
    path: Path,
    faults: Faults,
) -> None:
    """Report resources that the kubelet reserves if they leave nothing for pods: the kubelet would not start."""
    kind = next((each for each in profile.spec.machine_types if each.name == pool.machine.type), None)
    if kind is None:
        return
    kubelet = effective_kubelet(pool, shoot)
    reserved = reserved_of(kubelet, KUBE_RESERVED)
    if old and old_shoot and old.machine.type == pool.machine.type:
        before = effective_kubelet(old, old_shoot)
        if reserved_of(before, KUBE_RESERVED) == reserved:
            return
    own = pool.kubernetes is not None and pool.kubernetes.kubelet is not None
    at = path / "kubernetes" / "kubelet" if own else SPEC / "kubernetes" / "kubelet"
    capacities: dict[str, str | int | float] = {"cpu": kind.cpu, "memory": kind.memory}
    for name, capacity in capacities.items():
        try:
            full = parse_quantity(reserved[name]) >= parse_quantity(capacity)
        except ValueError:
            continue  # reported with the field itself
        if full:
            detail = f"machine type {kind.name} of pool {pool.name} has {capacity}: nothing would be left for pods"
            faults.invalid(at / "kubeReserved" / name, reserved[name], detail)


def _check_volumes(
    pool: Worker, old: Worker | None, kind: MachineType | None, profile: CloudProfile, path: Path, faults: Faults
) -> None:
    types = {each.name: each for each in profile.spec.volume_types or []}
    volumes = [(path / "volume", pool.volume)] if pool.volume else []
    volumes += [(path / "dataVolumes" @ index, each) for index, each in enumerate(pool.data_volumes or [])]
    for here, volume in volumes:
        if volume.type is not None and (volume.type not in types or not types[volume.type].usable):
            faults.unsupported(here / "type", volume.type, types)
            continue
        storage = kind.storage if kind is not None and volume is pool.volume else None
        least = [
            each
            for each in (types[volume.type].min_size if volume.type else None, storage.min_size if storage else None)
            if each is not None and is_less(volume.size, each)
        ]
        if least and not (old is not None and volume in [old.volume, *(old.data_volumes or [])]):
            faults.invalid(here / "size", volume.size, f"must be at least {max(least, key=parse_quantity)}")


def _check_image(
    pool: Worker,
    old: Worker | None,
    kubelet: str,
    kubelet_is_new: bool,
    profile: CloudProfile,
    now: datetime,
    path: Path,
    faults: Faults,
) -> None:
    image = pool.machine.image
    if image is None or not image.name:
        names = ", ".join(each.name for each in profile.spec.machine_images)
        faults.required(path / "name", f"no machine image of the cloud profile fits this pool; it offers {names}")
        return
    kept = (
        old and old.machine.image and (old.machine.image.name, old.machine.image.version) == (image.name, image.version)
    )
    if kept and not kubelet_is_new and _same_machine(pool, old):
        return
    offered = next((each for each in profile.spec.machine_images if each.name == image.name), None)
    found = find(offered.versions, image.version or "") if offered else None
    if not kept:
        if offered is None:
            faults.unsupported(path / "name", image.name, [each.name for each in profile.spec.machine_images])
            return
        if found is None or stage(found, now) in ("expired", "unavailable"):
            _unsupported_version(image.version or "", found, offered.versions, now, path / "version", faults)
            return
    if found is None:
        return
    architecture, cri = pool.machine.architecture or "amd64", pool.cri.name if pool.cri else "containerd"
    capabilities = capabilities_of(profile, pool.machine.type, architecture)
    if not image_fits(found, architecture=architecture, cri=cri, kubelet=kubelet, capabilities=capabilities):
        detail = f"does not support architecture {architecture}, runtime {cri} and kubelet {kubelet} together"
        faults.invalid(path / "version", image.version, detail)
    runtimes = {each.type for of in found.cri if of.name == cri for each in of.container_runtimes or []}
    for runtime in (pool.cri and pool.cri.container_runtimes) or []:
        if runtime.type not in runtimes:
            faults.invalid(path / "version", image.version, f"does not offer container runtime {runtime.type}")
    before = old.machine.image if old else None
    if not kept:
        check_in_place(pool, before.version if before else None, found, path / "version", faults)
    if not before or before.name != image.name or not before.version or not is_version(before.version):
        return
    if Version(found.version) < Version(before.version):
        faults.forbidden(path / "version", f"downgrade from {before.version} to {found.version} is not possible")


def _same_machine(pool: Worker, old: Worker | None) -> bool:
    """Whether a pool keeps all that its image must fit, apart from the version of the kubelet."""

    def needs(each: Worker) -> object:
        runtimes = {runtime.type for runtime in (each.cri and each.cri.container_runtimes) or []}
        return each.machine.type, each.machine.architecture, each.cri and each.cri.name, runtimes

    return old is not None and needs(old) == needs(pool)


# Seed, extensions, domain


def _check_seed(shoot: Shoot, old: Shoot | None, world: World, faults: Faults) -> None:
    name, path = shoot.spec.seed_name, SPEC / "seedName"
    if name is None or (old is not None and old.spec.seed_name == name):
        if old is not None and world.seed is not None:
            _check_zones_of_seed(shoot, old, world.seed, faults)
        return
    if world.seed is None:
        faults.not_found(path, name, "there is no such Seed")
    elif world.profile is not None:
        for text in unmet(shoot, world.profile, Candidate(world.seed, world.shoots_on_seed)):
            faults.forbidden(path, f"must be a seed that {text}; {name} is not such a seed")


def _check_zones_of_seed(shoot: Shoot, old: Shoot, seed: Seed, faults: Faults) -> None:
    """Faults of a failure tolerance, or of zones, that the Shoot's present seed cannot provide."""
    offered, zones = seed.spec.provider.zones or [], shoot.spec.control_plane and shoot.spec.control_plane.zones
    if missing := [zone for zone in zones or [] if zone not in offered]:
        faults.unsupported(SPEC / "controlPlane" / "zones", missing[0], offered)
    if has_zones(old, seed) and not has_zones(shoot, seed):
        path = SPEC / "controlPlane" / "highAvailability" / "failureTolerance" / "type"
        detail = f"zone needs a seed of {ZONES_FOR_ZONE_FAILURES} zones, {seed.metadata.name} has fewer: choose node"
        faults.forbidden(path, detail)


def needed_extensions(shoot: Shoot) -> list[tuple[Path, str, str]]:
    """Kinds and types of extension objects that a Shoot will have, each with the field that causes it."""
    spec = shoot.spec
    needed = [
        (SPEC / "extensions" @ i, "Extension", e.type) for i, e in enumerate(spec.extensions or []) if not e.disabled
    ]
    for index, provider in enumerate((spec.dns and spec.dns.providers) or []):
        if provider.type and provider.type != "unmanaged":
            needed.append((SPEC / "dns" / "providers" @ index / "type", "DNSRecord", provider.type))
    if workerless(shoot):
        return needed
    kind = spec.provider.type
    needed += [(SPEC / "provider" / "type", each, kind) for each in ("ControlPlane", "Infrastructure", "Worker")]
    if spec.networking and spec.networking.type:
        needed.append((SPEC / "networking" / "type", "Network", spec.networking.type))
    for index, pool in enumerate(spec.provider.workers or []):
        if pool.machine.image and pool.machine.image.name:
            path = WORKERS @ index / "machine" / "image" / "name"
            needed.append((path, "OperatingSystemConfig", pool.machine.image.name))
        for number, runtime in enumerate((pool.cri and pool.cri.container_runtimes) or []):
            path = WORKERS @ index / "cri" / "containerRuntimes" @ number / "type"
            needed.append((path, "ContainerRuntime", runtime.type))
    return needed


def _check_extensions(
    shoot: Shoot, old: Shoot | None, registrations: Iterable[ControllerRegistration], faults: Faults
) -> None:
    offered = {
        (resource.kind, resource.type): resource
        for registration in registrations
        for resource in registration.spec.resources or []
        if resource.primary
    }
    known = {(kind, type_) for _, kind, type_ in needed_extensions(old)} if old else set()
    for path, kind, type_ in needed_extensions(shoot):
        if (kind, type_) in known:
            continue
        found = offered.get((kind, type_))
        if found is None:
            types = sorted(each for each_kind, each in offered if each_kind == kind)
            faults.unsupported(path, type_, types, f"no extension is registered for {kind}; registered: {types}")
        elif kind == "Extension" and workerless(shoot) and not found.workerless_supported:
            faults.forbidden(path, f"extension {type_} does not support Shoots without workers")


def _check_domain(shoot: Shoot, old: Shoot | None, world: World, faults: Faults) -> None:
    dns, path = shoot.spec.dns, SPEC / "dns" / "domain"
    domain = dns.domain if dns else None
    before = old.spec.dns if old is not None else None
    if domain is None:
        return
    primary = _primary(dns)
    if primary is not None and (_primary(before) is None or before is None or before.domain != domain):
        for default in sorted(each for each in world.default_domains if same_or_below(domain, each)):
            at = SPEC / "dns" / "providers" @ primary
            detail = f"the seed manages domains below {default}: leave the provider out, or choose another domain"
            faults.forbidden(at / "primary", detail)
    if before is not None and before.domain == domain:
        return
    for default in world.default_domains:
        if same_or_below(domain, default):
            project = world.project.metadata.name if world.project else ""
            expected = f"{shoot.metadata.name}.{project}.{default}"
            if domain != expected:
                faults.invalid(path, domain, f"a domain below the default domain {default} must be {expected}")
    for owner, other in world.other_domains.items():
        if overlap(domain, other):
            # The name and the domain of another Project's Shoot are not for the author of this one.
            own = owner.startswith(f"{shoot.metadata.namespace}/")
            whose = f"{other} of Shoot {owner}" if own else "a domain of another Project's Shoot"
            faults.forbidden(path, f"{domain} is the same as, above or below {whose}")
    # Control planes have DNS names below these domains: a Shoot could take over the name of another one.
    for other in sorted(world.seed_domains):
        if overlap(domain, other):
            faults.forbidden(path, f"{domain} is the same as, above or below {other}, which Seeds use for themselves")


def _primary(dns: DNS | None) -> int | None:
    """Index of the primary provider that manages the Shoot's domain."""
    providers = (dns and dns.providers) or []
    return next((i for i, each in enumerate(providers) if each.primary and each.type != "unmanaged"), None)
