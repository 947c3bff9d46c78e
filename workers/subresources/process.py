"""The process of the subresource server: its configuration, its port and its certificates."""

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from pydantic import Field

from api.model import ApiModel
from kube.client import KubeClient
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal
from workers.lib.serving import ClientsFile, ServingCertificate
from workers.subresources.app import application
from workers.subresources.kubeconfigs import ADMIN, VIEWER, Kubeconfigs
from workers.subresources.limits import UserLimits, Users
from workers.subresources.requesters import Requesters

log = logging.getLogger(__name__)

_DAY = 24 * 3600
_HEADER_BYTES = 64 * 1024
"""Maximum size of one header: a token of a user with many groups may have more than the usual 8 KiB."""


class SubresourceServer(ApiModel):
    address: str
    port: int = 8446
    certificate_file: Path
    """File that is read again when it changes."""
    private_key_file: Path


class RequestHeader(ApiModel):
    """The front door, whose headers ``X-Remote-User``, ``X-Remote-Group`` and ``X-Remote-Extra-…`` are believed."""

    ca_file: Path
    """PEM file of the request-header CA, read again when it changes. Each client needs a certificate of this CA."""
    allowed_names: tuple[str, ...] = Field(default=("front-proxy-client",), min_length=1)
    """A client's certificate must have exactly one of these as its common name."""


class SubresourcesConfig(ApiModel):
    garden_client_connection: ClientConnection
    """Connection to the garden's API server, which authenticates and authorizes users."""
    server: SubresourceServer
    request_header: RequestHeader
    shoot_admin_kubeconfig_max_expiration: int = Field(default=_DAY, ge=3600, le=2**32)
    """Maximum validity in seconds. A request for more gets this."""
    shoot_viewer_kubeconfig_max_expiration: int = Field(default=_DAY, ge=3600, le=2**32)
    requests_at_once: int = Field(default=64, ge=1)
    """Maximum number of concurrent requests. Further requests wait for 1 s and then get status 429."""
    limits_of_users: UserLimits = UserLimits()
    health: HealthConfig = HealthConfig()


async def run(config_path: str) -> None:
    """Run until SIGTERM."""
    config = load_config(SubresourcesConfig, config_path)
    garden = kube_client(config.garden_client_connection)
    health = Health()
    health_runner = await health.serve(config.health)
    try:
        async with serving(config, garden) as (certificate, clients):
            health.ready = True
            log.info("serving subresources on https://%s:%d", config.server.address, config.server.port)
            await run_until_signal(certificate.follow(), clients.follow())
    finally:
        await health_runner.cleanup()
        await garden.close()


@asynccontextmanager
async def serving(
    config: SubresourcesConfig, garden: KubeClient
) -> AsyncIterator[tuple[ServingCertificate, ClientsFile]]:
    """Serve the port. Only clients with a certificate of the request-header CA complete a handshake."""
    server = config.server
    certificate = ServingCertificate(server.certificate_file, server.private_key_file, clients_show=ssl.CERT_REQUIRED)
    clients = ClientsFile(config.request_header.ca_file, certificate)
    seconds = {
        ADMIN.subresource: config.shoot_admin_kubeconfig_max_expiration,
        VIEWER.subresource: config.shoot_viewer_kubeconfig_max_expiration,
    }
    app = application(
        garden,
        Requesters(garden, config.request_header.allowed_names),
        Kubeconfigs(garden, seconds),
        Users(config.limits_of_users),
        requests_at_once=config.requests_at_once,
    )
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=300, max_field_size=_HEADER_BYTES)
    try:
        await runner.setup()
        await web.TCPSite(runner, server.address, server.port, ssl_context=certificate.context).start()
        yield certificate, clients
    finally:
        await runner.cleanup()
