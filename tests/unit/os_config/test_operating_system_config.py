"""Configurations of machines at first boot and later."""

import base64
import hashlib
import json
from typing import Any

import pytest

from activities.components import operating_system_config as config
from activities.components.operating_system_config import NodeConfig
from api.extensions.v1alpha1.operating_system_config import OperatingSystemConfigSpec


def node(pool: dict[str, Any] | None = None, kubelet: dict[str, Any] | None = None) -> NodeConfig:
    shoot = {
        "spec": {
            "kubernetes": {"version": "1.37.1", **({"kubelet": kubelet} if kubelet else {})},
            "networking": {"services": "100.68.0.0/16"},
        }
    }
    machine = {"type": "local", "image": {"name": "local", "version": "1.0.0"}}
    return NodeConfig(
        shoot=shoot,
        pool={"name": "pool-1", "machine": machine, **(pool or {})},
        server="https://api.demo.local.internal.default.garden.test",
        cluster_ca="CLUSTER-CA",
        kubelet_ca="KUBELET-CA",
    )


def files(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {file["path"]: file for file in spec["files"]}


def units(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {unit["name"]: unit for unit in spec["units"]}


@pytest.mark.parametrize("make", [config.provision, config.reconcile])
def test_both_purposes_are_valid_for_the_extension_api(make: Any) -> None:
    OperatingSystemConfigSpec.model_validate(make(node()))


def test_only_the_configuration_of_pools_with_in_place_updates_names_versions_and_rotations() -> None:
    pool = {"name": "pool-1", "machine": {"type": "local", "image": {"name": "local", "version": "1.0.0"}}}
    in_place = {**pool, "updateStrategy": "ManualInPlaceUpdate", "kubernetes": {"version": "1.36.2"}}
    rotated = node(in_place)
    rotated.shoot["status"] = {  # type: ignore[index]
        "credentials": {
            "rotation": {
                "certificateAuthorities": {"lastInitiationTime": "2026-11-21T10:00:00Z"},
                "serviceAccountKey": {
                    "lastInitiationTime": "2026-11-22T10:00:00Z",
                    "pendingWorkersRollouts": [{"name": "pool-1"}],
                },
            }
        }
    }
    spec = config.reconcile(rotated)

    OperatingSystemConfigSpec.model_validate(spec)
    assert spec["inPlaceUpdates"] == {
        "operatingSystemVersion": "1.0.0",
        "kubelet": "1.36.2",
        "credentialsRotation": {"certificateAuthorities": {"lastInitiationTime": "2026-11-21T10:00:00Z"}},
    }
    assert "credentialsRotation" not in config.reconcile(node(in_place))["inPlaceUpdates"]
    assert "inPlaceUpdates" not in config.reconcile(node(pool))
    assert "inPlaceUpdates" not in config.provision(rotated)


def test_the_first_boot_s_kubelet_is_the_one_that_the_agent_keeps() -> None:
    """Any difference would restart the kubelet of each new node."""
    first, later = config.provision(node()), config.reconcile(node())
    for name in ("kubelet.service", "gardener-node-agent.service", "containerd.service"):
        assert units(first)[name] == units(later)[name]
    shared = set(files(first)) & set(files(later))
    assert {
        "/var/lib/kubelet/config/kubelet",
        "/var/lib/kubelet/ca.crt",
        "/var/lib/gardener-node-agent/ca.crt",
    } <= shared
    for path in shared:
        assert files(first)[path] == files(later)[path]


def test_a_pool_with_a_container_runtime_labels_its_nodes_and_lets_containerd_find_its_programs() -> None:
    """Extensions find the OperatingSystemConfigs and nodes of such pools by the label."""
    pool = {"cri": {"name": "containerd", "containerRuntimes": [{"type": "gvisor"}]}}
    later = units(config.reconcile(node(pool)))

    assert "containerruntime.worker.gardener.cloud/gvisor=true" in later["kubelet.service"]["content"]
    [drop_in] = later["containerd.service"]["dropIns"]
    assert "Environment=PATH=/var/bin/containerruntimes:/usr/local/sbin:" in drop_in["content"]
    assert "dropIns" not in units(config.reconcile(node()))["containerd.service"]


def test_placeholders_travel_in_the_clear_and_only_in_user_data() -> None:
    """The machine controller manager replaces them in the text; encoded, it would not find them."""
    first = files(config.provision(node()))
    for path, placeholder in (
        ("/var/lib/gardener-node-agent/credentials/bootstrap-token", "<<BOOTSTRAP_TOKEN>>"),
        ("/var/lib/gardener-node-agent/machine-name", "<<MACHINE_NAME>>"),
    ):
        assert first[path]["content"] == {"inline": {"data": placeholder}, "transmitUnencoded": True}
    assert first["/var/lib/gardener-node-agent/credentials/bootstrap-token"]["permissions"] == 0o640
    assert "<<" not in json.dumps(config.reconcile(node()))


def test_the_bootstrap_credentials_are_not_kept() -> None:
    """Node agents remove them once the Node exists; kept by the config, they would come back."""
    later = files(config.reconcile(node()))
    assert not any("bootstrap" in path for path in later)


def test_the_agent_asks_for_its_certificate_before_the_kubelet_starts() -> None:
    """The resource manager refuses it once the Node exists."""
    first = units(config.provision(node()))
    assert "gardener-node-init.service" in first
    after = next(line for line in first["kubelet.service"]["content"].splitlines() if line.startswith("After="))
    assert "gardener-node-init.service" in after


def test_user_data_fits_into_what_clouds_take() -> None:
    """16 KiB; half of it, because real bundles hold two CAs during a rotation and base64 adds a third."""
    assert len(json.dumps(config.provision(node()))) < 8 * 1024


def test_the_kubelet_unit_has_one_option_per_line() -> None:
    """Extensions change it by this form. Source: spec/extensions.md 3."""
    content = units(config.reconcile(node()))["kubelet.service"]["content"]
    command = content.split("ExecStart=")[1].split("\n\n")[0]
    options = [line.strip().removesuffix(" \\") for line in command.splitlines()[1:]]
    assert all(option.startswith(("--", "$")) and " " not in option for option in options)


def test_a_changed_kubernetes_version_changes_the_kubelet_binary() -> None:
    spec = config.reconcile(node({"kubernetes": {"version": "1.36.3"}}))
    reference = files(spec)["/opt/kubernetes/1.36.3/kubelet"]["content"]["imageRef"]
    assert reference["image"].endswith(":v1.36.3")
    assert "ExecStart=/opt/kubernetes/1.36.3/kubelet" in units(spec)["kubelet.service"]["content"]
    assert "/opt/kubernetes/1.36.3/kubelet" in units(spec)["kubelet.service"]["filePaths"]


@pytest.mark.parametrize(
    ("mode", "enabled", "address"),
    [("IPVS", True, "169.254.20.10"), ("IPVS", False, "100.68.0.10"), ("IPTables", True, "100.68.0.10")],
)
def test_pods_use_the_dns_server_of_their_node_with_ipvs(mode: str, enabled: bool, address: str) -> None:
    made = node()
    made.shoot["spec"]["kubernetes"]["kubeProxy"] = {"mode": mode}
    made.shoot["spec"]["systemComponents"] = {"nodeLocalDNS": {"enabled": enabled}}

    assert config.kubelet_configuration(made)["clusterDNS"] == [address]


@pytest.mark.parametrize(("version", "restarted"), [("1.35.4", True), ("1.36.3", False), ("1.37.1", False)])
def test_a_kubelet_that_reloads_its_authorities_is_not_restarted_for_them(version: str, restarted: bool) -> None:
    """While the kubelet starts, logs of its pods cannot be read."""
    spec = config.reconcile(node({"kubernetes": {"version": version}}))
    assert ("/var/lib/kubelet/ca.crt" in units(spec)["kubelet.service"]["filePaths"]) is restarted


def test_the_kubelet_gets_the_cluster_s_dns_and_requests_its_certificates() -> None:
    made = config.kubelet_configuration(node())
    assert made["clusterDNS"] == ["100.68.0.10"], "which leads to the node's own server, where there is one"
    assert made["rotateCertificates"] is True
    assert made["serverTLSBootstrap"] is True
    assert made["authentication"]["anonymous"] == {"enabled": False}


@pytest.mark.parametrize(
    ("version", "given", "gates", "served"),
    [
        ("1.37.1", {}, {}, True),
        ("1.35.4", {}, {"NodeLogQuery": True}, True),
        (
            "1.35.4",
            {"InPlacePodVerticalScaling": True},
            {"NodeLogQuery": True, "InPlacePodVerticalScaling": True},
            True,
        ),
        ("1.35.4", {"NodeLogQuery": False}, {"NodeLogQuery": False}, False),
    ],
)
def test_the_kubelet_serves_logs_of_services_unless_the_owner_switches_its_gate_off(
    version: str, given: dict[str, bool], gates: dict[str, bool], served: bool
) -> None:
    """A kubelet that is to serve them without the gate does not start."""
    made = config.kubelet_configuration(node({"kubernetes": {"version": version, "kubelet": {"featureGates": given}}}))

    assert made["enableSystemLogQuery"] is served
    assert made.get("featureGates", {}) == gates


def test_the_kubelet_verifies_credentials_of_images_as_the_owner_wants() -> None:
    wanted = {
        "imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
        "preloadedImagesVerificationAllowlist": ["registry.example.org/base"],
    }
    assert wanted.items() <= config.kubelet_configuration(node(kubelet=wanted)).items()


def test_the_owner_s_kubelet_settings_win_and_the_pool_s_over_the_shoot_s() -> None:
    of_shoot = {"maxPods": 50, "evictionHard": {"memoryAvailable": "300Mi"}}
    made = config.kubelet_configuration(node(kubelet=of_shoot))
    assert made["maxPods"] == 50
    assert made["evictionHard"]["memory.available"] == "300Mi"
    assert made["evictionHard"]["nodefs.available"] == "5%"

    of_pool = {"kubernetes": {"kubelet": {"maxPods": 20, "kubeReserved": {"memory": "2Gi"}}}}
    made = config.kubelet_configuration(node(of_pool, of_shoot))
    assert made["maxPods"] == 20
    assert made["evictionHard"]["memory.available"] == "100Mi"
    assert made["kubeReserved"] == {"cpu": "80m", "memory": "2Gi", "pid": "20k"}


def test_a_kubelet_sets_only_labels_that_it_may_set() -> None:
    """It refuses to start with others, and NodeRestriction would refuse its Node."""
    labels = {
        "team": "a",
        "example.org/tier": "gold",
        "node.kubernetes.io/exclude": "x",
        "node-role.kubernetes.io/worker": "",
        "kubernetes.io/x": "y",
        "app.k8s.io/z": "1",
    }
    made = config.node_labels(node({"labels": labels}))
    assert {"team", "example.org/tier", "node.kubernetes.io/exclude"} <= set(made)
    assert not {"node-role.kubernetes.io/worker", "kubernetes.io/x", "app.k8s.io/z"} & set(made)
    assert made["worker.gardener.cloud/pool"] == "pool-1"


def test_taints_of_the_pool_are_there_from_the_first_moment() -> None:
    """Pods must not land on a node before its taints do."""
    taints = [{"key": "gpu", "value": "true", "effect": "NoSchedule"}]
    assert config.kubelet_configuration(node({"taints": taints}))["registerWithTaints"] == [
        *taints,
        {"key": "node.gardener.cloud/critical-components-not-ready", "effect": "NoSchedule"},
    ]


def test_sysctls_of_the_pool_are_set() -> None:
    spec = config.reconcile(node({"sysctls": {"net.ipv4.tcp_keepalive_time": "60"}}))
    assert (
        "net.ipv4.tcp_keepalive_time = 60\n"
        in files(spec)["/etc/sysctl.d/99-k8s-general.conf"]["content"]["inline"]["data"]
    )


def osc(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "key-original"}, "spec": config.reconcile(node()), "status": status}


def test_the_pool_s_secret_shows_the_checksum_of_its_content() -> None:
    secret = config.pool_secret(osc(), "pool-1", "key", {})
    text = base64.b64decode(secret["data"]["osc.yaml"])
    assert secret["metadata"]["annotations"] == {"checksum/data-script": hashlib.sha256(text).hexdigest()}
    assert secret["metadata"]["labels"]["worker.gardener.cloud/pool"] == "pool-1"


def test_additions_of_the_extension_are_applied() -> None:
    added = osc(
        extensionFiles=[{"path": "/etc/added", "content": {"inline": {"data": "x"}}}],
        extensionUnits=[{"name": "added.service", "content": "[Service]\n"}],
    )
    document = json.loads(base64.b64decode(config.pool_secret(added, "pool-1", "key", {})["data"]["osc.yaml"]))
    assert "/etc/added" in files(document["spec"])
    assert "added.service" in units(document["spec"])


def test_the_same_config_gives_the_same_checksum_whatever_the_status_says() -> None:
    """Otherwise each reconciliation would make all nodes apply, and the flow wait for them."""
    first = config.pool_secret(osc(observedGeneration=1), "pool-1", "key", {})
    second = config.pool_secret(osc(observedGeneration=2, lastOperation={"state": "Succeeded"}), "pool-1", "key", {})
    assert first == second


def test_content_of_secrets_travels_inline() -> None:
    """Nodes may not read the control plane's Secrets."""
    with_reference = osc(extensionFiles=[{"path": "/etc/key", "content": {"secretRef": {"name": "s", "dataKey": "k"}}}])
    data = {"s": {"k": base64.b64encode(b"value").decode()}}
    document = json.loads(base64.b64decode(config.pool_secret(with_reference, "p", "key", data)["data"]["osc.yaml"]))
    assert files(document["spec"])["/etc/key"]["content"] == {"inline": {"encoding": "b64", "data": "dmFsdWU="}}
    with pytest.raises(KeyError):
        config.pool_secret(with_reference, "p", "key", {"s": {}})


def test_machines_that_join_have_roles_and_node_agents_have_none() -> None:
    subjects = {each["roleRef"]["name"]: [it["name"] for it in each["subjects"]] for each in config.rbac()}
    assert subjects == {
        "system:node-bootstrapper": ["system:bootstrappers"],
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": ["system:nodes"],
    }
