"""Validation of a Shoot by itself, and of its changes. Source: spec/api-core.md 1, 10.2."""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from api import resources
from api.constants import GARDEN_NAMESPACE
from api.contracts.rotation import Kind
from api.core.v1beta1.shoot import (
    DNS,
    Hibernation,
    Maintenance,
    Networking,
    Shoot,
    ShootSpec,
)
from api.cron import Cron, InvalidSchedule, zone_of
from api.decisions.encryption import GCM, Encryption, changes
from api.decisions.maintenance_window import LONGEST, SHORTEST, MaintenanceWindow
from api.decisions.rotation import phase_of, status_of
from api.decisions.scheduling import ZONES_FOR_ZONE_FAILURES
from api.decisions.versions import Version, is_version
from api.defaulting.shoot import is_in_place, workerless
from api.durations import parse_duration
from api.labels import is_reserved, overlapping
from api.meta import CrossVersionObjectReference
from api.validation.components import check_component_values, check_encrypted
from api.validation.field import Fault, Faults, Path
from api.validation.kubernetes import check_kubernetes, check_range
from api.validation.networks import check_sizes
from api.validation.nodes import check_kubelet_values, check_node_settings
from api.validation.offered import check_offered
from api.validation.pools import WORKERS, check_pools
from api.validation.rotation import hibernation_faults
from api.validation.values import check_amounts
from api.validation.versioned import check_versioned

SPEC = Path("spec")

_DNS_NAME = re.compile(r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
"""Suffix of DNS names. CoreDNS's configuration contains it, so no other characters are accepted."""
_EMAIL = re.compile(r"^[^@\s]+@[^@\s]+\.[^@\s]+$")
_MAX_NAMES = 21
"""Maximum length of the names of project and shoot together; node names and certificates add further characters."""
_UNMANAGED = "unmanaged"

# Fields that newer versions of Kubernetes do not support: path of attributes below spec -> first such minor of 1.
GONE = {
    "kubernetes.kube_controller_manager.pod_eviction_timeout": 33,
    "kubernetes.cluster_autoscaler.max_empty_bulk_delete": 33,
    "cloud_profile_name": 34,
    "secret_binding_name": 34,
    "kubernetes.kube_api_server.enable_anonymous_authentication": 35,
    "kubernetes.kube_api_server.watch_cache_sizes.default": 35,
    "kubernetes.kube_scheduler.kube_max_pd_vols": 35,
    "addons": 35,
}
_NOT_WORKERLESS = (
    "secret_binding_name",
    "credentials_binding_name",
    "provider.infrastructure_config",
    "provider.control_plane_config",
    "provider.workers_settings",
    "addons",
    "system_components",
    "networking.type",
    "networking.provider_config",
    "networking.pods",
    "networking.nodes",
    "kubernetes.kube_scheduler",
    "kubernetes.kube_proxy",
    "kubernetes.kubelet",
    "kubernetes.cluster_autoscaler",
    "kubernetes.vertical_pod_autoscaler",
    "kubernetes.kube_controller_manager.node_cidr_mask_size",
    "kubernetes.kube_controller_manager.node_cidr_mask_size_ipv6",
    "kubernetes.kube_controller_manager.horizontal_pod_autoscaler",
    "kubernetes.kube_controller_manager.pod_eviction_timeout",
    "kubernetes.kube_controller_manager.node_monitor_grace_period",
    "kubernetes.kube_api_server.default_not_ready_toleration_seconds",
    "kubernetes.kube_api_server.default_unreachable_toleration_seconds",
    "maintenance.auto_update.machine_image_version",
    "maintenance.auto_rotation.credentials.ssh_keypair",
)

_PHASES_WITH_API_SERVER = {
    "etcd_encryption_key": ("Preparing", "Completing"),
    "service_account_key": ("Preparing", "PreparingWithoutWorkersRollout", "Completing"),
}
"""Phases of rotations that need a running API server. Source: spec/flows.md 1.3, spec/credentials.md."""

_FAILURE_TOLERANCE = "control_plane.high_availability.failure_tolerance.type"


def check_shoot(shoot: Shoot, old: Shoot | None, project: str | None) -> Faults:
    """All faults of a new Shoot, or of a change of its spec."""
    faults = Faults()
    spec = shoot.spec
    if old is None:
        _check_name(shoot, project, faults)
    else:
        _check_changes(spec, old.spec, faults)
        _check_failure_tolerance(spec, old, faults)
        _check_zones_kept(spec, old, faults)
        _check_may_hibernate(spec, old, faults)
    if spec.cloud_profile is None:
        faults.required(SPEC / "cloudProfile", "must name the cloud profile that offers versions and machines")
    if spec.purpose == "infrastructure" and shoot.metadata.namespace != GARDEN_NAMESPACE:
        faults.forbidden(SPEC / "purpose", f"infrastructure is allowed in namespace {GARDEN_NAMESPACE} only")
    _check_bindings(shoot, faults)
    check_kubernetes(spec.kubernetes, faults)
    faults.found += _new_faults(shoot, old)
    _check_gone(spec, faults)
    if workerless(shoot):
        for dotted in _NOT_WORKERLESS:
            if _value(spec, dotted) is not None:
                faults.forbidden(_wire(spec, dotted), "a Shoot without workers cannot have this")
    else:
        check_pools(shoot, old, faults)
    _check_zones(spec, faults)
    _check_networking(spec.networking, not workerless(shoot), faults)
    _check_dns(spec.dns, faults)
    _check_hibernation(spec.hibernation, faults)
    if _value(spec, "hibernation.enabled") and old is not None and not _value(old.spec, "hibernation.enabled"):
        for fault in hibernation_faults(shoot.to_wire()):
            faults.forbidden(SPEC / "hibernation" / "enabled", fault)
    _check_maintenance(spec.maintenance, faults)
    _check_encryption(shoot, old, faults)
    _check_rest(spec, faults)
    check_offered(shoot, old, faults)
    return faults


def _new_faults(shoot: Shoot, old: Shoot | None) -> list[Fault]:
    """Faults of single values, without those of the stored Shoot: its owner must be able to change other fields."""
    faults, before = Faults(), Faults()
    _check_values(shoot, faults)
    if old is not None and faults:
        _check_values(old, before)
    return [each for each in faults.found if each not in before.found]


def _check_values(shoot: Shoot, faults: Faults) -> None:
    """Faults of values that a component would refuse, or misread."""
    spec = shoot.spec
    check_amounts(spec, SPEC, faults)
    check_versioned(shoot, faults)
    check_sizes(shoot, faults)
    check_component_values(spec, faults)
    if spec.kubernetes.kubelet:
        check_kubelet_values(spec.kubernetes.kubelet, SPEC / "kubernetes" / "kubelet", faults)
    for index, pool in enumerate(spec.provider.workers or []):
        check_node_settings(pool, WORKERS @ index, faults)
        if pool.kubernetes and pool.kubernetes.kubelet:
            check_kubelet_values(pool.kubernetes.kubelet, WORKERS @ index / "kubernetes" / "kubelet", faults)


def _check_name(shoot: Shoot, project: str | None, faults: Faults) -> None:
    path, name = Path("metadata") / "name", shoot.metadata.name
    if not name:
        return
    if "--" in name:
        faults.invalid(path, name, "must not contain two hyphens in a row")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name):
        faults.invalid(path, name, "must be a DNS label: lower-case letters, digits and hyphens")
    if project is not None and len(project) + len(name) > _MAX_NAMES:
        faults.invalid(
            path,
            name,
            f"names of project ({project}) and shoot together must not be longer than {_MAX_NAMES} characters",
        )


def _check_changes(spec: ShootSpec, old: ShootSpec, faults: Faults) -> None:
    faults.fixed(SPEC / "region", old.region, spec.region)
    faults.fixed(SPEC / "provider" / "type", old.provider.type, spec.provider.type)
    if bool(spec.provider.workers) != bool(old.provider.workers):
        faults.forbidden(SPEC / "provider" / "workers", "a Shoot cannot switch between with and without workers")
    if old.seed_name and not spec.seed_name:
        faults.forbidden(SPEC / "seedName", "cannot be unset")
    if old.credentials_binding_name and not spec.credentials_binding_name:
        faults.forbidden(SPEC / "credentialsBindingName", "cannot be unset")
    if old.dns and old.dns.domain and old.seed_name:
        faults.fixed(SPEC / "dns" / "domain", old.dns.domain, spec.dns.domain if spec.dns else None)
        _check_primary_kept(spec.dns, old.dns, faults)
    for name in ("type", "pods", "services"):
        before = getattr(old.networking, name, None)
        if before is not None:
            faults.fixed(SPEC / "networking" / name, before, getattr(spec.networking, name, None))
    _check_families_kept(spec, old, faults)
    _check_upgrade(spec.kubernetes.version, old.kubernetes.version, SPEC / "kubernetes" / "version", faults)


def _check_families_kept(spec: ShootSpec, old: ShootSpec, faults: Faults) -> None:
    """Faults of a change of the IP families: only IPv6 can be added, and nodes must be replaced for it."""
    before, wanted = (getattr(each.networking, "ip_families", None) or ["IPv4"] for each in (old, spec))
    if wanted == before:
        return
    path = SPEC / "networking" / "ipFamilies"
    change = f"{', '.join(before)} cannot become {', '.join(wanted)}"
    if set(before) - set(wanted):
        faults.forbidden(path, f"{change}: a Shoot keeps its IP families")
    elif "IPv4" not in before:
        faults.forbidden(path, f"{change}: IPv4 cannot be added, only IPv6")
    elif kept := [pool.name for pool in old.provider.workers or () if is_in_place(pool)]:
        detail = f"machines of {', '.join(kept)} stay in updates, and a node keeps the networks of pods that it has"
        faults.forbidden(path, f"{detail}: remove these pools first")


def _check_failure_tolerance(spec: ShootSpec, old: Shoot, faults: Faults) -> None:
    """Faults of a change of the failure tolerance: members can only join an etcd that runs, and none can leave."""
    path = SPEC / "controlPlane" / "highAvailability" / "failureTolerance" / "type"
    before, wanted = (_value(each, _FAILURE_TOLERANCE) for each in (old.spec, spec))
    if before and old.spec.seed_name:
        faults.fixed(path, before, wanted)
    elif wanted and not before and (_value(old.spec, "hibernation.enabled") or _value(old.status, "hibernated")):
        faults.forbidden(path, "cannot be added while the Shoot is hibernated: wake it up first")


def _check_zones(spec: ShootSpec, faults: Faults) -> None:
    """Faults of the zones to which the control plane is pinned. Source: spec/api-core.md 1.1."""
    zones, path = _value(spec, "control_plane.zones") or [], SPEC / "controlPlane" / "zones"
    wanted = ZONES_FOR_ZONE_FAILURES if _value(spec, _FAILURE_TOLERANCE) == "zone" else 1
    if zones and len(zones) != wanted:
        faults.invalid(path, zones, f"must name {wanted} zone{'s' if wanted > 1 else ''}")
    if len(set(zones)) < len(zones):
        faults.invalid(path, zones, "names a zone twice")


def _check_zones_kept(spec: ShootSpec, old: Shoot, faults: Faults) -> None:
    """Faults of other zones for a control plane with a seed: the volumes of its etcds are in the zones of before."""
    before, zones = (_value(each, "control_plane.zones") or [] for each in (old.spec, spec))
    if not old.spec.seed_name or set(zones) == set(before) or not zones:
        return
    if not before or not set(before) < set(zones):
        detail = "can only be removed, or get more zones for failure tolerance zone: volumes stay in their zones"
        faults.forbidden(SPEC / "controlPlane" / "zones", detail)


def _check_may_hibernate(spec: ShootSpec, old: Shoot, faults: Faults) -> None:
    """Faults of a hibernation that is not possible now, for example because the cluster could not wake up."""
    if not _value(spec, "hibernation.enabled") or _value(old.spec, "hibernation.enabled") or old.status is None:
        return
    path = SPEC / "hibernation" / "enabled"
    possible = next((each for each in old.status.constraints or [] if each.type == "HibernationPossible"), None)
    if possible is not None and possible.status != "True":
        again = (
            "; after an operation it is checked again, wait until it is True"
            if possible.status == "Progressing"
            else ""
        )
        faults.forbidden(path, f"constraint HibernationPossible is {possible.status}: {possible.message}{again}")
    for name, forbidden in _PHASES_WITH_API_SERVER.items():
        phase = _value(old.status, f"credentials.rotation.{name}.phase")
        if phase in forbidden:
            faults.forbidden(path, f"the rotation of the {name.replace('_', ' ')} is {phase}: wait until it is done")


def _check_encryption(shoot: Shoot, old: Shoot | None, faults: Faults) -> None:
    """Faults of a change of the encryption in etcd that is not possible, or not now. Source: spec/credentials.md 3."""
    path = SPEC / "kubernetes" / "kubeAPIServer" / "encryptionConfig"
    new = shoot.to_wire()
    wanted = Encryption.wanted(new)
    period = _value(shoot.spec, "maintenance.auto_rotation.credentials.etcd_encryption_key.rotation_period")
    if wanted.provider == GCM and not (period and parse_duration(period)):
        detail = f"keys of {GCM} need regular rotation: set maintenance.autoRotation.credentials.etcdEncryptionKey, too"
        faults.forbidden(path / "provider" / "type", detail)
    if old is None:
        return
    before = old.to_wire()
    last = Encryption.wanted(before)
    if wanted == last:
        return
    here = path / "provider" / "type" if wanted.provider != last.provider else path / "resources"
    phase = phase_of(status_of(before), Kind.ETCD_ENCRYPTION_KEY)
    if not phase.idle:
        detail = f"cannot change while the rotation of the etcd encryption key is {phase}: wait until it is done"
        faults.forbidden(here, detail)
    elif changes(before) and not _takes_back(wanted, last, shoot.spec.kubernetes.version):
        faults.forbidden(here, "cannot change while the previous change is in progress: wait until it is done")
    if _value(shoot.spec, "hibernation.enabled") or _value(old.status, "hibernated"):
        faults.forbidden(here, "cannot change while the Shoot is hibernated: wake it up first")
    if wanted.provider != last.provider and wanted.resources != last.resources:
        faults.forbidden(here, "cannot change together with the resources: change one after the other")


def _takes_back(wanted: Encryption, last: Encryption, version: str) -> bool:
    """Whether the change only removes resources with which an API server does not start: no rollout can end before."""
    if wanted.provider != last.provider or not wanted.resources < last.resources:
        return False
    for each in last.resources - wanted.resources:
        found = Faults()
        check_encrypted([each], version, SPEC, found)
        if not found:
            return False
    return True


def _check_primary_kept(dns: DNS | None, old: DNS, faults: Faults) -> None:
    before = next((each for each in old.providers or [] if each.primary), None)
    after = next((each for each in (dns and dns.providers) or [] if each.primary), None)
    if before is not None and (after is None or after.type != before.type):
        faults.forbidden(SPEC / "dns" / "providers", "the primary provider cannot be removed or change its type")


def _check_upgrade(version: str, old: str, path: Path, faults: Faults) -> None:
    if version == old or not (is_version(version) and is_version(old)):
        return
    new, before = Version(version), Version(old)
    if new < before:
        faults.forbidden(path, f"downgrade from {old} to {version} is not possible")
    elif new.major != before.major or new.minor > before.minor + 1:
        faults.forbidden(path, f"upgrade from {old} to {version} skips a minor version: upgrade one minor at a time")


def _check_bindings(shoot: Shoot, faults: Faults) -> None:
    if workerless(shoot):
        return
    spec = shoot.spec
    if spec.secret_binding_name and spec.credentials_binding_name:
        faults.forbidden(SPEC / "secretBindingName", "must not be set together with credentialsBindingName")
    elif not (spec.secret_binding_name or spec.credentials_binding_name):
        faults.required(SPEC / "credentialsBindingName", "must name the binding to the cloud's credentials")


def _check_gone(spec: ShootSpec, faults: Faults) -> None:
    if not is_version(spec.kubernetes.version):
        return
    minor = Version(spec.kubernetes.version).minor
    for dotted, gone in GONE.items():
        if minor >= gone and _value(spec, dotted) is not None:
            faults.forbidden(_wire(spec, dotted), f"not supported from Kubernetes 1.{gone} on")
    for index, provider in enumerate((spec.dns and spec.dns.providers) or []):
        if minor >= 35 and provider.secret_name:
            path = SPEC / "dns" / "providers" @ index / "secretName"
            faults.forbidden(path, "not supported from Kubernetes 1.35 on: use credentialsRef")


# networks and names


def _check_networking(networking: Networking | None, workers: bool, faults: Faults) -> None:
    path = SPEC / "networking"
    if workers and not (networking and networking.type):
        faults.required(path / "type", "must name the networking extension")
    if networking is None:
        return
    ranges = {"nodes": networking.nodes, "pods": networking.pods, "services": networking.services}
    families = networking.ip_families or ["IPv4"]
    for name, cidr in ranges.items():
        if cidr is None:
            continue
        check_cidr(cidr, path / name, faults)
        if families == ["IPv6"]:
            faults.forbidden(path / name, "a Shoot with IPv6 alone names no networks: the provider chooses them")
        elif ":" in cidr:
            faults.invalid(path / name, cidr, "must be a network of IPv4: the provider chooses those of IPv6")
    for one, other in overlapping(ranges):
        faults.invalid(path / one, ranges[one], f"overlaps with {other} {ranges[other]}")
    if families not in (["IPv4"], ["IPv4", "IPv6"], ["IPv6"]):
        reason = "only [IPv4], [IPv4, IPv6] and [IPv6] are supported: IPv6 cannot be the first of two families"
        faults.unsupported(path / "ipFamilies", families, [], reason)
    elif "IPv6" in families and not workers:
        faults.forbidden(path / "ipFamilies", "a Shoot without workers has IPv4 alone: no provider names its networks")


def check_cidr(cidr: str, path: Path, faults: Faults) -> None:
    """Faults of a network that is not canonical, or in one of Gardener's reserved ranges."""
    try:
        network = ipaddress.ip_network(cidr)
    except ValueError as error:
        faults.invalid(path, cidr, str(error))
        return
    if str(network) != cidr:
        faults.invalid(path, cidr, f"must be written as {network}")
    if is_reserved(cidr):
        faults.invalid(path, cidr, "overlaps with a reserved range (240.0.0.0/8 to 244.0.0.0/8)")


def _check_version_of_identity(reference: CrossVersionObjectReference, path: Path, faults: Faults) -> None:
    wanted = resources.WORKLOAD_IDENTITY
    if reference.kind == wanted.kind and reference.api_version != wanted.api_version:
        faults.unsupported(path / "apiVersion", reference.api_version, [wanted.api_version])


_DNS_CREDENTIALS = ("Secret", "WorkloadIdentity")


def _check_dns(dns: DNS | None, faults: Faults) -> None:
    if dns is None:
        return
    path = SPEC / "dns"
    if dns.domain is not None and not _DNS_NAME.match(dns.domain):
        faults.invalid(path / "domain", dns.domain, "must be a lower-case DNS name")
    providers = dns.providers or []
    if len([each for each in providers if each.primary]) > 1:
        faults.forbidden(path / "providers", "only one provider can be primary")
    seen = []
    for index, provider in enumerate(providers):
        here = path / "providers" @ index
        credentials = provider.credentials_ref.name if provider.credentials_ref else provider.secret_name
        if provider.type is None:
            faults.required(here / "type", "must name the DNS provider")
        if provider.type == _UNMANAGED:
            continue
        kind = provider.credentials_ref.kind if provider.credentials_ref else "Secret"
        if kind not in _DNS_CREDENTIALS:
            faults.unsupported(here / "credentialsRef" / "kind", kind, _DNS_CREDENTIALS)
        if provider.credentials_ref is not None:
            _check_version_of_identity(provider.credentials_ref, here / "credentialsRef", faults)
        if not provider.primary and credentials is None:
            faults.required(here / "credentialsRef", "a provider that is not primary needs credentials of its own")
        if provider.primary and dns.domain is None:
            faults.required(path / "domain", "a primary provider needs a domain")
        if (provider.type, credentials) in seen:
            faults.duplicate(here, f"{provider.type}/{credentials}")
        seen.append((provider.type, credentials))


# times


def _check_hibernation(hibernation: Hibernation | None, faults: Faults) -> None:
    seen = set()
    for index, schedule in enumerate((hibernation and hibernation.schedules) or []):
        here = SPEC / "hibernation" / "schedules" @ index
        if not (schedule.start or schedule.end):
            faults.required(here / "start", "a schedule needs a start or an end")
        try:
            zone_of(schedule.location or "UTC")
        except InvalidSchedule as error:
            faults.invalid(here / "location", schedule.location, str(error))
        for name, expression in (("start", schedule.start), ("end", schedule.end)):
            if expression is None:
                continue
            try:
                Cron.parse(expression).next_after(datetime.now(UTC))
            except InvalidSchedule as error:
                detail = f"must be a cron expression of five fields that fires: {error}"
                faults.invalid(here / name, expression, detail)
            if expression in seen:
                faults.duplicate(here / name, expression)
            seen.add(expression)


def _check_maintenance(maintenance: Maintenance | None, faults: Faults) -> None:
    if maintenance is None:
        return
    path = SPEC / "maintenance"
    if (window := maintenance.time_window) is not None:
        try:
            length = MaintenanceWindow.parse(window.begin, window.end).length
        except ValueError:
            faults.invalid(path / "timeWindow", f"{window.begin}-{window.end}", "must be times like 220000+0100")
        else:
            if not SHORTEST <= length <= LONGEST:
                detail = f"must be 30 minutes to 6 hours long, is {length // timedelta(minutes=1)} minutes"
                faults.invalid(path / "timeWindow", f"{window.begin}-{window.end}", detail)
    credentials = maintenance.auto_rotation.credentials if maintenance.auto_rotation else None
    for name in ("observability", "ssh_keypair", "etcd_encryption_key"):
        period = getattr(credentials, name, None)
        if period is not None and period.rotation_period is not None and parse_duration(period.rotation_period):
            here = _wire_from(credentials, path / "autoRotation" / "credentials", name) / "rotationPeriod"
            check_range(period.rotation_period, timedelta(minutes=30), timedelta(days=90), here, faults)


def _check_rest(spec: ShootSpec, faults: Faults) -> None:
    alerting = spec.monitoring.alerting if spec.monitoring else None
    for index, receiver in enumerate((alerting and alerting.email_receivers) or []):
        if not _EMAIL.match(receiver):
            path = SPEC / "monitoring" / "alerting" / "emailReceivers" @ index
            faults.invalid(path, receiver, "must be an e-mail address")
    for index, resource in enumerate(spec.resources or []):
        kinds = ("Secret", "ConfigMap", "WorkloadIdentity")
        if resource.resource_ref.kind not in kinds:
            faults.unsupported(SPEC / "resources" @ index / "resourceRef" / "kind", resource.resource_ref.kind, kinds)
        _check_version_of_identity(resource.resource_ref, SPEC / "resources" @ index / "resourceRef", faults)
    if spec.addons is not None and spec.purpose != "evaluation":
        faults.forbidden(SPEC / "addons", "allowed for Shoots of purpose evaluation only")


# paths by attribute names


def _value(model: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        model = getattr(model, name, None)
    return model


def field_path(spec: ShootSpec, dotted: str) -> list[str] | None:
    """Path of a field below the spec, with its names in the API; None if the field is not set."""
    return _wire(spec, dotted).text.split(".")[1:] if _value(spec, dotted) is not None else None


def _wire(spec: ShootSpec, dotted: str) -> Path:
    """Path of a field that is set, with its names in the API."""
    path, model = SPEC, spec
    for name in dotted.split("."):
        path = _wire_from(model, path, name)
        model = getattr(model, name)
    return path


def _wire_from(model: Any, path: Path, name: str) -> Path:
    return path / (type(model).model_fields[name].alias or name)
