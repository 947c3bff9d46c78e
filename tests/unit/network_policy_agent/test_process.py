"""The agent of a node: pods wait for their rules, and each change of the cluster is written once."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.lib.runtime import ConfigError, Health, load_config
from workers.network_policy_agent import cni_plugin, process, table
from workers.network_policy_agent.policies import Rules
from workers.network_policy_agent.process import Agent, NetworkPolicyAgentConfig, check_bridges, pod_networks

PODS, NAMESPACES = "/api/v1/pods", "/api/v1/namespaces"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
EVENTS, NODES = "/api/v1/events", "/api/v1/nodes"
NODE, ADDRESS, NETWORK = "node-1", "100.96.0.9", "100.96.0.0/24"
ADDRESS_V6, NETWORK_V6 = "fd00:96::9", "fd00:96::/64"
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

    async def add(self, name: str, *addresses: str, uid: str = "", command: str = "ADD") -> Any:
        """Start a pod as containerd does. Returns the exit status of the plugin, and its output."""
        uid, given = uid or f"uid-of-{name}", addresses or (f"{ADDRESS}/24",)
        config = {
            "cniVersion": "0.4.0",
            "type": "x",
            "socket": str(self.socket),
            "prevResult": {
                "cniVersion": "0.4.0",
                "ips": [{"address": each} for each in given],
            },
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
def networks() -> list[str]:
    """Networks of the node's pods."""
    return [NETWORK]


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, networks: list[str]) -> AsyncIterator[Node]:
    kernel, health = Kernel(), Health()
    monkeypatch.setattr(table, "apply", kernel.apply)
    monkeypatch.setattr(process, "_KNOWN_SECONDS", 0.2)
    monkeypatch.setattr(process, "_RETRY_SECONDS", 0.01)
    async with ApiServer().running() as server, server.client() as client:
        server.put(NAMESPACES, {"metadata": {"name": "a", "labels": {}}})
        server.put(PODS, pod("old", podIPs=[{"ip": "100.96.0.2"}], phase="Running"))
        made = Node(server, kernel, health, tmp_path)
        config = NetworkPolicyAgentConfig.model_validate({"node": NODE, "socket": str(made.socket)})
        running = asyncio.create_task(Agent(client, config, [ip_network(each) for each in networks], health).run())
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
    ("name", "addresses", "uid", "said"),
    [
        ("absent", [], "", "there is no pod a/absent"),
        ("old", [], "another", "there is no pod a/old with uid another"),
        ("old", [f"{ADDRESS_V6}/64"], "", "IPv4 addresses only"),
        ("old", [f"{ADDRESS}/24", f"{ADDRESS_V6}/64"], "", "IPv4 addresses only"),
        ("old", [f"{ADDRESS}/24", "100.96.0.8/24"], "", "it has IPv4, IPv4"),
    ],
)
async def test_a_pod_that_the_agent_cannot_protect_does_not_start(
    node: Node, name: str, addresses: list[str], uid: str, said: str
) -> None:
    code, error = await node.add(name, *addresses, uid=uid)

    assert (code, error["code"]) == (1, 11)
    assert said in error["msg"]


both_families = pytest.mark.parametrize("networks", [[NETWORK, NETWORK_V6]], ids=["both families"])


@both_families
async def test_a_pod_starts_when_its_rules_of_both_families_are_written(node: Node) -> None:
    node.server.put(POLICIES, policy(CLOSE))
    node.server.put(PODS, pod("new", phase="Pending"))

    code, _ = await node.add("new", f"{ADDRESS}/24", f"{ADDRESS_V6}/64")

    assert code == 0
    for address, family in ((ADDRESS, "ip"), (ADDRESS_V6, "ip6")):
        place = {"family": family, "table": table.NAME, "name": "ingress"}
        added = [each["add"] for all_ in node.kernel.written for each in all_ if "add" in each]
        written = [each["element"] for each in added if "element" in each]
        (found,) = [each for each in written if place.items() <= each.items() and address in json.dumps(each)]
        assert [address, {"jump": {"target": chain(node)}}] in found["elem"]


@both_families
async def test_a_pod_with_two_addresses_keeps_its_rules_when_its_object_names_them(node: Node) -> None:
    """The kubelet writes the addresses in the order of its node's, which may be another one than that of CNI."""
    node.server.put(PODS, pod("new", phase="Pending"))
    assert (await node.add("new", f"{ADDRESS}/24", f"{ADDRESS_V6}/64"))[0] == 0
    before = len(node.kernel.written)

    ips = [{"ip": ADDRESS_V6}, {"ip": ADDRESS}]
    node.server.change(PODS, "new", "a", {"status": {"phase": "Running", "podIPs": ips}})
    node.server.put(POLICIES, policy(CLOSE))

    await until(lambda: "ingress-" in node.kernel.last)
    assert '"delete"' not in json.dumps(node.kernel.written[before:])


@both_families
async def test_a_pod_of_both_families_that_has_ended_loses_both_addresses(node: Node) -> None:
    node.server.put(PODS, pod("new", podIPs=[{"ip": ADDRESS}, {"ip": "FD00:96::0009"}], phase="Running"))
    await until(lambda: ADDRESS_V6 in node.kernel.last)

    node.server.change(PODS, "new", "a", {"status": {"phase": "Failed"}})

    places = ((table._IPV4.place, ADDRESS), (table._IPV6.place, ADDRESS_V6))
    gone = [{"delete": {"element": {**place, "name": "local", "elem": [address]}}} for place, address in places]
    await until(lambda: all(each in node.kernel.written[-1] for each in gone))


async def test_without_the_agent_no_pod_starts_and_each_pod_ends(node: Node) -> None:
    node.socket.unlink()

    code, error = await node.add("old")

    assert (code, "does not answer" in error["msg"]) == (1, True)
    assert await node.add("old", command="DEL") == (0, None)


async def test_a_pod_that_has_ended_loses_its_rules(node: Node) -> None:
    node.server.change(PODS, "old", "a", {"status": {"phase": "Succeeded"}})

    await until(lambda: {"delete": {"element": {**table._IPV4.place, "name": "local", "elem": ["100.96.0.2"]}}} in
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
        found = asyncio.create_task(pod_networks(client, NODE))
        assert not (await asyncio.wait({found}, timeout=0.2))[0]

        server.change(NODES, NODE, None, {"spec": {"podCIDR": NETWORK, "podCIDRs": [NETWORK, NETWORK_V6]}})

        assert await found == (ip_network(NETWORK), ip_network(NETWORK_V6))


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


def test_pods_with_ipv6_alone_send_nothing_by_ipv4() -> None:
    commands = table.whole(Rules(), [ip_network("fd12::/64")], "cni0", own_node=False)
    of_ipv4 = [each for each in commands if '"family": "ip"' in json.dumps(each)]

    assert [each["add"]["rule"]["chain"] for each in of_ipv4 if "rule" in each.get("add", {})] == ["forward", "input"]
    assert json.dumps(of_ipv4).count('"drop"') == 2


async def test_the_whole_table_drops_what_pods_send_by_ipv6(node: Node) -> None:
    of_ipv6 = [each for each in node.kernel.written[0] if "ip6" in json.dumps(each)]

    assert json.dumps(of_ipv6).count('"drop"') == 2
    assert "cni0" in json.dumps(of_ipv6)
