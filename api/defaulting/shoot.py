"""Defaults of a Shoot that depend on other fields or objects. Source: spec/api-core.md 1, 10.3."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from random import Random

from api import constants
from api.contracts.repair import ANNOTATIONS
from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.project import Project
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import (
    CRI,
    DNS,
    CloudProfileReference,
    ClusterAutoscaler,
    CoreDNS,
    CoreDNSAutoscaling,
    CredentialsAutoRotation,
    EncryptionConfig,
    EncryptionProvider,
    KubeAPIServer,
    KubeControllerManager,
    KubeletConfig,
    KubeProxy,
    KubeReserved,
    Kubernetes,
    KubeScheduler,
    MachineControllerManagerSettings,
    MachineImage,
    Maintenance,
    MaintenanceAutoRotation,
    MaintenanceAutoUpdate,
    MaintenanceTimeWindow,
    Networking,
    PoolSystemComponents,
    RotationPeriod,
    Shoot,
    SSHAccess,
    SystemComponents,
    VerticalPodAutoscaler,
    Worker,
    WorkersSettings,
)
from api.decisions.rotation import RotationFacts, normalized
from api.decisions.versions import architecture_of, complete, complete_image, is_version
from api.labels import is_true
from api.meta import CrossVersionObjectReference, Toleration
from api.names import is_updated_in_place, same_or_below

DEFAULT_PODS = "100.96.0.0/11"
DEFAULT_SERVICES = "100.64.0.0/13"
DEFAULT_MAX_PODS = 110
_ETCD_KEY_ROTATION = "672h"
_TOLERATION_SECONDS = 300

_DNS_TASKS = (
    constants.TASK_DEPLOY_DNS_INTERNAL,
    constants.TASK_DEPLOY_DNS_EXTERNAL,
    constants.TASK_DEPLOY_DNS_INGRESS,
)


@dataclass(frozen=True)
class Surroundings:
    """Objects from which a Shoot gets its defaults. An object that does not exist is None: validation reports it."""

    profile: CloudProfile | None
    seed: Seed | None
    project: Project | None
    user: str
    """Name of the user who writes the Shoot."""
    now: datetime
    random: Random
    default_domains: frozenset[str] = frozenset()
    """Default domains of Seeds; those that are not above the Shoot's domain may be missing."""
    binder: str = ""
    """Name of the user who chose the seed, if another process writes the Shoot for that user. Admission has checked
    that the process may name its users."""


def default_shoot(shoot: Shoot, old: Shoot | None, around: Surroundings) -> None:
    """Complete a Shoot that is created (``old`` is None) or updated."""
    if not shoot.metadata.deletion_timestamp:
        _default_spec(shoot, old, around)
    _default_metadata(shoot, old, around)  # labels and tasks follow from the completed spec


def _default_spec(shoot: Shoot, old: Shoot | None, around: Surroundings) -> None:
    spec = shoot.spec
    if spec.cloud_profile is None and spec.cloud_profile_name:
        spec.cloud_profile = CloudProfileReference(kind="CloudProfile", name=spec.cloud_profile_name)
    if spec.cloud_profile and spec.cloud_profile.kind != "CloudProfile":
        spec.cloud_profile_name = None  # clients would take it for the name of a CloudProfile
    if old is None:
        _default_once(shoot, around)
    else:
        _keep(shoot, old)
    _default_maintenance(shoot, around)
    _default_networking(shoot, around.seed)
    _default_kubernetes(shoot, around)
    _default_dns(shoot, around)
    if workerless(shoot):
        return
    _default_worker_settings(shoot)
    for pool in spec.provider.workers or []:
        _default_pool(pool, shoot, around)


def _default_operations(shoot: Shoot) -> None:
    """Drop requested operations that another one includes, or that have no effect."""
    for annotation in (constants.OPERATION, constants.MAINTENANCE_OPERATION):
        asked = [each for each in shoot.metadata.annotations.get(annotation, "").split(";") if each]
        if not any(each.startswith("rotate-") for each in asked):
            continue
        wanted = normalized(asked, RotationFacts.of_shoot(shoot.to_wire()))
        if wanted == asked:
            continue
        if wanted:
            shoot.metadata.annotate(annotation, ";".join(wanted))
        else:
            shoot.metadata.annotations = {k: v for k, v in shoot.metadata.annotations.items() if k != annotation}


def is_in_place(pool: Worker) -> bool:
    """Whether a pool's machines are updated, automatically or by hand, and not replaced."""
    return is_updated_in_place({"updateStrategy": pool.update_strategy})


def workerless(shoot: Shoot) -> bool:
    return not shoot.spec.provider.workers


def _default_metadata(shoot: Shoot, old: Shoot | None, around: Surroundings) -> None:
    meta, before = shoot.metadata, old.metadata.annotations if old else {}
    if old is None:
        meta.annotate(constants.CREATED_BY, around.user)
    elif constants.CREATED_BY in before:
        meta.annotate(constants.CREATED_BY, before[constants.CREATED_BY])
    if old is None or _is_user_change(shoot, old):
        meta.annotate(constants.CHANGED_BY, around.user)
    elif around.binder:
        meta.annotate(constants.CHANGED_BY, around.binder)
    elif constants.CHANGED_BY in before:
        meta.annotate(constants.CHANGED_BY, before[constants.CHANGED_BY])
    _default_confirmation(shoot, before, around.user)
    _default_author(shoot, before, around.user)
    if old is not None and _needs_retry(shoot, old):
        meta.annotate(constants.SHOOT_NEEDS_RETRY, "true")
    _default_operations(shoot)
    if tasks := _tasks(shoot, old):
        known = [each for each in meta.annotations.get(constants.SHOOT_TASKS, "").split(",") if each]
        meta.annotate(constants.SHOOT_TASKS, ",".join(dict.fromkeys([*known, *tasks])))
    names = {shoot.spec.seed_name, shoot.status.seed_name if shoot.status else None} - {None}
    wanted = {f"{constants.SEED_NAME_PREFIX}{name}": "true" for name in names} | _extension_labels(shoot)
    kept = {
        key: value
        for key, value in meta.labels.items()
        if not key.startswith(constants.SEED_NAME_PREFIX)
        and not key.partition("/")[0].endswith(constants.EXTENSION_LABEL_SUFFIX)
    }
    if kept | wanted != meta.labels:
        meta.labels = kept | wanted


def only_bound(shoot: Shoot, old: Shoot) -> bool:
    """Whether a change chooses a seed, and requests nothing else."""
    bound = shoot.spec.seed_name != old.spec.seed_name
    others_are_same = shoot.spec.model_copy(update={"seed_name": old.spec.seed_name}) == old.spec
    return bound and others_are_same and not _is_user_change(shoot, old)


def _is_user_change(shoot: Shoot, old: Shoot) -> bool:
    """Whether a change requests an operation, or changes the spec other than by an assignment of a seed.

    The assignment of a seed, with the defaults that follow from it, and the removal of an operation answer an earlier
    request.
    """
    asked = shoot.metadata.annotations.get(constants.OPERATION)
    if asked and asked != old.metadata.annotations.get(constants.OPERATION):
        return True
    bound = shoot.spec.seed_name != old.spec.seed_name
    return not bound and shoot.spec != old.spec


def _default_confirmation(shoot: Shoot, before: dict[str, str], user: str) -> None:
    """Record the user who confirmed the deletion. The value of the author is dropped, so that it cannot be forged."""
    annotations = dict(shoot.metadata.annotations)
    key = constants.DELETION_CONFIRMED_BY
    annotations.pop(key, None)
    if is_true(annotations.get(constants.CONFIRMATION_DELETION)):
        confirmed_before = is_true(before.get(constants.CONFIRMATION_DELETION))
        annotations[key] = before.get(key, user) if confirmed_before else user
    if annotations != shoot.metadata.annotations:
        shoot.metadata.annotations = annotations


def _default_author(shoot: Shoot, before: dict[str, str], user: str) -> None:
    """Record the user who requests a repair or a retry. The value of the author is dropped, too."""
    annotations = {name: text for name, text in shoot.metadata.annotations.items() if name != constants.REPAIR_BY}
    requests = [_repair_requests(annotations), _repair_requests(before)]
    if requests[0]:
        unchanged = requests[0] == requests[1]
        annotations[constants.REPAIR_BY] = before.get(constants.REPAIR_BY, user) if unchanged else user
    if annotations != shoot.metadata.annotations:
        shoot.metadata.annotations = annotations


def _repair_requests(annotations: dict[str, str]) -> dict[str, str]:
    retry = {constants.OPERATION: constants.OPERATION_RETRY}
    return {name: text for name, text in annotations.items() if name in ANNOTATIONS or retry.get(name) == text}


def _needs_retry(shoot: Shoot, old: Shoot) -> bool:
    """Whether maintenance must retry the Shoot: a confined change of a Shoot in state Failed starts no operation."""
    last = shoot.status.last_operation if shoot.status else None
    confined = shoot.spec.maintenance is not None and shoot.spec.maintenance.confine_spec_update_rollout
    return bool(confined) and last is not None and last.state == "Failed" and shoot.spec != old.spec


def _tasks(shoot: Shoot, old: Shoot | None) -> list[str]:
    """Tasks that a reconciliation must execute because of this change."""
    if old is None:
        return [constants.TASK_DEPLOY_INFRASTRUCTURE, *_DNS_TASKS]
    now, before = shoot.spec, old.spec
    woken = bool(before.hibernation and before.hibernation.enabled) and not (
        now.hibernation and now.hibernation.enabled
    )
    infrastructure = (
        woken
        or now.provider.infrastructure_config != before.provider.infrastructure_config
        or _families(now.networking) != _families(before.networking)
        or _ssh(shoot) != _ssh(old)
    )
    dns = woken or (old.spec.seed_name is not None and now.dns != before.dns)
    return [*([constants.TASK_DEPLOY_INFRASTRUCTURE] if infrastructure else []), *(_DNS_TASKS if dns else ())]


def _families(networking: Networking | None) -> list[str]:
    return list((networking and networking.ip_families) or ["IPv4"])


def _ssh(shoot: Shoot) -> bool:
    settings = shoot.spec.provider.workers_settings
    return settings is None or settings.ssh_access is None or settings.ssh_access.enabled


def _extension_labels(shoot: Shoot) -> dict[str, str]:
    """Labels by which webhooks of extensions select the Shoots that use the extension."""
    spec = shoot.spec
    pools = spec.provider.workers or []
    types = {("provider", spec.provider.type)}
    types |= {("dnsrecord", each.type) for each in (spec.dns and spec.dns.providers) or [] if each.type}
    if spec.networking and spec.networking.type:
        types.add(("networking", spec.networking.type))
    types |= {
        ("operatingsystemconfig", p.machine.image.name) for p in pools if p.machine.image and p.machine.image.name
    }
    types |= {("containerruntime", r.type) for p in pools for r in (p.cri and p.cri.container_runtimes) or []}
    types |= {("extensions", each.type) for each in spec.extensions or [] if not each.disabled}
    return {f"{prefix}.{constants.EXTENSION_LABEL_SUFFIX}/{kind}": "true" for prefix, kind in sorted(types)}


def _default_once(shoot: Shoot, around: Surroundings) -> None:
    """Defaults that are set at creation only: a later removal by the owner is kept."""
    spec = shoot.spec
    kubernetes = spec.kubernetes
    if kubernetes.vertical_pod_autoscaler is None and not workerless(shoot):
        kubernetes.vertical_pod_autoscaler = VerticalPodAutoscaler(enabled=True)
    spec.maintenance = spec.maintenance or Maintenance()
    spec.maintenance.auto_rotation = spec.maintenance.auto_rotation or MaintenanceAutoRotation()
    rotation = spec.maintenance.auto_rotation.credentials or CredentialsAutoRotation()
    if rotation.etcd_encryption_key is None:
        rotation.etcd_encryption_key = RotationPeriod(rotation_period=_ETCD_KEY_ROTATION)
    spec.maintenance.auto_rotation.credentials = rotation
    wanted = [Toleration(key=constants.TAINT_SEED_PROTECTED)] if shoot.metadata.namespace == "garden" else []
    if around.project and around.project.spec.tolerations:
        wanted += around.project.spec.tolerations.defaults or []
    known = {each.key for each in spec.tolerations or []}
    if missing := [each for each in wanted if each.key not in known]:
        spec.tolerations = [*(spec.tolerations or []), *missing]


def _keep(shoot: Shoot, old: Shoot) -> None:
    """Keep values that defaulting chose earlier, if a newer manifest leaves them out."""
    now, before = shoot.spec, old.spec
    if before.networking is not None:
        now.networking = now.networking or Networking()
        for name in ("type", "pods", "services", "nodes", "ip_families"):
            if getattr(now.networking, name) is None and getattr(before.networking, name) is not None:
                setattr(now.networking, name, getattr(before.networking, name))
    if before.dns and before.dns.domain and before.seed_name and not (now.dns and now.dns.domain):
        now.dns = now.dns or DNS()
        now.dns.domain = before.dns.domain
    if before.maintenance and before.maintenance.time_window:
        now.maintenance = now.maintenance or Maintenance()
        now.maintenance.time_window = now.maintenance.time_window or before.maintenance.time_window
    pools = {pool.name: pool for pool in before.provider.workers or []}
    for pool in now.provider.workers or []:
        twin = pools.get(pool.name)
        if twin and twin.machine.type == pool.machine.type:
            pool.machine.image = pool.machine.image or twin.machine.image
            pool.machine.architecture = pool.machine.architecture or twin.machine.architecture


def _default_maintenance(shoot: Shoot, around: Surroundings) -> None:
    maintenance = shoot.spec.maintenance = shoot.spec.maintenance or Maintenance()
    if maintenance.time_window is None:
        hour = around.random.randrange(24)
        maintenance.time_window = MaintenanceTimeWindow(
            begin=f"{hour:02}0000+0000", end=f"{(hour + 1) % 24:02}0000+0000"
        )
    update = maintenance.auto_update = maintenance.auto_update or MaintenanceAutoUpdate(kubernetes_version=True)
    if update.machine_image_version is None and not workerless(shoot):
        update.machine_image_version = True


def _default_networking(shoot: Shoot, seed: Seed | None) -> None:
    networking = shoot.spec.networking = shoot.spec.networking or Networking()
    if networking.ip_families is None:
        networking.ip_families = ["IPv4"]
    if seed is None or "IPv4" not in networking.ip_families:
        return
    defaults = seed.spec.networks.shoot_defaults
    if networking.pods is None and not workerless(shoot):
        networking.pods = (defaults and defaults.pods) or DEFAULT_PODS
    if networking.services is None:
        networking.services = (defaults and defaults.services) or DEFAULT_SERVICES


def _default_kubernetes(shoot: Shoot, around: Surroundings) -> None:
    # Assign the blocks, so that blocks that the author left out are written, too.
    kubernetes = shoot.spec.kubernetes = shoot.spec.kubernetes
    if around.profile and not is_version(kubernetes.version):
        versions = around.profile.spec.kubernetes.versions
        kubernetes.version = complete(kubernetes.version, versions, around.now) or kubernetes.version
    server = kubernetes.kube_api_server = kubernetes.kube_api_server or KubeAPIServer()
    server.encryption_config = server.encryption_config or EncryptionConfig()
    server.encryption_config.provider = server.encryption_config.provider or EncryptionProvider(type="aescbc")
    manager = kubernetes.kube_controller_manager = kubernetes.kube_controller_manager or KubeControllerManager()
    if workerless(shoot):
        return
    for seconds in ("default_not_ready_toleration_seconds", "default_unreachable_toleration_seconds"):
        if getattr(server, seconds) is None:
            setattr(server, seconds, _TOLERATION_SECONDS)
    kubelet = kubernetes.kubelet = kubernetes.kubelet or KubeletConfig()
    _default_kubelet(kubelet)
    if kubelet.kube_reserved is None:
        kubelet.kube_reserved = KubeReserved(**constants.KUBE_RESERVED)
    if manager.node_cidr_mask_size is None and "IPv4" in _families(shoot.spec.networking):
        manager.node_cidr_mask_size = _mask_size(shoot)
    if manager.node_monitor_grace_period is None:
        manager.node_monitor_grace_period = "40s"
    _default_components(kubernetes)


def _default_components(kubernetes: Kubernetes) -> None:
    """Create empty blocks whose fields have static defaults, which the API server then sets."""
    kubernetes.kube_scheduler = kubernetes.kube_scheduler or KubeScheduler(profile="balanced")
    kubernetes.kube_proxy = kubernetes.kube_proxy or KubeProxy(mode="IPTables", enabled=True)
    kubernetes.cluster_autoscaler = kubernetes.cluster_autoscaler or ClusterAutoscaler(expander="least-waste")


def _mask_size(shoot: Shoot) -> int:
    """Prefix length of a node's pod network: twice as many addresses as the largest ``maxPods`` of all pools."""
    pools = [pool.kubernetes.kubelet for pool in shoot.spec.provider.workers or [] if pool.kubernetes]
    configured = [each.max_pods for each in [shoot.spec.kubernetes.kubelet, *pools] if each and each.max_pods]
    return 32 - math.ceil(math.log2(2 * max(configured, default=DEFAULT_MAX_PODS)))


def _default_kubelet(kubelet: KubeletConfig) -> None:
    if kubelet.serialize_image_pulls is None:
        kubelet.serialize_image_pulls = (kubelet.max_parallel_image_pulls or 0) < 2
    if kubelet.image_minimum_gc_age is None:
        kubelet.image_minimum_gc_age = "2m"
    if kubelet.fail_swap_on is None:
        kubelet.fail_swap_on = True


def _default_worker_settings(shoot: Shoot) -> None:
    provider = shoot.spec.provider
    provider.workers_settings = provider.workers_settings or WorkersSettings()
    provider.workers_settings.ssh_access = provider.workers_settings.ssh_access or SSHAccess(enabled=True)
    components = shoot.spec.system_components = shoot.spec.system_components or SystemComponents()
    components.core_dns = components.core_dns or CoreDNS()
    components.core_dns.autoscaling = components.core_dns.autoscaling or CoreDNSAutoscaling(mode="horizontal")


def _default_pool(pool: Worker, shoot: Shoot, around: Surroundings) -> None:
    profile = around.profile
    if pool.machine.architecture is None:
        types = profile.spec.machine_types if profile else []
        found = [architecture_of(profile, each) for each in types if profile and each.name == pool.machine.type]
        pool.machine.architecture = "arm64" if found == ["arm64"] else "amd64"
    if pool.update_strategy != "ManualInPlaceUpdate":
        in_place = pool.update_strategy == "AutoInPlaceUpdate"
        if pool.max_surge is None:
            pool.max_surge = 0 if in_place else 1
        if pool.max_unavailable is None:
            pool.max_unavailable = 1 if in_place else 0
    if is_in_place(pool):
        # The machine of a failed update stays, so that its user can mend it: this is the strategy's purpose.
        pool.machine_controller_manager = pool.machine_controller_manager or MachineControllerManagerSettings()
        if pool.machine_controller_manager.disable_health_timeout is None:
            pool.machine_controller_manager.disable_health_timeout = True
    pool.cri = pool.cri or CRI(name="containerd")
    pool.system_components = pool.system_components or PoolSystemComponents(allow=True)
    if pool.kubernetes and pool.kubernetes.kubelet:
        _default_kubelet(pool.kubernetes.kubelet)
    _default_pool_versions(pool, shoot, around)


def _default_pool_versions(pool: Worker, shoot: Shoot, around: Surroundings) -> None:
    version = pool.kubernetes.version if pool.kubernetes else None
    if pool.kubernetes and around.profile and version and not is_version(version):
        version = complete(version, around.profile.spec.kubernetes.versions, around.now) or version
        pool.kubernetes.version = version
    image = pool.machine.image = pool.machine.image or MachineImage()
    if around.profile and not (image.name and image.version and is_version(image.version)):
        found = complete_image(
            around.profile,
            image.name,
            image.version,
            architecture=pool.machine.architecture or "amd64",
            cri=pool.cri.name if pool.cri else "containerd",
            kubelet=version or shoot.spec.kubernetes.version,
            now=around.now,
            machine_type=pool.machine.type,
            in_place=is_in_place(pool),
        )
        if found:
            image.name, image.version = found


def _default_dns(shoot: Shoot, around: Surroundings) -> None:
    """The domain ``<shoot>.<project>.<default domain of the seed>``, once the seed is known.

    The first provider becomes the primary one, which manages the domain. A default domain has no primary provider: the
    seed manages it.
    """
    dns = shoot.spec.dns
    providers = (dns and dns.providers) or []
    for each in providers:
        if each.secret_name and each.credentials_ref is None:
            each.credentials_ref = CrossVersionObjectReference(api_version="v1", kind="Secret", name=each.secret_name)
    domain = dns.domain if dns else None
    unmanaged = any(each.type == "unmanaged" for each in providers)
    if not unmanaged and not domain and around.seed and around.seed.spec.dns.defaults and around.project:
        shoot.spec.dns = dns or DNS()
        base = around.seed.spec.dns.defaults[0].domain
        shoot.spec.dns.domain = f"{shoot.metadata.name}.{around.project.metadata.name}.{base}"
        for each in providers:
            each.primary = None  # only a Shoot of an earlier version has a primary provider, but no domain
    elif not any(each.primary for each in providers):
        own = bool(domain) and not any(same_or_below(domain or "", each) for each in around.default_domains)
        for each in providers[:1] if own or unmanaged else ():
            each.primary = True
