"""The landscape itself: what its clusters serve and reach, and that it is whole again after a kill, a pause, and a cut.

A second landscape, and its end, are in test_second_landscape.py: it takes minutes.
"""

import asyncio
import json
import re
import sys
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import dns.message
import dns.query
import dns.rcode
import dns.tsig
import dns.update
import pytest

from api import images
from tests.landscape.conftest import Landscape, run
from tests.landscape.networks import connects, in_namespace
from tests.landscape.shoots import temporal

pytestmark = pytest.mark.chaos


def test_a_second_up_starts_nothing(landscape):
    pids = landscape.pids

    landscape.up()

    assert landscape.pids == pids


def test_all_nodes_are_ready_and_have_the_version_in_the_status(landscape):
    for cluster in ("cloud", "seed-1", "seed-2"):
        nodes = json.loads(landscape.kubectl(cluster, "get", "nodes", "-o", "json"))["items"]
        assert [node["metadata"]["name"] for node in nodes] == [cluster]
        assert nodes[0]["status"]["nodeInfo"]["kubeletVersion"] == f"v{landscape.status['kubernetesVersion']}"
        assert _condition(nodes[0], "Ready") == "True"


def test_the_garden_serves_our_kinds_and_knows_its_seeds(landscape):
    seeds = json.loads(landscape.kubectl("garden", "get", "seeds", "-o", "json"))["items"]

    assert [seed["metadata"]["name"] for seed in seeds] == ["seed-1", "seed-2"]
    assert all(_condition(seed, "GardenletReady") == "True" for seed in seeds)
    landscape.kubectl("garden", "get", "cloudprofile/local", "project/local")
    landscape.kubectl("garden", "get", "--namespace=garden-local", "credentialsbinding/local", "secret/local")


async def test_temporal_knows_our_search_attributes_and_keeps_to_itself(landscape):
    client = await temporal(landscape)

    for attribute in ("GardenerProject", "GardenerShoot", "GardenerSeed", "GardenerOperation"):
        await client.count_workflows(f"{attribute} = 'none'")
    listening = await asyncio.to_thread(run, "ss", "--listening", "--tcp", "--numeric", "--processes")
    processes = {int(pid) for pid in re.findall(r"pid=(\d+)", listening)}
    assert landscape.pids["temporal"] not in processes, "on the host itself"


@pytest.fixture(scope="module")
def pod(landscape: Landscape) -> str:
    """A pod of seed-1 with Python in it."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": {
            "containers": [
                {
                    "name": "probe",
                    "image": images.GARDENER,
                    "imagePullPolicy": "Never",
                    "command": ["sleep", "infinity"],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    listed = {"apiVersion": "v1", "kind": "List", "items": [claim, manifest]}
    landscape.kubectl("seed-1", "apply", "-f", "-", stdin=json.dumps(listed))
    landscape.kubectl("seed-1", "wait", "--for=condition=Ready", "pod/probe", "--timeout=60s")
    return "probe"


def test_pods_run_and_accept_exec(landscape, pod):
    assert landscape.kubectl("seed-1", "exec", pod, "--", "cat", "/proc/1/comm").strip() == "sleep"


def test_names_of_the_cluster_and_of_the_zone_resolve_in_pods(landscape, pod):
    zone = landscape.status["dns"]["zone"]
    for name in ("kubernetes.default.svc.cluster.local", f"ns.{zone}"):
        code = f"import socket; print(socket.gethostbyname({name!r}))"
        assert landscape.kubectl("seed-1", "exec", pod, "--", "python3", "-c", code).strip()


def test_volumes_are_provisioned_fast_and_deleted_with_their_claim(landscape, pod):
    landscape.kubectl("seed-1", "exec", pod, "--", "sh", "-c", "echo kept > /data/file")
    claim = json.loads(landscape.kubectl("seed-1", "get", "pvc", "data", "-o", "json"))
    volume = json.loads(landscape.kubectl("seed-1", "get", "pv", claim["spec"]["volumeName"], "-o", "json"))
    directory = Path(volume["spec"]["hostPath"]["path"])
    assert (directory / "file").read_text() == "kept\n"

    landscape.kubectl("seed-1", "delete", f"pod/{pod}", "pvc/data", "--wait")

    _eventually(lambda: not directory.exists(), "the volume's directory is gone", 20)


def test_only_the_holder_of_the_key_changes_the_zone(landscape):
    zone, server = landscape.status["dns"]["zone"], landscape.status["dns"]["server"]
    secret = json.loads(landscape.kubectl("garden", "get", "secret", "internal-domain", "-n", "garden", "-o", "json"))[
        "data"
    ]
    data = {key: b64decode(value).decode() for key, value in secret.items()}
    update = dns.update.UpdateMessage(zone)
    update.replace("probe", 60, "A", "198.18.0.99")

    assert dns.query.tcp(update, server, timeout=5).rcode() == dns.rcode.NOTAUTH
    update.use_tsig(dns.tsig.Key(data["tsigKeyName"], data["tsigSecret"], data["tsigAlgorithm"]))
    assert dns.query.tcp(update, server, timeout=5).rcode() == dns.rcode.NOERROR

    answer = dns.query.udp(dns.message.make_query(f"probe.{zone}.", "A"), server, timeout=5)
    assert "198.18.0.99" in answer.to_text()


def test_a_seed_reaches_what_is_central_the_cloud_and_other_gateways_and_nothing_else(landscape):
    central = landscape.status["dns"]["server"]

    assert connects(landscape, "seed-1", central, 7233)
    assert connects(landscape, "seed-1", landscape.address("garden"), 6443)
    assert connects(landscape, "seed-1", landscape.address("cloud"), 6443)
    assert connects(landscape, "seed-1", landscape.address("seed-2"), 443), "the gateway, on the internet elsewhere"
    assert not connects(landscape, "seed-1", landscape.address("seed-2"), 6443)
    assert not connects(landscape, "seed-1", landscape.address("seed-2"), 10250)
    assert not connects(landscape, "seed-1", "192.0.2.1", 443), "the world"
    assert not connects(landscape, "seed-1", _machine_address(landscape), 22)


def test_machines_reach_a_seed_only_through_its_gateway(landscape):
    """The API server of the seed, its kubelet: none of a shoot's business."""
    seed = landscape.address("seed-1")
    listeners = [
        in_namespace(landscape, "seed-1", sys.executable, "-m", "http.server", "--bind", seed, str(port))
        for port in (8132, 9999)
    ]
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "machine", "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "machine",
                    "image": images.MACHINE,
                    "imagePullPolicy": "Never",
                    "command": ["sleep", "infinity"],
                }
            ],
        },
    }
    try:
        landscape.kubectl("cloud", "apply", "-f", "-", stdin=json.dumps(manifest))
        landscape.kubectl("cloud", "wait", "--for=condition=Ready", "pod/machine", "--timeout=60s")

        def connects(address: str, port: int) -> bool:
            code = f"import socket; socket.create_connection(({address!r}, {port}), 3)"
            command = ["exec", "machine", "--", "python3", "-c", f"try:\n {code}\n print('yes')\nexcept OSError: pass"]
            return landscape.kubectl("cloud", *command).strip() == "yes"

        _eventually(lambda: connects(seed, 8132), "the gateway's port answers", 20)
        assert not connects(seed, 9999)
        assert not connects(seed, 6443)
        assert not connects(seed, 10250)
        assert connects(landscape.status["dns"]["server"], 53)
        assert not connects("192.0.2.1", 443)
    finally:
        for listener in listeners:
            listener.kill()
            listener.wait()
        landscape.kubectl("cloud", "delete", "pod", "machine", "--ignore-not-found", "--wait")


def test_a_killed_process_is_started_again(landscape):
    killed = landscape.status["processes"]["seed-2/kube-apiserver"]

    landscape.gardener("kill", "seed-2/kube-apiserver")

    def back() -> bool:
        status = landscape.status
        return status["processes"]["seed-2/kube-apiserver"]["starts"] > killed["starts"] and status["ready"]

    _eventually(back, "the API server serves again", 90)
    landscape.kubectl("seed-2", "get", "namespaces")


def test_a_paused_process_does_nothing_until_it_is_resumed(landscape):
    landscape.gardener("pause", "dns")
    try:
        status = landscape.status
        assert status["processes"]["dns"]["state"] == "Paused"
        assert not status["ready"]
        query = dns.message.make_query(f"ns.{status['dns']['zone']}.", "A")
        with pytest.raises(dns.exception.Timeout):
            dns.query.udp(query, status["dns"]["server"], timeout=1)
    finally:
        landscape.gardener("resume", "dns")

    assert dns.query.udp(query, status["dns"]["server"], timeout=10).rcode() == dns.rcode.NOERROR


def test_a_cut_off_seed_reaches_only_itself(landscape):
    central, cloud, seed = landscape.status["dns"]["server"], landscape.address("cloud"), landscape.address("seed-1")

    landscape.gardener("cut", "seed-1")
    try:
        cut_off = landscape.status["clusters"]["seed-1"]
        assert (cut_off["cut"], cut_off["ready"]) == (True, False)
        assert not connects(landscape, "seed-1", central, 7233)
        assert not connects(landscape, "seed-1", cloud, 6443)
        assert connects(landscape, "seed-1", seed, 6443), "its own API server"
        assert connects(landscape, "seed-2", central, 7233), "the other seed"
    finally:
        landscape.gardener("heal", "seed-1")

    assert connects(landscape, "seed-1", central, 7233)
    assert connects(landscape, "seed-1", cloud, 6443)
    _eventually(lambda: landscape.status["ready"], "all is well again", 60)


def test_logs_are_at_hand(landscape):
    assert landscape.gardener("logs", "seed-1/kubelet", "--tail", "3").strip()
    assert "garden/kube-apiserver" in landscape.status["processes"]


def _condition(obj: dict, kind: str) -> str:
    return next(each["status"] for each in obj["status"]["conditions"] if each["type"] == kind)


def _machine_address(landscape: Landscape) -> str:
    profile = json.loads(landscape.kubectl("garden", "get", "cloudprofile", "local", "-o", "json"))
    network: str = profile["spec"]["providerConfig"]["machineNetwork"]
    return network.replace(".0/22", ".2")


def _eventually(condition: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not after {seconds:.0f} s: {what}"
        time.sleep(0.5)  # the clock of a poll: each look is a process of its own
