"""Exceptions for refusals of an API server. They are safe to log and to keep in a history."""

from collections.abc import Mapping
from typing import Any

_MESSAGE_LIMIT = 500

_BAD_APPLY = "failed to create typed patch object"
"""Message of server-side apply if a field is not in the schema; the status is 500."""


class KubeconfigError(ValueError):
    """The kubeconfig does not say how to reach a cluster. The exception's text never quotes the kubeconfig."""


class ApiError(Exception):
    """An API server refused a request, or did not answer.

    ``str()`` gives the request and the answer. It includes the server's own message only for kinds that hold no
    secrets: the message of a 422 quotes the values that are invalid.
    """

    def __init__(self, status: int, reason: str, doing: str, message: str = "") -> None:
        super().__init__(status, reason, doing)
        self.status = status
        """HTTP status; 0 if no answer came."""
        self.reason = reason
        """Kubernetes' machine-readable reason, such as ``AlreadyExists``, or the reason phrase of HTTP."""
        self.doing = doing
        self.message = message[:_MESSAGE_LIMIT]
        """The server's explanation, shortened; empty for kinds that hold secrets."""
        self.whole_message = message
        """The server's explanation, for a person who asked for it; it may be too long for logs and histories."""
        self.retry_after: float | None = None
        """Seconds after which the server asks for a retry."""

    def __str__(self) -> str:
        answer = f"API server answered {self.status} {self.reason}" if self.status else self.reason
        return f"{self.doing}: {answer}" + (f" ({self.message})" if self.message else "")


class Unreachable(ApiError):
    """No answer: the connection was refused or lost, or the request timed out."""


class AnswerTooLarge(ApiError):
    """The API server's answer, or all pages of a list together, have more bytes than this client reads."""


class BadRequest(ApiError):
    """400: the request itself is malformed."""


class Unauthorized(ApiError):
    """401: the credentials are unknown or expired."""


class Forbidden(ApiError):
    """403: the credentials don't allow this, or an admission plugin refused it."""


class NotFound(ApiError):
    """404: no such object, or no such kind in this cluster."""


class AlreadyExists(ApiError):
    """409 on create: an object of this name exists."""


class Conflict(ApiError):
    """409 on update: another writer has changed the object, or owns a field."""


class Gone(ApiError):
    """410: the resource version or the continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object breaks its schema or a rule of its kind."""


_BY_STATUS: dict[int, type[ApiError]] = {
    0: Unreachable,
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}


def error_from_status(status: int, body: Mapping[str, Any], doing: str, *, quote: bool) -> ApiError:
    """The exception for a Kubernetes ``Status`` object. ``quote``: its message may be repeated."""
    reason = str(body.get("reason") or "Unknown")
    kind = AlreadyExists if reason == "AlreadyExists" else _BY_STATUS.get(status, ApiError)
    if status == 500 and str(body.get("message", "")).startswith(_BAD_APPLY):
        kind = Invalid
    error = kind(status, reason, doing, str(body.get("message") or "") if quote else "")
    details = body.get("details")
    if isinstance(details, Mapping) and details.get("retryAfterSeconds"):
        error.retry_after = float(details["retryAfterSeconds"])
    return error
