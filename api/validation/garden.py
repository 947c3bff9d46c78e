"""Validation of CloudProfiles, Seeds, Projects and bindings. Source: spec/api-core.md 2 to 5."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from api import constants
from api.access import RBAC
from api.core.v1beta1.cloud_profile import CloudProfile, ExpirableVersion
from api.core.v1beta1.controller_registration import ControllerRegistration
from api.core.v1beta1.exposure_class import ExposureClass
from api.core.v1beta1.project import Project, Subject
from api.core.v1beta1.seed import ExcessCapacityReservation, Seed
from api.core.v1beta1.shoot import Shoot
from api.decisions.project_access import OWNER, ROLES, roles_of
from api.decisions.registrations import compatible_clusters, of_kind_extension
from api.decisions.versions import Version, is_version, stage
from api.labels import overlapping
from api.meta import LabelSelector
from api.names import overlap
from api.validation.cloud_profile import check_lifecycle, check_parts, used_and_gone
from api.validation.field import Faults, Path
from api.validation.offered import check_offered
from api.validation.shoot import check_cidr
from api.validation.values import check_amounts, check_labels, name_fault

SPEC = Path("spec")

_SEED_OPERATIONS = (
    constants.OPERATION_RECONCILE,
    constants.OPERATION_RETRY,
    constants.OPERATION_RENEW_KUBECONFIG,
    constants.OPERATION_RENEW_WORKLOAD_IDENTITY_TOKENS,
)
_NO_SUBJECT = {
    constants.OPERATION_RENEW_GARDEN_ACCESS_SECRETS: "extensions of a seed have no access to the garden",
}
_EXTENSION_ROLE = re.compile(r"extension:[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?")
_ACCOUNT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}
"""Operators of label selectors, and whether they need values."""
_MAX_PROJECT_NAME = 10


# CloudProfile


def check_cloud_profile(profile: CloudProfile, now: datetime) -> Faults:
    faults = Faults()
    spec = profile.spec
    offers = {
        SPEC / "kubernetes" / "versions": spec.kubernetes.versions,
        SPEC / "machineImages": spec.machine_images,
        SPEC / "machineTypes": spec.machine_types,
        SPEC / "regions": spec.regions,
    }
    for path, offered in offers.items():
        if not offered:
            faults.required(path, "must have at least one entry")
    _check_versions(spec.kubernetes.versions, SPEC / "kubernetes" / "versions", now, faults)
    if spec.kubernetes.versions and all(is_version(each.version) for each in spec.kubernetes.versions):
        newest = max(spec.kubernetes.versions, key=lambda each: Version(each.version))
        if newest.expiration_date:
            path = SPEC / "kubernetes" / "versions" @ spec.kubernetes.versions.index(newest) / "expirationDate"
            faults.invalid(path, newest.expiration_date, "the newest version must not expire")
        _check_one_supported_per_minor(spec.kubernetes.versions, faults)
    for index, image in enumerate(spec.machine_images):
        path = SPEC / "machineImages" @ index / "versions"
        if not image.versions:
            faults.required(path, "an image needs at least one version")
        _check_versions(image.versions, path, now, faults)
    for index, kind in enumerate(spec.machine_types):
        if kind.storage and (kind.storage.size is None) == (kind.storage.min_size is None):
            detail = "must have either size or minSize"
            faults.invalid(SPEC / "machineTypes" @ index / "storage", kind.storage.type, detail)
    _check_profile_names(profile, faults)
    check_amounts(spec, SPEC, faults)
    capabilities = [each.name for each in spec.machine_capabilities or []]
    if capabilities and "architecture" not in capabilities:
        faults.required(SPEC / "machineCapabilities", "must define architecture")
    faults.duplicates(SPEC / "machineCapabilities", capabilities, "name")
    check_parts(spec, faults)
    return faults


def _check_profile_names(profile: CloudProfile, faults: Faults) -> None:
    """Names of machine types, volume types, images and zones become values of labels of nodes."""
    spec = profile.spec
    named = [(SPEC / "machineTypes" @ index / "name", each.name) for index, each in enumerate(spec.machine_types)]
    named += [(SPEC / "machineImages" @ index / "name", each.name) for index, each in enumerate(spec.machine_images)]
    named += [(SPEC / "volumeTypes" @ index / "name", each.name) for index, each in enumerate(spec.volume_types or [])]
    for number, region in enumerate(spec.regions):
        here = SPEC / "regions" @ number
        named.append((here / "name", region.name))
        named += [(here / "zones" @ index / "name", each.name) for index, each in enumerate(region.zones or [])]
    for path, name in named:
        if fault := name_fault(name):
            faults.invalid(path, name, f"{fault}: it becomes the value of a label of nodes")


def _check_versions(versions: Sequence[ExpirableVersion], path: Path, now: datetime, faults: Faults) -> None:
    for index, each in enumerate(versions):
        here = path @ index
        if not is_version(each.version):
            faults.invalid(here / "version", each.version, "must be a version like 1.37.1")
        if each.lifecycle and (each.classification or each.expiration_date):
            faults.forbidden(here / "lifecycle", "must not be set together with classification and expirationDate")
        starts = [stage.start_time for stage in each.lifecycle or []]
        if None in starts[1:]:
            detail = "only the first stage may have no startTime"
            faults.required(here / "lifecycle" @ (starts.index(None, 1)) / "startTime", detail)
        known = [start for start in starts if start is not None]
        if known != sorted(known, key=datetime.fromisoformat):
            faults.invalid(here / "lifecycle", known, "stages must be in the order of their times")
        check_lifecycle(each, here, faults)


def _check_one_supported_per_minor(versions: Sequence[ExpirableVersion], faults: Faults) -> None:
    supported = [
        (Version(each.version).major, Version(each.version).minor) if each.classification == "supported" else None
        for each in versions
    ]
    for index, minor in enumerate(supported):
        if minor is not None and minor in supported[:index]:
            path = SPEC / "kubernetes" / "versions" @ index
            faults.forbidden(path, f"only one version of {minor[0]}.{minor[1]} can be supported")


def check_cloud_profile_change(
    profile: CloudProfile, old: CloudProfile, shoots: Iterable[Shoot], now: datetime
) -> Faults:
    """Faults of a change that removes something that a Shoot uses, or changes an immutable field."""
    faults = Faults()
    faults.fixed(SPEC / "type", old.spec.type, profile.spec.type)
    before, after = (each.spec.limits.max_nodes_total if each.spec.limits else None for each in (old, profile))
    if before is not None and after is not None and after < before:
        faults.invalid(SPEC / "limits" / "maxNodesTotal", after, f"must not decrease from {before}")
    for shoot in shoots:
        owner = f"{shoot.metadata.namespace}/{shoot.metadata.name}"
        for path, what in used_and_gone(shoot, old, profile):
            faults.forbidden(path, f"{what} is used by Shoot {owner} and cannot be removed")
    known = {each.version: each for each in old.spec.kubernetes.versions}
    for index, each in enumerate(profile.spec.kubernetes.versions):
        earlier = known.get(each.version)
        if earlier and stage(each, now) == "unavailable" != stage(earlier, now):
            faults.forbidden(SPEC / "kubernetes" / "versions" @ index, "cannot become unavailable again")
    return faults


# Seed


def check_seed(seed: Seed, old: Seed | None = None) -> Faults:
    faults = Faults()
    spec = seed.spec
    path = SPEC / "networks"
    ranges = {"nodes": spec.networks.nodes, "pods": spec.networks.pods, "services": spec.networks.services}
    defaults = spec.networks.shoot_defaults
    for name, cidr in ranges.items():
        if cidr is not None:
            check_cidr(cidr, path / name, faults)
    for number, cidr in enumerate(spec.networks.block_cidrs or []):
        check_cidr(cidr, path / "blockCIDRs" @ number, faults)
    for name in ("pods", "services"):
        cidr = getattr(defaults, name, None)
        if cidr is not None:
            check_cidr(cidr, path / "shootDefaults" / name, faults)
            ranges[f"shootDefaults.{name}"] = cidr
    for one, other in overlapping(ranges):
        faults.invalid(path / one, ranges[one], f"overlaps with {other} {ranges[other]}")
    if spec.ingress is not None and spec.dns.provider is None:
        faults.required(SPEC / "dns" / "provider", "an ingress domain needs a DNS provider")
    if spec.backup and spec.backup.region is None and spec.backup.provider != spec.provider.type:
        faults.required(
            SPEC / "backup" / "region", "must be set if the backups are with another provider than the seed"
        )
    faults.duplicates(SPEC / "provider" / "zones", spec.provider.zones or [])
    check_amounts(spec, SPEC, faults)
    services = spec.settings.load_balancer_services
    policies = ("Cluster", "Local")
    if services and services.external_traffic_policy not in (None, *policies):
        path = SPEC / "settings" / "loadBalancerServices" / "externalTrafficPolicy"
        faults.unsupported(path, services.external_traffic_policy, policies)
    _check_reservations(spec.settings.excess_capacity_reservation, faults)
    topology = spec.settings.topology_aware_routing
    if topology and topology.enabled and len(spec.provider.zones or []) < 2:
        faults.forbidden(SPEC / "settings" / "topologyAwareRouting" / "enabled", "needs a seed with at least two zones")
    check_offered(seed, old, faults)
    return faults


def check_seed_extensions(seed: Seed, old: Seed | None, registrations: Iterable[ControllerRegistration]) -> Faults:
    """Faults of extensions that are new in a Seed: a registered extension must support seeds."""
    faults = Faults()
    offered = {each.type for each in of_kind_extension(registrations) if "seed" in compatible_clusters(each)}
    known = {each.type for each in (old and old.spec.extensions) or []}
    for index, each in enumerate(seed.spec.extensions or []):
        if not each.disabled and each.type not in offered | known:
            path, types = SPEC / "extensions" @ index / "type", sorted(offered)
            faults.unsupported(path, each.type, types, f"no registered extension of this type supports seeds: {types}")
    return faults


def _check_reservations(reservation: ExcessCapacityReservation | None, faults: Faults) -> None:
    """Faults of placeholder pods that Kubernetes would not create, or that would reserve nothing."""
    for index, config in enumerate((reservation and reservation.configs) or []):
        path = SPEC / "settings" / "excessCapacityReservation" / "configs" @ index
        if not config.resources:
            faults.required(path / "resources", "a reservation names its amounts, for example cpu and memory")
        for position, each in enumerate(config.tolerations or []):
            here = path / "tolerations" @ position
            if each.operator == "Exists" and each.value:
                faults.invalid(here / "value", each.value, "must be empty with operator Exists")
            if not each.key and each.operator != "Exists":
                faults.invalid(here / "operator", each.operator, "must be Exists if there is no key")
            if each.toleration_seconds is not None and each.effect != "NoExecute":
                faults.invalid(here / "tolerationSeconds", each.toleration_seconds, "needs effect NoExecute")


def check_seed_change(seed: Seed, old: Seed, shoots: Sequence[str]) -> Faults:
    """Faults of a change that Shoots on the seed do not allow. ``shoots``: the Shoots on it, as ``namespace/name``."""
    faults = Faults()
    if old.spec.backup is not None and seed.spec.backup is None:
        faults.forbidden(SPEC / "backup", "cannot be removed")
    class_of = [each.spec.settings.load_balancer_services for each in (old, seed)]
    before, after = (services.class_ if services else None for services in class_of)
    # Kubernetes does not change the class of a Service, and another Service would have another address.
    faults.fixed(SPEC / "settings" / "loadBalancerServices" / "class", before, after)
    if shoots:
        detail = f"is used by {len(shoots)} Shoots, for example {shoots[0]}"
        if seed.spec.dns.internal.domain != old.spec.dns.internal.domain:
            faults.forbidden(SPEC / "dns" / "internal" / "domain", detail)
        gone = set(old.spec.provider.zones or []) - set(seed.spec.provider.zones or [])
        if gone:
            faults.forbidden(SPEC / "provider" / "zones", f"{', '.join(sorted(gone))} {detail}")
    return faults


def seed_domains(seed: Seed) -> list[tuple[Path, str]]:
    """Domains of a Seed below which control planes get DNS names, each with its field."""
    found = [(SPEC / "dns" / "internal" / "domain", seed.spec.dns.internal.domain)]
    if seed.spec.ingress is not None:
        found.append((SPEC / "ingress" / "domain", seed.spec.ingress.domain))
    return found


def domains_of_seed(seed: Mapping[str, Any]) -> list[str]:
    """Like ``seed_domains``, without the fields, for a Seed as JSON."""
    spec = seed["spec"]
    return [spec["dns"]["internal"]["domain"], *([spec["ingress"]["domain"]] if spec.get("ingress") else [])]


def check_seed_domains(seed: Seed, old: Seed | None, shoot_domains: Mapping[str, str]) -> Faults:
    """Faults of domains that are new or changed; ``shoot_domains`` by ``namespace/name`` of their Shoot."""
    faults = Faults()
    known = {domain for _, domain in seed_domains(old)} if old is not None else set()
    for path, domain in seed_domains(seed):
        for owner, other in shoot_domains.items():
            if domain not in known and overlap(domain, other):
                faults.forbidden(path, f"{domain} is the same as, above or below {other} of Shoot {owner}")
    return faults


def check_seed_operation(seed: Seed, old: Seed | None) -> Faults:
    """Faults of an operation annotation that is new or changed."""
    faults = Faults()
    asked, before = (
        each.metadata.annotations.get(constants.OPERATION) if each is not None else None for each in (seed, old)
    )
    if asked is None or asked == before:
        return faults
    path = Path("metadata.annotations") @ constants.OPERATION
    if asked in _NO_SUBJECT:
        faults.forbidden(path, f"{asked} has no effect: {_NO_SUBJECT[asked]}")
    elif asked not in _SEED_OPERATIONS:
        faults.unsupported(path, asked, _SEED_OPERATIONS)
    elif before is not None:
        faults.forbidden(path, f"{before} was requested before and is not done yet: request {asked} after it")
    return faults


def check_seed_unused(seed: str, hindrances: Iterable[str]) -> Faults:
    """Faults of the deletion of a Seed. ``hindrances``: see ``api.decisions.seeds``."""
    faults = Faults()
    for each in hindrances:
        faults.forbidden(Path("metadata") / "name", f"Seed {seed} cannot be deleted: {each}")
    return faults


# Project


def check_project(project: Project, others: Iterable[Project]) -> Faults:
    faults = Faults()
    name, spec = project.metadata.name, project.spec
    if len(name) > _MAX_PROJECT_NAME or "--" in name:
        faults.invalid(Path("metadata") / "name", name, "must have at most 10 characters and no two hyphens in a row")
    elif not _NAMESPACE.fullmatch(name):
        # The name is part of the names of namespaces, which have no dots.
        faults.invalid(Path("metadata") / "name", name, "must have only lower-case letters, digits and hyphens")
    namespace, path = spec.namespace, SPEC / "namespace"
    if namespace is not None:
        if namespace != "garden" and not namespace.startswith("garden-"):
            faults.invalid(path, namespace, "must start with garden-")
        elif not _NAMESPACE.fullmatch(namespace):
            faults.invalid(path, namespace, "must be the name of a namespace: lower-case letters, digits and hyphens")
        if any(other.spec.namespace == namespace and other.metadata.name != name for other in others):
            faults.duplicate(path, namespace)
    members = spec.members or []
    faults.duplicates(SPEC / "members", [(each.kind, each.namespace, each.name) for each in members])
    for index, member in enumerate(members):
        _check_subject(member, SPEC / "members" @ index, faults)
        for role in sorted(roles_of(member)):
            if role not in ROLES and not _EXTENSION_ROLE.fullmatch(role):
                faults.unsupported(SPEC / "members" @ index / "roles", role, [*ROLES, "extension:<name>"])
    if spec.owner is not None:
        _check_subject(spec.owner, SPEC / "owner", faults)
    for index, approval in enumerate(spec.dual_approval_for_deletion or []):
        check_selector(approval.selector, SPEC / "dualApprovalForDeletion" @ index / "selector", faults)
    if len([each for each in members if OWNER in roles_of(each)]) > 1:
        faults.forbidden(SPEC / "members", "only one member can be owner")
    tolerations = spec.tolerations
    if tolerations is not None:
        allowed = [(each.key, each.value) for each in tolerations.whitelist or []]
        for index, each in enumerate(tolerations.defaults or []):
            if (each.key, each.value) not in allowed and (each.key, None) not in allowed:
                faults.forbidden(SPEC / "tolerations" / "defaults" @ index, "must be in the whitelist")
    for name_, text in (("description", spec.description), ("purpose", spec.purpose)):
        if text is not None and not text.isprintable():
            faults.invalid(SPEC / name_, text, "must be printable characters")
    return faults


def _check_subject(subject: Subject, path: Path, faults: Faults) -> None:
    """Faults of a subject that RBAC would refuse. The controller-manager binds roles to it."""
    if not subject.name:
        faults.required(path / "name", "a member has a name")
    group = None if subject.kind == "ServiceAccount" else RBAC
    if subject.api_group not in (None, "", group):
        faults.unsupported(path / "apiGroup", subject.api_group, [group or ""])
    if subject.kind != "ServiceAccount":
        if subject.namespace:
            faults.forbidden(path / "namespace", f"a {subject.kind} has no namespace, only a ServiceAccount has one")
        return
    if subject.name and not _ACCOUNT_NAME.fullmatch(subject.name):
        faults.invalid(path / "name", subject.name, "must be the name of a ServiceAccount")
    if not subject.namespace:
        faults.required(path / "namespace", "a ServiceAccount has a namespace")
    elif not _NAMESPACE.fullmatch(subject.namespace):
        faults.invalid(path / "namespace", subject.namespace, "must be the name of a namespace")


def check_exposure_class(exposure_class: ExposureClass) -> Faults:
    """Faults of the scheduling, which each Shoot of the class gets."""
    faults, path = Faults(), Path("scheduling")
    scheduling = exposure_class.scheduling
    if scheduling is None:
        return faults
    if (selector := scheduling.seed_selector) is not None:
        check_labels(selector.match_labels, path / "seedSelector" / "matchLabels", faults)
        check_selector(selector, path / "seedSelector", faults)
    tolerations = scheduling.tolerations or []
    for index, each in enumerate(tolerations):
        if not each.key:
            faults.required(path / "tolerations" @ index / "key", "a toleration names a taint")
    faults.duplicates(path / "tolerations", [each.key for each in tolerations], "key")
    return faults


def check_selector(selector: LabelSelector, path: Path, faults: Faults) -> None:
    for index, each in enumerate(selector.match_expressions or []):
        here = path / "matchExpressions" @ index
        if each.operator not in _OPERATORS:
            faults.unsupported(here / "operator", each.operator, list(_OPERATORS))
        elif _OPERATORS[each.operator] != bool(each.values):
            need = "needs values" if _OPERATORS[each.operator] else "has no values"
            faults.invalid(here / "values", each.values, f"operator {each.operator} {need}")
