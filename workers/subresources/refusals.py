"""Refusals, answered as the ``Status`` objects of a Kubernetes API server."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from aiohttp import web

from api.resources import Object, Resource
from kube.errors import ApiError

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    408: "Timeout",
    409: "Conflict",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_PASSED_ON = frozenset({403, 404, 409, 422, 429})
"""Statuses of a refused write that are about the requester's object."""


class Refusal(Exception):
    """A request that is not served. The text goes to the requester."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        details: Object | None = None,
        headers: dict[str, str] | None = None,
        retry_after: int = 1,
    ) -> None:
        """``retry_after``: seconds until a repeated request may be served, of a refusal with status 429 or 503."""
        super().__init__(message)
        self.code = code
        self.details = details or {}
        self.headers = headers or {}
        if code in (429, 503):
            self.details = self.details | {"retryAfterSeconds": retry_after}
            self.headers = self.headers | {"Retry-After": str(retry_after)}

    @property
    def reason(self) -> str:
        return _REASONS.get(self.code, "Unknown")

    def response(self) -> web.Response:
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            **({"details": self.details} if self.details else {}),
            "code": self.code,
        }
        return web.json_response(status, status=self.code, headers={"Cache-Control": "no-store", **self.headers})


def bad_request(message: str) -> Refusal:
    return Refusal(400, message)


def internal(message: str) -> Refusal:
    return Refusal(500, f"Internal error occurred: {message}")


def not_found(resource: Resource, name: str) -> Refusal:
    return Refusal(404, f'{resource} "{name}" not found', details=_about(resource, name))


def forbidden(resource: Resource, name: str, why: str) -> Refusal:
    return Refusal(403, f'{resource} "{name}" is forbidden: {why}', details=_about(resource, name))


def conflict(resource: Resource, name: str, why: str) -> Refusal:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return Refusal(409, message, details=_about(resource, name))


def invalid(kind: str, group: str, name: str, path: str, why: str) -> Refusal:
    """422: the value of one field is not allowed."""
    causes = [{"reason": "FieldValueInvalid", "message": why, "field": path}]
    return Refusal(
        422,
        f'{kind}.{group} "{name}" is invalid: {path}: {why}',
        details={"name": name, "group": group, "kind": kind, "causes": causes},
    )


def of_http(error: web.HTTPException) -> Refusal:
    """The refusal for a status that the HTTP library has chosen, such as 413 for a body that is too large."""
    if error.status == 404:
        return Refusal(404, "the server could not find the requested resource")
    return Refusal(error.status, f"{HTTPStatus(error.status).phrase}: {error.text or error.reason}")


def of_write(error: ApiError) -> Refusal:
    """The refusal for a write that the requester asked for, and that the garden's API server has refused."""
    return Refusal(error.status, error.message) if error.status in _PASSED_ON and error.message else of_garden(error)


def of_garden(error: ApiError) -> Refusal:
    """The refusal for a request of the server's own that the garden's API server has refused, or not answered."""
    if error.status in (0, 429, 503):
        return Refusal(503, f"the garden's API server does not answer the subresource server: {error}")
    return internal(str(error))


def _about(resource: Resource, name: str) -> Object:
    return {"name": name, "group": resource.group, "kind": resource.plural}
