"""The OIDC webhook authenticator of one shoot: its API server asks about bearer tokens that it does not know itself.

``POST /validate-token`` takes a TokenReview and returns it with a user, or as not authenticated. Only clients with a
certificate of the extension's authority are answered: the API server has the only one. The issuers come from
OpenIDConnect objects of the shoot. Source: GEP-12.
"""

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import Counter
from pydantic import ValidationError

from api import resources
from api.authentication.v1alpha1.openid_connect import OpenIDConnect
from api.model import ApiModel
from kube.cache import Cache
from kube.client import Object
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal
from workers.lib.serving import ClientsFile, ServingCertificate
from workers.oidc_service.provider_keys import ProviderKeys
from workers.oidc_service.tokens import Rejected, provider_of, user_of

log = logging.getLogger(__name__)

PATH = "/validate-token"
PORT = 10443
_GROUP = "authentication.k8s.io"
_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
_LARGEST = 256 * 1024
_FORGET_SECONDS = 60.0

REVIEWS = Counter("gardener_oidc_token_reviews", "Tokens that the authenticator has reviewed.", ["accepted"])


class Server(ApiModel):
    address: str = "0.0.0.0"
    port: int = PORT
    certificate_file: Path
    """File that is read again when it changes."""
    private_key_file: Path
    client_ca_file: Path
    """Authority of the API server's client certificate, read again when it changes."""


class AuthenticatorConfig(ApiModel):
    target_client_connection: ClientConnection
    """Access to the shoot."""
    server: Server
    blocked_networks: tuple[str, ...] = ()
    """Networks of the seed, in CIDR notation: no issuer may be there."""
    health: HealthConfig = HealthConfig()


async def run(config_path: str) -> None:
    """Run until SIGTERM."""
    config = load_config(AuthenticatorConfig, config_path)
    client = kube_client(config.target_client_connection)
    keys = ProviderKeys(ipaddress.ip_network(each) for each in config.blocked_networks)
    certificate = ServingCertificate(
        config.server.certificate_file, config.server.private_key_file, clients_show=ssl.CERT_REQUIRED
    )
    clients = ClientsFile(config.server.client_ca_file, certificate)
    health = Health()
    health_runner = await health.serve(config.health)
    try:
        async with Cache(client, resources.OPENID_CONNECT) as connects:
            runner = web.AppRunner(application(connects, keys), access_log=None)
            try:
                await runner.setup()
                await web.TCPSite(
                    runner, config.server.address, config.server.port, ssl_context=certificate.context
                ).start()
                await run_until_signal(
                    _become_ready(connects, health),
                    _forget(connects, keys),
                    certificate.follow(),
                    clients.follow(),
                )
            finally:
                await runner.cleanup()
    finally:
        await health_runner.cleanup()
        await client.close()


async def _become_ready(connects: Cache, health: Health) -> None:
    await connects.synced()
    health.ready = True
    log.info("reviewing tokens")
    await asyncio.Event().wait()


async def _forget(connects: Cache, keys: ProviderKeys) -> None:
    while True:
        await asyncio.sleep(_FORGET_SECONDS)
        keys.forget(provider_of(each) for each in valid(connects.list()))


def valid(objects: Sequence[Object]) -> list[OpenIDConnect]:
    """The OpenIDConnects by name, without those that an older schema has let in."""
    found = []
    for each in sorted(objects, key=lambda obj: str(obj["metadata"]["name"])):
        try:
            found.append(OpenIDConnect.of(each))
        except ValidationError:
            log.warning("OpenIDConnect %s does not fit its schema and is not used", each["metadata"]["name"])
    return found


def application(connects: Cache, keys: ProviderKeys) -> web.Application:
    """The server's one route."""

    async def review(request: web.Request) -> web.Response:
        try:
            body = await request.json()
            version, token = body["apiVersion"], body["spec"]["token"]
        except (ValueError, KeyError, TypeError):
            raise web.HTTPBadRequest(text="a TokenReview is needed\n") from None
        if version not in _VERSIONS or body.get("kind") != "TokenReview" or not isinstance(token, str):
            raise web.HTTPBadRequest(text=f"a TokenReview of {' or '.join(_VERSIONS)} is needed\n")
        status = await _status(token, lambda: valid(connects.list()), keys)
        REVIEWS.labels(str(status["authenticated"]).lower()).inc()
        return web.json_response({"apiVersion": version, "kind": "TokenReview", "status": status})

    app = web.Application(client_max_size=_LARGEST)
    app.router.add_post(PATH, review)
    return app


async def _status(token: str, connects: Callable[[], list[OpenIDConnect]], keys: ProviderKeys) -> dict[str, Any]:
    try:
        user = await user_of(token, connects(), keys)
    except Rejected as why:
        log.info("a token is rejected: %s", why)
        return {"authenticated": False, "error": str(why)}
    extra = {name: [value] for name, value in user.extra.items()}
    return {
        "authenticated": True,
        "user": {"username": user.name, "groups": list(user.groups), "extra": extra},
    }
