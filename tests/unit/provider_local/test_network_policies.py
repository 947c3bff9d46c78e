"""The agent that enforces NetworkPolicies on the nodes of a shoot, and flannel beside it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from activities.provider_local import network, network_policies
from api.local import NETWORK_POLICIES_LABEL
from landscape.images import layers
from workers.lib.runtime import load_config
from workers.network_policy_agent import cni_plugin
from workers.network_policy_agent.process import NetworkPolicyAgentConfig

API_SERVER = "api.one.dev.internal.garden.test"
MADE = network.manifests("100.112.0.0/16", API_SERVER)


def made(kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in MADE if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def agent() -> dict[str, Any]:
    pod: dict[str, Any] = made("DaemonSet", "network-policy-agent")["spec"]["template"]
    return pod


def test_the_agent_may_read_what_its_rules_depend_on_and_write_events() -> None:
    rules = made("ClusterRole", "network-policy-agent")["rules"]
    rights = {(name, verb) for each in rules for name in each["resources"] for verb in each["verbs"]}

    assert rights == {
        *((name, verb) for name in ("pods", "namespaces", "nodes", "networkpolicies") for verb in ("list", "watch")),
        ("events", "create"),
        ("events", "patch"),
    }
    [subject] = made("ClusterRoleBinding", "network-policy-agent")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "network-policy-agent", "namespace": "kube-system"}
    assert agent()["spec"]["serviceAccountName"] == "network-policy-agent"


def test_the_agent_has_no_rights_on_its_node_but_over_the_network() -> None:
    [container] = agent()["spec"]["containers"]

    assert container["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
    }
    assert [each["hostPath"]["path"] for each in agent()["spec"]["volumes"] if "hostPath" in each] == [
        "/run/gardener-network-policies"
    ]
    assert "hostPID" not in agent()["spec"]


def test_the_agent_needs_neither_pod_network_nor_services() -> None:
    pod = agent()["spec"]
    [container] = pod["containers"]

    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "Default")
    assert {"name": "KUBERNETES_SERVICE_HOST", "value": API_SERVER} in container["env"]


def test_a_node_takes_other_pods_when_its_agent_is_ready() -> None:
    assert agent()["metadata"]["labels"]["node.gardener.cloud/critical-component"] == "true"
    assert agent()["spec"]["priorityClassName"] == "system-node-critical"
    assert agent()["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_the_agent_reads_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "machine-1")
    (tmp_path / "config.yaml").write_text(made("ConfigMap", "network-policy-agent")["data"]["config.yaml"])

    config = load_config(NetworkPolicyAgentConfig, tmp_path / "config.yaml")

    [container] = agent()["spec"]["containers"]
    assert (config.node, config.pods, config.limit_connections_to_own_node) == ("machine-1", None, False)
    assert container["readinessProbe"]["httpGet"]["port"] == config.health.port
    assert str(config.socket.parent) in {each["mountPath"] for each in container["volumeMounts"]}


def test_machines_that_have_the_plugin_get_the_agent() -> None:
    """A machine of an earlier version has neither nftables in our image nor the plugin, and pulls no images."""
    prepare = layers._FILES / "machine/usr/local/lib/machine/prepare"

    assert agent()["spec"]["nodeSelector"] == {NETWORK_POLICIES_LABEL: "true"}
    assert f"label={NETWORK_POLICIES_LABEL}=true\n" in prepare.read_text()
    assert cni_plugin.NAME == network_policies.CNI_TYPE


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Directories of a node, with what flannel has written, and the configurations of flannel's pod."""
    for each in ("run/flannel", "run/gardener-network-policies", "etc/cni/net.d", "host/bin", "etc/kube-flannel"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "run/flannel/subnet.env").write_text("FLANNEL_SUBNET=100.112.0.1/24")
    for name, content in made("ConfigMap", "kube-flannel-config")["data"].items():
        (tmp_path / "etc/kube-flannel" / name).write_text(content)
    return tmp_path


def configure(node: Path) -> "subprocess.Popen[bytes]":
    """Start the command by which flannel writes the CNI configuration, with the node's directories."""
    [flannel] = made("DaemonSet", "kube-flannel")["spec"]["template"]["spec"]["containers"]
    shell, option, script = flannel["lifecycle"]["postStart"]["exec"]["command"]
    for each in ("/run/", "/etc/", "/host/"):
        script = script.replace(f" {each}", f" {node}{each}")
    return subprocess.Popen([shell, option, script])


def plugins(node: Path) -> list[str]:
    config = json.loads((node / "etc/cni/net.d/10-flannel.conflist").read_text())
    return [each["type"] for each in config["plugins"]]


def test_a_node_is_ready_when_its_agent_takes_pods(node: Path) -> None:
    """The kubelet calls a node ready when there is a CNI configuration."""
    (node / "host/bin/gardener-network-policies").touch()
    with configure(node) as running:
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(0.5)
        assert not list((node / "etc/cni/net.d").iterdir())

        os.mknod(node / "run/gardener-network-policies/agent.sock", 0o140600)

        assert running.wait(10) == 0
    assert plugins(node) == ["flannel", "portmap", "gardener-network-policies"]


def test_a_machine_of_an_earlier_version_keeps_its_configuration(node: Path) -> None:
    with configure(node) as running:
        assert running.wait(10) == 0

    assert plugins(node) == ["flannel", "portmap"]
