"""An API server whose lists have 200 MB each, in a process of its own: its memory must not count as the client's.

Usage: ``python -m tests.security.flooding_server``; the first line of its output is its port.
"""

import asyncio
import json
import sys
from datetime import UTC, datetime

from aiohttp import web

ITEMS, ITEM_BYTES = 1000, 200_000


def item(number: int) -> bytes:
    """Anything that care reads; nearly all of it is an annotation."""
    return json.dumps(
        {
            "metadata": {
                "name": f"gardener-node-agent-{number}",
                "namespace": "kube-system",
                "uid": str(number),
                "resourceVersion": "1",
                "creationTimestamp": "2026-11-21T10:00:00Z",
                "labels": {"worker.gardener.cloud/pool": "pool"},
                "annotations": {"fill": "x" * ITEM_BYTES},
            },
            "spec": {"renewTime": datetime.now(UTC).isoformat(), "leaseDurationSeconds": 40},
            "status": {"conditions": [{"type": "Ready", "status": "True", "message": ""}]},
        }
    ).encode()


async def answer(request: web.Request) -> web.StreamResponse:
    if request.path == "/healthz":
        return web.Response(text="ok")
    if request.path == "/redirect":
        return web.Response(status=302, headers={"Location": request.query["to"]})
    if request.path == "/endless":
        return await _endless(request)
    begin = int(request.query.get("continue") or 0)
    end = min(begin + int(request.query.get("limit") or ITEMS), ITEMS)
    metadata = {"resourceVersion": "1", "continue": str(end) if end < ITEMS else ""}
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"metadata": ' + json.dumps(metadata).encode() + b', "items": [')
    for number in range(begin, end):
        await response.write((b"," if number > begin else b"") + item(number))
    await response.write(b"]}")
    return response


async def _endless(request: web.Request) -> web.StreamResponse:
    """One JSON string without end; compressed, whatever was asked for, where the query says so."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    if "compressed" in request.query:
        response.enable_compression(web.ContentCoding.gzip)
    await response.prepare(request)
    await response.write(b'"')
    for _ in range(300):
        await response.write(b" " * (1 << 20))
    return response


async def serve() -> None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    print(site._server.sockets[0].getsockname()[1], flush=True)  # type: ignore[attr-defined]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the test closes it


if __name__ == "__main__":
    asyncio.run(serve())
