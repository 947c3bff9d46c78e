"""The ``gardener`` command against a garden in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.kube.api_server import ApiServer
from workers.cli.main import gardener

Command = Callable[..., Awaitable[Result]]


@pytest.fixture
async def garden_server() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        yield server


@pytest.fixture
def command(garden_server: ApiServer, tmp_path: Path) -> Command:
    """Run ``gardener`` with arguments; the command has an event loop of its own."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(garden_server.kubeconfig())

    async def run(*arguments: str) -> Result:
        environment = {"GARDEN_KUBECONFIG": str(kubeconfig)}
        return await asyncio.to_thread(CliRunner(env=environment).invoke, gardener, list(arguments))

    return run
