"""Failures of activities: ``api_failure`` decides which ones are final, and ``api.errors`` has the codes of reasons."""

from temporalio.exceptions import ApplicationError

from kube.errors import ApiError, Invalid

# The request itself is wrong: the same bytes will get the same answer.
# Not 401 or 403: an operator can mend credentials and RBAC while we wait.
_FINAL = frozenset({400, 405, 415, 422})

WORKER_LOST = "WorkerLost"
"""Type of the failure of an attempt whose process was killed. The next process reports it (workers/lib/journal.py)."""
WORKER_STOPPED = "WorkerShutdown"
"""Type of the failure that Temporal's SDK reports for an attempt that does not end in time when its worker stops."""


def api_failure(error: ApiError, doing: str = "") -> ApplicationError:
    """Error that an activity raises ``from None`` when an API server has refused a request.

    ``doing`` is put in front of the text of ``error``, which names the request.
    """
    return ApplicationError(
        f"{doing}: {error}" if doing and doing != error.doing else str(error),
        type="KubernetesApi",
        non_retryable=error.status in _FINAL or isinstance(error, Invalid),
    )


def permanent(code: str, message: str) -> ApplicationError:
    """A failure that a retry does not fix; ``code`` is one of ``api.errors.ErrorCode``."""
    return ApplicationError(message, type=str(code), non_retryable=True)


def transient(code: str, message: str) -> ApplicationError:
    """A failure with a code for ``lastErrors`` that may pass: the retry policy decides."""
    return ApplicationError(message, type=str(code))
