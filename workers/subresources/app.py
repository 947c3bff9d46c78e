"""The subresources over HTTP."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import Histogram

from api.constants import CORE, SECURITY
from api.resources import Resource
from api.security.v1alpha1.token_request import TokenRequest
from kube.client import KubeClient
from kube.errors import ApiError
from workers.lib.access import User, may
from workers.subresources import bindings, bodies, kubeconfigs
from workers.subresources.bodies import M
from workers.subresources.kubeconfigs import Kind, Kubeconfigs
from workers.subresources.limits import Users, limited
from workers.subresources.refusals import Refusal, bad_request, forbidden, internal, not_found, of_garden, of_http
from workers.subresources.requesters import Requesters
from workers.subresources.tokens import TOKEN, Tokens

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SECONDS = Histogram(
    "gardener_subresource_seconds",
    "Time to answer a request to a subresource.",
    ["subresource", "code"],
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5),
)

_IDENTITIES = f"/apis/{SECURITY}/v1alpha1/namespaces/{{namespace}}/workloadidentities/{{name}}"
_SHOOTS = f"/apis/{CORE}/v1beta1/namespaces/{{namespace}}/shoots/{{name}}"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_REQUEST_BYTES = 64 * 1024
_SHOOT_BYTES = 2 * 1024 * 1024
"""Maximum sizes of a body: of a request for a kubeconfig, and of a Shoot."""
_WARNINGS, _WARNING_LETTERS = 10, 256
"""Maximum number of warnings of an answer, and of the letters of each."""
_BODY_SECONDS = 10.0
"""Maximum duration of a body. A client that sends its body slowly holds one of the places of the server meanwhile."""
_PATIENCE = 1.0
"""Seconds that a request waits for its turn before it gets status 429."""
_DEADLINE = 30.0
"""Maximum duration of a request in seconds. A request takes longer only if the garden hangs."""


def application(
    garden: KubeClient, requesters: Requesters, issuer: Kubeconfigs, users: Users, *, requests_at_once: int
) -> web.Application:
    """The server's routes. To add a subresource: a route, with the verb that its users need."""
    tokens = Tokens(garden)

    def of_kind(kind: Kind) -> Handler:
        async def create(request: web.Request, namespace: str, name: str, user: User) -> web.Response:
            asked, warnings = await _read(kind.model, request, namespace, name)
            answer = await issuer.issue(kind, namespace, name, asked, user, dry_run=bodies.dry_run(request))
            return _answer(answer.to_wire(), 201, warnings)

        return _served(garden, requesters, users, {"POST": ("create", kind.resource, create)})

    async def bind(request: web.Request, namespace: str, name: str, user: User) -> web.Response:
        wanted = await bodies.read_object(request, _SHOOT_BYTES, _BODY_SECONDS)
        dry_run = bodies.dry_run(request)
        return _answer(await bindings.bind(garden, namespace, name, wanted, user, dry_run=dry_run), 200, [])

    async def make_token(request: web.Request, namespace: str, name: str, user: User) -> web.Response:
        asked, warnings = await _read(TokenRequest, request, namespace, name)
        answer, more = await tokens.issue(namespace, name, asked, user, dry_run=bodies.dry_run(request))
        return _answer(answer.to_wire(), 201, [*warnings, *more])

    app = web.Application(middlewares=[_as_status, _at_once(requests_at_once)])
    for kind in (kubeconfigs.ADMIN, kubeconfigs.VIEWER):
        app.router.add_route("*", f"{_SHOOTS}/{kind.subresource}", of_kind(kind))
    binding = _served(garden, requesters, users, {"PUT": ("update", bindings.BINDING, bind)})
    app.router.add_route("*", f"{_SHOOTS}/binding", binding)
    app.router.add_route(
        "*", f"{_IDENTITIES}/token", _served(garden, requesters, users, {"POST": ("create", TOKEN, make_token)})
    )
    return app


async def _read(model: type[M], request: web.Request, namespace: str, name: str) -> tuple[M, list[str]]:
    """The object in the body, which may name the object of the URL and no other one, and warnings. Raises Refusal."""
    asked, warnings = bodies.read(model, await bodies.read_object(request, _REQUEST_BYTES, _BODY_SECONDS), request)
    if asked.metadata.name not in ("", name) or asked.metadata.namespace not in ("", namespace):
        raise bad_request("metadata of the object does not match the name and the namespace on the URL")
    return asked, warnings


_Serve = Callable[[web.Request, str, str, User], Awaitable[web.Response]]


def _served(
    garden: KubeClient, requesters: Requesters, users: Users, methods: dict[str, tuple[str, Resource, _Serve]]
) -> Handler:
    """A handler that finds out the requester and asks the garden whether the requester may do that."""

    async def handle(request: web.Request) -> web.StreamResponse:
        user = await requesters.of(request)
        with users.request(user.name):
            return await answer(request, user)

    async def answer(request: web.Request, user: User) -> web.StreamResponse:
        if request.method not in methods:
            raise Refusal(
                405,
                "the server does not allow this method on the requested resource",
                headers={"Allow": ", ".join(methods)},
            )
        verb, resource, serve = methods[request.method]
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):
            raise not_found(_parent(resource), name[:253])
        bodies.check_accept(request)
        if not await may(garden, user, verb, resource, namespace, name):
            log.warning("user %r may not %s %s %s/%s", user.name, verb, resource.plural, namespace, name)
            raise forbidden(
                _parent(resource),
                name,
                f'User "{user.name}" cannot {verb} resource "{resource.plural}" in API group "{resource.group}" in the '
                f'namespace "{namespace}"',
            )
        return await serve(request, namespace, name, user)

    return handle


def _parent(subresource: Resource) -> Resource:
    """The kind that has a subresource."""
    return replace(subresource, plural=subresource.plural.partition("/")[0])


def _answer(content: object, status: int, warnings: list[str]) -> web.Response:
    answer = web.json_response(content, status=status, headers={"Cache-Control": "no-store"})
    for warning in warnings[:_WARNINGS]:
        plain = "".join(each if each.isascii() and each.isprintable() else "?" for each in warning[:_WARNING_LETTERS])
        quoted = plain.replace("\\", "\\\\").replace('"', '\\"')
        answer.headers.add("Warning", f'299 - "{quoted}"')
    return answer


@web.middleware
async def _as_status(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer each refusal and each error with a ``Status``, and measure the time."""
    started = time.perf_counter()
    try:
        answer = await handler(request)
    except Refusal as refusal:
        answer = refusal.response()
    except ApiError as error:
        log.warning("%s %s: %s", request.method, request.path, error)
        answer = of_garden(error).response()
    except web.HTTPException as error:
        answer = of_http(error).response()
    except Exception as error:
        # The text of an unforeseen error may quote a body or a key: only its type is logged and told.
        log.error("%s %s: unforeseen %s", request.method, request.path, type(error).__name__)
        answer = internal(f"{type(error).__name__}: see the log of the subresource server").response()
    subresource = request.path.rsplit("/", 1)[-1] if request.match_info.http_exception is None else "unknown"
    SECONDS.labels(subresource, str(answer.status)).observe(time.perf_counter() - started)
    return answer


def _at_once(limit: int) -> Middleware:
    """Serve at most ``limit`` requests at once. Others wait for 1 s and then get status 429."""
    turns = asyncio.Semaphore(limit)

    @web.middleware
    async def wait(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            async with asyncio.timeout(_PATIENCE):
                await turns.acquire()
        except TimeoutError:
            raise limited("at-once", "the server has received too many requests: try again later") from None
        try:
            async with asyncio.timeout(_DEADLINE) as deadline:
                return await handler(request)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise Refusal(504, f"the request took more than {_DEADLINE:.0f} s") from None
        finally:
            turns.release()

    return wait
