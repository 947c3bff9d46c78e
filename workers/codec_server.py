"""Codec server: decrypts histories for people who look at them in the Temporal UI or CLI.

``POST /decode`` and ``/encode`` take and return ``{"payloads": [...]}`` as the Temporal UI sends it. Whoever
reaches this endpoint reads all histories: it listens where its configuration says, and answers only
the origins named there.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import web
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from api.model import ApiModel
from workers.codec import CodecError, EncryptionCodec, read_key_file
from workers.runtime import Health, HealthConfig, load_config, run_until_signal

log = logging.getLogger(__name__)

_LIMIT = 16 * 1024 * 1024
"""A whole history page at once; Temporal's own limit for a message is 4 MiB."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CodecServerConfig(ApiModel):
    codec_key_file: Path
    address: str = "127.0.0.1"
    port: int = 8234
    allowed_origins: tuple[str, ...] = ()
    """Origins of Temporal UIs, such as ``http://198.18.0.1:8233``."""
    health: HealthConfig | None = None
    """Health and metrics on a port of their own; None: /healthz beside the codec alone."""


def application(codec: EncryptionCodec, allowed_origins: tuple[str, ...]) -> web.Application:
    """The two endpoints, with CORS for the UI."""

    @web.middleware
    async def cors(request: web.Request, handler: _Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin", "")
        response = web.Response() if request.method == "OPTIONS" else await handler(request)
        if origin in allowed_origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Methods"] = "POST, OPTIONS"
            response.headers["Access-Control-Allow-Headers"] = "Content-Type, X-Namespace, Authorization"
            response.headers["Vary"] = "Origin"
        return response

    async def decode(request: web.Request) -> web.Response:
        return await _answer(request, codec.decode)

    async def encode(request: web.Request) -> web.Response:
        return await _answer(request, codec.encode)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def preflight(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[cors], client_max_size=_LIMIT)
    app.router.add_post("/decode", decode)
    app.router.add_post("/encode", encode)
    app.router.add_get("/healthz", healthz)
    for path in ("/decode", "/encode"):
        app.router.add_route("OPTIONS", path, preflight)
    return app


async def _answer(
    request: web.Request, convert: Callable[[Sequence[Payload]], Awaitable[list[Payload]]]
) -> web.Response:
    try:
        payloads = json_format.Parse(await request.text(), Payloads())
    except (json_format.ParseError, UnicodeDecodeError):
        return web.Response(status=400, text='the body must be JSON: {"payloads": [...]}')
    try:
        converted = Payloads(payloads=await convert(payloads.payloads))
    except CodecError as error:
        return web.Response(status=400, text=str(error))
    return web.json_response(text=json_format.MessageToJson(converted, indent=None))


async def run(config_path: str) -> None:
    """Run until SIGTERM."""
    config = load_config(CodecServerConfig, config_path)
    app = application(EncryptionCodec(read_key_file(config.codec_key_file)), config.allowed_origins)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, config.address, config.port).start()
    health = Health()
    health.ready = True
    health_runner = await health.serve(config.health) if config.health else None
    log.info("codec endpoint on http://%s:%d", config.address, config.port)
    try:
        await run_until_signal()
    finally:
        await runner.cleanup()
        if health_runner is not None:
            await health_runner.cleanup()
