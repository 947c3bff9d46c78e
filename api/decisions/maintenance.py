"""Maintenance of a Shoot: updates of Kubernetes and of machine images, and rotations of credentials.

Pure functions of the Shoot, its cloud profile and the time. Source: spec/api-core.md 12, "Shoot maintenance", and
spec/credentials.md 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from api.contracts.rotation import Kind
from api.core.v1beta1.cloud_profile import CloudProfile, ExpirableVersion, MachineImage, MachineImageVersion
from api.core.v1beta1.shoot import Shoot, Worker
from api.decisions.rotation import RotationFacts, active, status_of, steps_of
from api.decisions.versions import Version, capabilities_of, find, image_fits, is_version, stage
from api.durations import parse_duration
from api.kubernetes_versions import Component
from api.validation.rotation import rotation_faults
from api.validation.shoot import GONE, field_path
from api.validation.versioned import lost_apis, lost_gates, lost_plugins

Fits = Callable[[Version], bool]

_BY_PREFERENCE = ("supported", "deprecated")
_CONVERTED = ("cloud_profile_name", "secret_binding_name")
"""Removed fields whose value must move to another field. Maintenance leaves that to the owner of the Shoot."""

KUBERNETES = "KubernetesVersionMaintenance"
MACHINE_IMAGE = "MachineImageVersionMaintenance"
CREDENTIALS = "CredentialsRotationMaintenance"

_ROTATED = {
    Kind.ETCD_ENCRYPTION_KEY: "rotate-etcd-encryption-key",
    Kind.SSH_KEYPAIR: "rotate-ssh-keypair",
    Kind.OBSERVABILITY: "rotate-observability-credentials",
}
"""Credentials that maintenance rotates, each with its operation: the rotation needs no action of the owner."""


@dataclass(frozen=True)
class Update:
    """One change that is made, or that is not possible."""

    kind: str
    """Reason of the Event that reports the change."""
    where: str
    """``Control Plane``, or the worker pool."""
    what: str
    """Description of the change, or of the failure."""
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. Reason: {self.reason}"


@dataclass
class Plan:
    """Changes, failures, a merge patch of the Shoot's spec with the changes, and operations to request."""

    updates: list[Update] = field(default_factory=list)
    failures: list[Update] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)


class NoVersion(Exception):
    """The cloud profile offers no version to update to; the text names the missing version."""


def plan_maintenance(obj: Mapping[str, Any], profile: CloudProfile, now: datetime, asked: Sequence[str] = ()) -> Plan:
    """Plan the maintenance of the Shoot ``obj`` now; ``asked``: operations that its annotations request already."""
    plan = _Planner(obj, profile, now).plan()
    for kind, period in _due_rotations(obj, now, asked):
        plan.operations.append(_ROTATED[kind])
        reason = f"Automatic rotation every {period} configured"
        plan.updates.append(Update(CREDENTIALS, "Credentials", f"Started rotation of the {kind.words}", reason))
    return plan


def _due_rotations(obj: Mapping[str, Any], now: datetime, asked: Sequence[str]) -> Iterable[tuple[Kind, str]]:
    """Credentials that are older than the rotation period of the spec, each with the period.

    Skipped are rotations that are not allowed now, which a later window starts, and rotations that are requested or in
    progress.
    """
    facts, status = RotationFacts.of_shoot(obj), status_of(obj)
    configured = ((obj["spec"].get("maintenance") or {}).get("autoRotation") or {}).get("credentials") or {}
    others = {kind for operation in asked for kind, _ in steps_of(operation, facts)}
    others |= {each.kind for each in active(status)}
    for kind, operation in _ROTATED.items():
        period = str((configured.get(kind) or {}).get("rotationPeriod") or "0")
        last = (status.get(kind) or {}).get("lastCompletionTime") or obj["metadata"].get("creationTimestamp")
        if not parse_duration(period) or last is None or now - datetime.fromisoformat(last) < parse_duration(period):
            continue
        possible = facts.has(kind) and not (kind is Kind.ETCD_ENCRYPTION_KEY and facts.encryption_changes)
        if possible and kind not in others and not rotation_faults(obj, [operation], ()):
            yield kind, period


class _Planner:
    def __init__(self, obj: Mapping[str, Any], profile: CloudProfile, now: datetime) -> None:
        self._obj = obj
        self._shoot = Shoot.of(dict(obj))
        self._profile = profile
        self._now = now
        self._plan = Plan()
        maintenance = self._shoot.spec.maintenance
        update = maintenance.auto_update if maintenance else None
        self._update_kubernetes = update is None or update.kubernetes_version
        self._update_images = update is None or update.machine_image_version is not False

    def plan(self) -> Plan:
        spec = self._shoot.spec
        before = spec.kubernetes.version
        version = self._kubernetes("Control Plane", before, None)
        if version != before:
            self._plan.spec["kubernetes"] = {"version": version}
            self._drop_removed_fields(version)
            self._drop_unknown(version)
        workers = deepcopy(self._obj["spec"]["provider"].get("workers") or [])
        for raw, pool in zip(workers, spec.provider.workers or [], strict=True):
            self._maintain_pool(raw, pool, version)
        if workers != (self._obj["spec"]["provider"].get("workers") or []):
            self._plan.spec["provider"] = {"workers": workers}
        return self._plan

    def _maintain_pool(self, raw: dict[str, Any], pool: Worker, control_plane: str) -> None:
        where = f"Worker pool {pool.name!r}"
        kubelet = control_plane
        if pool.kubernetes and pool.kubernetes.version:
            kubelet = self._kubernetes(where, pool.kubernetes.version, control_plane)
            raw["kubernetes"]["version"] = kubelet
        own = pool.kubernetes and pool.kubernetes.kubelet
        for gate in lost_gates(own.feature_gates if own else None, Component.KUBELET, kubelet):
            del raw["kubernetes"]["kubelet"]["featureGates"][gate]
            self._note_removal(f"feature gate {gate} of kubelet", kubelet, where)
        image = pool.machine.image
        if image and image.name and image.version and is_version(image.version):
            raw["machine"]["image"]["version"] = self._image(where, pool, image.name, image.version, kubelet)

    def _kubernetes(self, where: str, current: str, limit: str | None) -> str:
        """Version of Kubernetes after the maintenance; at most ``limit``, the version of the control plane."""
        if not is_version(current):
            return current
        versions = self._profile.spec.kubernetes.versions
        forced = _forced(versions, current, self._now)
        if not forced and not self._update_kubernetes:
            return current
        automatic = "Automatic update of Kubernetes version configured"
        reason = f"Kubernetes version {forced} - force update required" if forced else automatic
        allowed = [each for each in versions if limit is None or Version(each.version) <= Version(limit)]
        choose = partial(_kubernetes_target, allowed, current, bool(forced), self._now)
        return self._noted(KUBERNETES, where, "Kubernetes version", current, reason, choose)

    def _image(self, where: str, pool: Worker, name: str, current: str, kubelet: str) -> str:
        """Version of the pool's machine image after the maintenance."""
        image = next((each for each in self._profile.spec.machine_images if each.name == name), None)
        versions: Sequence[MachineImageVersion] = image.versions if image else ()
        forced = _forced(versions, current, self._now)
        if not forced and not self._update_images:
            return current
        automatic = "Automatic update of the machine image version is configured"
        reason = f"Machine image version {forced} - force update required" if forced else automatic
        fitting = [each for each in versions if _fits(each, pool, current, kubelet, self._profile)]
        choose = partial(_image_target, image, fitting, current, bool(forced), self._now)
        return self._noted(MACHINE_IMAGE, where, f"machine image {name!r}", current, reason, choose)

    def _noted(
        self, kind: str, where: str, what: str, current: str, reason: str, choose: Callable[[], str | None]
    ) -> str:
        """The chosen version, or the current one; records the update or the failure in the plan."""
        try:
            target = choose()
        except NoVersion as error:
            text = f"Could not update {what} from {current}: {error}"
            self._plan.failures.append(Update(kind, where, text, reason))
            return current
        if target is None:
            return current
        text = f"Updated {what} from {current} to {target}"
        self._plan.updates.append(Update(kind, where, text, reason))
        return target

    def _drop_removed_fields(self, version: str) -> None:
        """Drop fields that the new minor version does not support: admission would refuse the update with them."""
        spec, minor = self._shoot.spec, Version(version).minor
        for dotted, gone in GONE.items():
            path = field_path(spec, dotted)
            if minor < gone or path is None or dotted in _CONVERTED:
                continue
            *parents, last = path
            part = self._plan.spec
            for name in parents:
                part = part.setdefault(name, {})
            part[last] = None
            text = f"Removed spec.{'.'.join(path)}"
            reason = f"not supported from Kubernetes 1.{gone} on"
            self._plan.updates.append(Update(KUBERNETES, "Control Plane", text, reason))

    def _drop_unknown(self, version: str) -> None:
        """Drop feature gates, APIs and admission plugins that the new version does not know, for the same reason."""
        kubernetes = self._shoot.spec.kubernetes
        with_gates = {
            "kubeAPIServer": (Component.API_SERVER, kubernetes.kube_api_server),
            "kubeControllerManager": (Component.CONTROLLER_MANAGER, kubernetes.kube_controller_manager),
            "kubeScheduler": (Component.SCHEDULER, kubernetes.kube_scheduler),
            "kubeProxy": (Component.PROXY, kubernetes.kube_proxy),
            "kubelet": (Component.KUBELET, kubernetes.kubelet),
        }
        part = self._plan.spec["kubernetes"]
        for name, (component, settings) in with_gates.items():
            for gate in lost_gates(settings.feature_gates if settings else None, component, version):
                part.setdefault(name, {}).setdefault("featureGates", {})[gate] = None
                self._note_removal(f"feature gate {gate} of {component}", version)
        server = kubernetes.kube_api_server
        if server is None:
            return
        for key in lost_apis(server.runtime_config, version):
            part.setdefault("kubeAPIServer", {}).setdefault("runtimeConfig", {})[key] = None
            self._note_removal(f"{key} from runtimeConfig", version)
        if lost := lost_plugins(server.admission_plugins, version):
            kept = [each.to_wire() for each in server.admission_plugins or [] if each.name not in lost]
            part.setdefault("kubeAPIServer", {})["admissionPlugins"] = kept
            for plugin in lost:
                self._note_removal(f"admission plugin {plugin}", version)

    def _note_removal(self, what: str, version: str, where: str = "Control Plane") -> None:
        reason = f"not known to Kubernetes {version}"
        self._plan.updates.append(Update(KUBERNETES, where, f"Removed {what}", reason))


def _forced(versions: Iterable[ExpirableVersion], current: str, now: datetime) -> str:
    """Reason for which a version must be replaced; empty if it may stay."""
    found = find(versions, current)
    if found is None:
        return "not offered any more"
    return "expired" if stage(found, now) == "expired" else ""


def _kubernetes_target(versions: Sequence[ExpirableVersion], current: str, forced: bool, now: datetime) -> str | None:
    """The newest patch version. If there is none and the update is forced, the newest version of the next minor.

    Raises:
        NoVersion: the update is forced, and the next minor has no version.
    """
    here = Version(current)
    if newer := _newest(versions, now, lambda v: _minor(v) == _minor(here) and v > here):
        return newer
    if not forced:
        return None
    following = (here.major, here.minor + 1)
    target = _newest(versions, now, lambda v: _minor(v) == following, expired=True)
    if target is None:
        raise NoVersion(f"the cloud profile offers no version of {following[0]}.{following[1]}")
    return target


def _image_target(
    image: MachineImage | None,
    versions: Sequence[MachineImageVersion],
    current: str,
    forced: bool,
    now: datetime,
) -> str | None:
    """The newest version that the image's update strategy allows; a newer patch version comes first.

    Raises:
        NoVersion: the update is forced, and no version fits.
    """
    if image is None:
        raise NoVersion("the cloud profile does not offer this image any more")
    here, strategy = Version(current), image.update_strategy
    reach: list[Fits] = [lambda v: _minor(v) == _minor(here)]
    if strategy == "minor":
        reach.append(lambda v: v.major == here.major)
    elif strategy == "major":
        reach.append(lambda v: True)

    def newer(within: Fits, *, expired: bool = False) -> str | None:
        return _newest(versions, now, lambda v: within(v) and v > here, expired=expired)

    target = next(filter(None, map(newer, reach)), None)
    if target is not None or not forced:
        return target
    # A forced update may go one step further than the strategy allows, and to expired versions.
    known = [Version(each.version) for each in versions if stage(each, now) not in ("preview", "unavailable")]
    following_minor = min(
        (_minor(v) for v in known if v.major == here.major and _minor(v) > _minor(here)), default=None
    )
    following_major = min((v.major for v in known if v.major > here.major), default=None)
    beyond: dict[str, Fits] = {
        "patch": lambda v: _minor(v) == following_minor,
        "minor": lambda v: v.major == following_major,
    }
    steps = [*([beyond[strategy]] if strategy in beyond else ()), *reach]
    target = next(filter(None, (newer(within, expired=True) for within in steps)), None)
    if target is None:
        raise NoVersion(f"the cloud profile offers no newer version that fits the pool, by strategy {strategy}")
    return target


def _newest(versions: Iterable[ExpirableVersion], now: datetime, fits: Fits, *, expired: bool = False) -> str | None:
    """The highest fitting version of the best classification; with ``expired``, expired ones as the last choice."""
    for wanted in (*_BY_PREFERENCE, *(("expired",) if expired else ())):
        found = [
            each.version
            for each in versions
            if is_version(each.version) and stage(each, now) == wanted and fits(Version(each.version))
        ]
        if found:
            return max(found, key=Version)
    return None


def _minor(version: Version) -> tuple[int, int]:
    return version.major, version.minor


def _fits(version: MachineImageVersion, pool: Worker, current: str, kubelet: str, profile: CloudProfile) -> bool:
    cri = pool.cri.name if pool.cri else "containerd"
    architecture = pool.machine.architecture or "amd64"
    capabilities = capabilities_of(profile, pool.machine.type, architecture)
    if not image_fits(version, architecture=architecture, cri=cri, kubelet=kubelet, capabilities=capabilities):
        return False
    wanted = {each.type for each in (pool.cri and pool.cri.container_runtimes) or ()}
    offered = next((each.container_runtimes or [] for each in version.cri if each.name == cri), [])
    if not wanted <= {each.type for each in offered}:
        return False
    if pool.update_strategy not in ("AutoInPlaceUpdate", "ManualInPlaceUpdate"):
        return True
    in_place = version.in_place_updates
    if in_place is None or not in_place.supported:
        return False
    return not in_place.min_version_for_update or Version(current) >= Version(in_place.min_version_for_update)
