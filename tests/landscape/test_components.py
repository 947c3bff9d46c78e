"""Components that work for a cluster's owners once it exists: they watch its nodes, and size its pods."""

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from api import images
from tests.landscape import pods
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(240, func_only=True)]

RECONCILIATION = 150
SERVER = "k8s-app=node-local-dns"
"""Label of the DNS server of each node."""
ASKS = """
import socket, time
asked, failed, slowest = 0, [], 0
while True:
    began = time.monotonic()
    try:
        socket.getaddrinfo("kubernetes.default.svc.cluster.local.", 443)
    except OSError as error:
        failed.append(str(error))
    asked, slowest = asked + 1, max(slowest, time.monotonic() - began)
    print(asked, round(slowest, 2), *failed, flush=True)
    time.sleep(0.1)
"""
LEAST = "23m"
"""CPU that the autoscaler is to recommend at least: what uses next to none gets just that."""
LABELS = {"app": "sized"}
SIZED: list[dict[str, Any]] = [
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "sized"},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"containers": [{"name": "idle", "image": images.PAUSE}]},
            },
        },
    },
    {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": "sized"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "sized"},
            "updatePolicy": {"updateMode": "Initial"},
            "resourcePolicy": {"containerPolicies": [{"containerName": "*", "minAllowed": {"cpu": LEAST}}]},
        },
    },
]


def test_each_node_reports_problems_of_its_kernel(shoot: Shoot) -> None:
    def conditions() -> list[dict[str, tuple[str, str]]]:
        nodes = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]
        found = [{each["type"]: (each["status"], each["reason"]) for each in node["status"]["conditions"]}
                 for node in nodes]  # fmt: skip
        return found if all("KernelDeadlock" in each for each in found) else []

    for each in eventually(conditions, "what the detector of problems says of all nodes", 60):
        assert each["KernelDeadlock"] == ("False", "KernelHasNoDeadlock")
        assert each["ReadonlyFilesystem"] == ("False", "FilesystemIsNotReadOnly")


@pytest.fixture
def sized(shoot: Shoot) -> Iterator[Shoot]:
    """The shoot, with a Deployment that asks for nothing, and an autoscaler for it."""
    for name in ("vpa-recommender", "vpa-admission-controller"):
        shoot.control_plane("rollout", "status", f"deployment/{name}", "--timeout=60s")
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": SIZED})
    shoot.kubectl("apply", "-f", "-", stdin=manifest)
    yield shoot
    shoot.kubectl("delete", "-f", "-", stdin=manifest)


@pytest.mark.slow
def test_a_new_pod_gets_the_recommended_resources(sized: Shoot) -> None:
    sized.kubectl("rollout", "status", "deployment/sized", "--timeout=60s")
    provided = "--for=condition=RecommendationProvided"
    sized.kubectl("wait", provided, "verticalpodautoscaler/sized", "--timeout=170s", timeout=180)

    sized.kubectl("delete", "pod", "-l", "app=sized", "--wait=true")
    sized.kubectl("rollout", "status", "deployment/sized", "--timeout=60s")

    [pod] = json.loads(sized.kubectl("get", "pods", "-l", "app=sized", "-o", "json"))["items"]
    assert pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == LEAST
    assert "sized" in pod["metadata"]["annotations"]["vpaUpdates"]


@pytest.fixture
def unmanaged(shoot: Shoot) -> Iterator[Shoot]:
    """The shoot while no resource manager answers."""
    shoot.control_plane("scale", "deployment/gardener-resource-manager", "--replicas=0")
    shoot.control_plane("wait", "--for=delete", "pod", "-l", "app=gardener-resource-manager", "--timeout=60s")
    yield shoot
    shoot.control_plane("scale", "deployment/gardener-resource-manager", "--replicas=1")
    shoot.control_plane("rollout", "status", "deployment/gardener-resource-manager", "--timeout=60s")


def test_only_pods_of_the_system_wait_for_the_resource_manager(unmanaged: Shoot) -> None:
    made = [_create_pod(unmanaged, namespace) for namespace in ("kube-system", "default")]
    unmanaged.control_plane("scale", "deployment/gardener-resource-manager", "--replicas=1")

    assert "failed calling webhook" in made[0]
    assert json.loads(made[1])["kind"] == "Pod"

    def created() -> dict[str, Any]:
        answer = _create_pod(unmanaged, "kube-system")
        made: dict[str, Any] = {} if "failed calling webhook" in answer else json.loads(answer)
        return made

    pod = eventually(created, "pods of the system are created again", 60)
    variables = {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}
    assert variables["KUBERNETES_SERVICE_HOST"] in unmanaged.host_names
    assert pod["spec"]["nodeSelector"] == {"worker.gardener.cloud/system-components": "true"}


def _create_pod(shoot: Shoot, namespace: str) -> str:
    """Create a pod of the system as a dry run; returns the pod as JSON, or why it is refused."""
    metadata = {"name": "new", "namespace": namespace, "labels": {"resources.gardener.cloud/managed-by": "gardener"}}
    spec = {"containers": [{"name": "idle", "image": images.PAUSE}]}
    pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    command = shoot.argv("create", "--dry-run=server", "-o", "json", "-f", "-")
    done = subprocess.run(command, input=pod, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else done.stderr


@pytest.fixture
def asking(shoot: Shoot) -> Iterator[Shoot]:
    """The shoot, with a pod that asks for a name again and again, and says how often it got no answer."""
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps(pods.namespace()))
    manifest = json.dumps(pods.python("asks", 1, ASKS, ready=pods.ALIVE))
    shoot.kubectl("apply", "-f", "-", stdin=manifest)
    shoot.kubectl("-n", pods.PROBE, "rollout", "status", "deployment/asks", "--timeout=60s")
    yield shoot
    shoot.change({"systemComponents": {"nodeLocalDNS": None}})
    shoot.kubectl("delete", "-f", "-", stdin=manifest)
    shoot.wait_until_reconciled(RECONCILIATION)


@pytest.mark.slow
def test_the_dns_of_a_node_answers_its_pods_and_leaves_nothing_when_it_stops(asking: Shoot) -> None:
    _heard(asking, 5)

    asking.change({"systemComponents": {"nodeLocalDNS": {"enabled": True}}})
    asking.wait_until_reconciled(RECONCILIATION)
    system = ("-n", "kube-system")
    eventually(lambda: asking.kubectl(*system, "get", "daemonsets", "-o", "name", "-l", SERVER), "the servers", 60)
    asking.kubectl(*system, "rollout", "status", "daemonset/node-local-dns", "--timeout=60s")
    eventually(lambda: _answered_by_nodes(asking) > 20, "names are asked for at the pod's own node", 60)
    asking.change({"systemComponents": {"nodeLocalDNS": {"enabled": False}}})
    asking.wait_until_reconciled(RECONCILIATION)
    asking.kubectl(*system, "wait", "--for=delete", "pod", "-l", SERVER, "--timeout=60s")

    _heard(asking, 20)
    packet_filter = asking.kubectl(*system, "exec", _kube_proxy(asking), "--", "iptables-save", "-t", "raw")
    assert "NODE-LOCAL-DNS" not in packet_filter


def _heard(shoot: Shoot, more: int) -> None:
    """Wait for answers to so many requests more; each one before must have been answered, too."""

    def asked() -> int:
        last = shoot.kubectl("-n", pods.PROBE, "logs", "deployment/asks", "--tail=1").split(maxsplit=2)
        assert len(last) < 3, last
        return int(last[0]) if last else 0

    before = asked()
    eventually(lambda: asked() >= before + more, "answers", 60)


def _answered_by_nodes(shoot: Shoot) -> float:
    """Requests for names of the cluster that the servers on nodes have counted."""
    system = "/api/v1/namespaces/kube-system/pods"
    names = shoot.kubectl("-n", "kube-system", "get", "pods", "-l", SERVER, "-o", "name").split()
    metrics = [shoot.kubectl("get", "--raw", f"{system}/{name.split('/')[1]}:9253/proxy/metrics") for name in names]
    lines = [line for text in metrics for line in text.splitlines()]
    return sum(float(line.split()[-1]) for line in lines if _counts_requests(line))


def _counts_requests(line: str) -> bool:
    return line.startswith("coredns_dns_requests_total{") and 'zone="cluster.local."' in line


def _kube_proxy(shoot: Shoot) -> str:
    name, *_ = shoot.kubectl("-n", "kube-system", "get", "pods", "-l", "role=proxy", "-o", "name").split()
    return name


@pytest.fixture
def baseline(shoot: Shoot) -> Iterator[Shoot]:
    """The shoot, in a seed that has a manifest for it, and one for others."""
    meant = {"mine": shoot.name, "others": "another-shoot"}
    garden = ("-n", "garden")
    for name, label in meant.items():
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"baseline-{name}", "namespace": "default"},
        }
        seed = partial(shoot.landscape.kubectl, shoot.seed, *garden)
        seed("create", "secret", "generic", name, f"--from-literal=manifests.yaml={json.dumps(manifest)}")
        seed("label", "secret", name, "shoot.gardener.cloud/static-manifests=true")
        selector = json.dumps({"matchLabels": {"for": label}})
        seed("annotate", "secret", name, f"static-manifests.shoot.gardener.cloud/selector={selector}")
    shoot.garden("label", "shoot", shoot.name, f"for={shoot.name}")
    yield shoot
    shoot.garden("label", "shoot", shoot.name, "for-")
    shoot.landscape.kubectl(shoot.seed, *garden, "delete", "secret", *meant, "--ignore-not-found")


@pytest.mark.slow
def test_manifests_of_the_seed_come_and_go(baseline: Shoot) -> None:
    def found() -> list[str]:
        names = baseline.kubectl("-n", "default", "get", "configmaps", "-o", "name").split()
        return [name for name in names if "/baseline-" in name]

    baseline.reconcile(RECONCILIATION)
    eventually(found, "what the seed has for it", 30)
    assert found() == ["configmap/baseline-mine"]

    baseline.landscape.kubectl(baseline.seed, "-n", "garden", "delete", "secret", "mine")
    baseline.reconcile(RECONCILIATION)
    eventually(lambda: not found(), "nothing of it is left", 30)
    # The resource manager releases the copy of the Secret once it has deleted what the Secret holds.
    copies = ("get", "secrets", "-l", "shoot.gardener.cloud/static-manifests", "-o", "name")
    eventually(lambda: not baseline.control_plane(*copies), "the copy of the Secret is gone", 30)
