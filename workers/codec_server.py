"""Codec endpoint: decrypts histories for people who read them in the Temporal UI or with a command.

``POST /decode`` takes and returns ``{"payloads": [...]}`` as the Temporal UI sends it. The caller authenticates with a
bearer token or a client certificate, as at the garden's API server. The caller must be allowed to get Shoots in all
namespaces, because a payload does not say which Shoot it belongs to. The endpoint does not encrypt, so no caller can
make a payload that our workers accept.
"""

import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web
from google.protobuf import json_format
from prometheus_client import Counter
from temporalio.api.common.v1 import Payloads
from temporalio.converter import PayloadCodec

from activities.secrets.keyring import CodecError
from api.model import ApiModel
from api.resources import SHOOT, TOKEN_REVIEW
from kube.client import KubeClient
from workers.lib.access import User, may
from workers.lib.codec import KeyFiles, ReadingCodec
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal
from workers.lib.serving import ClientsFile, ServingCertificate

log = logging.getLogger(__name__)

_LIMIT = 16 * 1024 * 1024
"""Maximum size of a request in bytes: a whole page of a history. Temporal's own limit for a message is 4 MiB."""

REQUESTS = Counter(
    "gardener_codec_requests",
    "Requests to the codec endpoint: decoded, invalid, unauthenticated or forbidden.",
    ["result"],
)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CodecServerConfig(ApiModel):
    codec_key_file: Path
    """File with the root keys."""
    shared_key_file: Path | None = None
    """Key file that all processes had before, to read histories of that time."""
    garden_client_connection: ClientConnection
    """Connection to the garden's API server, which authenticates and authorizes users."""
    address: str = "127.0.0.1"
    port: int = 8234
    certificate_file: Path
    """File that is read again when it changes. The Temporal UI sends tokens only to HTTPS endpoints."""
    private_key_file: Path
    client_ca_file: Path | None = None
    """PEM file of the authority that signs client certificates of the garden's users. None: only bearer tokens."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of Temporal UIs, such as ``http://198.18.0.1:8233``."""
    health: HealthConfig | None = None
    """Port for health and metrics. None: there is only /healthz, on the port of the codec."""


class Access(Protocol):
    """Authenticates requests, and authorizes them to read histories."""

    async def user(self, request: web.Request) -> User | None:
        """The authenticated user of a request; None if the request has no valid credentials."""

    async def may_read(self, user: User) -> bool:
        """Whether the user may get the Shoots of all namespaces."""


class GardenAccess:
    """Asks the garden's API server by TokenReview and SubjectAccessReview."""

    def __init__(self, garden: KubeClient) -> None:
        self._garden = garden

    async def user(self, request: web.Request) -> User | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return await self._user_of_token(token.strip())
        connection = request.get_extra_info("ssl_object")
        return user_of_certificate(connection.getpeercert() or {}) if connection is not None else None

    async def _user_of_token(self, token: str) -> User | None:
        review = {
            "apiVersion": TOKEN_REVIEW.api_version,
            "kind": TOKEN_REVIEW.kind,
            "metadata": {"name": ""},
            "spec": {"token": token},
        }
        status = (await self._garden.create(review)).get("status") or {}
        return User.of(status.get("user") or {}) if status.get("authenticated") else None

    async def may_read(self, user: User) -> bool:
        return await may(self._garden, user, "get", SHOOT)


def user_of_certificate(peer: Mapping[str, Any]) -> User | None:
    """The user in a verified client certificate, as Kubernetes reads it: common name, and organizations as groups.

    None if the subject has no common name or several: servers differ in which of several names they use.
    """
    attributes = [attribute for names in peer.get("subject", ()) for attribute in names]
    names = [value for kind, value in attributes if kind == "commonName"]
    groups = [value for kind, value in attributes if kind == "organizationName"]
    return User(name=names[0], groups=(*groups, "system:authenticated")) if len(names) == 1 else None


def application(codec: PayloadCodec, access: Access, allowed_origins: tuple[str, ...]) -> web.Application:
    """The endpoint, with CORS for the Temporal UI."""

    @web.middleware
    async def cors(request: web.Request, handler: _Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin", "")
        response = await handler(request)
        if origin in allowed_origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Methods"] = "POST, OPTIONS"
            response.headers["Access-Control-Allow-Headers"] = (
                "Content-Type, X-Namespace, Authorization, Authorization-Extras"
            )
            response.headers["Vary"] = "Origin"
        return response

    async def decode(request: web.Request) -> web.Response:
        user = await access.user(request)
        if user is None:
            return _refused(401, "unauthenticated", "show a bearer token or a client certificate of the garden")
        if not await access.may_read(user):
            log.warning("user %s may not read histories", user.name)
            return _refused(
                403, "forbidden", f"user {user.name} may not get shoots.core.gardener.cloud in all namespaces"
            )
        return await _decoded(request, codec)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def preflight(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[cors], client_max_size=_LIMIT)
    app.router.add_post("/decode", decode)
    app.router.add_route("OPTIONS", "/decode", preflight)
    app.router.add_get("/healthz", healthz)
    return app


def _refused(status: int, result: str, why: str) -> web.Response:
    REQUESTS.labels(result).inc()
    return web.Response(status=status, text=why, headers={"WWW-Authenticate": "Bearer"} if status == 401 else None)


async def _decoded(request: web.Request, codec: PayloadCodec) -> web.Response:
    try:
        payloads = json_format.Parse(await request.text(), Payloads())
    except (json_format.ParseError, UnicodeDecodeError):
        return _refused(400, "invalid", 'the body must be JSON: {"payloads": [...]}')
    try:
        decoded = Payloads(payloads=await codec.decode(payloads.payloads))
    except CodecError as error:
        return _refused(400, "invalid", str(error))
    REQUESTS.labels("decoded").inc()
    return web.json_response(text=json_format.MessageToJson(decoded, indent=None))


async def run(config_path: str) -> None:
    """Run until SIGTERM."""
    config = load_config(CodecServerConfig, config_path)
    garden = kube_client(config.garden_client_connection)
    shows = ssl.CERT_OPTIONAL if config.client_ca_file is not None else ssl.CERT_NONE
    certificate = ServingCertificate(config.certificate_file, config.private_key_file, clients_show=shows)
    following = [certificate.follow()]
    if config.client_ca_file is not None:
        following.append(ClientsFile(config.client_ca_file, certificate).follow())
    codec = ReadingCodec.of_files(KeyFiles(config.codec_key_file, config.shared_key_file))
    app = application(codec, GardenAccess(garden), config.allowed_origins)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, config.address, config.port, ssl_context=certificate.context).start()
    health = Health()
    health.ready = True
    health_runner = await health.serve(config.health) if config.health else None
    log.info("codec endpoint on https://%s:%d", config.address, config.port)
    try:
        await run_until_signal(*following)
    finally:
        await runner.cleanup()
        if health_runner is not None:
            await health_runner.cleanup()
        await garden.close()
