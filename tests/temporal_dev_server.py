"""Temporal's development server as a process."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from temporalio.client import Client

from landscape.temporal import TUNING
from workflows import visibility

TEMPORAL = Path(sys.executable).parent / "temporal"
_START_SECONDS = 60


def command(port: int, *flags: str) -> list[str]:
    """A server at this port, with our search attributes, tuned as that of a landscape."""
    attributes = [f"--search-attribute={key.name}=Keyword" for key in visibility.ALL]
    # Each partition of a queue is fair for itself, and a worker takes from any of them.
    partitions = [f"--dynamic-config-value=matching.numTaskqueue{each}Partitions=1" for each in ("Read", "Write")]
    own = [str(TEMPORAL), "server", "start-dev", "--headless", f"--port={port}", "--log-level=error"]
    return [*own, *attributes, *TUNING, *partitions, *flags]


async def _serves(address: str, server: "subprocess.Popen[bytes]") -> None:
    """Return once the server answers requests, or has ended. It accepts connections some time before it answers."""
    async with asyncio.timeout(_START_SECONDS):
        while server.poll() is None:
            with contextlib.suppress(RuntimeError):
                await Client.connect(address)
                return
            await asyncio.sleep(0.1)  # the clock of a poll


@contextlib.contextmanager
def dev_server() -> Iterator[str]:
    """Address of a real server, in a process that knows nothing of the event loops of tests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(command(port), stdout=subprocess.DEVNULL)
    try:
        address = f"127.0.0.1:{port}"
        asyncio.run(_serves(address, server))
        yield address
    finally:
        server.terminate()
        server.wait()
