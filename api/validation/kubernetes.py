"""Validation of a Shoot's settings of Kubernetes' components. Source: spec/api-core.md 1.3."""

from __future__ import annotations

from datetime import timedelta

from api.core.v1beta1.shoot import KubeAPIServer, KubeletConfig, Kubernetes, MinAllowed
from api.decisions.versions import Version, is_version
from api.durations import parse_duration
from api.quantities import is_less
from api.validation.field import Faults, Path

_LEAST_ETCD_MEMORY = {"main": "300M", "events": "60M"}
_CREDENTIALS_GATE = "KubeletEnsureSecretPulledImages"
_CREDENTIALS_POLICIES = ("NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify")


def check_kubernetes(kubernetes: Kubernetes, faults: Faults) -> None:
    path = Path("spec") / "kubernetes"
    if not is_version(kubernetes.version):
        faults.invalid(path / "version", kubernetes.version, "must be a version that the cloud profile offers")
    if kubernetes.kube_api_server:
        _check_api_server(kubernetes.kube_api_server, path / "kubeAPIServer", faults)
    if kubernetes.kubelet:
        check_kubelet(kubernetes.kubelet, kubernetes.version, path / "kubelet", faults)
    for role, least in _LEAST_ETCD_MEMORY.items():
        etcd = getattr(kubernetes.etcd, role, None)
        if etcd is not None:
            _check_min_allowed(etcd.autoscaling, least, path / "etcd" / role / "autoscaling", faults)
    if kubernetes.cluster_autoscaler and kubernetes.cluster_autoscaler.expander:
        known = ("least-waste", "most-pods", "priority", "random", "least-nodes")
        for each in kubernetes.cluster_autoscaler.expander.split(","):
            if each not in known:
                faults.unsupported(path / "clusterAutoscaler" / "expander", each, known)


def _check_api_server(server: KubeAPIServer, path: Path, faults: Faults) -> None:
    _check_min_allowed(server.autoscaling, "0", path / "autoscaling", faults)
    if server.event_ttl is not None:
        check_range(server.event_ttl, timedelta(), timedelta(hours=24), path / "eventTTL", faults)
    if (accounts := server.service_account_config) is not None:
        here = path / "serviceAccountConfig"
        if accounts.max_token_expiration is not None:
            low, high = timedelta(hours=720), timedelta(hours=2160)
            check_range(accounts.max_token_expiration, low, high, here / "maxTokenExpiration", faults)


def _check_min_allowed(autoscaling: MinAllowed | None, least_memory: str, path: Path, faults: Faults) -> None:
    for name, amount in ((autoscaling and autoscaling.min_allowed) or {}).items():
        here = path / "minAllowed" / name
        if name not in ("cpu", "memory"):
            faults.unsupported(here, name, ("cpu", "memory"))
        elif is_less(amount, least_memory if name == "memory" else "0"):
            faults.invalid(here, amount, f"must be at least {least_memory if name == 'memory' else 0}")


def check_kubelet(kubelet: KubeletConfig, version: str, path: Path, faults: Faults) -> None:
    """``version``: the version of the kubelet, which may be a pool's own."""
    high, low = kubelet.image_gc_high_threshold_percent, kubelet.image_gc_low_threshold_percent
    if high is not None and low is not None and low >= high:
        faults.forbidden(path / "imageGCLowThresholdPercent", "must be less than imageGCHighThresholdPercent")
    if kubelet.serialize_image_pulls and (kubelet.max_parallel_image_pulls or 0) > 1:
        faults.invalid(path / "maxParallelImagePulls", kubelet.max_parallel_image_pulls, "serializeImagePulls is on")
    if kubelet.streaming_connection_idle_timeout is not None:
        timeout, here = kubelet.streaming_connection_idle_timeout, path / "streamingConnectionIdleTimeout"
        check_range(timeout, timedelta(seconds=30), timedelta(hours=4), here, faults)
    if kubelet.fail_swap_on and kubelet.memory_swap is not None:
        faults.forbidden(path / "memorySwap", "needs failSwapOn false")
    _check_image_credentials(kubelet, version, path, faults)


def _check_image_credentials(kubelet: KubeletConfig, version: str, path: Path, faults: Faults) -> None:
    """Faults of settings with which the kubelet would not start. Source: Kubernetes' KEP 2535 (gate on from 1.35)."""
    policy, allowed = (
        kubelet.image_pull_credentials_verification_policy,
        kubelet.preloaded_images_verification_allowlist,
    )
    if policy is None and not allowed:
        return
    here = path / "imagePullCredentialsVerificationPolicy"
    if policy is not None and policy not in _CREDENTIALS_POLICIES:
        faults.unsupported(here, policy, _CREDENTIALS_POLICIES)
    enabled = is_version(version) and Version(version) >= Version("1.35.0")
    if not (kubelet.feature_gates or {}).get(_CREDENTIALS_GATE, enabled):
        faults.forbidden(here, f"needs a kubelet of 1.35 or newer, or feature gate {_CREDENTIALS_GATE}")
    if allowed and policy != "NeverVerifyAllowlistedImages":
        faults.forbidden(
            path / "preloadedImagesVerificationAllowlist",
            "needs imagePullCredentialsVerificationPolicy NeverVerifyAllowlistedImages",
        )


def check_range(text: str, low: timedelta, high: timedelta, path: Path, faults: Faults) -> None:
    try:
        inside = low <= parse_duration(text) <= high
    except ValueError:
        return  # reported with all durations, see api.validation.values
    if not inside:
        faults.invalid(path, text, f"must be between {_hours(low)} and {_hours(high)}")


def _hours(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    return f"{seconds // 3600}h" if seconds % 3600 == 0 else f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"
