"""The author of a kubeconfig names a program in it, and one of our processes would run the program."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.provider_local.cloud import read_kubeconfig
from kube.client import KubeClient
from kube.kubeconfig import KubeconfigError, endpoint_of, parse_kubeconfig

Config = dict[str, Any]


def kubeconfig(directory: Path, kind: str) -> tuple[Config, Path]:
    """A kubeconfig whose program makes a file, and that file."""
    trace = directory / "trace"
    users = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(trace)]},
        "auth-provider": {"name": "gcp", "config": {"cmd-path": f"touch {trace}"}},
    }
    config = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {kind: users[kind]}}],
    }
    return config, trace


def from_file(config: Config, directory: Path) -> object:
    """As a process reads a kubeconfig that is mounted from a Secret."""
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return KubeClient.from_kubeconfig(path)


READERS: dict[str, Callable[[Config, Path], object]] = {
    "mounted Secret": from_file,
    "text of a Secret": lambda config, _: KubeClient.from_kubeconfig(json.dumps(config)),
    "parsed Secret": lambda config, _: KubeClient.from_kubeconfig(config),
    "endpoint": lambda config, directory: endpoint_of(parse_kubeconfig(json.dumps(config)), directory),
}


@pytest.mark.attack(actor="T3", asset="A1", finding=24)
@pytest.mark.parametrize("kind", ["exec", "auth-provider"])
@pytest.mark.parametrize("reader", READERS)
def test_a_kubeconfig_from_a_secret_runs_no_program(tmp_path: Path, reader: str, kind: str) -> None:
    """A client that may write one Secret would run commands with all rights of the process that reads it."""
    config, trace = kubeconfig(tmp_path, kind)

    with pytest.raises(KubeconfigError, match="credentials from a program"):
        READERS[reader](config, tmp_path)

    assert not trace.exists()


@pytest.mark.attack(actor="T1", asset="A2", finding=24)
@pytest.mark.parametrize("kind", ["exec", "auth-provider"])
def test_the_cloud_credentials_of_a_tenant_run_no_program(tmp_path: Path, kind: str) -> None:
    config, trace = kubeconfig(tmp_path, kind)
    secret = {"kubeconfig": base64.b64encode(json.dumps(config).encode()).decode()}

    with pytest.raises(ApplicationError, match=f"uses {kind}"):
        read_kubeconfig(secret, "garden-x/cloud")

    assert not trace.exists()


@pytest.mark.attack(actor="T3", asset="A1", finding=24)
def test_only_the_command_for_people_lets_kubeconfigs_run_programs() -> None:
    """A process that reads kubeconfigs for others must not opt in."""
    root = Path(__file__).parents[2]
    rooms = ("activities", "workflows", "workers", "landscape", "examples")
    texts = {file: file.read_text() for room in rooms for file in (root / room).rglob("*.py")}
    opting_in = [each for each, text in texts.items() if "run_programs=" in text or "trusted=" in text]

    assert [each.relative_to(root).as_posix() for each in opting_in] == ["workers/cli/connection.py"]


def test_the_program_of_these_attacks_would_run(tmp_path: Path) -> None:
    """Otherwise the attacks above would fail for another reason."""
    config, trace = kubeconfig(tmp_path, "exec")
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    code = (
        "import asyncio, sys, kube.client, kube.errors, api.resources\n"
        "async def read():\n"
        "    async with kube.client.KubeClient.from_kubeconfig(sys.argv[1], run_programs=True) as client:\n"
        "        await client.list(api.resources.NAMESPACE)\n"
        "try:\n"
        "    asyncio.run(read())\n"
        "except kube.errors.ApiError:\n"
        "    pass\n"
    )

    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)

    assert trace.exists()
