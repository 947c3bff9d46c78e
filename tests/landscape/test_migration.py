"""A control plane moves to the other seed while somebody reads and writes: nodes, pods and data are the same after."""

import base64
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.landscape.conftest import Landscape
from tests.landscape.shoots import CREATION, Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

_PERIOD = 0.1
_REQUEST_SECONDS = 2.0
_MOVE_SECONDS = 240.0
_NAMESPACE = "default"


@dataclass
class Probe:
    """Writes an object and reads it back, ten times a second, through the cluster's name in the DNS."""

    shoot: Shoot
    acknowledged: list[str] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    failed: int = 0

    def __post_init__(self) -> None:
        config = yaml.safe_load(self.shoot.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._name = cluster.get("tls-server-name") or urlsplit(cluster["server"]).hostname
        self._tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        pair = self.shoot.directory / f"{self.shoot.name}-probe.pem"
        pair.touch(mode=0o600)
        pair.write_bytes(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
        self._tls.load_cert_chain(pair)
        self._connection: http.client.HTTPSConnection | None = None
        self._begun = int(time.time())
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator["Probe"]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(10)

    @property
    def longest_silence(self) -> float:
        """Seconds between two answers."""
        return max(later - earlier for earlier, later in zip(self.answered, self.answered[1:], strict=False))

    def _run(self) -> None:
        for number in count():
            begun = time.monotonic()
            name = f"probe-{self._begun}-{number}"
            try:
                self._ask("POST", f"/api/v1/namespaces/{_NAMESPACE}/configmaps", _config_map(name), 201)
                self.acknowledged.append(name)
                self._ask("GET", f"/api/v1/namespaces/{_NAMESPACE}/configmaps/{name}", None, 200)
                self.answered.append(time.monotonic())
            except (OSError, http.client.HTTPException):
                self.failed += 1
                self._disconnect()
            if self._stop.wait(max(0.0, _PERIOD - (time.monotonic() - begun))):
                return

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, expected: int) -> None:
        connection = self._connect()
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != expected:
            raise http.client.HTTPException(f"{method} {path}: {answer.status}")

    def _connect(self) -> http.client.HTTPSConnection:
        if self._connection is None:
            address = self.shoot.address_of(self._name)
            raw = socket.create_connection((address, 443), _REQUEST_SECONDS)
            connection = http.client.HTTPSConnection(self._name, timeout=_REQUEST_SECONDS)
            connection.sock = self._tls.wrap_socket(raw, server_hostname=self._name)
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _config_map(name: str) -> dict[str, Any]:
    labels = {"probe": "move"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}


@dataclass(frozen=True)
class Moved:
    """A Shoot before and after its control plane went to the other seed."""

    shoot: Shoot
    source: str
    destination: str
    before: dict[str, Any]
    after: dict[str, Any]
    probe: Probe
    phases: list[dict[str, Any]]


@pytest.fixture(scope="module")
def moved(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moved]:
    shoot = Shoot(landscape, "mover", tmp_path_factory.mktemp("kubeconfigs"))
    shoot.apply(shoot.manifest())
    try:
        shoot.wait_for_state("Succeeded", CREATION)
        _await_pods(shoot)
        source = shoot.seed
        destination = {"seed-1": "seed-2", "seed-2": "seed-1"}[source]
        before = _running(shoot)
        with Probe(shoot).running() as probe:
            eventually(lambda: len(probe.answered) > 20, "the probe is answered", 30)
            move = ["shoot", "move", shoot.reference, "--to", destination, "--follow", "-o", "json"]
            text = shoot.gardener(*move, timeout=_MOVE_SECONDS)
            answered = len(probe.answered)
            eventually(lambda: len(probe.answered) > answered + 20, "the probe is answered after the move", 60)
        for asked_once in ("seed", "kubeconfig"):
            del shoot.__dict__[asked_once]
        yield Moved(shoot, source, destination, before, _running(shoot), probe, _lines(text))
    finally:
        shoot.remove()


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _await_pods(shoot: Shoot) -> None:
    shoot.kubectl("wait", "pods", "-A", "--all", "--for=condition=Ready", "--timeout=120s", timeout=130)


def _running(shoot: Shoot) -> dict[str, Any]:
    """Nodes and pods by their uids, with how often their containers were restarted."""
    nodes = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]
    pods = json.loads(shoot.kubectl("get", "pods", "-A", "-o", "json"))["items"]
    machines = shoot.landscape.kubectl("cloud", "-n", f"infra-{shoot.technical_id}", "get", "pods", "-o", "json")
    return {
        "nodes": {each["metadata"]["name"]: each["metadata"]["uid"] for each in nodes},
        "machines": {each["metadata"]["name"]: each["metadata"]["uid"] for each in json.loads(machines)["items"]},
        "pods": {
            each["metadata"]["name"]: (
                each["metadata"]["uid"],
                sum(status["restartCount"] for status in each["status"].get("containerStatuses") or ()),
            )
            for each in pods
        },
    }


def test_the_control_plane_is_in_the_other_seed_and_nowhere_else(moved: Moved, landscape: Landscape) -> None:
    status = moved.shoot.get()["status"]
    assert status["seedName"] == moved.destination
    assert (status["lastOperation"]["type"], status["lastOperation"]["state"]) == ("Restore", "Succeeded")
    namespaces = landscape.kubectl(moved.source, "get", "namespaces", "-o", "name").split()
    assert f"namespace/{moved.shoot.technical_id}" not in namespaces
    assert [each.partition("/")[0] for each in moved.shoot.backups()] == [
        landscape.kubectl("garden", "get", "seed", moved.destination, "-o", "jsonpath={.metadata.uid}")
    ]


def test_no_node_is_replaced_and_no_pod_restarted(moved: Moved) -> None:
    assert moved.after == moved.before


def test_no_acknowledged_write_is_lost(moved: Moved) -> None:
    found = json.loads(moved.shoot.kubectl("get", "configmaps", "-l", "probe=move", "-o", "json"))["items"]
    names = [each["metadata"]["name"] for each in found]
    assert len(names) == len(set(names))
    assert not set(moved.probe.acknowledged) - set(names)


def test_the_silence_is_short(moved: Moved) -> None:
    """The longest time without an answer; the machine of the tests is small, and busy."""
    print(f"longest silence {moved.probe.longest_silence:.1f} s, {moved.probe.failed} requests failed")
    print(json.dumps(moved.phases, indent=1))
    assert moved.probe.longest_silence < 60


def test_it_works_where_it_is(moved: Moved) -> None:
    for condition in ("APIServerAvailable", "ControlPlaneHealthy", "EveryNodeReady", "SystemComponentsHealthy"):
        moved.shoot.garden(
            "wait", f"--for=condition={condition}", f"shoot/{moved.shoot.name}", "--timeout=60s", timeout=70
        )
    assert moved.shoot.address_of(moved.shoot.host_names[0])
    assert moved.shoot.kubectl("-n", "kube-system", "logs", "-l", "app=vpn-shoot", "--tail=1")
