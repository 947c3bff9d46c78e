"""Clients of a cluster that send requests all the time, retry none, and change from old credentials to new ones."""

import base64
import http.client
import json
import re
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.landscape.conftest import BIN
from tests.landscape.pods import DENIAL, GROUP, PROBE
from tests.landscape.shoots import Shoot, background, eventually

REQUEST_SECONDS = 60.0
"""As kubectl: slow is not refused."""
RATE = 20
"""Requests per second of one client."""
_THREADS = 4
_CONNECTION_SECONDS = 2.0
"""A connection is kept for so long: that is ten requests of a thread. A server that goes ends older ones by itself."""
_LATE_SECONDS = 30.0
"""Seconds of missed requests that are made up for, at most."""
_PODS = "/api/v1/namespaces/kube-system/pods"
_COMMAND = ("/usr/local/bin/envoy", "--version")
_METRICS_PORT = 16910
"""A program and a port in pods of the apiserver-proxy."""


class Access:
    """To the API server of a cluster, as a kubeconfig says it."""

    def __init__(self, shoot: Shoot, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.kubeconfig = kubeconfig
        self._name = cluster.get("tls-server-name") or str(urlsplit(cluster["server"]).hostname)
        self._address = shoot.address_of(self._name)
        self._tls = ssl.create_default_context(cadata=_decoded(cluster["certificate-authority-data"]).decode())
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(_decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"]))
            pair.flush()
            self._tls.load_cert_chain(pair.name)

    def connect(self) -> http.client.HTTPSConnection:
        """Raises OSError."""
        connection = http.client.HTTPSConnection(self._name, timeout=REQUEST_SECONDS)
        plain = socket.create_connection((self._address, 443), REQUEST_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock = self._tls.wrap_socket(plain, server_hostname=self._name)
        return connection


def _decoded(text: str) -> bytes:
    return base64.b64decode(text)


class Session:
    """Requests of one thread, one after another, some of them by one connection."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._connection: http.client.HTTPSConnection | None = None
        self._until = 0.0

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """Status and text of the answer. Raises OSError or HTTPException if there is none."""
        if time.monotonic() > self._until:
            self.close()
        if self._connection is None:
            self._connection, self._until = self.access.connect(), time.monotonic() + _CONNECTION_SECONDS
        try:
            kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
            text = json.dumps(body).encode() if body else None
            self._connection.request(method, path, text, {"Content-Type": kind})
            answer = self._connection.getresponse()
            if answer.will_close:
                self._until = 0.0
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def fault(self, method: str, path: str, body: dict[str, Any] | None = None, *, expected: str = "") -> str:
        """Fault of the answer; empty if it is a success, or has the text that is expected."""
        status, text = self.ask(method, path, body)
        return "" if (expected in text if expected else status < 300) else f"{method} {path}: {status} {text[:200]}"


@dataclass
class Tally:
    """Counts of one kind of requests with one kind of credentials."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)
    slowest: float = 0.0


class Clients:
    """Ask, of each kind of request so many per second, from the beginning to the end.

    Once all that was under way has been asked for with new credentials, nothing is with old ones.
    """

    def __init__(self, name: str, access: Access) -> None:
        self.name = name
        self.tallies: dict[tuple[str, str], Tally] = {}
        """By kind of request and credentials."""
        self.seconds = 0.0
        self._trusting = ("old", access)
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def trust(self, what: str, access: Access) -> None:
        """Continue with other credentials; ``what`` names them."""
        self._trusting = (what, access)

    def kinds(self) -> "list[tuple[str, float, Callable[[Session], str | None]]]":
        """Series of requests: name, seconds between two, and a function that returns the fault; ``None`` ends it."""
        raise NotImplementedError

    @contextmanager
    def running(self) -> Iterator["Clients"]:
        begun = time.monotonic()
        threads = [threading.Thread(target=self._ask, args=kind, daemon=True) for kind in self.kinds()]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self.seconds = time.monotonic() - begun
            for thread in threads:
                thread.join(REQUEST_SECONDS)

    def _ask(self, kind: str, period: float, asks: Callable[[Session], str | None]) -> None:
        session: Session | None = None
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            trusted, access = self._trusting
            if session is None or session.access is not access:
                session = Session(access)
            begun = time.monotonic()
            try:
                fault = asks(session)
            except (OSError, http.client.HTTPException, ValueError, KeyError, subprocess.SubprocessError) as error:
                fault = f"{type(error).__name__}: {error}"
            self._note(self.tallies.setdefault((kind, trusted), Tally()), time.monotonic() - begun, fault)
            due = max(due + period, time.monotonic() - _LATE_SECONDS)

    def _note(self, tally: Tally, took: float, fault: str | None) -> None:
        with self._lock:
            if fault:
                tally.failed.append(f"{time.strftime('%H:%M:%S')} after {took:.1f} s: {fault}")
            elif fault is not None:
                tally.answered += 1
                tally.slowest = max(tally.slowest, took)

    def await_answers(self) -> None:
        """Wait until some more requests of each kind are answered with what is trusted now."""
        kinds = {(kind, self._trusting[0]) for kind, _, _ in self.kinds()}
        before = {each: self.tallies[each].answered for each in kinds & self.tallies.keys()}

        def answered() -> bool:
            found = dict(self.tallies)
            return all(each in found and found[each].answered > before.get(each, 0) + 1 for each in kinds)

        eventually(answered, f"{self.name} is answered", REQUEST_SECONDS)

    @property
    def failed(self) -> list[str]:
        return [f"{self.name}: {kind}: {fault}" for (kind, _), each in self.tallies.items() for fault in each.failed]

    @property
    def rate(self) -> float:
        return sum(each.answered for each in self.tallies.values()) / self.seconds

    def rows(self) -> list[str]:
        return [
            f"| {self.name} | {kind} | {trusted} | {each.answered} | {len(each.failed)} | {each.slowest:.1f} s |"
            for (kind, trusted), each in sorted(self.tallies.items(), key=lambda item: item[0][0])
        ]


class ReadingAndWriting(Clients):
    """``RATE`` requests per second, every other one a write."""

    def kinds(self) -> list[tuple[str, float, Callable[[Session], str | None]]]:
        return [("read and write", _THREADS / RATE, self._turns(number)) for number in range(_THREADS)]

    def _turns(self, number: int) -> Callable[[Session], str]:
        name = f"client-{self.name}-{number}"
        path = f"/api/v1/namespaces/default/configmaps/{name}"
        config_map: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        turn = 0

        def ask(session: Session) -> str:
            nonlocal turn
            turn += 1
            if turn % 2 == 0:
                return session.fault("GET", path)
            body = config_map | {"data": {"turn": str(turn)}}
            return session.fault("PATCH", f"{path}?fieldManager=clients&force=true", body)

        return ask


class ThroughTheTunnel(Clients):
    """Ask for what comes from machines and from pods on them.

    What is asked of a pod may fail if the pod has ended meanwhile, or is about to: it was none of ours to answer then.
    """

    def kinds(self) -> list[tuple[str, float, Callable[[Session], str | None]]]:
        return [
            ("logs", 0.5, lambda session: self._of_pod(session, self._logs)),
            ("exec", 4.0, lambda session: self._of_pod(session, self._exec)),
            ("port-forward", 4.0, lambda session: self._of_pod(session, self._forward)),
            ("aggregated API", 0.5, lambda session: session.fault("GET", f"/apis/{GROUP}/v1/greeting")),
            ("webhook", 0.5, self._webhook),
        ]

    def _webhook(self, session: Session) -> str:
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "forbidden"}}
        path = f"/api/v1/namespaces/{PROBE}/configmaps?dryRun=All"
        return session.fault("POST", path, config_map, expected=DENIAL)

    def _of_pod(self, session: Session, ask: Callable[[Session, str], str]) -> str | None:
        staying = _staying(session)
        if not staying:
            return None
        pod = staying[int(time.monotonic()) % len(staying)]
        try:
            fault = ask(session, pod)
        except (OSError, http.client.HTTPException, subprocess.SubprocessError) as error:
            fault = f"{type(error).__name__}: {error}"
        return None if fault and pod not in _staying(session) else fault

    def _logs(self, session: Session, pod: str) -> str:
        return session.fault("GET", f"{_PODS}/{pod}/log?tailLines=1")

    def _exec(self, session: Session, pod: str) -> str:
        argv = _kubectl(session, "exec", pod, "--", *_COMMAND)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=REQUEST_SECONDS, check=False)
        return f"exec in {pod}: {done.stderr.strip()[-300:]}" if done.returncode else ""

    def _forward(self, session: Session, pod: str) -> str:
        argv = _kubectl(session, "port-forward", pod, f":{_METRICS_PORT}", "--address=127.0.0.1")
        with background(argv) as forwarding:
            assert forwarding.stdout is not None
            told = forwarding.stdout.readline()
            port = re.search(r"127\.0\.0\.1:(\d+) -> ", told)
            if not port:
                return f"port-forward to {pod}: {told}"
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/ready", timeout=REQUEST_SECONDS) as answer:
                return "" if answer.read().strip() == b"LIVE" else f"port-forward to {pod}: not what was asked for"


def _kubectl(session: Session, *arguments: str) -> list[str]:
    return [str(BIN / "kubectl"), f"--kubeconfig={session.access.kubeconfig}", "-n", "kube-system", *arguments]


def _staying(session: Session) -> list[str]:
    """Pods of a DaemonSet on machines that take others."""

    def listed(path: str) -> list[dict[str, Any]]:
        _, text = session.ask("GET", path)
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return items

    nodes = {each["metadata"]["name"] for each in listed("/api/v1/nodes") if _stays(each)}
    return [
        pod["metadata"]["name"]
        for pod in listed(f"{_PODS}?labelSelector=app%3Dkubernetes,role%3Dapiserver-proxy")
        if pod["spec"].get("nodeName") in nodes
        and "deletionTimestamp" not in pod["metadata"]
        and all(each["ready"] for each in pod["status"].get("containerStatuses") or [{"ready": False}])
    ]


def _stays(node: dict[str, Any]) -> bool:
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions") or ())
    return ready and not node["spec"].get("unschedulable") and "deletionTimestamp" not in node["metadata"]


def table(clients: Sequence[Clients]) -> str:
    header = "| client | asks for | trusts | answered | failed | slowest |\n| --- | --- | --- | --- | --- | --- |"
    return "\n".join([header, *(row for each in clients for row in each.rows())])
