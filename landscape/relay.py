"""Relay of connections from a network namespace to an address that the host reaches: an external Temporal.

So all processes of a landscape find Temporal at its usual address, and a seed that is cut off from the garden is cut
off from Temporal, too.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

from landscape.code import code_digest
from landscape.processes import ProcessSpec

_CHUNK = 64 * 1024
_NETWORK = 0x40000000  # CLONE_NEWNET


def process(name: str, netns: str, listen: str, target: str) -> ProcessSpec:
    """Runs in the host's network; only its listening socket is in ``netns``."""
    argv = (sys.executable, "-m", "landscape.relay", f"/run/netns/{netns}", listen, target)
    directory = str(Path(__file__).parents[1])
    return ProcessSpec(name, argv, environment={"GARDENER_VERSION": code_digest("landscape")}, directory=directory)


def listening(namespace: Path, address: str) -> socket.socket:
    """Listening socket in a network namespace. A socket stays in the namespace in which it was created."""
    host, port = address.rsplit(":", 1)
    with open("/proc/self/ns/net") as home, namespace.open() as there:
        _enter(there.fileno())
        try:
            return socket.create_server((host, int(port)), backlog=128)
        finally:
            _enter(home.fileno())


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NETWORK):
        number = ctypes.get_errno()
        raise OSError(number, f"entering a network namespace: {os.strerror(number)}")


async def serve(listener: socket.socket, target: str) -> None:
    """Relay connections until cancelled. If the target does not answer, the connection is closed: clients retry."""
    host, port = target.rsplit(":", 1)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError as error:
            print(f"connecting to {target}: {error}", flush=True)
            writer.close()
            return
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    server = await asyncio.start_server(accept, sock=listener)
    async with server:
        await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


if __name__ == "__main__":
    asyncio.run(serve(listening(Path(sys.argv[1]), sys.argv[2]), sys.argv[3]))
