"""A changed configuration takes effect without a new process, and a faulty one changes nothing."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from api.model import ApiModel
from tests.unit.kube.waiting import until
from workers.gardenlet.config import GardenletConfig
from workers.lib.reload import REFUSED, follow_configuration
from workers.lib.runtime import ConfigurationChanged, load_config


class Config(ApiModel):
    period: int = 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "config.yaml"
    found.write_text("period: 1\n")
    return found


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_a_changed_configuration_starts_the_process_again(path: Path) -> None:
    following = asyncio.create_task(follow_configuration(path, load_config(Config, path), 0.01))
    write(path, "period: 2\n")

    with pytest.raises(ConfigurationChanged):
        await asyncio.wait_for(following, 10)


async def test_a_faulty_configuration_is_told_once_and_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    following = asyncio.create_task(follow_configuration(path, load_config(Config, path), 0.01))
    write(path, "period: soon\n")
    await until(lambda: REFUSED._value.get() == 1)
    write(path, "# a comment changes nothing\nperiod: 1\n")
    await until(lambda: REFUSED._value.get() == 0)

    assert not following.done()
    [message] = [each.message for each in caplog.records]
    assert "period: Input should be a valid integer" in message
    assert "soon" not in message
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


PROCESS = """
import os, sys
from api.model import ApiModel
from workers.lib.reload import follow_configuration
from workers.lib.runtime import load_config, run_until_signal, start

class Config(ApiModel):
    period: int = 1

async def run(path):
    config = load_config(Config, path)
    print(os.getpid(), config.period, flush=True)
    await run_until_signal(follow_configuration(path, config, 0.01))

start("example", run, sys.argv[1])
"""


@pytest.mark.timeout(60)
async def test_the_same_process_goes_on_with_the_new_configuration(path: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROCESS)
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, path, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert process.stdout is not None
    first = (await process.stdout.readline()).split()
    write(path, "period: 2\n")
    second = (await process.stdout.readline()).split()
    process.kill()
    await process.wait()

    assert (first, second) == ([b"%d" % process.pid, b"1"], [b"%d" % process.pid, b"2"])


GARDENLET = {
    "gardenClientConnection": {"kubeconfig": "garden"},
    "seedConfig": {"metadata": {"name": "seed-1"}, "spec": {}},
    "temporal": {"address": "127.0.0.1:7233", "codecKeyFile": "key"},
}


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        ({"NoSuchGate": True}, "featureGates.NoSuchGate: there is no such gate; known are CredentialsRotation"),
        (
            {"InPlaceNodeUpdates": True},
            "true is not possible, this version has false: nodes are updated",
        ),
        ({"ShootCredentialsBinding": False}, "false is not possible, this version has true"),
    ],
)
def test_a_feature_gate_that_would_do_nothing_is_refused(gates: dict[str, bool], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GardenletConfig.model_validate({**GARDENLET, "featureGates": gates})


def test_feature_gates_that_say_what_this_version_does_are_accepted() -> None:
    gates = {"ShootCredentialsBinding": True, "LiveControlPlaneMigration": False}

    assert GardenletConfig.model_validate({**GARDENLET, "featureGates": gates}).feature_gates == gates


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"vali": {"enabled": True}}, "vali is not possible.*VictoriaLogs"),
        ({"vali": {"garden": {"storage": "100Gi"}}}, "vali is not possible"),
        ({"shootEventLogging": {"enabled": True}}, "shootEventLogging is not possible.*no events"),
        ({"shootNodeLogging": {"shootPurposes": ["testing"]}}, "Shoots of purpose testing have no observability"),
        ({"shootNodeLogging": {"shootPurposes": ["prod"]}}, "Input should be 'evaluation'"),
        ({"fluentBit": {}}, "Extra inputs are not permitted"),
    ],
)
def test_a_part_of_logging_that_would_do_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GardenletConfig.model_validate({**GARDENLET, "logging": {"enabled": True, **given}})


def test_logging_is_off_unless_it_is_enabled_and_names_purposes() -> None:
    purposes = {"shootNodeLogging": {"shootPurposes": ["production"]}}
    others = {"vali": {"enabled": False}, "shootEventLogging": {"enabled": False}}

    def collected(**given: Any) -> frozenset[str]:
        found = GardenletConfig.model_validate({**GARDENLET, **({"logging": given} if given else {})})
        return found.logging.node_logs.purposes

    assert collected() == collected(enabled=True) == collected(**purposes) == frozenset()
    assert collected(enabled=True, **purposes, **others) == {"production"}
