"""NetworkPolicies of a Shoot hold on its machines: pods of two nodes and two namespaces connect to each other."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from api import images
from tests.connections import CONNECT, HOLD, SERVE
from tests.landscape.pods import processes_of
from tests.landscape.shoots import Shoot, background, eventually
from tests.network_policies import Cluster, Pod

OWN, OTHER = "policies", "policies-other"
"""The namespace with the policies, and another one."""
PORTS = {"web": 8080, "more": 8081, "admin": 9090}
DENIED = {"podSelector": {}, "policyTypes": ["Ingress"]}
SERVER = {"matchLabels": {"app": "server"}}
CLIENT = {"matchLabels": {"app": "client"}}
AGENT = "network-policy-agent"

Manifest = dict[str, Any]
Reached = set[tuple[str, str, int]]
"""Connections that are possible: client, server and port."""


@dataclass
class Tried:
    """Pods that serve, and connect to each other. The first ones of each namespace are on the same node."""

    shoot: Shoot
    pods: dict[str, Pod] = field(default_factory=dict)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.shoot.kubectl(*arguments, stdin=stdin)

    def apply(self, *objects: Manifest) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def reached(self) -> Reached:
        """All connections that a client has now."""
        with ThreadPoolExecutor(len(self.pods)) as pool:
            return set().union(*pool.map(self._from, self.pods.values()))

    def _from(self, client: Pod) -> Reached:
        targets = [
            f"{server.name}:{port}/{server.address}/{port}"
            for server in self.pods.values()
            if server != client
            for port in PORTS.values()
        ]
        argv = ("-n", client.namespace, "exec", client.name, "--", "python3", "-c", CONNECT, *targets)
        found = (line.split(":") for line in self.kubectl(*argv).splitlines())
        return {(client.name, server, int(port)) for server, port in found}

    def allowed(self, *policies: Manifest) -> Reached:
        """All connections that these policies allow."""
        cluster = Cluster(policies, {each: _labels(each) for each in (OWN, OTHER)})
        return {
            (client.name, server.name, port)
            for client in self.pods.values()
            for server in self.pods.values()
            for port in PORTS.values()
            if client != server and cluster.allows(client, server, port)
        }

    @contextmanager
    def policies(self, *specs: Manifest) -> Iterator[tuple[Manifest, ...]]:
        """Have these NetworkPolicies in the first namespace."""
        made = tuple(_policy(f"tried-{number}", spec) for number, spec in enumerate(specs))
        self.apply(*made)
        try:
            yield made
        finally:
            self.kubectl("-n", OWN, "delete", "networkpolicies", "--all")

    def await_reached(self, wanted: Reached) -> None:
        seen: Reached = set()

        def hold() -> bool:
            seen.clear()
            seen.update(self.reached())
            return seen == wanted

        try:
            eventually(hold, "the policies hold", 30)
        except AssertionError:
            pytest.fail(f"open against the policies: {seen - wanted}; closed against them: {wanted - seen}")

    def processes_of_agents(self) -> list[int]:
        agents = json.loads(self.kubectl("-n", "kube-system", "get", "pods", "-l", f"app={AGENT}", "-o", "json"))
        processes = [process for each in agents["items"] for process in processes_of(each["metadata"]["uid"])]
        return [each for each in processes if AGENT.encode() in Path(f"/proc/{each}/cmdline").read_bytes()]


def _labels(namespace: str) -> dict[str, str]:
    return {"team": namespace}


def _namespace(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": _labels(name)}}


def _policy(name: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": OWN},
        "spec": spec,
    }


def _pod(namespace: str, name: str, node: str, *command: str) -> Manifest:
    container: Manifest = {
        "name": "main",
        "image": images.GARDENER,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-c", *(command or (SERVE, *map(str, PORTS.values())))],
        "ports": [{"name": port, "containerPort": number} for port, number in PORTS.items()],
    }
    if not command:
        container["readinessProbe"] = {"tcpSocket": {"port": "web"}, "periodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name.partition("-")[0]}},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


@pytest.fixture(scope="module")
def tried(shoot: Shoot) -> Iterator[Tried]:
    one, two = sorted(node for nodes in shoot.nodes().values() for node in nodes)
    places = {"server": (OWN, one), "client": (OWN, one), "client-far": (OWN, two)}
    places |= {"client-other": (OTHER, one), "other-far": (OTHER, two)}
    tried = Tried(shoot)
    tried.apply(_namespace(OWN), _namespace(OTHER))
    try:
        # The account of new pods exists a moment after their namespace.
        for namespace in (OWN, OTHER):
            shoot.kubectl("-n", namespace, "wait", "--for=create", "serviceaccount/default", "--timeout=30s")
        tried.apply(*(_pod(namespace, name, node) for name, (namespace, node) in places.items()))
        for namespace in (OWN, OTHER):
            shoot.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pods", "--all", "--timeout=60s")
            for pod in json.loads(shoot.kubectl("-n", namespace, "get", "pods", "-o", "json"))["items"]:
                metadata = pod["metadata"]
                labels = {"app": metadata["labels"]["app"]}
                made = Pod(namespace, metadata["name"], labels, pod["status"]["podIP"], PORTS)
                tried.pods[made.name] = made
        yield tried
    finally:
        shoot.kubectl("delete", "namespace", OWN, OTHER, "--timeout=60s")


def test_without_policies_all_pods_reach_each_other(tried: Tried) -> None:
    assert tried.reached() == tried.allowed()
    assert len(tried.allowed()) == 5 * 4 * len(PORTS)


INGRESS: dict[str, Manifest] = {
    "a pod label": {"from": [{"podSelector": CLIENT}]},
    "a namespace": {"from": [{"namespaceSelector": {"matchLabels": _labels(OTHER)}}]},
    "a pod label in other namespaces": {"from": [{"namespaceSelector": {}, "podSelector": CLIENT}]},
    "ports": {"ports": [{"port": 8080, "endPort": 8081}]},
    "a named port": {"ports": [{"port": "admin"}]},
}


@pytest.mark.parametrize("name", INGRESS)
def test_a_pod_accepts_what_a_rule_allows(tried: Tried, name: str) -> None:
    with tried.policies(
        DENIED, {"podSelector": SERVER, "policyTypes": ["Ingress"], "ingress": [INGRESS[name]]}
    ) as made:
        tried.await_reached(tried.allowed(*made))


def test_a_block_of_addresses_allows_all_but_its_exceptions(tried: Tried) -> None:
    networks = tried.shoot.get()["spec"]["networking"]["pods"]
    excepted = [f"{tried.pods[each].address}/32" for each in ("client", "client-other")]
    block = {"ipBlock": {"cidr": networks, "except": excepted}}
    with tried.policies({**DENIED, "ingress": [{"from": [block]}]}) as made:
        allowed = tried.allowed(*made)
        assert ("client", "server", 8080) not in allowed
        assert ("client-far", "server", 8080) in allowed
        tried.await_reached(allowed)


def test_a_pod_opens_what_a_rule_allows(tried: Tried) -> None:
    rule = {"to": [{"podSelector": SERVER}], "ports": [{"port": "more"}]}
    with tried.policies({"podSelector": CLIENT, "policyTypes": ["Egress"], "egress": [rule]}) as made:
        tried.await_reached(tried.allowed(*made))


def test_a_policy_that_is_deleted_closes_nothing(tried: Tried) -> None:
    with tried.policies({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}) as made:
        tried.await_reached(tried.allowed(*made))

    tried.await_reached(tried.allowed())


def test_a_new_pod_obeys_policies_from_its_first_packet(tried: Tried) -> None:
    """It tries to connect before its address is in its status. The kubelet of its node reaches it all the same."""
    other = tried.pods["other-far"]
    with tried.policies({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}) as made:
        tried.await_reached(tried.allowed(*made))
        node = json.loads(tried.kubectl("-n", OWN, "get", "pod", "client", "-o", "json"))["spec"]["nodeName"]
        targets = [f"{port}/{other.address}/{port}" for port in PORTS.values()]
        tried.apply(_pod(OWN, "early", node, CONNECT, *targets), _pod(OWN, "probed", node))
        try:
            phase = "--for=jsonpath={.status.phase}=Succeeded"
            tried.kubectl("-n", OWN, "wait", phase, "pod/early", "--timeout=60s")
            assert tried.kubectl("-n", OWN, "logs", "early") == ""
            tried.kubectl("-n", OWN, "wait", "--for=condition=Ready", "pod/probed", "--timeout=60s")
        finally:
            tried.kubectl("-n", OWN, "delete", "pod", "early", "probed")


@pytest.mark.slow
def test_policies_and_connections_stay_while_the_agents_are_away(tried: Tried) -> None:
    server = tried.pods["server"]
    argv = ("-n", OWN, "exec", "client-far", "--", "python3", "-c", HOLD, server.address, "8080")
    with background(tried.shoot.argv(*argv)) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "answered\n"
        with tried.policies(DENIED) as made:
            tried.await_reached(tried.allowed(*made))
            agents = tried.processes_of_agents()
            assert len(agents) == 2
            for each in agents:
                os.kill(each, signal.SIGSTOP)
            tried.kubectl("-n", OWN, "delete", "networkpolicies", "--all")
            assert tried.reached() == tried.allowed(*made)

            for each in agents:
                os.kill(each, signal.SIGKILL)
            tried.await_reached(tried.allowed())
        assert held.poll() is None
        held.kill()
        whole_lines = held.stdout.read().split("\n")[:-1]
        assert set(whole_lines) == {"answered"}
