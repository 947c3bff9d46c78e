"""A proxy before an API server that kills a process of the resource manager after one of its writes."""

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.api_servers import free_port
from tests.gardens import ADMIN
from workers.resource_manager import run

_ROOT = Path(__file__).parents[3]
_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_HOP = ("transfer-encoding", "content-length", "content-encoding", "connection", "date", "server")


class KillingProxy:
    """Passes requests on as an administrator, and counts the writes that the API server has answered."""

    def __init__(self, url: str) -> None:
        self.port = free_port()
        self._url = url
        self.writes = 0
        self._victim = 0
        self._left = 0
        self.killed = asyncio.Event()
        self._under_way: set[asyncio.Task[tuple[int, dict[str, str], bytes]]] = set()

    def kill(self, victim: int, *, after: int) -> None:
        """Kill the process with this id when the API server has answered this many writes from now on."""
        self._victim, self._left = victim, after
        self.killed.clear()

    def spare(self) -> None:
        """Let the next process live."""
        self._victim = 0
        self.killed.clear()

    async def settled(self) -> None:
        """Wait until the API server has answered the writes that a killed process has sent."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._pass)
        connector = aiohttp.TCPConnector(ssl=False, limit=0)
        headers = {"Authorization": f"Bearer {ADMIN}"}
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(self._url, connector=connector, headers=headers, timeout=timeout) as self._api:
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            try:
                yield
            finally:
                await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        writes = request.method in _WRITES and "dryRun" not in request.query
        if writes and self.killed.is_set():
            return web.Response(status=503, text="the process that sent this is dead")
        headers = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
        body = await request.read()
        if writes:
            task = asyncio.create_task(self._write(request, headers, body))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            status, answered, content = await asyncio.shield(task)  # it goes on when the process is killed
            return web.Response(status=status, headers=answered, body=content)
        async with self._api.request(request.method, request.rel_url, headers=headers, data=body) as answer:
            passed = web.StreamResponse(status=answer.status, headers=_passed(answer))
            await passed.prepare(request)
            async for part in answer.content.iter_any():
                await passed.write(part)
            await passed.write_eof()
            return passed

    async def _write(
        self, request: web.Request, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        async with self._api.request(request.method, request.rel_url, headers=headers, data=body) as answer:
            content = await answer.read()
            # Also after an answer that refuses the write: it has changed nothing, and the next process asks again.
            self._count()
            return answer.status, _passed(answer), content

    def _count(self) -> None:
        self.writes += 1
        if not self._victim or self.killed.is_set():
            return
        self._left -= 1
        if self._left == 0:
            os.kill(self._victim, signal.SIGKILL)
            self.killed.set()


def _passed(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """Headers of an answer to pass on."""
    return {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}


class Processes:
    """Starts processes of the resource manager, each a fork of one that has imported it: a test starts many."""

    def __init__(self, forks: asyncio.subprocess.Process) -> None:
        self._forks = forks
        self._ids: list[int] = []

    async def start(self, config: Path) -> int:
        """Start a process with this configuration; returns its id. Its log is beside the configuration."""
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(f"{config}\n".encode())
        self._ids.append(int(await self._forks.stdout.readline()))
        return self._ids[-1]

    def kill_all(self) -> None:
        while self._ids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._ids.pop(), signal.SIGKILL)


@contextlib.asynccontextmanager
async def processes() -> AsyncIterator[Processes]:
    pipe = asyncio.subprocess.PIPE
    forks = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, stdin=pipe, stdout=pipe, cwd=_ROOT)
    made = Processes(forks)
    try:
        yield made
    finally:
        made.kill_all()
        forks.kill()
        await forks.wait()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """Fork a process for each line of the standard input, which names its configuration, and print its id."""
    importlib.import_module("workers.resource_manager.process")  # once, before the first fork
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            logging.basicConfig(filename=Path(line.strip()).with_suffix(".log"), level=logging.INFO)
            asyncio.run(run(line.strip()))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
