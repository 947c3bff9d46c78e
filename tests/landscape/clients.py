"""Clients of a cluster that ask all the time, each time by a new connection, and try nothing twice."""

import base64
import http.client
import json
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.landscape.conftest import BIN
from tests.landscape.shoots import Shoot, eventually

REQUEST_SECONDS = 60.0
"""As kubectl: slow is not refused."""
_THREADS = 2
_PERIOD = 0.25
_TUNNEL_PERIOD = 1.0
_RECONNECTION_SECONDS = 30.0
_TURNS_FOR_EXEC = 5
_COMMAND = ("/usr/local/bin/envoy", "--version")
"""That there is in a pod of the apiserver-proxy."""


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

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and text of the answer. Raises OSError or HTTPException if there is none."""
        connection = http.client.HTTPSConnection(self._name, timeout=REQUEST_SECONDS)
        plain = socket.create_connection((self._address, 443), REQUEST_SECONDS)
        connection.sock = self._tls.wrap_socket(plain, server_hostname=self._name)
        try:
            headers = {"Content-Type": "application/apply-patch+yaml"} if body else {}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text)


@dataclass
class Clients:
    """Read and write as long as they run."""

    name: str
    access: Access
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        targets = [(self._read_and_write, (number,)) for number in range(_THREADS)]
        self._threads = [threading.Thread(target=target, args=args, daemon=True) for target, args in targets]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(REQUEST_SECONDS)

    @contextmanager
    def running(self) -> Iterator["Clients"]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def __str__(self) -> str:
        told = f"{self.answered} answered, {len(self.failed)} failed, the slowest took {self.slowest:.1f} s"
        return "\n".join([f"{self.name}: {told}", *self.failed])

    def await_answers(self) -> None:
        """Wait until some more requests are answered."""
        wanted = self.answered + 5
        eventually(lambda: self.answered > wanted, f"{self.name} is answered", REQUEST_SECONDS)

    def _read_and_write(self, number: int) -> None:
        name = f"client-{self.name}-{number}"
        path = f"/api/v1/namespaces/default/configmaps/{name}"
        turn = 0
        while not self._stop.is_set():
            begun = time.monotonic()
            body = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name},
                "data": {"turn": str(turn)},
            }
            fault = (
                self._fault("PATCH", f"{path}?fieldManager=clients&force=true", body)
                if turn % 2 == 0
                else self._fault("GET", path)
            )
            self._note(begun, fault)
            turn += 1
            self._stop.wait(max(0.0, begun + _PERIOD - time.monotonic()))

    def _fault(self, method: str, path: str, body: dict[str, Any] | None = None) -> str:
        try:
            status, text = self.access.ask(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            return f"{method} {path}: {type(error).__name__}: {error}"
        return "" if status in (200, 201) else f"{method} {path}: {status} {text.decode()[:200]}"

    def _note(self, begun: float, fault: str) -> None:
        took = time.monotonic() - begun
        with self._lock:
            self.answered += not fault
            self.slowest = max(self.slowest, took)
            if fault:
                self.failed.append(f"{time.strftime('%H:%M:%S')} after {took:.1f} s: {fault}")


@dataclass
class TunnelClients(Clients):
    """Ask for what comes through the tunnel to the machines: logs of a pod, and a command in it.

    Whoever asks while its end in the cluster is replaced has to ask again, for half a minute at most.
    """

    again: int = 0

    def start(self) -> None:
        self._threads = [threading.Thread(target=self._through_the_tunnel, daemon=True)]
        self._threads[0].start()

    def _through_the_tunnel(self) -> None:
        turn = 0
        while not self._stop.is_set():
            begun = time.monotonic()
            turn += 1
            try:
                if pods := self._staying():
                    ask = self._exec if turn % _TURNS_FOR_EXEC == 0 else self._logs
                    while (fault := ask(pods[0])) and time.monotonic() < begun + _RECONNECTION_SECONDS:
                        self.again += 1
                    # What ends meanwhile, or whose machine does, cannot answer.
                    if not fault or pods[0] in self._staying():
                        self._note(begun, fault)
            except (OSError, http.client.HTTPException) as error:
                self._note(begun, f"list: {type(error).__name__}: {error}")
            self._stop.wait(max(0.0, begun + _TUNNEL_PERIOD - time.monotonic()))

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.again} asked again"

    def _staying(self) -> list[str]:
        """Pods of a DaemonSet on machines that take others."""
        nodes = {each["metadata"]["name"] for each in self._list("/api/v1/nodes") if _stays(each)}
        pods = self._list("/api/v1/namespaces/kube-system/pods?labelSelector=app%3Dkubernetes,role%3Dapiserver-proxy")
        return [
            pod["metadata"]["name"]
            for pod in pods
            if pod["spec"].get("nodeName") in nodes
            and "deletionTimestamp" not in pod["metadata"]
            and all(each["ready"] for each in pod["status"].get("containerStatuses") or [{"ready": False}])
        ]

    def _list(self, path: str) -> list[dict[str, Any]]:
        _, text = self.access.ask("GET", path)
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return items

    def _logs(self, pod: str) -> str:
        return self._fault("GET", f"/api/v1/namespaces/kube-system/pods/{pod}/log?tailLines=1")

    def _exec(self, pod: str) -> str:
        kubeconfig = f"--kubeconfig={self.access.kubeconfig}"
        argv = [str(BIN / "kubectl"), kubeconfig, "-n", "kube-system", "exec", pod, "--", *_COMMAND]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=REQUEST_SECONDS, check=False)
        return f"exec in {pod}: {done.stderr.strip()[-300:]}" if done.returncode else ""


def _stays(node: dict[str, Any]) -> bool:
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions") or ())
    return ready and not node["spec"].get("unschedulable") and "deletionTimestamp" not in node["metadata"]
