"""The admission server of the garden: a process that answers the API server's webhooks."""

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self

from aiohttp import web
from pydantic import model_validator

from activities.kube.cache import Caches
from activities.kube.client import KubeClient
from api import resources
from api.model import ApiModel
from api.resources import Resource
from api.server import seed_authorizer
from api.server.app import application
from api.server.review import User
from workers.access import may
from workers.admission_certificates import AdmissionCertificates, OwnCertificates
from workers.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal
from workers.serving import ServingCertificate, ShownCertificate

log = logging.getLogger(__name__)

_CACHED = (
    resources.SHOOT,
    resources.SEED,
    resources.PROJECT,
    resources.CLOUD_PROFILE,
    resources.CONTROLLER_REGISTRATION,
    resources.CREDENTIALS_BINDING,
    resources.SECRET_BINDING,
    resources.CORE_BACKUP_ENTRY,
)
_SYNC_SECONDS = 5.0
_MASTERS = "system:masters"


class WebhookServer(ApiModel):
    address: str
    port: int = 9443
    certificate_file: Path | None = None
    """Read again when it changes; who writes it keeps the webhooks, too."""
    private_key_file: Path | None = None


class AuthorizerServer(ApiModel):
    address: str
    port: int = 9444
    certificate_file: Path
    """Read again when it changes. The garden's API server trusts it by a file, so it is of an authority that stays."""
    private_key_file: Path


class AdmissionConfig(ApiModel):
    garden_client_connection: ClientConnection
    server: WebhookServer
    seed_authorizer: AuthorizerServer | None = None
    """None: the garden's API server does not ask what gardenlets may do."""
    certificates: OwnCertificates | None = None
    """In place of files: admission makes and renews its certificate, and has the garden's API server trust it."""
    health: HealthConfig = HealthConfig()

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        files = (self.server.certificate_file, self.server.private_key_file)
        if self.certificates is not None and files != (None, None):
            raise ValueError("certificates and server.certificateFile exclude each other")
        if self.certificates is None and None in files:
            raise ValueError("either certificates, or server.certificateFile and server.privateKeyFile are needed")
        return self


async def run(config_path: str) -> None:
    """Run until SIGTERM."""
    config = load_config(AdmissionConfig, config_path)
    client = kube_client(config.garden_client_connection)
    caches = Caches(client)
    health = Health()
    health_runner = await health.serve(config.health)
    garden = CachedGarden(client, caches)
    runners = []

    async def serve(routes: web.Application, server: WebhookServer | AuthorizerServer, shown: ShownCertificate) -> None:
        runners.append(runner := web.AppRunner(routes, access_log=None, keepalive_timeout=300))
        await runner.setup()
        await web.TCPSite(runner, server.address, server.port, ssl_context=shown.context).start()

    try:
        shown, following, trusted = _certificate(config, client)
        work = [_become_ready(caches, health, trusted), following]
        await serve(application(garden), config.server, shown)
        if (server := config.seed_authorizer) is not None:
            files = ServingCertificate(server.certificate_file, server.private_key_file)
            await serve(seed_authorizer.application(garden, client), server, files)
            work.append(files.follow())
        await run_until_signal(*work)
    finally:
        for runner in (*runners, health_runner):
            await runner.cleanup()
        await caches.close()
        await client.close()


def _certificate(
    config: AdmissionConfig, client: KubeClient
) -> tuple[ShownCertificate, Coroutine[Any, Any, None], asyncio.Event]:
    """What is shown, who keeps it, and when it can be: out of files, or of our own."""
    if config.certificates is not None:
        shown = ShownCertificate()
        keeper = AdmissionCertificates(client, config.certificates, shown)
        return shown, keeper.run(), keeper.ready
    assert config.server.certificate_file is not None
    assert config.server.private_key_file is not None
    files = ServingCertificate(config.server.certificate_file, config.server.private_key_file)
    trusted = asyncio.Event()
    trusted.set()
    return files, files.follow(), trusted


async def _become_ready(caches: Caches, health: Health, trusted: asyncio.Event) -> None:
    await asyncio.gather(trusted.wait(), *(caches.of(resource).synced() for resource in _CACHED))
    health.ready = True
    log.info("answering admission reviews")
    await asyncio.Event().wait()


class CachedGarden:
    """Reads from caches; what they do not hold may be newer than they are, and is asked for."""

    def __init__(self, client: KubeClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        if resource in _CACHED:
            found = self._caches.of(resource).get(name, namespace)
            if found is not None:
                return found
        return await self._client.find(resource, name, namespace)

    async def list(self, resource: Resource, namespace: str | None = None, labels: str = "") -> list[dict[str, Any]]:
        if labels:
            return await self._client.list(resource, namespace, labels=labels)
        cache = self._caches.of(resource)
        await asyncio.wait_for(cache.synced(), _SYNC_SECONDS)
        return cache.list(namespace)

    async def allowed(self, user: User, verb: str, resource: Resource, namespace: str | None, name: str) -> bool:
        if _MASTERS in user.groups:
            return True
        return await may(self._client, user, verb, resource, namespace or "", name)
