"""A cluster that a Plant watches: a server with TLS whose answers a test chooses, and guards of the client.

Its name is ``cluster.example.org``. Only the resolver of a guard knows the addresses of the name.
"""

import base64
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from aiohttp.abc import ResolveResult

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, Usage
from kube.client import Guard, load_certificate
from tests.api_servers import free_port
from tests.unit.api.test_plants import kubeconfig
from workers.lib.addresses import OwnThreads, public_only

HOST = "cluster.example.org"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
_KEYS: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "validity": timedelta(days=1)}


class Names(OwnThreads):
    """A DNS that gives one name the addresses that a test chooses."""

    def __init__(self, *addresses: str, host: str = HOST) -> None:
        super().__init__(1)
        self._host = host
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        if host != self._host:
            return await super().resolve(host, port, family)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]


def reachable(*addresses: str) -> Guard:
    """A guard that lets the controller-manager connect to clusters on this machine."""
    return Guard(lambda _: "", Names(*(addresses or ("127.0.0.1",))))


def guarded(*addresses: str) -> Guard:
    """The guard of the controller-manager, with a DNS that answers with these addresses."""
    return Guard(public_only(), Names(*addresses))


@dataclass
class ForeignCluster:
    port: int = field(default_factory=free_port)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    """Answers in place of the usual ones, by path."""
    asked: list[str] = field(default_factory=list)
    authority: bytes = b""

    def secret(self, name: str = "crazy-kubeconfig", **cluster: Any) -> dict[str, Any]:
        """Secret with a kubeconfig of this cluster."""
        bundle = base64.b64encode(self.authority).decode()
        server = f"https://{HOST}:{self.port}"
        config = kubeconfig(**{"server": server, "certificate-authority-data": bundle, **cluster})
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": "garden-local"},
            "data": {"kubeconfig": base64.b64encode(json.dumps(config).encode()).decode()},
        }

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if chosen := self.answers.get(request.path):
            return await chosen(request)
        if request.path == "/healthz":
            return web.Response(text="ok")
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.31.1"})
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": self.nodes})

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ForeignCluster"]:
        now = datetime.now(UTC)
        ca = crypto.self_signed_ca("foreign", now=now, **_KEYS)
        shown = crypto.signed("server", ca=ca, usage=Usage.SERVER, dns_names=[HOST], now=now, **_KEYS)
        self.authority = ca.certificate
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_certificate(context, shown.certificate, shown.key)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=context).start()
        try:
            yield self
        finally:
            await runner.cleanup()
