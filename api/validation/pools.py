"""Validation of a Shoot's worker pools by themselves. Source: spec/api-core.md 1.2, 10.2."""

from __future__ import annotations

import re

from api.core.v1beta1.shoot import Shoot, Worker
from api.decisions.versions import Version, is_version, minors_between
from api.validation.certificates import check_ca_bundle
from api.validation.field import Faults, Path
from api.validation.in_place import check_bounds, check_no_minor_skipped, check_nothing_pending, check_strategy_kept
from api.validation.kubernetes import check_kubelet
from api.validation.nodes import check_zones_kept

WORKERS = Path("spec") / "provider" / "workers"

NO_SELF_HOSTED_SHOOTS = "a garden has no self-hosted Shoots: gardener shoot init makes one on its machine"
_MINORS_BEHIND = 3
"""Number of minor versions that a kubelet may be behind the API server. Source: Kubernetes' version skew policy."""

_PERCENTAGE = re.compile(r"[0-9]{1,9}%")


def check_pools(shoot: Shoot, old: Shoot | None, faults: Faults) -> None:
    pools = shoot.spec.provider.workers or []
    before = {pool.name: pool for pool in (old.spec.provider.workers if old else None) or []}
    for index, pool in enumerate(pools):
        _check_pool(pool, WORKERS @ index, faults)
        if pool.name not in before or before[pool.name].ca_bundle != pool.ca_bundle:
            check_ca_bundle(pool.ca_bundle, WORKERS @ index / "caBundle", faults)
        ran = kubelet_version(before[pool.name], old) if old and pool.name in before else None
        if pool.name in before:
            check_zones_kept(pool, before[pool.name], WORKERS @ index, faults)
            check_strategy_kept(pool, before[pool.name], WORKERS @ index, faults)
        if ran:
            check_no_minor_skipped(pool, ran, kubelet_version(pool, shoot), WORKERS @ index, faults)
        _check_version(pool, ran, shoot.spec.kubernetes.version, WORKERS @ index, faults)
        if pool.kubernetes and pool.kubernetes.kubelet:
            path = WORKERS @ index / "kubernetes" / "kubelet"
            check_kubelet(pool.kubernetes.kubelet, kubelet_version(pool, shoot), path, faults)
    if old is not None:
        check_nothing_pending(shoot, old, WORKERS, faults)
    if not any(_can_run_system_components(pool) for pool in pools):
        detail = "one pool must allow system components, and its maximum must be at least one machine for each zone"
        faults.forbidden(WORKERS, detail)


def kubelet_version(pool: Worker, shoot: Shoot) -> str:
    """Version of a pool's kubelets: the pool's own, or else the control plane's."""
    return (pool.kubernetes.version if pool.kubernetes else None) or shoot.spec.kubernetes.version


def _can_run_system_components(pool: Worker) -> bool:
    allowed = pool.system_components is None or pool.system_components.allow
    return allowed and pool.maximum >= max(1, len(pool.zones or []))


def _check_pool(pool: Worker, path: Path, faults: Faults) -> None:
    if pool.minimum > pool.maximum:
        faults.forbidden(path / "minimum", f"must not be greater than maximum {pool.maximum}")
    _check_rollout(pool, path, faults)
    faults.duplicates(path / "zones", pool.zones or [])
    volumes = [each.name for each in pool.data_volumes or []]
    if volumes and pool.volume is None:
        faults.required(path / "volume", "a pool with dataVolumes needs a volume for the system, too")
    if pool.kubelet_data_volume_name and pool.kubelet_data_volume_name not in volumes:
        here = path / "kubeletDataVolumeName"
        faults.invalid(here, pool.kubelet_data_volume_name, "must be one of the dataVolumes")
    if pool.cri is not None and pool.cri.name != "containerd":
        faults.unsupported(path / "cri" / "name", pool.cri.name, ["containerd"])
    if pool.control_plane is not None:
        faults.forbidden(path / "controlPlane", NO_SELF_HOSTED_SHOOTS)


def _check_rollout(pool: Worker, path: Path, faults: Faults) -> None:
    check_bounds(pool, path, faults)
    if pool.update_strategy == "ManualInPlaceUpdate":
        return
    amounts = {"maxSurge": pool.max_surge, "maxUnavailable": pool.max_unavailable}
    for name, amount in amounts.items():
        if isinstance(amount, str) and not _PERCENTAGE.fullmatch(amount):
            faults.invalid(path / name, amount, "must be a number or a percentage like 10%")
        elif isinstance(amount, str) and name == "maxUnavailable" and int(amount[:-1]) > 100:
            faults.invalid(path / name, amount, "must not be more than 100%")
        if isinstance(amount, int) and amount < 0:
            faults.invalid(path / name, amount, "must not be negative")
    if all(str(amount).rstrip("%").lstrip("0") == "" for amount in amounts.values() if amount is not None) and (
        None not in amounts.values()
    ):
        faults.invalid(path / "maxUnavailable", pool.max_unavailable, "must not be 0 when maxSurge is 0")


def _check_version(pool: Worker, before: str | None, control_plane: str, path: Path, faults: Faults) -> None:
    version = pool.kubernetes.version if pool.kubernetes else None
    if not version:
        return
    here = path / "kubernetes" / "version"
    if not is_version(version):
        faults.invalid(here, version, "must be a version that the cloud profile offers")
        return
    if is_version(control_plane):
        if Version(version) > Version(control_plane):
            faults.forbidden(here, f"{version} is newer than the control plane's {control_plane}")
        elif (minors_between(version, control_plane) or 0) > _MINORS_BEHIND:
            faults.forbidden(here, f"more than {_MINORS_BEHIND} minors behind the control plane's {control_plane}")
    if before and is_version(before) and Version(version) < Version(before):
        faults.forbidden(here, f"downgrade from {before} to {version} is not possible")
