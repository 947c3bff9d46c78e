"""Connections in a seed that is closed: each is tried, from a pod with a label and from the pods of a control plane.

The first test shows, from a namespace without policies, that servers answer at the addresses that are tried.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

import pytest

from api import images
from api.network_policies import TO_API_SERVER, TO_BLOCKED, TO_DNS, TO_PRIVATE, TO_PUBLIC, TO_SHOOT
from landscape.plan import Plan, load
from tests.connections import CONNECT, SERVE
from tests.landscape.pods import processes_of
from tests.landscape.shoots import Shoot, eventually

pytestmark = pytest.mark.landscape

METADATA, PRIVATE, PORT = "169.254.169.254", "10.99.0.1", 8088
INTRUDER = "intruder"


@dataclass
class Seed:
    """The seed of a Shoot, and addresses in it and around it."""

    shoot: Shoot

    @cached_property
    def plan(self) -> Plan:
        plan = load(self.shoot.landscape.name)
        assert plan is not None
        return plan

    @property
    def netns(self) -> str:
        return f"--net=/run/netns/{self.plan.cluster(self.shoot.seed).netns}"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.shoot.landscape.kubectl(self.shoot.seed, *arguments, stdin=stdin)

    @cached_property
    def shoot_address(self) -> str:
        """An address in the pod network of the Shoot, where no pod has it."""
        return "100.112.255.254"

    @cached_property
    def targets(self) -> dict[str, str]:
        """``<address>/<port>`` by name."""
        plan, cluster = self.plan, self.plan.cluster(self.shoot.seed)
        service = cluster.services.removesuffix(".0/24") + ".1"
        etcd = self.address_of(self.shoot.technical_id, "app=etcd-statefulset,role=main")
        return {
            "DNS": f"{cluster.dns_address}/53",
            "API server of the seed": f"{cluster.address}/6443",
            "Service of that API server": f"{service}/443",
            "kubelet": f"{cluster.address}/10250",
            "gardenlet": f"{cluster.address}/2728",
            "DNS server's probes": f"{self.address_of('kube-system', 'k8s-app=kube-dns')}/8080",
            "etcd": f"{etcd}/2379",
            "etcd's metrics": f"{etcd}/2381",
            "metadata": f"{METADATA}/{PORT}",
            "private": f"{PRIVATE}/{PORT}",
            "network of the Shoot": f"{self.shoot_address}/{PORT}",
            "Temporal": f"{plan.central_address}/7233",
            "garden": f"{plan.central_address}/6443",
            "public": f"{plan.object_store_address}/9002",
        }

    def address_of(self, namespace: str, labels: str) -> str:
        found = self.kubectl("-n", namespace, "get", "pods", "-l", labels, "-o", "jsonpath={.items[0].status.podIP}")
        assert found, f"no pod with {labels} in {namespace}"
        return found

    def from_pod(self, namespace: str) -> set[str]:
        """Targets that the intruder in this namespace reaches."""
        argv = ("-n", namespace, "exec", INTRUDER, "--", "python3", "-c", CONNECT, *self._named)
        return set(self.kubectl(*argv).splitlines())

    def from_component(self, component: str) -> set[str]:
        """Targets that a process in the network of a component of the control plane reaches."""
        pods = json.loads(self.kubectl("-n", self.shoot.technical_id, "get", "pods", "-o", "json"))["items"]
        uids = [each["metadata"]["uid"] for each in pods if each["metadata"]["name"].startswith(component)]
        process = next(each for uid in uids for each in processes_of(uid))
        argv = ["nsenter", f"--net=/proc/{process}/ns/net", sys.executable, "-IS", "-c", CONNECT, *self._named]
        return set(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout.splitlines())

    @property
    def _named(self) -> list[str]:
        return [f"{name}/{target}" for name, target in self.targets.items()]

    def label(self, *labels: str) -> None:
        """Give the intruder in the control plane exactly these labels."""
        known = (TO_API_SERVER, TO_BLOCKED, TO_DNS, TO_PRIVATE, TO_PUBLIC, TO_SHOOT)
        changes = [f"{each}=allowed" if each in labels else f"{each}-" for each in known]
        self.kubectl("-n", self.shoot.technical_id, "label", "--overwrite", "pod", INTRUDER, *changes)


def _pod(namespace: str) -> dict[str, object]:
    container = {
        "name": "main",
        "image": images.GARDENER,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "3600"],
    }
    spec = {"containers": [container], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": INTRUDER, "namespace": namespace},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def seed(shoot: Shoot) -> Iterator[Seed]:
    """The seed of the Shoot, with an intruder in the Shoot's control plane, and one in a namespace without policies."""
    with ExitStack() as stack:
        seed = Seed(shoot)
        stack.enter_context(_addresses(seed))
        seed.kubectl("create", "namespace", INTRUDER)
        stack.callback(seed.kubectl, "delete", "namespace", INTRUDER, "--wait=false")
        for namespace in (INTRUDER, shoot.technical_id):
            seed.kubectl("apply", "-f", "-", stdin=json.dumps(_pod(namespace)))
        for namespace in (INTRUDER, shoot.technical_id):
            seed.kubectl("-n", namespace, "wait", "--for=condition=Ready", f"pod/{INTRUDER}", "--timeout=60s")
        stack.callback(seed.kubectl, "-n", shoot.technical_id, "delete", "pod", INTRUDER)
        yield seed


@contextmanager
def _addresses(seed: Seed) -> Iterator[None]:
    """More addresses of the seed's node, and a server: as a cloud has metadata and private networks behind a node."""
    added = [f"{each}/32" for each in (METADATA, PRIVATE, seed.shoot_address)]
    argv = ["nsenter", seed.netns, sys.executable, "-IS", "-c", SERVE, str(PORT)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            for each in added:
                subprocess.run(["nsenter", seed.netns, "ip", "address", "replace", each, "dev", "lo"], check=True)
            yield
        finally:
            server.kill()
            for each in added:
                subprocess.run(["nsenter", seed.netns, "ip", "address", "delete", each, "dev", "lo"], check=False)


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
def test_a_pod_of_an_open_namespace_reaches_all_but_closed_pods(seed: Seed) -> None:
    """The targets answer: what other pods do not reach, a policy refuses."""
    assert seed.targets.keys() - seed.from_pod(INTRUDER) == {"etcd", "etcd's metrics"}


ROWS = {
    "deny-all": ((), set()),
    "allow-to-dns": ((TO_DNS,), {"DNS"}),
    "allow-to-runtime-apiserver": ((TO_API_SERVER,), {"API server of the seed", "Service of that API server"}),
    "allow-to-public-networks": ((TO_PUBLIC,), {"public"}),
    "allow-to-private-networks": ((TO_PRIVATE,), {"private"}),
    "allow-to-blocked-cidrs": ((TO_BLOCKED,), {"Temporal", "garden"}),
    "allow-to-shoot-networks": ((TO_SHOOT,), {"network of the Shoot"}),
}


@pytest.mark.attack(actor="T1", asset="A2", finding=8)
@pytest.mark.parametrize("policy", ROWS)
def test_a_pod_of_a_control_plane_reaches_what_its_label_allows(seed: Seed, policy: str) -> None:
    labels, allowed = ROWS[policy]
    seed.label(*labels)

    eventually(lambda: seed.from_pod(seed.shoot.technical_id) == allowed, f"{policy} holds", 60)


@pytest.mark.attack(actor="T1", asset="A5", finding=8)
def test_an_api_server_reaches_neither_the_seed_nor_temporal(seed: Seed) -> None:
    """Its owner chooses addresses that it connects to: of webhooks, and of endpoints."""
    assert seed.from_component("kube-apiserver") == {"DNS", "etcd", "public"}


@pytest.mark.attack(actor="T1", asset="A5", finding=8)
@pytest.mark.parametrize(
    ("component", "allowed"),
    [
        ("etcd-main", {"DNS", "public", "private", "etcd", "etcd's metrics"}),
        ("kube-controller-manager", {"DNS"}),
        ("kube-scheduler", {"DNS"}),
        ("gardener-resource-manager", {"DNS", "API server of the seed", "Service of that API server"}),
    ],
)
def test_a_component_reaches_what_it_needs(seed: Seed, component: str, allowed: set[str]) -> None:
    assert seed.from_component(component) == allowed
