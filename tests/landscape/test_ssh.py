"""``gardener shoot ssh``: from this machine through a Bastion to a node, and nothing left of it."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.landscape.bastions import HOST_KIND, KIND, left_in_cloud, names
from tests.landscape.conftest import BIN
from tests.landscape.shoots import NAMESPACE, Shoot, eventually

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(180, func_only=True)]


@pytest.fixture(autouse=True)
def nothing_is_left(shoot: Shoot, tmp_path: Path) -> Iterator[None]:
    yield
    eventually(lambda: not names(shoot, KIND), "no Bastion is left", 30)
    assert shoot.control_plane("get", HOST_KIND, "-o", "name") == ""
    assert left_in_cloud(shoot) == []
    assert list(tmp_path.glob("gardener-ssh-*")) == []


def command(shoot: Shoot, tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "GARDENER_LANDSCAPE": shoot.landscape.name, "TMPDIR": str(tmp_path)}
    argv = [str(BIN / "gardener"), "shoot", "ssh", shoot.name, "-n", NAMESPACE, *arguments]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Exit status, output and errors."""
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def test_a_command_runs_on_a_node_and_its_status_comes_back(shoot: Shoot, tmp_path: Path) -> None:
    node = sorted(name for pool in shoot.nodes().values() for name in pool)[0]

    status, output, errors = ended(command(shoot, tmp_path, node, "--", "uname -n; id -un; sudo -n id -un; exit 7"))
    assert (status, output.split()) == (7, [node, "gardener", "root"]), errors


def test_logs_of_a_node_are_read_while_its_kubelet_does_not_answer(shoot: Shoot, tmp_path: Path) -> None:
    node = min(name for pool in shoot.nodes().values() for name in pool)
    read = "sudo journalctl --unit=kubelet --lines=3 --no-pager"
    stopped = f"sudo systemctl stop kubelet; sudo systemctl is-active kubelet; {read}; sudo systemctl start kubelet"

    status, output, errors = ended(command(shoot, tmp_path, node, "--", stopped))
    assert status == 0, errors
    state, *log = output.splitlines()
    assert state in ("inactive", "failed"), output
    assert any("kubelet" in line for line in log), output
    healthz = shoot.argv("get", "--raw", f"/api/v1/nodes/{node}/proxy/healthz")
    eventually(lambda: subprocess.run(healthz, capture_output=True, check=False).returncode == 0, "it answers", 60)


def test_sigterm_ends_the_session_and_deletes_the_bastion(shoot: Shoot, tmp_path: Path) -> None:
    node = sorted(name for pool in shoot.nodes().values() for name in pool)[0]
    process = command(shoot, tmp_path, node, "--", "echo begun; sleep 600")
    assert process.stdout
    assert process.stdout.readline() == "begun\n"

    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 128 + signal.SIGTERM


def test_unknown_objects_are_errors_and_make_no_bastion(shoot: Shoot, tmp_path: Path) -> None:
    status, _, errors = ended(command(shoot, tmp_path, "no-such-node", "--", "true"))
    assert status == 1
    assert re.search(r"has no node no-such-node; its nodes: \S+", errors)
    assert "Bastion" not in errors


def test_a_bastion_that_stays_is_reached_by_what_is_printed(shoot: Shoot, tmp_path: Path) -> None:
    status, output, errors = ended(command(shoot, tmp_path, "-o", "json"))
    assert status == 0, errors
    made = json.loads(output)
    try:
        said = subprocess.run(
            [*made["nodes"][0]["command"], "uname", "-n"], capture_output=True, text=True, timeout=60, check=False
        )
        assert said.stdout.strip() == made["nodes"][0]["name"], said.stderr
        modes = {each.name: each.stat().st_mode & 0o777 for each in Path(made["directory"]).glob("*.key")}
        assert modes == {"bastion.key": 0o600, "node-0.key": 0o600}
    finally:
        shoot.garden("delete", KIND, made["bastion"]["name"])
        for file in Path(made["directory"]).iterdir():
            file.unlink()
        Path(made["directory"]).rmdir()
