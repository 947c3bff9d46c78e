"""Settings of nodes that Kubernetes, the kubelet or systemd would refuse on each node of a pool.

The kubelet reads labels from its command line and the rest from its configuration; a value that it refuses stops all
running kubelets of the pool, so it is refused when it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta

from api.constants import TAINT_CRITICAL_COMPONENTS_NOT_READY
from api.core.v1beta1.shoot import EvictionThresholds, KubeletConfig, Shoot, Worker
from api.durations import parse_duration
from api.quantities import parse_quantity
from api.validation.field import Faults, Path
from api.validation.values import check_annotations, check_labels, check_word, key_fault, name_fault

_SET_BY_OTHERS = {
    "kubernetes.io/arch": "the kubelet",
    "kubernetes.io/hostname": "the kubelet",
    "kubernetes.io/os": "the kubelet",
    "node.kubernetes.io/instance-type": "Gardener",
    "topology.kubernetes.io/region": "Gardener",
    "topology.kubernetes.io/zone": "Gardener",
    "worker.gardener.cloud/cri-name": "Gardener",
    "worker.gardener.cloud/gardener-node-agent-secret-name": "Gardener",
    "worker.gardener.cloud/kubernetes-version": "Gardener",
    "worker.gardener.cloud/pool": "Gardener",
    "worker.gardener.cloud/system-components": "Gardener",
}
"""Labels of nodes that only their owners may set: another value would be overwritten, or would mislead controllers."""
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_SYSCTL = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9*]([-_a-z0-9*]*[a-z0-9*])?)*")
_PERCENTAGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


def check_node_settings(pool: Worker, path: Path, faults: Faults) -> None:
    """Faults of a pool's settings that its nodes cannot have."""
    check_labels(pool.labels, path / "labels", faults)
    for key in pool.labels or {}:
        if owner := _SET_BY_OTHERS.get(key):
            faults.forbidden(path / "labels" @ key, f"{owner} sets this label")
    check_annotations(pool.annotations, path / "annotations", faults)
    _check_taints(pool, path / "taints", faults)
    for name, value in (pool.sysctls or {}).items():
        if not _SYSCTL.fullmatch(name):
            faults.invalid(path / "sysctls", name, "must be the name of a kernel parameter, like net.ipv4.ip_forward")
        if not value or not value.isprintable():
            faults.invalid(path / "sysctls" @ name, value, "must be one line with a value")
    if pool.ca_bundle is not None and not _CERTIFICATE.search(pool.ca_bundle):
        faults.invalid(path / "caBundle", "not shown", "must hold certificates in PEM format")
    controller = pool.machine_controller_manager
    for index, condition in enumerate((controller and controller.node_conditions) or []):
        check_word(condition, path / "machineControllerManager" / "nodeConditions" @ index, faults)
    for index, zone in enumerate(pool.zones or []):
        if fault := name_fault(zone):
            faults.invalid(path / "zones" @ index, zone, f"{fault}: it becomes a label of nodes")


def _check_taints(pool: Worker, path: Path, faults: Faults) -> None:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(pool.taints or []):
        here = path @ index
        if taint.key == TAINT_CRITICAL_COMPONENTS_NOT_READY:
            faults.forbidden(here / "key", f"{taint.key} is set by Gardener")
        elif fault := key_fault(taint.key):
            faults.invalid(here / "key", taint.key, fault)
        if taint.value and (fault := name_fault(taint.value)):
            faults.invalid(here / "value", taint.value, fault)
        if taint.effect not in _EFFECTS:
            faults.unsupported(here / "effect", taint.effect, _EFFECTS)
        if (taint.key, taint.effect) in seen:
            faults.duplicate(here, f"{taint.key}:{taint.effect}")
        seen.add((taint.key, taint.effect))


def check_zones_kept(pool: Worker, old: Worker, path: Path, faults: Faults) -> None:
    """Report zones that are removed or reordered: machines of a pool are named by the position of their zone."""
    before, now = old.zones or [], pool.zones or []
    if now[: len(before)] != before:
        faults.forbidden(path / "zones", f"zones can only be appended to {', '.join(before)}")


def check_kubelet_values(kubelet: KubeletConfig, path: Path, faults: Faults) -> None:
    """Faults for which a kubelet does not start, beyond amounts below zero."""
    for thresholds, name in ((kubelet.eviction_hard, "evictionHard"), (kubelet.eviction_soft, "evictionSoft")):
        for here, text in _thresholds(thresholds, path / name):
            if fault := _threshold_fault(text):
                faults.invalid(here, text, fault)
    for here, text in _thresholds(kubelet.eviction_soft_grace_period, path / "evictionSoftGracePeriod"):
        try:
            negative = parse_duration(text) < timedelta()
        except ValueError as error:
            faults.invalid(here, text, str(error))
        else:
            if negative:
                faults.invalid(here, text, "must not be negative")
    _check_image_ages(kubelet, path, faults)
    reserved = kubelet.kube_reserved
    if kubelet.cpu_manager_policy == "static" and reserved and reserved.cpu is not None and _zero(reserved.cpu):
        faults.invalid(path / "kubeReserved" / "cpu", reserved.cpu, "must be more than 0 for cpuManagerPolicy static")


def _thresholds(thresholds: EvictionThresholds | None, path: Path) -> Iterable[tuple[Path, str]]:
    if thresholds is None:
        return
    for attribute, field in type(thresholds).model_fields.items():
        text = getattr(thresholds, attribute)
        if text is not None:
            yield path / (field.alias or attribute), text


def _threshold_fault(text: str) -> str:
    if match := _PERCENTAGE.fullmatch(text):
        return "" if float(match[1]) <= 100 else "must be at most 100%"
    try:
        return "must not be negative" if parse_quantity(text) < 0 else ""
    except ValueError:
        return "must be a quantity like 200Mi, or a percentage like 5%"


def _check_image_ages(kubelet: KubeletConfig, path: Path, faults: Faults) -> None:
    try:
        low, high = (
            parse_duration(each or "0") for each in (kubelet.image_minimum_gc_age, kubelet.image_maximum_gc_age)
        )
    except ValueError:
        return  # reported with the field itself
    if high and high <= low:
        faults.invalid(path / "imageMaximumGCAge", kubelet.image_maximum_gc_age, "must be more than imageMinimumGCAge")


def _zero(quantity: str | int | float) -> bool:
    try:
        return parse_quantity(quantity) == 0
    except ValueError:
        return False


def effective_kubelet(pool: Worker, shoot: Shoot) -> KubeletConfig | None:
    """Configuration of a pool's kubelets: the pool's own, or else the Shoot's."""
    return (pool.kubernetes and pool.kubernetes.kubelet) or shoot.spec.kubernetes.kubelet


def reserved_of(kubelet: KubeletConfig | None, defaults: Mapping[str, str]) -> dict[str, str | int | float]:
    """Resources that a kubelet reserves for daemons, by resource."""
    reserved = kubelet.kube_reserved if kubelet else None
    return {
        name: given if (given := getattr(reserved, name, None)) is not None else defaults[name]
        for name in ("cpu", "memory")
    }
