"""Logs of nodes arrive in the seed, and nothing else does: a Shoot whose gardenlet stores them, on and off.

The tests run in the order in which they stand. Times are printed: ``pytest -rP``.
"""

import base64
import json
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
import yaml

from activities.components import node_logs, victoria_logs
from landscape.pki import Authority
from tests.landscape import https, monitoring
from tests.landscape.bastions import in_cloud
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import CREATION, DELETION, Shoot, eventually

pytestmark = [pytest.mark.landscape, pytest.mark.slow, pytest.mark.timeout(DELETION + 120, func_only=True)]

# The first run compiles the store.
_ON_SECONDS = 900
UPLOAD = "/insert/journald/upload"
JOURNAL = {"Content-Type": "application/vnd.fdo.journal"}


@dataclass(frozen=True)
class Logs:
    """The store of a Shoot's logs, at its public address."""

    shoot: Shoot
    host: str
    password: str
    """Value of header Authorization."""
    authority: str

    def ask(
        self, path: str, headers: dict[str, str] | None = None, body: bytes | None = None, by: Path | None = None
    ) -> tuple[int, bytes]:
        return https.get(self.shoot, f"https://{self.host}{path}", self.authority, headers, body, by)

    def found(self, query: str) -> list[dict[str, str]]:
        """Entries of the last hour."""
        path = f"/select/logsql/query?{urlencode({'query': f'_time:1h {query}'})}"
        status, answer = self.ask(path, {"Authorization": self.password})
        assert status == 200, answer
        return [json.loads(line) for line in answer.splitlines()]


def machine_of(shoot: Shoot) -> str:
    [machine] = [each.removeprefix("pod/") for each in in_cloud(shoot, "get", "pods", "-o", "name").split()]
    return machine


def on_machine(shoot: Shoot, command: str) -> str:
    """Output of a shell command, as root of the only machine."""
    return in_cloud(shoot, "exec", machine_of(shoot), "--", "sh", "-c", command)


def say(shoot: Shoot, text: str) -> None:
    on_machine(shoot, f"logger --tag node-logs-test {text}")


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    landscape.gardener("node-logs", timeout=_ON_SECONDS)
    shoot = Shoot(landscape, "logging", tmp_path_factory.mktemp("kubeconfigs"))
    try:
        shoot.apply(shoot.manifest())
        shoot.wait_for_state("Succeeded", CREATION)
        yield shoot
    finally:
        shoot.remove()
        landscape.gardener("node-logs", "off", timeout=_ON_SECONDS)


@pytest.fixture(scope="module")
def logs(shoot: Shoot) -> Logs:
    host, password = monitoring.access(shoot, "logs")
    published = json.loads(shoot.garden("get", "configmap", f"{shoot.name}.ca-cluster", "-o", "json"))
    shoot.control_plane("rollout", "status", f"deployment/{victoria_logs.NAME}", "--timeout=100s")
    return Logs(shoot, host, password, published["data"]["ca.crt"])


@pytest.fixture(scope="module")
def kubelet(shoot: Shoot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Client certificate of the node, as root of its machine has it."""
    file = tmp_path_factory.mktemp("kubelet") / "client.pem"
    file.write_text(on_machine(shoot, "cat /var/lib/kubelet/pki/kubelet-client-current.pem"))
    return file


def test_a_line_of_a_node_is_found_in_the_seed_within_a_minute(shoot: Shoot, logs: Logs) -> None:
    text, begun = f"hello-{uuid.uuid4()}", time.monotonic()
    say(shoot, text)
    [entry] = eventually(lambda: logs.found(f'"{text}"'), "the line arrives", 60)
    print(f"a line of a node was found after {time.monotonic() - begun:.1f} s")

    [node] = [name for pool in shoot.nodes().values() for name in pool]
    assert entry["_msg"] == text
    assert entry["node"] == node
    assert entry["SYSLOG_IDENTIFIER"] == "node-logs-test"
    for service in ("kubelet", "containerd", "gardener-node-agent"):
        assert logs.found(f'_SYSTEMD_UNIT:="{service}.service" | limit 1'), service


def test_the_condition_of_observability_is_true(shoot: Shoot, logs: Logs) -> None:
    condition = 'jsonpath={.status.conditions[?(@.type=="ObservabilityComponentsHealthy")].status}'
    eventually(lambda: shoot.garden("get", "shoot", shoot.name, "-o", condition) == "True", "it is true", 120)


def test_only_a_node_writes_and_only_the_password_reads(
    shoot: Shoot, logs: Logs, kubelet: Path, tmp_path: Path
) -> None:
    forged = f"forged-{uuid.uuid4()}"
    entry = f"MESSAGE={forged}\n_HOSTNAME=other\n\n".encode()
    reading, password = "/select/logsql/query?query=*", {"Authorization": logs.password}

    assert logs.ask(UPLOAD, JOURNAL, entry)[0] == 403
    assert logs.ask(UPLOAD, {**JOURNAL, **password}, entry)[0] == 403
    user = yaml.safe_load(shoot.kubeconfig.read_text())["users"][0]["user"]
    administrator = tmp_path / "administrator.pem"
    pair = (user["client-certificate-data"], user["client-key-data"])
    administrator.write_bytes(b"".join(base64.b64decode(each) for each in pair))
    assert logs.ask(UPLOAD, JOURNAL, entry, administrator)[0] == 403
    other = Authority(tmp_path, "ca-client").issue("node", f"system:node:{machine_of(shoot)}", ["system:nodes"])
    both = tmp_path / "other.pem"
    both.write_bytes(other.certificate.read_bytes() + other.key.read_bytes())
    with pytest.raises((ssl.SSLError, OSError)):
        logs.ask(UPLOAD, JOURNAL, entry, both)

    assert logs.ask(reading)[0] == 401
    assert logs.ask(reading, by=kubelet)[0] == 401
    assert logs.ask(reading, {"Authorization": "Basic YWRtaW46YWRtaW4="})[0] == 401
    for path in ("/delete/run_task?filter=*", "/internal/force_merge", "/flags", "/metrics", "/insert/jsonline"):
        assert logs.ask(path, {**JOURNAL, **password}, b"", kubelet)[0] == 401, path
    assert logs.found(f'"{forged}"') == []


def test_a_node_writes_in_its_own_name_alone(shoot: Shoot, logs: Logs, kubelet: Path) -> None:
    text = f"own-{uuid.uuid4()}"
    entry = f"MESSAGE={text}\nnode=other\n_HOSTNAME=other\n\n".encode()
    forged = {**JOURNAL, "VL-Extra-Fields": "node=other", "VL-Stream-Fields": "MESSAGE", "AccountID": "7"}
    assert logs.ask(f"{UPLOAD}?extra_fields=node%3Dother", forged, entry, kubelet)[0] == 200

    [found] = eventually(lambda: logs.found(f'"{text}"'), "it arrives", 60)
    [node] = [name for pool in shoot.nodes().values() for name in pool]
    assert found["node"] == node
    assert f'node="{node}"' in found["_stream"]
    assert "other" not in found["_stream"]


def test_lines_that_are_written_while_the_store_is_away_arrive_afterwards(shoot: Shoot, logs: Logs) -> None:
    tag = f"away-{uuid.uuid4()}"
    select = f"app={victoria_logs.NAME}"
    shoot.control_plane("scale", f"deployment/{victoria_logs.NAME}", "--replicas=0")
    shoot.control_plane("delete", "pods", "-l", select, "--grace-period=0", "--force")
    shoot.control_plane("wait", "--for=delete", "pods", "-l", select, "--timeout=60s")
    for number in range(5):
        say(shoot, f"{tag}-{number}")
    shoot.control_plane("scale", f"deployment/{victoria_logs.NAME}", "--replicas=1")

    wanted = {f"{tag}-{number}" for number in range(5)}
    begun = time.monotonic()
    shoot.control_plane("rollout", "status", f"deployment/{victoria_logs.NAME}", "--timeout=100s")
    eventually(lambda: {each["_msg"] for each in logs.found(f'"{tag}"*')} >= wanted, "all lines arrive", 60)
    print(f"all lines were found {time.monotonic() - begun:.1f} s after the start of the store")


def _switch(shoot: Shoot, state: str) -> None:
    """Change the configuration of the gardenlets, and reconcile the Shoot; no node may be replaced."""
    nodes = shoot.nodes()
    shoot.landscape.gardener("node-logs", state, timeout=_ON_SECONDS)
    shoot.reconcile(CREATION)
    assert shoot.nodes() == nodes


def _has_unit(shoot: Shoot) -> bool:
    return on_machine(shoot, f"systemctl is-active {node_logs.UNIT} || true").strip() == "active"


def test_a_gardenlet_without_logging_removes_store_volume_and_unit(shoot: Shoot, logs: Logs) -> None:
    assert _has_unit(shoot)
    _switch(shoot, "off")

    assert not _has_unit(shoot)
    assert on_machine(shoot, f"ls /etc/systemd/system/{node_logs.UNIT} 2>/dev/null || true") == ""
    kinds = "deployments,services,configmaps,serviceaccounts,persistentvolumeclaims"

    def left() -> list[str]:
        return [each for each in shoot.control_plane("get", kinds, "-o", "name").split() if victoria_logs.NAME in each]

    eventually(lambda: not left(), "nothing of the store is left", 60)
    assert f"secret/{victoria_logs.NAME}" not in shoot.control_plane("get", "secrets", "-o", "name").split()
    assert monitoring.access(shoot, "logs")[0] == ""
    with pytest.raises((ssl.SSLError, OSError)):
        logs.ask("/select/logsql/query?query=*", {"Authorization": logs.password})


def test_existing_nodes_send_their_logs_again(shoot: Shoot, logs: Logs) -> None:
    _switch(shoot, "on")
    text = f"again-{uuid.uuid4()}"
    say(shoot, text)

    shoot.control_plane("rollout", "status", f"deployment/{victoria_logs.NAME}", "--timeout=100s")
    eventually(lambda: logs.found(f'"{text}"'), "the line arrives", 60)


def test_no_object_but_secrets_and_no_process_shows_the_password(shoot: Shoot, logs: Logs) -> None:
    password = base64.b64decode(logs.password.removeprefix("Basic ")).partition(b":")[2].decode()
    kinds = "deployments,configmaps,pods,services"
    assert password not in shoot.control_plane("get", kinds, "-o", "json")
    assert password not in subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout


def test_its_deletion_leaves_nothing(shoot: Shoot) -> None:
    shoot.delete()

    assert {place: left for place, left in shoot.traces().items() if left} == {}
