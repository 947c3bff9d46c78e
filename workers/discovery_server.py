"""Discovery server: serves the documents with which third parties verify service account tokens of shoots.

``GET /projects/<project>/shoots/<uid>/issuer/.well-known/openid-configuration`` and ``.../issuer/jwks`` return content
of Secrets that gardenlets have published in the garden. ``GET /garden/workload-identity/issuer/...`` does so for the
issuer of WorkloadIdentities, whose documents the controller-manager publishes. Clients need no authentication, because
the server reads and serves nothing but public keys. Source: Gardener's gardener-discovery-server.
"""

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from api import resources
from api.constants import SHOOT_ISSUER_NAMESPACE
from api.decisions import issuer, workload_identity
from api.model import ApiModel
from kube.cache import Cache, Caches
from kube.objects import label_selector
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal
from workers.lib.serving import ServingCertificate

log = logging.getLogger(__name__)

_FRESH_SECONDS = 60
"""``max-age`` of an answer. A new key may sign tokens earlier; a client that does not know a key asks again at once."""
_PUBLIC = frozenset({"use", "kty", "kid", "alg", "n", "e", "crv", "x", "y", "key_ops"})
"""Members of a key that reveal nothing about its private part. Source: RFC 7517 and 7518."""


Handler = Callable[[web.Request], Awaitable[web.Response]]


class DiscoveryServerAddress(ApiModel):
    address: str
    port: int = 8445
    certificate_file: Path
    """File that is read again when it changes."""
    private_key_file: Path


class DiscoveryServerConfig(ApiModel):
    garden_client_connection: ClientConnection
    server: DiscoveryServerAddress
    health: HealthConfig = HealthConfig()


class Unfit(Exception):
    """A published Secret cannot be served; the text says why."""


async def run(config_path: str) -> None:
    """Run until SIGTERM."""
    config = load_config(DiscoveryServerConfig, config_path)
    client = kube_client(config.garden_client_connection)
    caches = Caches(client)
    published, of_garden = (
        caches.of(resources.SECRET, SHOOT_ISSUER_NAMESPACE, labels=label_selector(labels))
        for labels in (issuer.PUBLIC_KEYS, workload_identity.PUBLIC_KEYS)
    )
    certificate = ServingCertificate(config.server.certificate_file, config.server.private_key_file)
    health = Health()
    health_runner = await health.serve(config.health)
    runner = web.AppRunner(application(published, of_garden), access_log=None)
    try:
        await runner.setup()
        await web.TCPSite(runner, config.server.address, config.server.port, ssl_context=certificate.context).start()
        await run_until_signal(_become_ready(health, published, of_garden), certificate.follow())
    finally:
        await runner.cleanup()
        await health_runner.cleanup()
        await caches.close()
        await client.close()


async def _become_ready(health: Health, *caches: Cache) -> None:
    await asyncio.gather(*(each.synced() for each in caches))
    health.ready = True
    log.info("serving the public keys of shoots and of workload identities")
    await asyncio.Event().wait()


def application(published: Cache, of_garden: Cache) -> web.Application:
    """The server, with the two documents of each issuer.

    ``published``: Secrets of the issuers of Shoots. ``of_garden``: the Secret of the issuer of WorkloadIdentities.
    """

    def serve(key: str, pattern: str, name_of: Callable[[Mapping[str, str]], str], secrets: Cache) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            name, path = name_of(request.match_info), pattern.format(**request.match_info)
            secret = secrets.get(name, SHOOT_ISSUER_NAMESPACE)
            if secret is None:
                raise web.HTTPNotFound(text="no such issuer\n")
            try:
                document = _document(secret["data"], key, path)
            except Unfit as error:
                log.warning("Secret %s/%s is not served: %s", SHOOT_ISSUER_NAMESPACE, name, error)
                raise web.HTTPNotFound(text="no such issuer\n") from None
            return web.json_response(document, headers={"Cache-Control": f"public, max-age={_FRESH_SECONDS}"})

        return handler

    app = web.Application()
    for pattern, name_of, secrets in (
        (issuer.PATH, _name_of_shoots_secret, published),
        (workload_identity.PATH, lambda _: workload_identity.PUBLISHED, of_garden),
    ):
        for key, path in (
            (issuer.OPENID_CONFIGURATION, f"{pattern}/.well-known/openid-configuration"),
            (issuer.KEY_SET, issuer.key_set_url(pattern)),
        ):
            app.router.add_get(path, serve(key, pattern, name_of, secrets))
    return app


def _name_of_shoots_secret(asked: Mapping[str, str]) -> str:
    return issuer.secret_name(asked["project"], asked["uid"])


def _document(data: dict[str, str], key: str, path: str) -> dict[str, Any]:
    """The document that a Secret holds under ``key``. Raises Unfit if it is of another issuer, or not public."""
    try:
        document = json.loads(base64.b64decode(data[key]))
    except (KeyError, binascii.Error, ValueError) as error:
        raise Unfit(f"{key} can't be read ({type(error).__name__})") from None
    if key == issuer.OPENID_CONFIGURATION:
        own = {"issuer": path, "jwks_uri": issuer.key_set_url(path)}
        if not all(str(document.get(field)).endswith(end) for field, end in own.items()):
            raise Unfit(f"{key} is of another issuer")
    elif private := {member for each in document.get("keys") or () for member in each} - _PUBLIC:
        raise Unfit(f"{key} holds more than public keys: {', '.join(sorted(private))}")
    return dict(document)
