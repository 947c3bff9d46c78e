"""Validation of a Shoot's settings of Kubernetes' components. Source: spec/api-core.md 1.3."""

from __future__ import annotations

from datetime import timedelta

from api.core.v1beta1.shoot import KubeAPIServer, KubeletConfig, Kubernetes
from api.decisions.versions import is_version
from api.durations import parse_duration
from api.validation.field import Faults, Path


def check_kubernetes(kubernetes: Kubernetes, faults: Faults) -> None:
    path = Path("spec") / "kubernetes"
    if not is_version(kubernetes.version):
        faults.invalid(path / "version", kubernetes.version, "must be a version that the cloud profile offers")
    if kubernetes.kube_api_server:
        _check_api_server(kubernetes.kube_api_server, path / "kubeAPIServer", faults)
    if kubernetes.kubelet:
        check_kubelet(kubernetes.kubelet, path / "kubelet", faults)
    if kubernetes.cluster_autoscaler and kubernetes.cluster_autoscaler.expander:
        known = ("least-waste", "most-pods", "priority", "random", "least-nodes")
        for each in kubernetes.cluster_autoscaler.expander.split(","):
            if each not in known:
                faults.unsupported(path / "clusterAutoscaler" / "expander", each, known)


def _check_api_server(server: KubeAPIServer, path: Path, faults: Faults) -> None:
    if server.event_ttl is not None:
        check_range(server.event_ttl, timedelta(), timedelta(hours=24), path / "eventTTL", faults)
    if (accounts := server.service_account_config) is not None:
        here = path / "serviceAccountConfig"
        if accounts.issuer is not None and not accounts.issuer.startswith("https://"):
            faults.invalid(here / "issuer", accounts.issuer, "must be an https URL")
        if accounts.max_token_expiration is not None:
            low, high = timedelta(hours=720), timedelta(hours=2160)
            check_range(accounts.max_token_expiration, low, high, here / "maxTokenExpiration", faults)
    for index, resource in enumerate((server.encryption_config and server.encryption_config.resources) or []):
        here = path / "encryptionConfig" / "resources" @ index
        if "*" in resource:
            faults.invalid(here, resource, "wildcards are not supported")
        elif resource in ("secrets", "secrets."):
            faults.invalid(here, resource, "secrets are always encrypted")
    for index, plugin in enumerate(server.admission_plugins or []):
        if plugin.disabled and plugin.name in (
            "NodeRestriction",
            "ValidatingAdmissionWebhook",
            "MutatingAdmissionWebhook",
        ):
            faults.forbidden(path / "admissionPlugins" @ index, f"{plugin.name} is required and cannot be disabled")


def check_kubelet(kubelet: KubeletConfig, path: Path, faults: Faults) -> None:
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


def check_range(text: str, low: timedelta, high: timedelta, path: Path, faults: Faults) -> None:
    if not low <= parse_duration(text) <= high:
        faults.invalid(path, text, f"must be between {_hours(low)} and {_hours(high)}")


def _hours(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    return f"{seconds // 3600}h" if seconds % 3600 == 0 else f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"
