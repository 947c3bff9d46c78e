"""The agent of a node: pods wait for their rules, and each change of the cluster is written once."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.lib.runtime import ConfigError, Health, load_config
from workers.network_policy_agent import cni_plugin, process, table
from workers.network_policy_agent.process import Agent, NetworkPolicyAgentConfig, check_bridges, pod_network

PODS, NAMESPACES = "/api/v1/pods", "/api/v1/namespaces"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
EVENTS, NODES = "/api/v1/events", "/api/v1/nodes"
NODE, ADDRESS, NETWORK = "node-1", "100.96.0.9", "100.96.0.0/24"
CLOSE = {"podSelector": {}, "policyTypes": ["Ingress"]}


class Kernel:
    """Takes the commands in place of nftables."""

    def __init__(self) -> None:
        self.written: list[list[table.Command]] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.begun: list[table.Command] = []
        self.fault = ""

    async def apply(self, commands: list[table.Command]) -> None:
        self.begun = commands
        await self.may_write.wait()
        if self.fault:
            raise table.TableError(self.fault)
        self.written.append(commands)

    @property
    def last(self) -> str:
        return json.dumps(self.written[-1])


def pod(name: str, **status: Any) -> dict[str, Any]:
    ports = [{"name": "web", "containerPort": 8080}]
    return {
        "metadata": {"name": name, "namespace": "a", "uid": f"uid-of-{name}", "labels": {"app": name}},
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "ports": ports}]},
        "status": status,
    }


def policy(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "p", "namespace": "a"},
        "spec": spec,
    }


class Node:
    def __init__(self, server: ApiServer, kernel: Kernel, health: Health, directory: Path) -> None:
        self.server, self.kernel, self.health = server, kernel, health
        self.socket = directory / "agent.sock"
        self._plugin = [sys.executable, "-IS", cni_plugin.__file__]

    async def add(self, name: str, address: str = f"{ADDRESS}/24", *, uid: str = "", command: str = "ADD") -> Any:
        """Start a pod as containerd does. Returns the exit status of the plugin, and its output."""
        uid = uid or f"uid-of-{name}"
        config = {
            "cniVersion": "0.4.0",
            "type": "x",
            "socket": str(self.socket),
            "prevResult": {"cniVersion": "0.4.0", "ips": [{"version": "4", "address": address}]},
        }
        arguments = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME={name};K8S_POD_UID={uid}"
        plugin = await asyncio.create_subprocess_exec(
            *self._plugin,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "CNI_COMMAND": command, "CNI_ARGS": arguments},
        )
        said, _ = await plugin.communicate(json.dumps(config).encode())
        return plugin.returncode, json.loads(said) if said else None


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    kernel, health = Kernel(), Health()
    monkeypatch.setattr(table, "apply", kernel.apply)
    monkeypatch.setattr(process, "_KNOWN_SECONDS", 0.2)
    monkeypatch.setattr(process, "_RETRY_SECONDS", 0.01)
    async with ApiServer().running() as server, server.client() as client:
        server.put(NAMESPACES, {"metadata": {"name": "a", "labels": {}}})
        server.put(PODS, pod("old", podIPs=[{"ip": "100.96.0.2"}], phase="Running"))
        made = Node(server, kernel, health, tmp_path)
        config = NetworkPolicyAgentConfig.model_validate({"node": NODE, "socket": str(made.socket)})
        running = asyncio.create_task(Agent(client, config, IPv4Network(NETWORK), health).run())
        await until(lambda: health.ready and made.socket.exists())
        yield made
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_the_first_table_is_a_whole_one(node: Node) -> None:
    assert [list(each) for each in node.kernel.written[0][:3]] == [["add"], ["delete"], ["add"]]
    assert "100.96.0.2" in node.kernel.last


async def test_a_pod_starts_when_its_rules_are_written(node: Node) -> None:
    node.server.put(POLICIES, policy(CLOSE))
    await until(lambda: "100.96.0.2" in node.kernel.last and "ingress-" in node.kernel.last)
    node.server.put(PODS, pod("new", phase="Pending"))
    node.kernel.may_write.clear()

    reader, writer = await asyncio.open_unix_connection(node.socket)
    writer.write(json.dumps({"namespace": "a", "name": "new", "addresses": [ADDRESS]}).encode() + b"\n")
    answer = asyncio.create_task(reader.readline())
    await until(lambda: ADDRESS in json.dumps(node.kernel.begun))
    assert not (await asyncio.wait({answer}, timeout=0.1))[0], "nftables has not taken the rules yet"

    node.kernel.may_write.set()
    assert json.loads(await answer) == {"fault": ""}
    writer.close()
    assert [ADDRESS, {"jump": {"target": chain(node)}}] in elements(node, "ingress")


async def test_the_plugin_passes_the_result_of_those_before_it_on(node: Node) -> None:
    node.server.put(PODS, pod("new", phase="Pending"))

    code, result = await node.add("new")

    assert (code, result["ips"][0]["address"]) == (0, f"{ADDRESS}/24")


def chain(node: Node) -> str:
    written = [
        each["add"]["chain"]["name"] for all_ in node.kernel.written for each in all_ if "chain" in each.get("add", {})
    ]
    return next(each for each in reversed(written) if each.startswith("ingress-"))


def elements(node: Node, name: str) -> list[Any]:
    found = [each["add"]["element"] for each in node.kernel.written[-1] if "element" in each.get("add", {})]
    return next(each["elem"] for each in found if each["name"] == name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "absent"}, "there is no pod a/absent"),
        ({"name": "old", "uid": "another"}, "there is no pod a/old with uid another"),
        ({"name": "old", "address": "fd00::9/64"}, "IPv4 addresses only"),
    ],
)
async def test_a_pod_that_the_agent_cannot_protect_does_not_start(node: Node, arguments: Any, said: str) -> None:
    code, error = await node.add(**arguments)

    assert (code, error["code"]) == (1, 11)
    assert said in error["msg"]


async def test_without_the_agent_no_pod_starts_and_each_pod_ends(node: Node) -> None:
    node.socket.unlink()

    code, error = await node.add("old")

    assert (code, "does not answer" in error["msg"]) == (1, True)
    assert await node.add("old", command="DEL") == (0, None)


async def test_a_pod_that_has_ended_loses_its_rules(node: Node) -> None:
    node.server.change(PODS, "old", "a", {"status": {"phase": "Succeeded"}})

    await until(lambda: {"delete": {"element": {**table._TABLE, "name": "local", "elem": ["100.96.0.2"]}}} in
                node.kernel.written[-1])  # fmt: skip


async def test_a_change_that_matters_to_no_rule_is_not_written(node: Node) -> None:
    before = len(node.kernel.written)
    node.server.change(PODS, "old", "a", {"status": {"conditions": [{"type": "Ready"}]}})
    node.server.change(NAMESPACES, "a", None, {"metadata": {"annotations": {"a": "b"}}})
    node.server.put(POLICIES, policy(CLOSE))

    await until(lambda: len(node.kernel.written) > before)
    assert len(node.kernel.written) == before + 1
    assert chain(node) in node.kernel.last


async def test_the_whole_table_is_written_after_a_refusal(node: Node) -> None:
    node.kernel.fault = "no memory"
    node.server.put(POLICIES, policy(CLOSE))
    await until(lambda: not node.health.ready)

    node.kernel.fault = ""

    await until(lambda: node.health.ready)
    assert [list(each) for each in node.kernel.written[-1][:3]] == [["add"], ["delete"], ["add"]]


async def test_a_policy_that_cannot_be_read_gets_an_event(node: Node) -> None:
    node.server.put(POLICIES, policy({**CLOSE, "ingress": [{"from": [{"nodeSelector": {}}]}]}))

    found = await until(lambda: [each for place, each in node.server.objects.items() if place[0] == EVENTS])
    assert "from[0].nodeSelector is not supported: this rule allows nothing" in json.dumps(found)


async def test_the_agent_waits_for_the_network_of_its_node() -> None:
    """The node gets it from a controller, after it has registered."""
    async with ApiServer().running() as server, server.client() as client:
        server.put(NODES, {"metadata": {"name": "other"}, "spec": {"podCIDR": "100.96.1.0/24"}})
        server.put(NODES, {"metadata": {"name": NODE}, "spec": {}})
        found = asyncio.create_task(pod_network(client, NODE))
        assert not (await asyncio.wait({found}, timeout=0.2))[0]

        server.change(NODES, NODE, None, {"spec": {"podCIDR": NETWORK}})

        assert await found == IPv4Network(NETWORK)


def test_the_environment_names_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes of a shoot have the same configuration."""
    (tmp_path / "config.yaml").write_text("socket: /run/agent.sock")
    with pytest.raises(ConfigError, match="node"):
        load_config(NetworkPolicyAgentConfig, tmp_path / "config.yaml")

    monkeypatch.setenv("NODE_NAME", NODE)

    assert load_config(NetworkPolicyAgentConfig, tmp_path / "config.yaml").node == NODE


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Settings of a kernel with IPv6."""
    made = {name: tmp_path / name for name in ("_BRIDGED", "_BRIDGED_IPV6", "_IPV6")}
    for name, path in made.items():
        monkeypatch.setattr(process, name, path)
        path.write_text("1\n")
    return made


@pytest.mark.parametrize("content", ["0\n", None])
@pytest.mark.parametrize("name", ["_BRIDGED", "_BRIDGED_IPV6"])
def test_an_agent_that_would_not_see_packets_of_a_bridge_refuses_to_run(
    settings: dict[str, Path], name: str, content: str | None
) -> None:
    setting = settings[name]
    setting.unlink()
    if content:
        setting.write_text(content)
    with pytest.raises(ConfigError, match="between two pods of this node"):
        check_bridges()

    setting.write_text("1\n")
    check_bridges()


def test_a_kernel_without_ipv6_needs_no_setting_for_it(settings: dict[str, Path]) -> None:
    settings["_BRIDGED_IPV6"].unlink()
    settings["_IPV6"].unlink()

    check_bridges()


async def test_the_whole_table_drops_what_pods_send_by_ipv6(node: Node) -> None:
    of_ipv6 = [each for each in node.kernel.written[0] if "ip6" in json.dumps(each)]

    assert json.dumps(of_ipv6).count('"drop"') == 2
    assert "cni0" in json.dumps(of_ipv6)
