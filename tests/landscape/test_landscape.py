"""The landscape itself: brought up next to another one, cut, killed, paused, and taken down without a trace.

These tests break things, so they have a landscape of their own. They compare what the machine has before and after it,
so no other test changes a landscape meanwhile. They run in the order in which they stand.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path

import dns.message
import dns.query
import dns.rcode
import dns.tsig
import dns.update
import pytest

from api import images
from tests.landscape.conftest import Landscape, run
from tests.landscape.shoots import temporal

pytestmark = pytest.mark.chaos

NAME = "test-own"


@pytest.fixture(scope="module")
def before(landscape: Landscape) -> dict[str, set[str]]:
    """The machine before this landscape; the landscape of the other tests exists already."""
    return _traces()


@pytest.fixture(scope="module")
def own(before: dict[str, set[str]]) -> Iterator[Landscape]:
    own = Landscape(NAME)
    own.up()
    yield own
    own.down()


def test_a_landscape_comes_up_next_to_another_one(own, landscape):
    """Tests never touch a user's demo."""
    mine, other = own.status, landscape.status

    assert mine["ready"], mine
    assert other["ready"], other
    assert not set(own.pids.values()) & set(landscape.pids.values())
    servers = [{cluster["server"] for cluster in status["clusters"].values()} for status in (mine, other)]
    assert not servers[0] & servers[1]


def test_a_second_up_starts_nothing(own):
    pids = own.pids

    own.up()

    assert own.pids == pids


def test_all_nodes_are_ready_and_have_the_version_in_the_status(own):
    for cluster in ("cloud", "seed-1", "seed-2"):
        nodes = json.loads(own.kubectl(cluster, "get", "nodes", "-o", "json"))["items"]
        assert [node["metadata"]["name"] for node in nodes] == [cluster]
        assert nodes[0]["status"]["nodeInfo"]["kubeletVersion"] == f"v{own.status['kubernetesVersion']}"
        assert _condition(nodes[0], "Ready") == "True"


def test_the_garden_serves_our_kinds_and_knows_its_seeds(own):
    seeds = json.loads(own.kubectl("garden", "get", "seeds", "-o", "json"))["items"]

    assert [seed["metadata"]["name"] for seed in seeds] == ["seed-1", "seed-2"]
    assert all(_condition(seed, "GardenletReady") == "True" for seed in seeds)
    own.kubectl("garden", "get", "cloudprofile/local", "project/local")
    own.kubectl("garden", "get", "--namespace=garden-local", "credentialsbinding/local", "secret/local")


async def test_temporal_knows_our_search_attributes_and_keeps_to_itself(own):
    client = await temporal(own)

    for attribute in ("GardenerProject", "GardenerShoot", "GardenerSeed", "GardenerOperation"):
        await client.count_workflows(f"{attribute} = 'none'")
    listening = await asyncio.to_thread(run, "ss", "--listening", "--tcp", "--numeric", "--processes")
    processes = {int(pid) for pid in re.findall(r"pid=(\d+)", listening)}
    assert own.pids["temporal"] not in processes, "on the host itself"


@pytest.fixture(scope="module")
def pod(own: Landscape) -> str:
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
    own.kubectl("seed-1", "apply", "-f", "-", stdin=json.dumps(listed))
    own.kubectl("seed-1", "wait", "--for=condition=Ready", "pod/probe", "--timeout=60s")
    return "probe"


def test_pods_run_and_accept_exec(own, pod):
    assert own.kubectl("seed-1", "exec", pod, "--", "cat", "/proc/1/comm").strip() == "sleep"


def test_names_of_the_cluster_and_of_the_zone_resolve_in_pods(own, pod):
    zone = own.status["dns"]["zone"]
    for name in ("kubernetes.default.svc.cluster.local", f"ns.{zone}"):
        code = f"import socket; print(socket.gethostbyname({name!r}))"
        assert own.kubectl("seed-1", "exec", pod, "--", "python3", "-c", code).strip()


def test_volumes_are_provisioned_fast_and_deleted_with_their_claim(own, pod):
    own.kubectl("seed-1", "exec", pod, "--", "sh", "-c", "echo kept > /data/file")
    claim = json.loads(own.kubectl("seed-1", "get", "pvc", "data", "-o", "json"))
    volume = json.loads(own.kubectl("seed-1", "get", "pv", claim["spec"]["volumeName"], "-o", "json"))
    directory = Path(volume["spec"]["hostPath"]["path"])
    assert (directory / "file").read_text() == "kept\n"

    own.kubectl("seed-1", "delete", f"pod/{pod}", "pvc/data", "--wait")

    _eventually(lambda: not directory.exists(), "the volume's directory is gone", 20)


def test_only_the_holder_of_the_key_changes_the_zone(own):
    zone, server = own.status["dns"]["zone"], own.status["dns"]["server"]
    secret = json.loads(own.kubectl("garden", "get", "secret", "internal-domain", "-n", "garden", "-o", "json"))["data"]
    data = {key: b64decode(value).decode() for key, value in secret.items()}
    update = dns.update.UpdateMessage(zone)
    update.replace("probe", 60, "A", "198.18.0.99")

    assert dns.query.tcp(update, server, timeout=5).rcode() == dns.rcode.NOTAUTH
    update.use_tsig(dns.tsig.Key(data["tsigKeyName"], data["tsigSecret"], data["tsigAlgorithm"]))
    assert dns.query.tcp(update, server, timeout=5).rcode() == dns.rcode.NOERROR

    answer = dns.query.udp(dns.message.make_query(f"probe.{zone}.", "A"), server, timeout=5)
    assert "198.18.0.99" in answer.to_text()


def test_a_seed_reaches_what_is_central_the_cloud_and_other_gateways_and_nothing_else(own, landscape):
    others = landscape.status
    central = own.status["dns"]["server"]

    assert _connects(own, "seed-1", central, 7233)
    assert _connects(own, "seed-1", own.address("garden"), 6443)
    assert _connects(own, "seed-1", own.address("cloud"), 6443)
    assert _connects(own, "seed-1", own.address("seed-2"), 443), "the gateway, which is on the internet elsewhere"
    assert not _connects(own, "seed-1", own.address("seed-2"), 6443)
    assert not _connects(own, "seed-1", own.address("seed-2"), 10250)
    assert not _connects(own, "seed-1", others["dns"]["server"], 7233), "another landscape"
    assert not _connects(own, "seed-1", "192.0.2.1", 443), "the world"
    assert not _connects(own, "seed-1", _machine_address(own), 22)


def test_machines_reach_a_seed_only_through_its_gateway(own):
    """The API server of the seed, its kubelet: none of a shoot's business."""
    seed = own.address("seed-1")
    listeners = [
        _in_namespace(own, "seed-1", sys.executable, "-m", "http.server", "--bind", seed, str(port))
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
        own.kubectl("cloud", "apply", "-f", "-", stdin=json.dumps(manifest))
        own.kubectl("cloud", "wait", "--for=condition=Ready", "pod/machine", "--timeout=60s")

        def connects(address: str, port: int) -> bool:
            code = f"import socket; socket.create_connection(({address!r}, {port}), 3)"
            command = ["exec", "machine", "--", "python3", "-c", f"try:\n {code}\n print('yes')\nexcept OSError: pass"]
            return own.kubectl("cloud", *command).strip() == "yes"

        _eventually(lambda: connects(seed, 8132), "the gateway's port answers", 20)
        assert not connects(seed, 9999)
        assert not connects(seed, 6443)
        assert not connects(seed, 10250)
        assert connects(own.status["dns"]["server"], 53)
        assert not connects("192.0.2.1", 443)
    finally:
        for listener in listeners:
            listener.kill()
            listener.wait()
        own.kubectl("cloud", "delete", "pod", "machine", "--ignore-not-found", "--wait")


def test_a_killed_process_is_started_again(own):
    killed = own.status["processes"]["seed-2/kube-apiserver"]

    own.gardener("kill", "seed-2/kube-apiserver")

    def back() -> bool:
        status = own.status
        return status["processes"]["seed-2/kube-apiserver"]["starts"] > killed["starts"] and status["ready"]

    _eventually(back, "the API server serves again", 90)
    own.kubectl("seed-2", "get", "namespaces")


def test_a_paused_process_does_nothing_until_it_is_resumed(own):
    own.gardener("pause", "dns")
    try:
        status = own.status
        assert status["processes"]["dns"]["state"] == "Paused"
        assert not status["ready"]
        query = dns.message.make_query(f"ns.{status['dns']['zone']}.", "A")
        with pytest.raises(dns.exception.Timeout):
            dns.query.udp(query, status["dns"]["server"], timeout=1)
    finally:
        own.gardener("resume", "dns")

    assert dns.query.udp(query, status["dns"]["server"], timeout=10).rcode() == dns.rcode.NOERROR


def test_a_cut_off_seed_reaches_only_itself(own):
    central, cloud, seed = own.status["dns"]["server"], own.address("cloud"), own.address("seed-1")

    own.gardener("cut", "seed-1")
    try:
        assert own.status["clusters"]["seed-1"] | {"cut": True, "ready": False} == own.status["clusters"]["seed-1"]
        assert not _connects(own, "seed-1", central, 7233)
        assert not _connects(own, "seed-1", cloud, 6443)
        assert _connects(own, "seed-1", seed, 6443), "its own API server"
        assert _connects(own, "seed-2", central, 7233), "the other seed"
    finally:
        own.gardener("heal", "seed-1")

    assert _connects(own, "seed-1", central, 7233)
    assert _connects(own, "seed-1", cloud, 6443)
    _eventually(lambda: own.status["ready"], "all is well again", 60)


def test_logs_are_at_hand(own):
    assert own.gardener("logs", "seed-1/kubelet", "--tail", "3").strip()
    assert "garden/kube-apiserver" in own.status["processes"]


def test_down_leaves_nothing_behind(own, before, landscape):
    """Processes, mounts, namespaces, links, routes, control groups, rules and files: all as before."""
    own.up()
    namespaces = {f"gardener-{NAME}-{cluster}" for cluster in ("garden", "cloud", "seed-1", "seed-2")}
    assert namespaces <= _traces()["network namespaces"], "this test would see nothing otherwise"

    own.down()

    after = _traces()
    left = {what: sorted(found - before[what]) for what, found in after.items()}
    assert {what: found for what, found in left.items() if found} == {}
    assert after["rules of iptables"] == before["rules of iptables"]
    assert after["forwarding"] == before["forwarding"]
    assert landscape.status["ready"], "the other landscape"


@pytest.mark.slow
def test_a_landscape_comes_up_again_after_down(own):
    """The first ``up`` stands for this one among the faster tests, since nothing of a landscape stays after its end."""
    own.down()

    own.up()

    assert own.status["ready"]


def _condition(obj: dict, kind: str) -> str:
    return next(each["status"] for each in obj["status"]["conditions"] if each["type"] == kind)


def _machine_address(own: Landscape) -> str:
    profile = json.loads(own.kubectl("garden", "get", "cloudprofile", "local", "-o", "json"))
    network: str = profile["spec"]["providerConfig"]["machineNetwork"]
    return network.replace(".0/22", ".2")


def _connects(own: Landscape, cluster: str, address: str, port: int) -> bool:
    """Whether a process in the cluster's network can open a TCP connection."""
    code = f"import socket; socket.create_connection(({address!r}, {port}), 3)"
    return _in_namespace(own, cluster, sys.executable, "-c", code).wait(30) == 0


def _in_namespace(own: Landscape, cluster: str, *argv: str) -> "subprocess.Popen[bytes]":
    namespace = f"/run/netns/gardener-{own.name}-{cluster}"
    command = ["nsenter", f"--net={namespace}", "--", *argv]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _eventually(condition: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not after {seconds:.0f} s: {what}"
        time.sleep(0.5)  # the clock of a poll: each look is a process of its own


def _traces() -> dict[str, set[str]]:
    """All that a landscape leaves on a machine while it is up, but for what belongs to other landscapes."""
    found = {
        "processes": set(_processes()),
        "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
        "network namespaces": set(_entries("/run/netns")),
        "links": set(_entries("/sys/class/net")),
        "addresses": set(run("ip", "-oneline", "-4", "address").splitlines()),
        "routes": set(run("ip", "route").splitlines()),
        "control groups": {f"{path}" for path in Path("/sys/fs/cgroup").glob("*/*") if path.is_dir()},
        "rules of iptables": set(_rules_of_iptables()),
        "forwarding": {Path("/proc/sys/net/ipv4/ip_forward").read_text()},
        "landscapes": set(_entries(str(Path.home() / ".local/state/gardener/landscapes"))),
        "sockets": {f"/run/gardener/{entry}" for entry in _entries("/run/gardener")},
        "results of CNI": set(_results_of_cni()),
        "links to logs": {os.readlink(f"/var/log/containers/{entry}") for entry in _entries("/var/log/containers")},
    }
    return {what: {line for line in lines if not _belongs_to_another(line)} for what, lines in found.items()}


def _rules_of_iptables() -> Iterator[str]:
    """Without counters: packets of others are counted, too."""
    for table in ("filter", "nat", "mangle", "raw"):
        yield from (f"{table} {rule}" for rule in run("iptables", "--table", table, "--list-rules").splitlines())


def _results_of_cni() -> Iterator[str]:
    """A loopback's result names its sandbox only; another one names the landscape, too."""
    entries = _entries("/var/lib/cni/results")
    foreign = {
        sandbox for entry in entries if _belongs_to_another(entry) for sandbox in re.findall("[0-9a-f]{64}", entry)
    }
    return (entry for entry in entries if not any(sandbox in entry for sandbox in foreign))


def _processes() -> Iterator[str]:
    """Processes of landscapes, by what they run or where they run; one that init has yet to bury runs nothing."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            group = (entry / "cgroup").read_text()
        except OSError:
            continue
        if command and (re.search(r"/landscapes/|/run/gardener/", command) or "gardener-" in group):
            yield f"{entry.name} {command} {re.findall('gardener-[a-z0-9-]+', group)[:1]}"


_ANOTHER = re.compile(rf"(/landscapes/|/run/gardener/|gardener-)(?!{NAME}[-/])(?!{NAME}$)[a-z0-9]")


def _belongs_to_another(line: str) -> bool:
    return bool(_ANOTHER.search(line)) and NAME not in line


def _entries(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []
