"""The conversion webhook: ConversionReview in, ConversionReview out.

The API server shows no client certificate to conversion webhooks, so this path answers callers without one. The answer
depends on the request alone: the path reads no object, and a caller learns nothing that it has not sent.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ValidationError

from api.decisions.controller_deployments import Unconvertible, converted
from workers.lib.webhook_clients import at_once

_AT_ONCE = 2
"""Maximum number of concurrent conversions. They have turns of their own, so that strangers cannot delay reviews."""
LARGEST = 16 * 1024 * 1024
"""Maximum size of a request in bytes. The API server sends all objects of a list in one request."""


class _Asked(BaseModel):
    uid: str
    desiredAPIVersion: str
    objects: list[dict[str, Any]]


class _Review(BaseModel):
    request: _Asked


def convert() -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler, with its own limits."""
    limit = at_once(_AT_ONCE)

    async def handle(request: web.Request) -> web.StreamResponse:
        return await limit(request, _convert)

    return handle


async def _convert(request: web.Request) -> web.StreamResponse:
    body = bytearray()
    async for chunk in request.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > LARGEST:
            raise web.HTTPRequestEntityTooLarge(LARGEST, len(body))
    try:
        asked = _Review.model_validate_json(bytes(body)).request
    except ValidationError:
        raise web.HTTPBadRequest(text="this path takes a ConversionReview") from None
    response = {"uid": asked.uid, **_result(asked.desiredAPIVersion, asked.objects)}
    return web.json_response(
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response}
    )


def _result(version: str, objects: list[dict[str, Any]]) -> dict[str, Any]:
    done = []
    for each in objects:
        try:
            done.append(converted(each, version))
        except Unconvertible as error:
            metadata = each.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            message = f'{each.get("kind")} "{name}" cannot be converted to {version}: {error}'
            return {"convertedObjects": [], "result": {"status": "Failure", "message": message}}
    return {"convertedObjects": done, "result": {"status": "Success"}}
