"""A client that reads and writes all the time, and what a move of the control plane must not change."""

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

import yaml

from tests.landscape.shoots import Shoot

_PERIOD = 0.1
_REQUEST_SECONDS = 2.0
_NAMESPACE = "default"
_PASSING = frozenset({"events", "leases", "nodes", "pods", "certificatesigningrequests", "componentstatuses"})


@dataclass
class Probe:
    """Writes an object and reads it back, ten times a second, through the cluster's name in the DNS."""

    shoot: Shoot
    name: str = "probe"
    address: str = ""
    """Address of the gateway of one seed, whatever the DNS says."""
    timeout: float = _REQUEST_SECONDS
    """Seconds that it waits for a connection, and for an answer."""
    reconnects: bool = False
    """Whether it repeats a request on a new connection, as Kubernetes' clients do: if the connection ends before the
    answer, or if an API server that ends refuses the request and says when to come back."""
    acknowledged: dict[str, float] = field(default_factory=dict)
    """Names of written objects, and when the write was answered (monotonic seconds)."""
    revisions: dict[str, int] = field(default_factory=dict)
    """Revision at which each of them was written."""
    answered: list[float] = field(default_factory=list)
    failed: int = 0
    broken: list[str] = field(default_factory=list)
    """Requests that were repeated, and why."""
    faults: list[str] = field(default_factory=list)
    """Why requests failed."""
    longest: float = 0.0
    """Seconds from a write until its read is answered, at most."""

    def __post_init__(self) -> None:
        config = yaml.safe_load(self.shoot.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._host = cluster.get("tls-server-name") or urlsplit(cluster["server"]).hostname
        self._tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        pair = self.shoot.directory / f"{self.shoot.name}-{self.name}.pem"
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

    @property
    def written(self) -> dict[str, float]:
        """Writes that were acknowledged up to now."""
        return dict(self.acknowledged)

    @property
    def lost(self) -> dict[str, float]:
        """Writes that were acknowledged and are missing at the revision in the acknowledgement."""
        written = self.written
        found = json.loads(self.shoot.kubectl("get", "configmaps", "-l", f"probe={self.name}", "-o", "json"))["items"]
        kept = {each["metadata"]["name"]: int(each["metadata"]["resourceVersion"]) for each in found}
        return {name: at for name, at in written.items() if kept.get(name) != self.revisions[name]}

    def _run(self) -> None:
        for number in count():
            begun = time.monotonic()
            name = f"{self.name}-{self._begun}-{number}"
            try:
                made = self._ask("POST", f"/api/v1/namespaces/{_NAMESPACE}/configmaps", self._config_map(name), 201)
                self.revisions[name] = int(made["metadata"]["resourceVersion"])
                self.acknowledged[name] = time.monotonic()
                self._ask("GET", f"/api/v1/namespaces/{_NAMESPACE}/configmaps/{name}", None, 200)
                self.answered.append(time.monotonic())
                self.longest = max(self.longest, time.monotonic() - begun)
            except (OSError, http.client.HTTPException) as error:
                self.failed += 1
                self.faults.append(f"{time.strftime('%T')}, after {time.monotonic() - begun:.1f} s: {error!r}")
                self._disconnect()
            if self._stop.wait(max(0.0, _PERIOD - (time.monotonic() - begun))):
                return

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, expected: int) -> dict[str, Any]:
        begun, before = time.monotonic(), len(self.broken)
        while True:
            try:
                status, content, later = self._answer(method, path, body)
                if not (self.reconnects and status == 429 and later) or time.monotonic() - begun > self.timeout:
                    break
                self._disconnect()
                self.broken.append(f"{method}: refused for {later} s")
                self._stop.wait(float(later))
            except (ConnectionError, ssl.SSLError, http.client.BadStatusLine) as error:
                self._disconnect()
                if not self.reconnects or time.monotonic() - begun > self.timeout:
                    raise
                self.broken.append(f"{method}: {error!r}")
        if status == 409 and method == "POST" and len(self.broken) > before:
            # The API server had stored the object when the connection ended.
            return self._ask("GET", f"{path}/{(body or {})['metadata']['name']}", None, 200)
        if status != expected:
            raise http.client.HTTPException(f"{method} {path}: {status} {content[:200]!r}")
        said: dict[str, Any] = json.loads(content)
        return said

    def fault(self, path: str) -> str:
        """Read a path once, on a connection of its own; returns why that failed, or nothing."""
        self._disconnect()
        try:
            status, content, _ = self._answer("GET", path, None)
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        finally:
            self._disconnect()
        return "" if status == 200 else f"{status} {content[:200]!r}"

    def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes, str]:
        """Status, content, and seconds after which the request may be repeated, if the server says so."""
        connection = self._connect()
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers.get("Retry-After", "")

    def _connect(self) -> http.client.HTTPSConnection:
        if self._connection is None:
            address = self.address or self.shoot.address_of(self._host)
            raw = socket.create_connection((address, 443), self.timeout)
            connection = http.client.HTTPSConnection(self._host, timeout=self.timeout)
            connection.sock = self._tls.wrap_socket(raw, server_hostname=self._host)
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _config_map(self, name: str) -> dict[str, Any]:
        labels = {"probe": self.name}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}


@dataclass(frozen=True)
class Moved:
    """A Shoot before and after its control plane went to the other seed."""

    shoot: Shoot
    source: str
    destination: str
    before: dict[str, Any]
    after: dict[str, Any]
    gone: frozenset[str]
    """Objects of the cluster that it had before."""


def await_pods(shoot: Shoot) -> None:
    shoot.kubectl("wait", "pods", "-A", "--all", "--for=condition=Ready", "--timeout=120s", timeout=130)


def running(shoot: Shoot) -> dict[str, Any]:
    """Nodes, machines and pods by their uids, with how often containers were restarted."""
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


def inventory(shoot: Shoot) -> frozenset[str]:
    """Every object of the cluster with its uid, but for those that come and go by themselves."""
    kinds = shoot.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    lasting = [each for each in kinds if each.partition(".")[0] not in _PASSING]
    found = json.loads(shoot.kubectl("get", ",".join(lasting), "-A", "-o", "json", timeout=60))["items"]
    return frozenset(
        f"{each['kind']} {each['metadata'].get('namespace', '')}/{each['metadata']['name']} {each['metadata']['uid']}"
        for each in found
    )
