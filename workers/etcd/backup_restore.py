"""``gardener worker backup-restore``: the sidecar of an etcd that has backups.

It serves HTTPS and requires client certificates of etcd's CA: a call of ``/snapshot/full`` is cheap for the client, but
reads the whole database. Interface: spec/extensions.md 5.
"""

import asyncio
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import Field

from activities.etcd import snapshots
from activities.etcd.client import EtcdClient, EtcdError, client_tls
from activities.etcd.snapshots import Snapshot
from activities.etcd.store import Store, open_store
from api.model import ApiModel
from api.times import timestamp
from workers.etcd.snapshotter import Schedule, SnapshotError, Snapshotter
from workers.lib.runtime import load_config, run_until_signal

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_FORWARDED = "X-Gardener-Forwarded"
_FORWARD = aiohttp.ClientTimeout(total=9 * 60, sock_connect=5)
_NICE = 5
"""Niceness of this process: etcd in the same pod, and the clients that wait for it, come first."""


class StoreConfig(ApiModel):
    """The place where backups are stored."""

    provider: str
    bucket: str
    prefix: str
    credentials_directory: Path
    """Directory of a mounted Secret, with one file for each key."""


class TLSConfig(ApiModel):
    """Mounted certificates; ``ca`` is the bundle that both sides trust."""

    ca: Path
    server_certificate: Path
    server_key: Path
    client_certificate: Path
    client_key: Path


class BackupRestoreConfig(ApiModel):
    """Configuration of the sidecar."""

    address: str = "0.0.0.0"
    port: int = 8080
    endpoint: str
    """Client URL of the etcd member in this pod."""
    tls: TLSConfig
    store: StoreConfig
    initialization_file: Path
    """File with the result of the initialization; etcd's wrapper writes it."""
    full_snapshot_schedule: str
    delta_snapshot_period: timedelta = timedelta(minutes=5)
    delta_snapshot_memory_limit: int = Field(default=100 << 20, gt=0)
    """Bytes of changes in memory at which a delta snapshot is written before its period is over."""
    full_snapshot_after_changes: int = Field(default=100_000, gt=0)
    garbage_collection_period: timedelta = timedelta(hours=12)
    defragmentation_schedule: str = ""
    several_members: bool = False
    """Whether etcd has several members. Then the leader's sidecar backs up, and answers all requests for snapshots."""


async def run(config_path: str) -> None:
    """Serve until SIGTERM. Changes that are not written by then are read from etcd again at the next start."""
    os.nice(_NICE)
    await run_until_signal(_run(load_config(BackupRestoreConfig, config_path)))


async def _run(config: BackupRestoreConfig) -> None:
    """Serve, and start again whenever the mounted certificates have changed."""
    while True:
        mounted = config.tls.ca.read_bytes(), config.tls.server_certificate.read_bytes()
        serving = asyncio.create_task(_serve(config))
        try:
            while mounted == (config.tls.ca.read_bytes(), config.tls.server_certificate.read_bytes()):
                if (await asyncio.wait([serving], timeout=_LOOK_SECONDS))[0]:
                    return await serving
        finally:
            serving.cancel()
            await asyncio.wait([serving])


async def _serve(config: BackupRestoreConfig) -> None:
    tls = config.tls
    etcd_tls = client_tls(tls.ca.read_bytes(), str(tls.client_certificate), str(tls.client_key))
    schedule = Schedule(
        full=config.full_snapshot_schedule,
        delta_period=config.delta_snapshot_period,
        delta_bytes=config.delta_snapshot_memory_limit,
        full_after_changes=config.full_snapshot_after_changes,
        garbage_collection_period=config.garbage_collection_period,
        defragmentation=config.defragmentation_schedule,
    )

    def store() -> Store:
        place = config.store
        return open_store(place.provider, _credentials(place.credentials_directory), place.bucket)

    async with EtcdClient(config.endpoint, etcd_tls) as etcd:
        snapshotter = Snapshotter(etcd, store, config.store.prefix, schedule)
        try:
            forward = _Forwarding(etcd, etcd_tls, config.port) if config.several_members else None
            async with serving(snapshotter, config, forward):
                await snapshotter.run()
        finally:
            await snapshotter.close()


@asynccontextmanager
async def serving(
    snapshotter: Snapshotter, config: BackupRestoreConfig, forwarding: "_Forwarding | None" = None
) -> AsyncIterator[None]:
    """Serve the HTTP interface with mutual TLS while the context is open."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(config.tls.ca))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(str(config.tls.server_certificate), str(config.tls.server_key))
    runner = web.AppRunner(application(snapshotter, config, forwarding), access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.address, config.port, ssl_context=context).start()
        yield
    finally:
        await runner.cleanup()


def application(
    snapshotter: Snapshotter, config: BackupRestoreConfig, forwarding: "_Forwarding | None" = None
) -> web.Application:
    """The HTTP interface as an aiohttp application."""
    handlers = _Handlers(snapshotter, config)
    app = web.Application(middlewares=[forwarding.middleware] if forwarding else [])
    app.router.add_get("/healthz", handlers.healthz)
    app.router.add_get("/metrics", handlers.metrics)
    app.router.add_get("/config", handlers.config)
    app.router.add_get("/snapshot/full", handlers.full)
    app.router.add_get("/snapshot/delta", handlers.delta)
    app.router.add_get("/snapshot/latest", handlers.latest)
    app.router.add_get("/initialization/start", handlers.start_initialization)
    app.router.add_get("/initialization/status", handlers.initialization_status)
    app.router.add_get("/initialization/revision", handlers.initialization_revision)
    return app


class _Forwarding:
    """Forwards requests for snapshots to the leader's sidecar, which alone takes them."""

    def __init__(self, etcd: EtcdClient, tls: ssl.SSLContext, port: int) -> None:
        self._etcd = etcd
        self._tls = tls
        self._port = port

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith("/snapshot/"):
            return await handler(request)
        try:
            leader = await self._etcd.leader()
        except EtcdError as error:
            raise web.HTTPServiceUnavailable(text=str(error)) from None
        if not leader:
            return await handler(request)
        if _FORWARDED in request.headers:
            raise web.HTTPServiceUnavailable(text="the leader changes, ask again")
        url = f"https://{urlsplit(leader).hostname}:{self._port}{request.path_qs}"
        async with aiohttp.ClientSession(timeout=_FORWARD, trust_env=False) as session:
            try:
                async with session.get(url, ssl=self._tls, headers={_FORWARDED: "true"}) as answer:
                    content = await answer.read()
                    return web.Response(status=answer.status, body=content, content_type=answer.content_type)
            except (aiohttp.ClientError, TimeoutError) as error:
                fault = f"the sidecar of the leader does not answer ({type(error).__name__})"
                raise web.HTTPServiceUnavailable(text=fault) from None


class _Handlers:
    def __init__(self, snapshotter: Snapshotter, config: BackupRestoreConfig) -> None:
        self._snapshotter = snapshotter
        self._config = config

    async def healthz(self, _: web.Request) -> web.Response:
        """Status 503 and the reason while backups are not up to date, else 200."""
        fault = self._snapshotter.fault
        return web.json_response({"health": not fault, "reason": fault}, status=503 if fault else 200)

    async def full(self, request: web.Request) -> web.Response:
        final = request.query.get("final", "false") == "true"
        try:
            return web.json_response(self._info(await self._snapshotter.full(final=final)))
        except SnapshotError as error:
            raise web.HTTPInternalServerError(text=str(error)) from None

    async def delta(self, _: web.Request) -> web.Response:
        """The delta snapshot that was written; status 204 if nothing had changed."""
        try:
            written = await self._snapshotter.delta()
        except SnapshotError as error:
            raise web.HTTPInternalServerError(text=str(error)) from None
        return web.json_response(self._info(written)) if written else web.Response(status=204)

    async def latest(self, _: web.Request) -> web.Response:
        full, deltas = snapshots.since_latest_full(self._snapshotter.known)
        return web.json_response(
            {
                "fullSnapshot": self._info(full) if full else None,
                "deltaSnapshots": [self._info(item) for item in deltas],
            }
        )

    async def start_initialization(self, _: web.Request) -> web.Response:
        """Start nothing: etcd's wrapper checks and restores by itself before each start of etcd."""
        return web.Response(text=self._initialization())

    async def initialization_status(self, _: web.Request) -> web.Response:
        return web.Response(text=self._initialization())

    async def initialization_revision(self, _: web.Request) -> web.Response:
        """Status and revision of the initialization.

        The revision is the one up to which etcd has replicated; 0 if it does not replicate, or has not begun.
        """
        return web.json_response({"status": self._initialization(), "revision": self._initialized("revision", 0)})

    async def config(self, _: web.Request) -> web.Response:
        shown = self._config.model_dump(mode="json", by_alias=True)
        return web.json_response(shown)

    async def metrics(self, _: web.Request) -> web.Response:
        full, deltas = snapshots.since_latest_full(self._snapshotter.known)
        lines = [
            "# TYPE etcdbr_healthy gauge",
            f"etcdbr_healthy {0 if self._snapshotter.fault else 1}",
            "# TYPE etcdbr_snapshot_latest_revision gauge",
            "# TYPE etcdbr_snapshot_latest_timestamp gauge",
            "# TYPE etcdbr_snapshots_since_full gauge",
            f"etcdbr_snapshots_since_full {len(deltas)}",
        ]
        for kind, newest in (("Full", full), ("Incr", deltas[-1] if deltas else None)):
            if newest:
                lines.append(f'etcdbr_snapshot_latest_revision{{kind="{kind}"}} {newest.last}')
                lines.append(f'etcdbr_snapshot_latest_timestamp{{kind="{kind}"}} {newest.created}')
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    def _initialization(self) -> str:
        return str(self._initialized("status", "New"))

    def _initialized(self, key: str, otherwise: Any) -> Any:
        try:
            return json.loads(self._config.initialization_file.read_bytes()).get(key, otherwise)
        except (OSError, ValueError):
            return otherwise

    def _info(self, snapshot: Snapshot) -> dict[str, Any]:
        return {
            "kind": snapshot.kind,
            "startRevision": snapshot.first,
            "lastRevision": snapshot.last,
            "createdOn": timestamp(datetime.fromtimestamp(snapshot.created, UTC)),
            "snapName": snapshot.name,
            "prefix": snapshots.directory(self._config.store.prefix),
            "compressionSuffix": ".gz" if snapshot.compressed else "",
            "isFinal": snapshot.final,
        }


def _credentials(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in directory.iterdir() if path.is_file()}
