"""The admission server of the garden: a process that answers the API server's webhooks."""

import asyncio
import gc
import logging
import ssl
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from aiohttp import web
from prometheus_client import Gauge
from pydantic import Field, model_validator

from api import resources
from api.constants import GARDEN_NAMESPACE, SEEDS_GROUP
from api.model import ApiModel
from api.resources import Resource
from kube.cache import Cache, Caches
from kube.client import KubeClient, WatchEvent
from kube.errors import ApiError
from workers.admission import seed_authorizer
from workers.admission.app import application
from workers.admission.authority import CLIENT, SharedAuthority
from workers.admission.certificates import OwnCertificates, admission_certificates
from workers.admission.indexes import INDEXES, Index
from workers.admission.limits import ResourceAdmissionConfiguration
from workers.admission.webhooks import CONVERT_PATH
from workers.lib import webhook_clients
from workers.lib.access import MASTERS, User, may
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal
from workers.lib.serving import ClientsFile, ServingCertificate, ShownCertificate

log = logging.getLogger(__name__)

_CACHED = (
    resources.SHOOT,
    resources.SEED,
    resources.PROJECT,
    resources.CLOUD_PROFILE,
    resources.NAMESPACED_CLOUD_PROFILE,
    resources.CONTROLLER_INSTALLATION,
    resources.CONTROLLER_REGISTRATION,
    resources.CREDENTIALS_BINDING,
    resources.SECRET_BINDING,
    resources.QUOTA,
    resources.PLANT,
    resources.CORE_BACKUP_BUCKET,
    resources.CORE_BACKUP_ENTRY,
    resources.MANAGED_SEED,
)
_SYNC_SECONDS = 5.0
_ANY_GARDENLET = User(name="gardener-admission:any-gardenlet", groups=(SEEDS_GROUP,))
"""User whose name is not that of a seed: the seed authorizer has no opinion on it, so roles alone decide."""
_GARDENLET_RIGHTS_POLL_SECONDS = 60.0

UNRESTRICTED = Gauge("gardener_gardenlets_unrestricted", "1 while gardenlets may read every Secret of the garden.")


class WebhookServer(ApiModel):
    address: str
    port: int = 9443
    certificate_file: Path | None = None
    """File that is read again when it changes. The webhooks must trust its authority; the setup job configures that."""
    private_key_file: Path | None = None
    resource_admission_configuration: ResourceAdmissionConfiguration = ResourceAdmissionConfiguration()
    """Limits for the size and the number of objects. If a setup job writes the webhooks, it needs the same ones."""


class AuthorizerServer(ApiModel):
    address: str
    port: int = 9444
    url: str | None = None
    """URL at which the garden's API server reaches this port, like ``https://admission.example.org:9444``. Admission
    makes and renews a certificate for that host, signed by the authority in Secret ``gardener-admission-authority``."""
    certificate_file: Path | None = None
    """File with the certificate, in place of ``url``. Admission reads it again when it changes. The API server reads
    the certificate's authority from a file of its own."""
    private_key_file: Path | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        files = (self.certificate_file, self.private_key_file)
        if self.url is not None and files != (None, None):
            raise ValueError("url and certificateFile exclude each other")
        if self.url is None and None in files:
            raise ValueError("either url, or certificateFile and privateKeyFile are needed")
        return self


class ClientAuthentication(ApiModel):
    """Certificates that clients of both ports must show, except for conversions: the API server shows none there."""

    ca_file: Path | None = None
    """PEM file of the authorities of these certificates, read again when it changes. None: the authority in Secret
    ``gardener-admission-authority``."""
    common_names: tuple[str, ...] = Field(default=(CLIENT,), min_length=1)
    """A client's certificate must have exactly one of these as its common name."""


class AdmissionConfig(ApiModel):
    garden_client_connection: ClientConnection
    server: WebhookServer
    seed_authorizer: AuthorizerServer | None = None
    """None: the garden's API server does not ask admission what gardenlets may do."""
    certificates: OwnCertificates | None = None
    """Set in place of files: admission makes and renews its certificate, and configures the webhooks to trust it."""
    client_authentication: ClientAuthentication | None = None
    """None: admission answers every client that reaches its ports."""
    reviews_at_once: int = Field(default=32, ge=1)
    """Maximum number of concurrent calls at each of the two ports. Further calls wait for 1 s and then get status
    429."""
    live_migration: bool = True
    """Whether Shoots may ask to be moved live. That needs a network in which gateways of seeds reach each other."""
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
    garden = CachedGarden(client, caches, live_migration=config.live_migration)
    try:
        certificates = Certificates(config, client)
        routes = application(garden, config.server.resource_admission_configuration)
        async with serving(config, certificates, routes, seed_authorizer.application(garden, client)):
            await run_until_signal(
                _become_ready(caches, health, certificates.ready), watch_gardenlets(garden), *certificates.work
            )
    finally:
        await health_runner.cleanup()
        await caches.close()
        await client.close()


@asynccontextmanager
async def serving(
    config: AdmissionConfig, certificates: "Certificates", webhooks: web.Application, authorizer: web.Application
) -> AsyncIterator[None]:
    """Serve both ports. The configuration says which clients are answered, and how many calls at once."""
    runners: list[web.AppRunner] = []

    async def serve(routes: web.Application, server: WebhookServer | AuthorizerServer, shown: ShownCertificate) -> None:
        limits = [webhook_clients.at_once(config.reviews_at_once)]
        if config.client_authentication is not None:
            limits.insert(0, webhook_clients.only(config.client_authentication.common_names))
        # Conversions have limits of their own: strangers may ask for them, and must not take the turns of reviews.
        routes.middlewares.extend(webhook_clients.elsewhere(CONVERT_PATH, each) for each in limits)
        runners.append(runner := web.AppRunner(routes, access_log=None, keepalive_timeout=300))
        await runner.setup()
        await web.TCPSite(runner, server.address, server.port, ssl_context=shown.context).start()

    try:
        await serve(webhooks, config.server, certificates.webhooks)
        if config.seed_authorizer is not None and certificates.authorizer is not None:
            await serve(authorizer, config.seed_authorizer, certificates.authorizer)
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


class Certificates:
    """Server certificates and client authorities of both ports, and the tasks that keep them up to date."""

    def __init__(self, config: AdmissionConfig, client: KubeClient) -> None:
        """Raises OSError or ssl.SSLError if a file that the configuration names cannot be used."""
        self.work: list[Coroutine[Any, Any, None]] = []
        self.ready: list[asyncio.Event] = []
        """Events that are set once the certificates that admission makes itself are served and trusted."""
        clients, authorizer = config.client_authentication, config.seed_authorizer
        # The API server shows no certificate when it asks for a conversion.
        optional, required = (ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED) if clients is not None else [ssl.CERT_NONE] * 2
        self.webhooks = self._of_files(config.server, optional)
        if config.certificates is not None:
            limits = config.server.resource_admission_configuration
            keeper = admission_certificates(client, config.certificates, self.webhooks, limits)
            self._keep(keeper.run(), keeper.ready)
        self.authorizer = self._of_files(authorizer, required) if authorizer is not None else None
        accepting = [each for each in (self.webhooks, self.authorizer) if each is not None]
        shared = SharedAuthority(
            client,
            host=(authorizer and authorizer.url and urlsplit(authorizer.url).hostname) or "",
            shown=self.authorizer if authorizer is not None and authorizer.url else None,
            accepting=accepting if clients is not None and clients.ca_file is None else [],
        )
        if shared.needed:
            self._keep(shared.run(), shared.ready)
        if clients is not None and clients.ca_file is not None:
            self.work.append(ClientsFile(clients.ca_file, *accepting).follow())

    def _of_files(self, server: WebhookServer | AuthorizerServer, clients_show: ssl.VerifyMode) -> ShownCertificate:
        """The certificate in files. If the configuration names no files: a ``ShownCertificate`` without content yet."""
        if server.certificate_file is None or server.private_key_file is None:
            return ShownCertificate(clients_show=clients_show)
        files = ServingCertificate(server.certificate_file, server.private_key_file, clients_show=clients_show)
        self.work.append(files.follow())
        return files

    def _keep(self, work: Coroutine[Any, Any, None], ready: asyncio.Event) -> None:
        self.work.append(work)
        self.ready.append(ready)


async def _become_ready(caches: Caches, health: Health, certificates: Sequence[asyncio.Event]) -> None:
    await asyncio.gather(
        *(each.wait() for each in certificates), *(caches.of(resource).synced() for resource in _CACHED)
    )
    # The caches hold most objects of this process. A full collection visits all of them: it takes 60 ms for 500 Shoots,
    # in the middle of a review, and frees nothing, because these objects have no cycles.
    gc.collect()
    gc.freeze()
    health.ready = True
    log.info("answering admission reviews")
    await asyncio.Event().wait()


class Authorizer(Protocol):
    """Checks what users may do in the garden; the garden's API server decides."""

    async def allowed(self, user: User, verb: str, resource: Resource, namespace: str | None, name: str, /) -> bool: ...


async def watch_gardenlets(garden: Authorizer) -> None:
    """Measure whether gardenlets may read any Secret of the garden, for the alert GardenletsUnrestricted."""
    while True:
        try:
            unrestricted = await garden.allowed(_ANY_GARDENLET, "get", resources.SECRET, GARDEN_NAMESPACE, "any")
        except ApiError as error:
            log.warning("checking what gardenlets may do: %s", error)
        else:
            UNRESTRICTED.set(unrestricted)
            if unrestricted:
                log.warning("gardenlets may read every Secret of the garden: see docs/operations/install.md")
        await asyncio.sleep(_GARDENLET_RIGHTS_POLL_SECONDS)


class CachedGarden:
    """Reads the garden from caches. An object that a cache does not hold may be newer than the cache, so it is read
    from the API server."""

    def __init__(self, client: KubeClient, caches: Caches, *, live_migration: bool = True) -> None:
        self.live_migration = live_migration
        self._client = client
        self._caches = caches
        self._changed = asyncio.Event()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks that a review holds or waits for."""
        for index in INDEXES:
            caches.of(index.resource).index(index.name, index.values)
        for resource in _CACHED:
            caches.of(resource).subscribe(self._change)

    def _change(self, _: WatchEvent) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        return self._changed

    def holds(self, resource: Resource) -> bool:
        return resource in _CACHED

    async def known(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        return (await self._synced(resource)).get(name, namespace)

    async def by_index(self, index: Index, value: str) -> list[dict[str, Any]]:
        return (await self._synced(index.resource)).by_index(index.name, value)

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        if not name:
            return None  # a request without a name would return a list
        if resource in _CACHED:
            found = self._caches.of(resource).get(name, namespace)
            if found is not None:
                return found
        return await self._client.find(resource, name, namespace)

    async def list(self, resource: Resource, namespace: str | None = None, labels: str = "") -> list[dict[str, Any]]:
        if labels:
            return await self._client.list(resource, namespace, labels=labels)
        return (await self._synced(resource)).list(namespace)

    async def number(self, resource: Resource) -> int:
        page = await self._client.request("GET", resource.path(), query={"limit": "1"})
        return len(page.get("items") or ()) + int(page["metadata"].get("remainingItemCount") or 0)

    async def _synced(self, resource: Resource) -> Cache:
        cache = self._caches.of(resource)
        if not cache.is_synced:
            await cache.synced(_SYNC_SECONDS)
        return cache

    async def allowed(self, user: User, verb: str, resource: Resource, namespace: str | None, name: str) -> bool:
        if MASTERS in user.groups:
            return True
        return await may(self._client, user, verb, resource, namespace or "", name)

    async def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        return await self._client.create(obj)

    async def replace(self, obj: dict[str, Any]) -> dict[str, Any]:
        return await self._client.replace(obj)

    def turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())
