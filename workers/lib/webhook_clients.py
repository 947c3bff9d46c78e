"""Middlewares that limit which clients a server answers, and how many calls at once."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import Counter, Gauge

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REFUSED = Counter(
    "gardener_admission_refused_calls",
    "Calls of admission's ports that got no review.",
    ["reason"],
)
EXPIRATION = Gauge(
    "gardener_admission_client_certificate_expiration_timestamp",
    "End of the certificate that the garden's API server showed last, Unix seconds.",
    ["common_name"],
)
_RETRY_SECONDS = 1
_PATIENCE = 1.0
"""Seconds that a call waits for its turn. The API server itself waits 3 s for an authorizer and 10 s for a webhook."""
_REVIEW_SECONDS = 10.0
"""Maximum duration of a call: after that, the client has timed out, or it sends its body slowly on purpose."""


def elsewhere(path: str, limit: Middleware) -> Middleware:
    """Apply a middleware to all paths but one."""

    @web.middleware
    async def choose(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await (handler(request) if request.path == path else limit(request, handler))

    return choose


def only(common_names: Collection[str]) -> Middleware:
    """Answer clients whose verified certificate has exactly one of these common names; 403 for all others."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        name = _common_name(certificate or {})
        if certificate is None or name not in common_names:
            REFUSED.labels("client").inc()
            shown = f"clients named {name!r} are" if certificate else "a client without a certificate is"
            raise web.HTTPForbidden(text=f"{shown} not answered: see clientAuthentication of admission")
        EXPIRATION.labels(name).set(ssl.cert_time_to_seconds(certificate["notAfter"]))
        return await handler(request)

    return check


def at_once(limit: int) -> Middleware:
    """Answer at most ``limit`` calls at once. Others wait for 1 s and then get status 429.

    The API server retries such a call itself, as long as its own timeout allows.
    """
    turns = asyncio.Semaphore(limit)

    def busy() -> web.HTTPTooManyRequests:
        REFUSED.labels("busy").inc()
        return web.HTTPTooManyRequests(headers={"Retry-After": str(_RETRY_SECONDS)})

    @web.middleware
    async def wait(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            async with asyncio.timeout(_PATIENCE):
                await turns.acquire()
        except TimeoutError:
            raise busy() from None
        try:
            async with asyncio.timeout(_REVIEW_SECONDS) as deadline:
                return await handler(request)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise busy() from None
        finally:
            turns.release()

    return wait


def _common_name(certificate: Mapping[str, Any]) -> str:
    """Common name of a certificate; empty if the subject has none or several."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else ""
