"""Programs in pods, against a server that speaks the protocol of a kubelet's streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from kube.client import KubeClient
from kube.errors import Unreachable
from kube.exec import run_in_pod
from kube.kubeconfig import Endpoint

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[KubeClient]:
    application = web.Application()
    application.router.add_get("/api/v1/namespaces/n/pods/p/exec", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with KubeClient(Endpoint(f"http://{host}:{port}", token="t0ken")) as client:
            yield client
    finally:
        await runner.cleanup()


def answering(*messages: bytes) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer t0ken"
        assert request.query.getall("command") == ["echo", "a b"]
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for each in messages:
            await socket.send_bytes(each)
        await socket.close()
        return socket

    return handle


def status(**fields: object) -> bytes:
    return b"\x03" + json.dumps(fields).encode()


FAILED = {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((b"\x01one ", b"\x02two ", b"\x01three", status(status="Success")), (0, "one two three")),
        ((b"\x01", b"", status(**FAILED)), (7, "")),
        ((status(status="Failure", reason="InternalError"),), (126, "")),
        ((b"\x01\xff", status(status="Success")), (0, "\ufffd")),
    ],
)
async def test_program_has_output_and_exit_status(messages, expected):
    async with served(answering(*messages)) as client:
        ran = await run_in_pod(client, "n", "p", ["echo", "a b"])
    assert (ran.status, ran.output) == expected


async def test_stream_that_ends_without_a_status_is_an_error():
    """The program may still run: a lost connection is no success."""
    async with served(answering(b"\x01one")) as client:
        with pytest.raises(Unreachable, match="ended without a status"):
            await run_in_pod(client, "n", "p", ["echo", "a b"])


async def test_refused_stream_is_an_error():
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=403)

    async with served(refuse) as client:
        with pytest.raises(Unreachable, match="opened no stream") as raised:
            await run_in_pod(client, "n", "p", ["echo", "a b"])
    assert raised.value.status == 403


async def test_program_without_end_times_out():
    held = asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        await held.wait()
        return socket

    async with served(hold) as client:
        with pytest.raises(Unreachable, match=r"no end within 0\.2 s"):
            await run_in_pod(client, "n", "p", ["echo", "a b"], seconds=0.2)
        held.set()
