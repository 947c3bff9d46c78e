"""SSH access to a machine: the scripts are run, with commands of their names that record their arguments."""

import os
import subprocess
from pathlib import Path

import pytest

from activities.components import ssh_access

KEYS = ("ssh-ed25519 AAAA new", "ssh-ed25519 BBBB old")
COMMANDS = ("id", "useradd", "install", "rm", "systemctl", "pkill")


def run(directory: Path, keys: tuple[str, ...], name: str, **answers: int) -> list[str]:
    """Commands that the script of a unit calls; ``answers``: their exit statuses."""
    content = {path: text for path, text, _ in ssh_access.files(keys)}
    notes = directory / "notes"
    for command in COMMANDS:
        path = directory / command
        path.write_text(f'#!/bin/bash\necho "{command} $*" >> {notes}\nexit {answers.get(command, 0)}\n')
        path.chmod(0o755)
    script = directory / "run.sh"
    # The machine's own directory of rules for sudo is not this one's.
    script.write_text(content[f"/var/lib/{name}/run.sh"].replace("/etc/sudoers.d", f"{directory}/sudoers.d"))
    environment = {"PATH": f"{directory}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-eu", str(script)], env=environment, check=True, timeout=20)
    return notes.read_text().splitlines() if notes.exists() else []


def test_the_user_is_made_once_and_gets_the_keys(tmp_path: Path) -> None:
    (tmp_path / "sudoers.d").mkdir()
    made = run(tmp_path, KEYS, "gardener-user", id=1)
    assert made[1] == "useradd gardener -mU -s /bin/bash"
    assert made[-1].endswith(f"{ssh_access.AUTHORIZED_KEYS} /home/gardener/.ssh/authorized_keys")
    assert "-m 0600" in made[-1]
    assert (tmp_path / "sudoers.d/99-gardener-user").read_text() == "gardener ALL=(ALL) NOPASSWD:ALL\n"
    (tmp_path / "notes").unlink()
    assert not [each for each in run(tmp_path, KEYS, "gardener-user") if each.startswith("useradd")]


def test_without_ssh_access_no_key_is_left(tmp_path: Path) -> None:
    [removed] = run(tmp_path, (), "gardener-user")
    assert removed.startswith("rm -f /home/gardener/.ssh/authorized_keys ")
    assert removed.endswith("99-gardener-user")


def test_the_ssh_server_runs_only_if_ssh_access_is_enabled(tmp_path: Path) -> None:
    assert run(tmp_path, KEYS, "sshd-ensurer")[-1] == "systemctl enable --now ssh.service"
    (tmp_path / "notes").unlink()
    stopped = run(tmp_path, (), "sshd-ensurer", pkill=1)
    assert "systemctl disable --now ssh.service" in stopped
    assert stopped[-1] == "pkill -x sshd"


@pytest.mark.parametrize("keys", [KEYS, ()])
def test_a_machine_without_an_ssh_server_starts_none(tmp_path: Path, keys: tuple[str, ...]) -> None:
    asked = run(tmp_path, keys, "sshd-ensurer", systemctl=1)
    assert not [each for each in asked if "--now" in each]


@pytest.mark.parametrize("keys", [KEYS, ()])
def test_units_restart_if_one_of_their_files_changes(keys: tuple[str, ...]) -> None:
    followed = {path for unit in ssh_access.units(keys) for path in unit["filePaths"]}
    assert followed == {path for path, _, _ in ssh_access.files(keys)}
