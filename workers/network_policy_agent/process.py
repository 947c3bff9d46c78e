"""The agent of one node: watches Pods, Namespaces and NetworkPolicies, and keeps the node's table of each family.

The tables stay in the kernel while the agent is away: connections are allowed and refused as before, and no new pod
starts. The first table of a node exists before its first pod, because a pod waits for the agent.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from api.model import ApiModel
from api.resources import NAMESPACE, NETWORK_POLICY, NODE, POD
from kube.cache import Cache, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.events import emit
from workers.lib.runtime import (
    ClientConnection,
    ConfigError,
    Health,
    HealthConfig,
    kube_client,
    load_config,
    run_until_signal,
)
from workers.network_policy_agent import table
from workers.network_policy_agent.policies import Pod, Policy, Rules, compute, read
from workers.network_policy_agent.table import Network

_log = logging.getLogger(__name__)

_KNOWN_SECONDS = 10.0
"""How long an announced pod may be unknown to the agent: the kubelet may hear of it first."""
_WHOLE_SECONDS = 60.0
"""Interval at which the whole table is written, in case something else has changed it."""
_RETRY_SECONDS = 1.0
_COMPONENT = "network-policy-agent"
_ENDED = ("Succeeded", "Failed")
_BRIDGED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_BRIDGED_IPV6 = Path("/proc/sys/net/bridge/bridge-nf-call-ip6tables")
"""Settings of the kernel: whether packets between two pods of the node pass the tables."""
_IPV6 = Path("/proc/sys/net/ipv6")
"""Only in a kernel with IPv6."""


class NetworkPolicyAgentConfig(ApiModel):
    """Content of ``config.yaml``. The process must run in the node's network namespace, as its administrator."""

    client_connection: ClientConnection = ClientConnection()
    node: str = Field(default_factory=lambda: os.environ.get("NODE_NAME", ""), min_length=1, validate_default=True)
    """Name of the node. Default: variable ``NODE_NAME`` of the environment."""
    pods: Network | None = None
    """Network of the node's pods. None: ``spec.podCIDRs`` of the Node, for which the agent waits."""
    socket: Path
    """Path of the socket at which the CNI plugin announces pods."""
    bridge: str = Field(default="cni0", min_length=1, max_length=15)
    """Interface of the node's pods. By IPv6, the node takes from it only what the pods' own addresses send."""
    limit_connections_to_own_node: bool = True
    """Whether policies limit connections of pods to their own node. Kubernetes always allows them, but a node of a seed
    has the seed's API server."""
    health: HealthConfig = HealthConfig()


class _Announcement(ApiModel):
    namespace: str
    name: str
    uid: str = ""
    addresses: tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, ...]


async def run(config_path: str) -> None:
    """Run until SIGTERM. The table stays.

    Raises:
        ConfigError: the configuration cannot be used, or the kernel does not show packets of a bridge to nftables.
    """
    config = load_config(NetworkPolicyAgentConfig, config_path)
    check_bridges()
    health = Health()
    runner = await health.serve(config.health)
    try:
        async with kube_client(config.client_connection) as client:
            await run_until_signal(_enforce(client, config, health))
    finally:
        await runner.cleanup()


def check_bridges() -> None:
    """Raises ConfigError if packets between two pods of this node do not pass the tables."""
    for setting in (_BRIDGED, *([_BRIDGED_IPV6] if _IPV6.exists() else [])):
        try:
            passes = setting.read_text().strip() == "1"
        except OSError:
            passes = False
        if not passes:
            raise ConfigError(f"{setting} is not 1: no policy would hold between two pods of this node")


async def _enforce(client: KubeClient, config: NetworkPolicyAgentConfig, health: Health) -> None:
    pods = (config.pods,) if config.pods else await pod_networks(client, config.node)
    await Agent(client, config, pods, health).run()


async def pod_networks(client: KubeClient, node: str) -> tuple[Network, ...]:
    """The networks of a node's pods, one for each family, once the node has them; they never change."""
    async with Cache(client, NODE, fields=f"metadata.name={node}") as nodes:
        found = await nodes.wait_for(node, None, lambda obj: _pod_cidrs(obj["spec"]) if obj else None, None)
    return tuple(ipaddress.ip_network(each) for each in found)


def _pod_cidrs(spec: dict[str, Any]) -> list[str] | None:
    return spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else None)


class Agent:
    """Keeps the tables of one node. ``pods``: the networks of its pods, one for each family."""

    def __init__(
        self, client: KubeClient, config: NetworkPolicyAgentConfig, pods: Sequence[Network], health: Health
    ) -> None:
        self._client = client
        self._config = config
        self._networks = tuple(pods)
        self._health = health
        self._ipv6 = _IPV6.exists()
        self._pods = Cache(client, POD, keep=_kept)
        self._namespaces = Cache(client, NAMESPACE)
        self._policies = Cache(client, NETWORK_POLICY)
        self._read: dict[Key, Policy] = {}
        self._announced: dict[Key, tuple[str, frozenset[str]]] = {}
        """Uid and addresses of pods of this node, which their objects do not tell yet."""
        self._changed = asyncio.Event()
        self._revision = self._written_revision = 0
        """Number of the last change that the agent knows, and of the last one that the table contains."""
        self._written: Rules | None = None
        """Rules in the table; None if they are not known."""
        self._writing = asyncio.Condition()
        self._telling: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        async with self._pods, self._namespaces, self._policies:
            for each in (self._pods, self._namespaces, self._policies):
                await each.synced()
            self._policies.subscribe(self._read_policy)
            self._pods.subscribe(self._see_pod)
            self._namespaces.subscribe(self._see_namespace)
            self._change()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep())
                group.create_task(self._listen())

    async def _keep(self) -> None:
        """Write the table after each change; changes that come meanwhile are written together."""
        loop = asyncio.get_running_loop()
        whole_at = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(whole_at):
                    await self._changed.wait()
            if loop.time() >= whole_at:
                self._written, whole_at = None, loop.time() + _WHOLE_SECONDS
            self._changed.clear()
            try:
                await self._write()
            except (table.TableError, OSError) as error:
                _log.error("the rules could not be written, and stay as they were: %s", error)
                self._health.ready, self._written = False, None
                self._change()
                await asyncio.sleep(_RETRY_SECONDS)  # the backoff of a retry

    def _change(self) -> None:
        self._revision += 1
        self._changed.set()

    async def _write(self) -> None:
        revision = self._revision
        labels = {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in self._namespaces.list()}
        rules = compute(self._read.values(), labels, self._known_pods())
        if self._written is None:
            own_node = self._config.limit_connections_to_own_node
            bridge = self._config.bridge
            await table.apply(table.whole(rules, self._networks, bridge, own_node=own_node, ipv6=self._ipv6))
        elif commands := table.difference(self._written, rules, self._networks):
            await table.apply(commands)
        self._written = rules
        self._health.ready = True
        async with self._writing:
            self._written_revision = revision
            self._writing.notify_all()

    def _known_pods(self) -> list[Pod]:
        found: dict[str, Pod] = {}
        for each in self._pods.list():
            if (pod := self._pod(each)) is None:
                continue
            for address in pod.addresses:
                # An address of a pod that ends may have a new pod already.
                if address not in found or key_of(each) in self._announced:
                    found[address] = pod
        owned: dict[tuple[str, str], list[str]] = {}
        pods: dict[tuple[str, str], Pod] = {}
        for address, pod in found.items():
            key = pod.namespace, pod.name
            pods[key] = pod
            owned.setdefault(key, []).append(address)
        return [replace(pod, addresses=tuple(owned[key])) for key, pod in pods.items()]

    def _pod(self, pod: Object) -> Pod | None:
        key, local = key_of(pod), pod["node"] == self._config.node
        uid, addresses = self._announced.get(key, ("", frozenset())) if local else ("", frozenset())
        if not addresses or (uid and uid != pod["metadata"]["uid"]):
            addresses = frozenset(pod["addresses"])
        if not addresses or pod["ended"]:
            return None
        ports = {(name, protocol): number for name, protocol, number in pod["ports"]}
        labels = pod["metadata"].get("labels") or {}
        return Pod(str(key.namespace), key.name, tuple(sorted(addresses)), labels, ports, is_local=local)

    # -- events

    def _see_pod(self, event: WatchEvent) -> None:
        key = key_of(event.object)
        if event.type == "DELETED":
            self._announced.pop(key, None)
        elif key in self._announced and self._announced[key][1] == frozenset(event.object["addresses"]):
            del self._announced[key]
        if event.type == "MODIFIED" and event.old is not None and _same(event.old, event.object):
            return
        self._change()

    def _see_namespace(self, event: WatchEvent) -> None:
        before, after = ((each or {"metadata": {}})["metadata"].get("labels") for each in (event.old, event.object))
        if event.type != "MODIFIED" or before != after:
            self._change()

    def _read_policy(self, event: WatchEvent) -> None:
        key = key_of(event.object)
        if event.type == "DELETED":
            self._read.pop(key, None)
        else:
            policy = read(event.object)
            if policy == self._read.get(key):
                return
            self._read[key] = policy
            for fault in policy.faults:
                _log.warning("NetworkPolicy %s: %s", key, fault)
                self._telling.add(task := asyncio.create_task(self._tell(event.object, fault)))
                task.add_done_callback(self._telling.discard)
        self._change()

    async def _tell(self, policy: Object, fault: str) -> None:
        await emit(self._client, policy, _COMPONENT, "NotSupported", fault, "Warning")

    # -- new pods

    async def _listen(self) -> None:
        path = self._config.socket
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, path)
        path.chmod(0o600)
        async with server:
            await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = {"fault": await self._announce(await reader.readline())}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except OSError as error:
            _log.warning("the CNI plugin got no answer: %s", error)
        finally:
            writer.close()

    async def _announce(self, line: bytes) -> str:
        """Returns once the rules of the pod are written; the text says why a pod is refused."""
        try:
            pod = _Announcement.model_validate_json(line)
        except ValidationError as error:
            return f"the announcement of a pod cannot be read: {error.errors()[0]['msg']}"
        wanted, enforced = ([f"IPv{each.version}" for each in those] for those in (pod.addresses, self._networks))
        if not wanted or len(set(wanted)) < len(wanted) or not set(wanted) <= set(enforced):
            return (
                f"NetworkPolicies are enforced here for {' and '.join(enforced)} addresses only, and a pod has one or"
                f" none of each: it has {', '.join(wanted) or 'none'}"
            )
        key = Key(pod.namespace, pod.name)

        def is_known(obj: Object | None) -> bool:
            if obj is None:
                return False
            return bool(obj["node"] == self._config.node and pod.uid in ("", obj["metadata"]["uid"]))

        try:
            await self._pods.wait_for(pod.name, pod.namespace, is_known, _KNOWN_SECONDS)
        except TimeoutError:
            return f"there is no pod {key} with uid {pod.uid} on node {self._config.node}"
        self._announced[key] = (pod.uid, frozenset(map(str, pod.addresses)))
        self._change()
        revision = self._revision
        async with self._writing:
            await self._writing.wait_for(lambda: self._written_revision >= revision)
        return ""


def _kept(pod: Object) -> Object | None:
    """The part of a pod that rules depend on; None for a pod of its node's network."""
    spec, status, metadata = pod["spec"], pod.get("status") or {}, pod["metadata"]
    if spec.get("hostNetwork"):
        return None
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    ports = [port for each in containers for port in each.get("ports") or () if port.get("name")]
    addresses = sorted(str(ipaddress.ip_address(each["ip"])) for each in status.get("podIPs") or ())
    kept = {each: metadata[each] for each in ("namespace", "name", "uid", "resourceVersion")}
    # To the kubelet, the uid of a static pod is the digest of its file.
    kept["uid"] = (metadata.get("annotations") or {}).get("kubernetes.io/config.hash") or kept["uid"]
    return {
        "metadata": {**kept, "labels": metadata.get("labels") or {}},
        "node": spec.get("nodeName") or "",
        "addresses": addresses,
        "ended": status.get("phase") in _ENDED,
        "ports": [(port["name"], (port.get("protocol") or "TCP").lower(), port["containerPort"]) for port in ports],
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    same = (one[each] == other[each] for each in ("node", "addresses", "ended", "ports"))
    return all(same) and bool(one["metadata"]["labels"] == other["metadata"]["labels"])
