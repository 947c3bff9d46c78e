"""The Go tests of ``temporal-server``: which client may call which method of Temporal, and the tokens of tasks."""

import asyncio
import os
from pathlib import Path

import pytest

from landscape import binaries
from landscape.progress import Progress
from landscape.shell import run

MODULE = Path(__file__).parents[3] / "temporal-server"


@pytest.mark.timeout(900)  # the first time, the packages of Temporal's server that they need are compiled
def test_the_authorization_of_temporals_clients_passes_its_own_tests() -> None:
    said = asyncio.run(go("test", *binaries.COMPILER_FLAGS, "-vet=off", "./authorization"))
    assert said.startswith("ok"), said


async def go(command: str, *arguments: str) -> str:
    environment = dict(os.environ) | binaries.GO_ENVIRONMENT
    program = await binaries._go(Progress(quiet=True))
    return await run(program, command, *arguments, environment=environment, directory=MODULE, check=False)
