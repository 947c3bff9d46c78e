"""Feature gates, APIs and admission plugins that a version of Kubernetes does not know."""

from typing import Any

import pytest

from api.core.v1beta1.shoot import Shoot
from api.kubernetes_versions import RELEASES, Component, release
from api.validation.shoot import check_shoot
from api.validation.versioned import REQUIRED_APIS, REQUIRED_PLUGINS, lost_gates
from tests.unit.api.shoots import changed, complete

SERVER = "spec.kubernetes.kubeAPIServer"
POOL = "spec.provider.workers.0"


def faults_of(path: str, value: Any, version: str = "1.37.1") -> str:
    obj = changed(complete(bound=True).to_wire(), "spec.kubernetes.version", version)
    return str(check_shoot(Shoot.of(changed(obj, path, value)), None, "local") or "")


@pytest.mark.parametrize(
    ("path", "component"),
    [
        ("spec.kubernetes.kubeAPIServer", "kube-apiserver"),
        ("spec.kubernetes.kubeControllerManager", "kube-controller-manager"),
        ("spec.kubernetes.kubeScheduler", "kube-scheduler"),
        ("spec.kubernetes.kubeProxy", "kube-proxy"),
        ("spec.kubernetes.kubelet", "kubelet"),
        (f"{POOL}.kubernetes.kubelet", "kubelet"),
    ],
)
def test_a_component_does_not_get_a_feature_gate_that_it_does_not_know(path, component):
    text = faults_of(f"{path}.featureGates", {"FooBar": True})
    assert f"featureGates.FooBar: Forbidden: {component} 1.37.1 does not know this feature gate" in text


@pytest.mark.parametrize(
    ("gates", "version", "complaint"),
    [
        ({"APIResponseCompression": False}, "1.37.1", ""),
        ({"APIServerIdentity": False}, "1.37.1", "UnknownVersionInteroperabilityProxy is enabled and needs APIServer"),
        ({"GitRepoVolumeDriver": True}, "1.37.1", "kube-apiserver 1.37.1 locks this feature gate to false"),
        ({"GitRepoVolumeDriver": False}, "1.37.1", ""),
        ({"ValidatingAdmissionPolicy": True}, "1.37.1", "kube-apiserver 1.37.1 does not know this feature gate"),
        ({"StorageVersionAPI": True, "APIServerIdentity": False}, "1.37.1", "needs APIServerIdentity"),
        ({"ControllerManagerReleaseLeaderElectionLockOnExit": True}, "1.37.1", "does not know this feature gate"),
        ({"AllAlpha": True, "StorageVersionAPI": False}, "1.34.1", ""),
        ({"AllAlpha": True}, "1.34.1", "featureGates.AllAlpha: Forbidden: StorageVersionAPI needs internal.apiserver"),
        ({"StorageVersionAPI": True}, "1.37.1", "featureGates.StorageVersionAPI: Forbidden: StorageVersionAPI needs"),
        # kube-apiserver 1.37.1 exits: alpha gates depend on a beta gate that is off.
        ({"AllAlpha": True}, "1.37.1", "needs GenericWorkload"),
        ({"AllAlpha": True, "GenericWorkload": True, "StorageVersionAPI": False}, "1.37.1", ""),
        ({"AllAlpha": False}, "1.37.1", ""),
    ],
)
def test_feature_gates_are_those_with_which_the_api_server_starts(gates, version, complaint):
    text = faults_of(f"{SERVER}.featureGates", gates, version)
    assert (complaint in text) if complaint else not text


def test_the_controller_manager_knows_further_feature_gates():
    gates = {"ControllerManagerReleaseLeaderElectionLockOnExit": True}
    assert not faults_of("spec.kubernetes.kubeControllerManager.featureGates", gates)


def test_the_kubelet_of_a_pool_is_checked_against_the_version_of_the_pool():
    """InPlacePodVerticalScaling may be switched off in 1.34, and no longer in 1.37."""
    own = {"version": "1.34.1", "kubelet": {"featureGates": {"InPlacePodVerticalScaling": False}}}
    assert not faults_of(f"{POOL}.kubernetes", own)
    locked = faults_of(f"{POOL}.kubernetes", own | {"version": "1.37.1"})
    assert "workers[0].kubernetes.kubelet.featureGates.InPlacePodVerticalScaling: Forbidden" in locked


def test_an_upgrade_is_refused_while_the_new_version_does_not_know_a_gate():
    gate = next(iter(RELEASES["1.36"].gates.keys() - RELEASES["1.37"].gates.keys()))
    value = RELEASES["1.36"].gates[gate].default
    old = changed(complete(bound=True).to_wire(), "spec.kubernetes.version", "1.36.3")
    old = changed(old, f"{SERVER}.featureGates", {gate: value})
    new = changed(old, "spec.kubernetes.version", "1.37.1")
    assert not check_shoot(Shoot.of(old), Shoot.of(old), "local")
    assert "1.37.1 does not know this feature gate" in str(check_shoot(Shoot.of(new), Shoot.of(old), "local"))
    assert lost_gates({gate: value}, Component.API_SERVER, "1.37.1") == [gate]


def test_a_stored_shoot_with_an_unknown_gate_can_be_changed_and_mended():
    """An owner who may change nothing but the gate could not hibernate the cluster."""
    old = Shoot.of(changed(complete(bound=True).to_wire(), f"{SERVER}.featureGates", {"FooBar": True}))
    other = Shoot.of(changed(old.to_wire(), f"{POOL}.maximum", 3))
    mended = Shoot.of(changed(old.to_wire(), f"{SERVER}.featureGates", None))
    worse = Shoot.of(changed(old.to_wire(), f"{SERVER}.featureGates", {"FooBar": True, "Baz": True}))
    assert not check_shoot(other, old, "local")
    assert not check_shoot(mended, old, "local")
    assert "Baz" in str(check_shoot(worse, old, "local"))


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"apps/v1": True}, ""),
        ({"api/all": True}, ""),
        ({"api/beta": False}, ""),
        ({"batch/v1": False}, ""),
        ({"apps/v1/daemonsets": True}, ""),
        ({"resource.k8s.io/v1beta1": True}, ""),
        ({"foo/v1": True}, "runtimeConfig[foo/v1]: Forbidden: Kubernetes 1.37.1 does not serve foo/v1"),
        ({"policy/v1beta1": True}, "does not serve policy/v1beta1"),
        ({"nonsense": True}, "does not serve nonsense"),
        ({"apps/v1/pods": True}, "Kubernetes 1.37.1 has no pods in apps/v1"),
        ({"apps/v1": False}, "Gardener needs apps/v1"),
        ({"apps/v1/deployments": False}, "Gardener needs apps/v1"),
        ({"v1": False}, "Gardener needs v1"),
        ({"api/all": False}, "Gardener needs the stable APIs"),
        ({"api/ga": False}, "Gardener needs the stable APIs"),
    ],
)
def test_runtime_config_switches_known_apis_and_none_that_gardener_needs(config, complaint):
    text = faults_of(f"{SERVER}.runtimeConfig", config)
    assert (complaint in text) if complaint else not text


@pytest.mark.parametrize(
    ("plugin", "complaint"),
    [
        ({"name": "PodNodeSelector"}, ""),
        ({"name": "PodSecurity", "disabled": True}, ""),
        ({"name": "NoSuchPlugin"}, 'admissionPlugins[0].name: Unsupported value: "NoSuchPlugin": Kubernetes 1.37.1'),
        ({"name": "PodSecurityPolicy"}, "has no such admission plugin"),
        ({"name": "AlwaysDeny"}, "admissionPlugins[0].name: Forbidden: AlwaysDeny: it refuses all requests"),
        ({"name": "EventRateLimit"}, "admissionPlugins[0].config: Required value"),
        ({"name": "EventRateLimit", "disabled": True}, ""),
        ({"name": "Priority", "config": {"a": 1}}, "config: Forbidden: Priority has no configuration"),
        ({"name": "PodSecurity", "config": {"kind": "Other"}}, "must have apiVersion pod-security.admission.config"),
    ],
)
def test_admission_plugins_are_those_of_the_version(plugin, complaint):
    text = faults_of(f"{SERVER}.admissionPlugins", [plugin])
    assert (complaint in text) if complaint else not text


@pytest.mark.parametrize(
    ("rest", "complaint"),
    [
        ({"defaults": {"enforce": "baseline", "enforce-version": "latest"}}, ""),
        ({"defaults": {"enforce": "strict"}}, 'config.defaults.enforce: Unsupported value: "strict"'),
        ({"defaults": {"enforce-version": "1.37"}}, "must be latest, or a version like v1.37"),
        ({"defaults": {"forbid": "baseline"}}, "config.defaults.forbid: Forbidden: PodSecurity knows no such field"),
        ({"defaults": []}, ""),
        ({"defaults": ["baseline"]}, "config.defaults: Invalid value"),
        ({"exemptions": {"namespaces": ["kube-system"]}}, ""),
        ({"exemptions": {"namespaces": ["a", "a"]}}, "config.exemptions.namespaces[1]: Duplicate value"),
        ({"exemptions": {"pods": ["a"]}}, "config.exemptions.pods: Forbidden"),
        ({"exemptions": {"namespaces": "a"}}, "must be a list of names"),
        ({"other": 1}, "config.other: Forbidden"),
    ],
)
def test_the_configuration_of_pod_security_is_read_as_the_api_server_reads_it(rest, complaint):
    config = {"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration"}
    text = faults_of(f"{SERVER}.admissionPlugins", [{"name": "PodSecurity", "config": config | rest}])
    assert (complaint in text) if complaint else not text


@pytest.mark.parametrize("plugin", sorted(REQUIRED_PLUGINS))
def test_a_required_plugin_cannot_be_disabled(plugin):
    text = faults_of(f"{SERVER}.admissionPlugins", [{"name": plugin, "disabled": True}])
    assert f"admissionPlugins[0]: Forbidden: {plugin} is required and cannot be disabled" in text


def test_settings_of_a_version_without_a_table_are_refused():
    text = faults_of(f"{SERVER}.featureGates", {"APIServerIdentity": True}, "1.38.0")
    assert "this version of Gardener knows what 1.33, 1.34, 1.35, 1.36, 1.37 support, not Kubernetes 1.38.0" in text
    assert not faults_of(f"{POOL}.maximum", 3, "1.38.0"), "without such settings the version is of no concern"


@pytest.mark.parametrize("minor", sorted(RELEASES))
def test_each_version_has_what_gardener_requires(minor):
    """A required plugin or API that a version does not have could not be required there."""
    found = release(f"{minor}.1")
    assert found is not None
    assert found.admission_plugins >= REQUIRED_PLUGINS
    assert found.api_versions.keys() >= REQUIRED_APIS
