"""A process of the machine connects to the Temporal of ``gardener shoot init``, which runs steps as root."""

import inspect
import stat
from pathlib import Path

import pytest

from activities.secrets.configs import CertificateAuthority
from activities.self_hosted.secrets import FileSecrets
from tests.unit.kube.waiting import until
from tests.workflow.test_self_hosted import STEPS
from workers.self_hosted import process
from workflows.self_hosted.init import InitSelfHostedShoot
from workflows.self_hosted.renew import RenewSelfHostedShoot


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
@pytest.mark.parametrize("step", STEPS, ids=lambda each: each.__name__)
def test_a_forged_flow_says_which_files_root_writes(step: object) -> None:
    """The server knows no clients. A step without inputs and results reads files of root alone."""
    signature = inspect.signature(step)  # type: ignore[arg-type]
    assert list(signature.parameters) == ["self"]
    assert signature.return_annotation is None


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
def test_a_forged_flow_passes_more_than_switches() -> None:
    assert list(inspect.signature(InitSelfHostedShoot.run).parameters) == ["self", "exposed", "named"]
    assert list(inspect.signature(RenewSelfHostedShoot.run).parameters) == ["self", "exposed"]


@pytest.mark.attack(actor="T6", asset="A3", finding=28)
async def test_a_host_of_the_network_connects_to_the_temporal_of_an_init(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = tmp_path / "arguments"
    program = tmp_path / "temporal"
    program.write_text(f'#!/bin/sh\necho "$@" > {started}.new && mv {started}.new {started}\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setattr(process, "TEMPORAL", str(program))
    async with process.temporal(tmp_path) as address:
        await until(started.exists)
    assert address.startswith("127.0.0.1:")
    assert "--ip=127.0.0.1" in started.read_text().split()
    assert "--headless" in started.read_text().split()


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
def test_another_user_of_the_machine_reads_its_secrets(tmp_path: Path) -> None:
    FileSecrets(tmp_path / "secrets").ensure(CertificateAuthority("ca"))
    for path in (tmp_path / "secrets", *(tmp_path / "secrets").rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
