"""Discovery server: serves the documents with which third parties verify service account tokens of shoots.

``GET /projects/<project>/shoots/<uid>/issuer/.well-known/openid-configuration`` and ``.../issuer/jwks`` return content
of Secrets that gardenlets have published in the garden. Clients need no authentication, because the server reads and
serves nothing but public keys. Source: Gardener's gardener-discovery-server.
"""

import asyncio
import base64
import binascii
import json
import logging
from pathlib import Path
from typing import Any

from aiohttp import web

from api import resources
from api.constants import SHOOT_ISSUER_NAMESPACE
from api.decisions import issuer
from api.model import ApiModel
from kube.cache import Cache, Caches
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal
from workers.lib.serving import ServingCertificate

log = logging.getLogger(__name__)

_FRESH_SECONDS = 60
"""``max-age`` of an answer. A new key may sign tokens earlier; a client that does not know a key asks again at once."""
_PUBLIC = frozenset({"use", "kty", "kid", "alg", "n", "e", "crv", "x", "y", "key_ops"})
"""Members of a key that reveal nothing about its private part. Source: RFC 7517 and 7518."""


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
    labels = ",".join(f"{key}={value}" for key, value in issuer.PUBLIC_KEYS.items())
    published = caches.of(resources.SECRET, SHOOT_ISSUER_NAMESPACE, labels=labels)
    certificate = ServingCertificate(config.server.certificate_file, config.server.private_key_file)
    health = Health()
    health_runner = await health.serve(config.health)
    runner = web.AppRunner(application(published), access_log=None)
    try:
        await runner.setup()
        await web.TCPSite(runner, config.server.address, config.server.port, ssl_context=certificate.context).start()
        await run_until_signal(_become_ready(published, health), certificate.follow())
    finally:
        await runner.cleanup()
        await health_runner.cleanup()
        await caches.close()
        await client.close()


async def _become_ready(published: Cache, health: Health) -> None:
    await published.synced()
    health.ready = True
    log.info("serving the public keys of shoots")
    await asyncio.Event().wait()


def application(published: Cache) -> web.Application:
    """The server, with the two documents of each issuer."""

    def serve(key: str) -> Any:
        async def handler(request: web.Request) -> web.Response:
            name = issuer.secret_name(request.match_info["project"], request.match_info["uid"])
            secret = published.get(name, SHOOT_ISSUER_NAMESPACE)
            if secret is None:
                raise web.HTTPNotFound(text="no such issuer\n")
            try:
                document = _document(secret["data"], key, request.match_info)
            except Unfit as error:
                log.warning("Secret %s/%s is not served: %s", SHOOT_ISSUER_NAMESPACE, name, error)
                raise web.HTTPNotFound(text="no such issuer\n") from None
            return web.json_response(document, headers={"Cache-Control": f"public, max-age={_FRESH_SECONDS}"})

        return handler

    app = web.Application()
    app.router.add_get(f"{issuer.PATH}/.well-known/openid-configuration", serve(issuer.OPENID_CONFIGURATION))
    app.router.add_get(issuer.key_set_url(issuer.PATH), serve(issuer.KEY_SET))
    return app


def _document(data: dict[str, str], key: str, asked: Any) -> dict[str, Any]:
    """The document that a Secret holds under ``key``. Raises Unfit if it is of another issuer, or not public."""
    try:
        document = json.loads(base64.b64decode(data[key]))
    except (KeyError, binascii.Error, ValueError) as error:
        raise Unfit(f"{key} can't be read ({type(error).__name__})") from None
    if key == issuer.OPENID_CONFIGURATION:
        path = issuer.PATH.format(**asked)
        own = {"issuer": path, "jwks_uri": issuer.key_set_url(path)}
        if not all(str(document.get(field)).endswith(end) for field, end in own.items()):
            raise Unfit(f"{key} is of another issuer")
    elif private := {member for each in document.get("keys") or () for member in each} - _PUBLIC:
        raise Unfit(f"{key} holds more than public keys: {', '.join(sorted(private))}")
    return dict(document)
