"""Certificates that a machine trusts: the script is run, with commands of their names that record their arguments."""

import os
import subprocess
from pathlib import Path

import pytest

from activities.components import root_certificates
from activities.components.operating_system_config import provision, reconcile
from tests.unit.os_config.test_operating_system_config import node

ANCHOR = "etc/pki/trust/anchors/ROOTcerts.pem"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Root of a machine that the node agent has given certificates."""
    for command in ("update-ca-certificates", "systemctl"):
        path = tmp_path / command
        path.write_text(f'#!/bin/bash\necho "{command} $*" >> {tmp_path}/notes\n')
        path.chmod(0o755)
    for target, text, mode in root_certificates.files("ours\n"):
        file = tmp_path / target.lstrip("/")
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(mode)
    return tmp_path


def run(machine: Path, mode: str) -> list[str]:
    script = machine / "var/lib/ssl/update-local-ca-certificates.sh"
    text = script.read_text()
    for directory in ("/etc/", "/usr/", "/var/"):
        text = text.replace(f" {directory}", f" {machine}{directory}")
    (machine / "notes").unlink(missing_ok=True)
    environment = {"PATH": f"{machine}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-eu", "-c", text, script.name, mode], env=environment, check=True, timeout=20)
    return (machine / "notes").read_text().replace(str(machine), "").splitlines()


def test_debian_trusts_them_beside_those_of_the_image_and_forgets_them(machine: Path) -> None:
    (machine / "etc").mkdir()
    (machine / "etc/debian_version").write_text("12")
    brought = machine / "usr/local/share/ca-certificates"
    brought.mkdir(parents=True)
    (brought / "company.crt").write_text("theirs")
    restart = "systemctl try-restart --no-block containerd.service"
    directory = machine / "var/lib/ca-certificates-local"

    assert run(machine, "trust") == [
        "update-ca-certificates --fresh --localcertsdir /var/lib/ca-certificates-local",
        restart,
    ]
    assert {each.name: each.read_text() for each in directory.iterdir()} == {
        "ROOTcerts.crt": "ours\n",
        "company.crt": "theirs",
    }
    assert run(machine, "distrust") == ["update-ca-certificates --fresh", restart]


def test_other_systems_read_them_as_an_anchor(machine: Path) -> None:
    assert "update-ca-certificates " in run(machine, "trust")
    assert (machine / ANCHOR).read_text() == "ours\n"
    run(machine, "distrust")
    assert not (machine / ANCHOR).exists()


def test_a_machine_without_certificates_keeps_its_configuration() -> None:
    """One more file or unit would be a change on every node of every Shoot."""
    for make in (provision, reconcile):
        assert "ca-certificates" not in str(make(node()))
    assert root_certificates.bundle(None, "", " \n") == ""


def test_the_unit_runs_before_containerd_and_undoes_its_work_when_it_is_removed() -> None:
    [unit] = root_certificates.units("ours\n")
    lines = unit["content"].splitlines()
    assert "Before=containerd.service kubelet.service" in lines
    assert "RemainAfterExit=yes" in lines, "systemd stops only an active unit"
    assert [each for each in lines if each.startswith("Exec")] == [
        "ExecStart=/var/lib/ssl/update-local-ca-certificates.sh trust",
        "ExecStop=/var/lib/ssl/update-local-ca-certificates.sh distrust",
    ]
    assert set(unit["filePaths"]) == {path for path, _, _ in root_certificates.files("ours\n")}
