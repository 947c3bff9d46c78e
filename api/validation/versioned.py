"""Settings that only some versions of Kubernetes know: feature gates, API groups, admission plugins.

A component does not start with a setting that it does not know, so such a setting is refused when it is written. The
rules are those of Kubernetes' component-base (feature gates), apiserver (runtime-config) and kube-apiserver (plugins).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from api.core.v1beta1.shoot import AdmissionPlugin, Shoot
from api.decisions.versions import is_version
from api.kubernetes_versions import RELEASES, Component, Release, release
from api.kubernetes_versions.gate import Gate
from api.validation.field import Faults, Path

_ALL_ALPHA, _ALL_BETA = "AllAlpha", "AllBeta"

REQUIRED_PLUGINS = frozenset(
    {
        "CertificateApproval",
        "CertificateSigning",
        "CertificateSubjectRestriction",
        "DefaultStorageClass",
        "DefaultTolerationSeconds",
        "MutatingAdmissionWebhook",
        "NamespaceLifecycle",
        "NodeRestriction",
        "PersistentVolumeClaimResize",
        "Priority",
        "ResourceQuota",
        "ServiceAccount",
        "StorageObjectInUseProtection",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionWebhook",
    }
)
"""Plugins that Gardener's own components, or the separation of nodes, need. Source: gardener/gardener#6403."""
_FORBIDDEN_PLUGINS = {"AlwaysDeny": "it refuses all requests, also those of Gardener"}
_NEEDS_CONFIG = frozenset({"EventRateLimit", "ImagePolicyWebhook"})
"""Plugins with which the API server does not start unless they have a configuration."""
_CONFIGS = {
    "EventRateLimit": ("eventratelimit.admission.k8s.io/v1alpha1", "Configuration"),
    "MutatingAdmissionWebhook": ("apiserver.config.k8s.io/v1", "WebhookAdmissionConfiguration"),
    "PodSecurity": ("pod-security.admission.config.k8s.io/v1", "PodSecurityConfiguration"),
    "PodTolerationRestriction": ("podtolerationrestriction.admission.k8s.io/v1alpha1", "Configuration"),
    "ResourceQuota": ("apiserver.config.k8s.io/v1", "ResourceQuotaConfiguration"),
    "ValidatingAdmissionWebhook": ("apiserver.config.k8s.io/v1", "WebhookAdmissionConfiguration"),
}
"""``apiVersion`` and ``kind`` of the plugins' configurations."""
_WITHOUT_KIND = frozenset({"ImagePolicyWebhook", "PodNodeSelector"})
"""Plugins whose configuration has no ``apiVersion`` and ``kind``."""
_LEVELS = ("privileged", "baseline", "restricted")
_POLICY_VERSION = re.compile(r"latest|v1\.[0-9]+")

REQUIRED_APIS = frozenset(
    {
        "v1",
        "admissionregistration.k8s.io/v1",
        "apiextensions.k8s.io/v1",
        "apiregistration.k8s.io/v1",
        "apps/v1",
        "authentication.k8s.io/v1",
        "authorization.k8s.io/v1",
        "certificates.k8s.io/v1",
        "coordination.k8s.io/v1",
        "discovery.k8s.io/v1",
        "events.k8s.io/v1",
        "flowcontrol.apiserver.k8s.io/v1",
        "networking.k8s.io/v1",
        "node.k8s.io/v1",
        "policy/v1",
        "rbac.authorization.k8s.io/v1",
        "scheduling.k8s.io/v1",
        "storage.k8s.io/v1",
    }
)
"""APIs that Gardener's resource manager writes, or that nodes and the control plane read."""
_STORAGE_VERSION_GATE, _STORAGE_VERSIONS = "StorageVersionAPI", "internal.apiserver.k8s.io/v1alpha1"
_MATCHERS = ("api/all", "api/ga", "api/beta", "api/alpha")


def check_versioned(shoot: Shoot, faults: Faults) -> None:
    """Faults of settings that the Shoot's versions of Kubernetes do not know."""
    kubernetes, path = shoot.spec.kubernetes, Path("spec") / "kubernetes"
    own = kubernetes.version
    pools = shoot.spec.provider.workers or []
    of_pools = [(each.kubernetes and each.kubernetes.version) or own for each in pools]
    if (server := kubernetes.kube_api_server) is not None:
        here = path / "kubeAPIServer"
        check_gates(server.feature_gates, Component.API_SERVER, own, here / "featureGates", faults)
        check_runtime_config(server.runtime_config, own, here / "runtimeConfig", faults)
        _check_api_of_gate(server.feature_gates or {}, server.runtime_config or {}, own, here / "featureGates", faults)
        check_plugins(server.admission_plugins or [], own, here / "admissionPlugins", faults)
    if (manager := kubernetes.kube_controller_manager) is not None:
        here = path / "kubeControllerManager" / "featureGates"
        check_gates(manager.feature_gates, Component.CONTROLLER_MANAGER, own, here, faults)
    if (scheduler := kubernetes.kube_scheduler) is not None:
        here = path / "kubeScheduler" / "featureGates"
        check_gates(scheduler.feature_gates, Component.SCHEDULER, own, here, faults)
    # A kube-proxy and a kubelet have the version of their pool.
    for version in sorted({*of_pools, own}) if pools else ():
        if (proxy := kubernetes.kube_proxy) is not None:
            check_gates(proxy.feature_gates, Component.PROXY, version, path / "kubeProxy" / "featureGates", faults)
        if (kubelet := kubernetes.kubelet) is not None:
            check_gates(kubelet.feature_gates, Component.KUBELET, version, path / "kubelet" / "featureGates", faults)
    for index, (pool, version) in enumerate(zip(pools, of_pools, strict=True)):
        if pool.kubernetes and pool.kubernetes.kubelet:
            here = Path("spec") / "provider" / "workers" @ index / "kubernetes" / "kubelet" / "featureGates"
            check_gates(pool.kubernetes.kubelet.feature_gates, Component.KUBELET, version, here, faults)


def check_gates(
    wanted: Mapping[str, bool] | None, component: Component, version: str, path: Path, faults: Faults
) -> None:
    """Faults of feature gates with which a component of this version does not start."""
    if not wanted or (found := _known(version, path, faults)) is None:
        return
    known = found.gates_of(component)
    for name, value in wanted.items():
        gate = known.get(name)
        if name in (_ALL_ALPHA, _ALL_BETA):
            continue
        if gate is None:
            faults.forbidden(path / name, f"{component} {version} does not know this feature gate")
        elif gate.locked and gate.default != value:
            faults.forbidden(path / name, f"{component} {version} locks this feature gate to {_text(gate.default)}")
    enabled = _enabled(known, wanted)
    for name, needed in found.dependencies.items():
        missing = [each for each in needed if not enabled.get(each, False)]
        if enabled.get(name) and missing:
            cause = next((each for each in (name, *missing, _ALL_ALPHA, _ALL_BETA) if each in wanted), name)
            faults.forbidden(
                path / cause,
                f"{name} is enabled and needs {', '.join(missing)} in {component} {version}: enable it, too",
            )


def _check_api_of_gate(
    gates: Mapping[str, bool], apis: Mapping[str, bool], version: str, path: Path, faults: Faults
) -> None:
    """Report StorageVersionAPI without its API: the API server then refuses its own first writes, and ends."""
    found = release(version)
    on = apis.get(_STORAGE_VERSIONS, apis.get("api/alpha", apis.get("api/all", False)))
    if found is None or on or not _enabled(found.gates_of(Component.API_SERVER), gates).get(_STORAGE_VERSION_GATE):
        return
    cause = _STORAGE_VERSION_GATE if _STORAGE_VERSION_GATE in gates else _ALL_ALPHA
    faults.forbidden(
        path / cause, f"{_STORAGE_VERSION_GATE} needs {_STORAGE_VERSIONS}: enable it in runtimeConfig, too"
    )


def lost_gates(wanted: Mapping[str, bool] | None, component: Component, version: str) -> list[str]:
    """Feature gates that a component of this version does not know, or locks to the other value."""
    found = release(version)
    known = found.gates_of(component) if found else {}

    def lost(name: str, value: bool) -> bool:
        gate = known.get(name)
        return name not in (_ALL_ALPHA, _ALL_BETA) and (gate is None or (gate.locked and gate.default != value))

    return [name for name, value in (wanted or {}).items() if found and lost(name, value)]


def lost_apis(wanted: Mapping[str, bool] | None, version: str) -> list[str]:
    """Keys of ``runtimeConfig`` whose API this version does not serve."""
    found = release(version)
    return [key for key in wanted or {} if found and key not in _MATCHERS and not _serves(found, key)]


def lost_plugins(plugins: Sequence[AdmissionPlugin] | None, version: str) -> list[str]:
    """Names of admission plugins that this version does not have."""
    found = release(version)
    return [each.name for each in plugins or [] if found and each.name not in found.admission_plugins]


def _serves(found: Release, key: str) -> bool:
    api, resource = _split(key)
    return api in found.api_versions and (not resource or resource in found.api_versions[api])


def _enabled(known: Mapping[str, Gate], wanted: Mapping[str, bool]) -> dict[str, bool]:
    """Value of each feature gate; a gate's own value counts more than those of AllAlpha and AllBeta."""
    stages = {"Alpha": wanted.get(_ALL_ALPHA), "Beta": wanted.get(_ALL_BETA)}
    of_stages = {name: stages.get(gate.stage) for name, gate in known.items()}
    return {name: gate.default if (each := of_stages[name]) is None else each for name, gate in known.items()} | dict(
        wanted
    )


def check_runtime_config(wanted: Mapping[str, bool] | None, version: str, path: Path, faults: Faults) -> None:
    """Faults of switches of APIs: the API server refuses unknown APIs, and Gardener needs some of them."""
    if not wanted or (found := _known(version, path, faults)) is None:
        return
    for key, enabled in wanted.items():
        here = path @ key
        if key in _MATCHERS:
            if not enabled and key in _MATCHERS[:2]:
                faults.forbidden(here, "Gardener needs the stable APIs")
            continue
        api, resource = _split(key)
        if api not in found.api_versions:
            faults.forbidden(here, f"Kubernetes {version} does not serve {api}")
        elif resource and resource not in found.api_versions[api]:
            faults.forbidden(here, f"Kubernetes {version} has no {resource} in {api}")
        elif not enabled and api in REQUIRED_APIS:
            faults.forbidden(here, f"Gardener needs {api}")


def _split(key: str) -> tuple[str, str]:
    """API and resource of a key like ``apps/v1/deployments``; the core API is ``v1``, or ``api/v1``."""
    parts = key.split("/")
    if parts[0] in ("v1", "api") and "v1" in parts[:2]:
        at = parts.index("v1")
        return "v1", "/".join(parts[at + 1 :])
    return "/".join(parts[:2]), "/".join(parts[2:])


def check_plugins(plugins: Sequence[AdmissionPlugin], version: str, path: Path, faults: Faults) -> None:
    if not plugins or (found := _known(version, path, faults)) is None:
        return
    for index, plugin in enumerate(plugins):
        here, name = path @ index, plugin.name
        if name not in found.admission_plugins:
            detail = f"Kubernetes {version} has no such admission plugin"
            faults.unsupported(here / "name", name, sorted(found.admission_plugins), detail)
            continue
        if name in _FORBIDDEN_PLUGINS and not plugin.disabled:
            faults.forbidden(here / "name", f"{name}: {_FORBIDDEN_PLUGINS[name]}")
        if plugin.disabled and name in REQUIRED_PLUGINS:
            faults.forbidden(here, f"{name} is required and cannot be disabled")
        if not plugin.disabled:
            _check_configuration(plugin, here / "config", faults)


def _check_configuration(plugin: AdmissionPlugin, path: Path, faults: Faults) -> None:
    config, name = plugin.config, plugin.name
    if not config:
        if name in _NEEDS_CONFIG and not plugin.kubeconfig_secret_name:
            faults.required(path, f"the API server does not start with {name} without a configuration")
        return
    if name in _WITHOUT_KIND:
        return
    if name not in _CONFIGS:
        faults.forbidden(path, f"{name} has no configuration")
        return
    api_version, kind = _CONFIGS[name]
    if (config.get("apiVersion"), config.get("kind")) != (api_version, kind):
        given = f"{config.get('apiVersion')}, {config.get('kind')}"
        faults.invalid(path, given, f"must have apiVersion {api_version} and kind {kind}")
    elif name == "PodSecurity":
        _check_pod_security(config, path, faults)
    elif name == "EventRateLimit" and not config.get("limits"):
        faults.required(path / "limits", "must have at least one limit")


def _check_pod_security(config: Mapping[str, object], path: Path, faults: Faults) -> None:
    defaults, exemptions = config.get("defaults") or {}, config.get("exemptions") or {}
    for name in set(config) - {"apiVersion", "kind", "defaults", "exemptions"}:
        faults.forbidden(path / name, "PodSecurity knows no such field")
    if isinstance(defaults, Mapping):
        for name, value in defaults.items():
            mode, _, version = str(name).partition("-")
            if mode not in ("enforce", "audit", "warn") or version not in ("", "version"):
                faults.forbidden(path / "defaults" / str(name), "PodSecurity knows no such field")
            elif not version and value not in _LEVELS:
                faults.unsupported(path / "defaults" / str(name), value, _LEVELS)
            elif version and not (isinstance(value, str) and _POLICY_VERSION.fullmatch(value)):
                faults.invalid(path / "defaults" / str(name), value, "must be latest, or a version like v1.37")
    else:
        faults.invalid(path / "defaults", defaults, "must be an object")
    if not isinstance(exemptions, Mapping):
        faults.invalid(path / "exemptions", exemptions, "must be an object")
        return
    for name, value in exemptions.items():
        here = path / "exemptions" / str(name)
        if name not in ("usernames", "namespaces", "runtimeClasses"):
            faults.forbidden(here, "PodSecurity knows no such field")
        elif not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            faults.invalid(here, value, "must be a list of names")
        else:
            faults.duplicates(here, value)


def _known(version: str, path: Path, faults: Faults) -> Release | None:
    """The release of a version; adds a fault if there is no table of it."""
    if not is_version(version):
        return None  # the fault of the version itself is reported with the version
    found = release(version)
    if found is None:
        known = ", ".join(RELEASES)
        faults.forbidden(path, f"this version of Gardener knows what {known} support, not Kubernetes {version}")
    return found


def _text(value: bool) -> str:
    return str(value).lower()
