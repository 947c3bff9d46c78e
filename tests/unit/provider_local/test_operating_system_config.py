"""User data: run for real, with a directory as the machine's root."""

import base64
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.extension import Extension
from activities.provider_local.operating_system_config import (
    OperatingSystemConfigActuator,
    update_command,
    user_data,
)
from api.resources import OPERATING_SYSTEM_CONFIG
from tests.unit.kube.fake_cluster import FakeCluster

NAMESPACE = "shoot--dev--one"


def boot(script: str, root: Path) -> list[str]:
    """Run a script whose absolute paths were moved below ``root``; returns the calls of systemctl."""
    tools, log = root / "tools", root / "systemctl.log"
    tools.mkdir(parents=True)
    fake = tools / "systemctl"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    moved = script.replace(" /", f" {root}/").replace("'/", f"'{root}/").replace("#!" + f"{root}", "#!")
    subprocess.run(["bash", "-c", moved], check=True, env=environment)
    return log.read_text().splitlines() if log.exists() else []


def file(path: str, **fields: Any) -> dict[str, Any]:
    content = fields.pop("content", {"inline": {"data": "x"}})
    return {"path": path, "content": content, **fields}


def test_a_first_boot_writes_files_as_they_are_with_their_permissions(tmp_path: Path) -> None:
    awkward = "it's $HOME `id`\n\tEOF\n\\n ü"
    spec = {
        "files": [
            file("/opt/a b/plain", content={"inline": {"data": awkward}}),
            file("/etc/b64", content={"inline": {"encoding": "b64", "data": base64.b64encode(b"\x00\xff").decode()}}),
            file("/etc/clear", content={"inline": {"data": awkward}, "transmitUnencoded": True}, permissions=0o600),
            file("/etc/secret", content={"secretRef": {"name": "s", "dataKey": "k"}}),
        ]
    }
    boot(user_data(spec, {"s": {"k": base64.b64encode(b"from a secret").decode()}}), tmp_path)

    assert (tmp_path / "opt/a b/plain").read_text() == awkward
    assert (tmp_path / "etc/b64").read_bytes() == b"\x00\xff"
    assert (tmp_path / "etc/clear").read_text() == awkward
    assert (tmp_path / "etc/secret").read_text() == "from a secret"
    assert stat.S_IMODE((tmp_path / "etc/clear").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "etc/b64").stat().st_mode) == 0o644


def test_placeholders_travel_in_the_clear_and_everything_else_does_not() -> None:
    """The machine controller manager replaces them in the text of the script."""
    spec = {
        "files": [
            file("/token", content={"inline": {"data": "<<BOOTSTRAP_TOKEN>>"}, "transmitUnencoded": True}),
            file("/other", content={"inline": {"data": "visible?"}}),
        ]
    }
    script = user_data(spec, {})

    assert "<<BOOTSTRAP_TOKEN>>" in script
    assert "visible?" not in script


def test_units_are_written_before_any_is_started(tmp_path: Path) -> None:
    spec = {
        "units": [
            {"name": "a.service", "content": "[Unit]\n", "dropIns": [{"name": "10.conf", "content": "[Service]\n"}]},
            {"name": "b.service", "command": "stop", "enable": True},
            {"name": "c.service", "enable": False},
        ]
    }
    calls = boot(user_data(spec, {}), tmp_path)

    assert (tmp_path / "etc/systemd/system/a.service").read_text() == "[Unit]\n"
    assert (tmp_path / "etc/systemd/system/a.service.d/10.conf").read_text() == "[Service]\n"
    assert calls == [
        "--no-reload enable a.service b.service",
        "--no-reload disable c.service",
        "daemon-reload",
        "--no-block restart a.service",
        "--no-block stop b.service",
    ]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"imageRef": {"image": "i", "filePathInImage": "/f"}}, "possible only with purpose reconcile"),
        ({"secretRef": {"name": "gone", "dataKey": "k"}}, "Secret gone"),
    ],
)
def test_content_that_a_first_boot_cannot_have_is_a_configuration_problem(
    content: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ApplicationError, match=complaint) as refused:
        user_data({"files": [file("/x", content=content)]}, {})

    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"


def osc(purpose: str, data: str = "x") -> Extension:
    found = {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "OperatingSystemConfig",
        "metadata": {"name": "key-init", "namespace": NAMESPACE, "uid": "u"},
        "spec": {"type": "local", "purpose": purpose, "files": [file("/x", content={"inline": {"data": data}})]},
    }
    return Extension(OPERATING_SYSTEM_CONFIG, found, None)


async def test_user_data_is_in_a_secret_that_is_deleted_with_its_config() -> None:
    seed = FakeCluster()
    actuator = OperatingSystemConfigActuator(seed)
    status = await actuator.reconcile(osc("provision"))

    assert status == {"cloudConfig": {"secretRef": {"name": "osc-result-key-init", "namespace": NAMESPACE}}}
    (secret,) = (each for each in seed.objects.values() if each["kind"] == "Secret")
    assert base64.b64decode(secret["data"]["cloud_config"]).startswith(b"#!/bin/bash\n")
    await actuator.delete(osc("provision"))
    assert not seed.objects


async def test_the_node_agents_purpose_needs_nothing_from_the_provider() -> None:
    seed = FakeCluster()

    assert await OperatingSystemConfigActuator(seed).reconcile(osc("reconcile")) == {}
    assert not seed.objects


async def test_user_data_that_no_cloud_takes_is_refused() -> None:
    with pytest.raises(ApplicationError, match="at most 16384 fit"):
        await OperatingSystemConfigActuator(FakeCluster()).reconcile(osc("provision", "x" * 20_000))


def test_the_operating_system_says_the_version_to_which_it_was_updated(tmp_path: Path) -> None:
    """Twice, because the node agent repeats the command after it was interrupted."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "usr").mkdir()
    original = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n'
    (tmp_path / "usr/os-release").write_text(original)
    (tmp_path / "etc/os-release").symlink_to("../usr/os-release")
    for version in ("1.0.1", "1.0.1", "1.1.0"):
        update = update_command({"operatingSystemVersion": version})
        script, *rest = update["args"][1:]
        fake = tmp_path / "systemctl"
        fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/systemctl.log\n')
        fake.chmod(0o755)
        moved = script.replace("/etc/", f"{tmp_path}/etc/")
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run([update["command"], update["args"][0], moved, *rest], check=True, env=environment)

        assert (tmp_path / "etc/os-release").read_text() == (
            f'PRETTY_NAME="Debian GNU/Linux 12 (bookworm) (image {version})"\nID=debian\nIMAGE_VERSION={version}\n'
        )
    assert (tmp_path / "usr/os-release").read_text() == original
    assert (tmp_path / "systemctl.log").read_text() == "try-restart --no-block kubelet.service\n" * 3
