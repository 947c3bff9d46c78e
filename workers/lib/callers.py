"""Author of an update: the name in the client's certificate or token, not the name in the request.

Temporal's authorization (``temporal-server``) writes organization and name of each client into a header. Without that
server there is no header, and the name in the request is used.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    HandleUpdateInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from api.constants import TEMPORAL_PROCESSES
from api.model import ApiModel

HEADER = "gardener-caller"


class Caller(ApiModel):
    """A client of Temporal, named by the subject of its certificate; or a person, named by their token."""

    organization: str
    name: str


def caller_of(headers: Mapping[str, Payload]) -> Caller | None:
    """The client that Temporal's header names; None if there is no header: Temporal does not identify its clients."""
    payload = headers.get(HEADER)
    if payload is None:
        return None
    try:
        return Caller.model_validate_json(payload.data)
    except ValidationError:
        raise ApplicationError(f"header {HEADER} is not readable", type="Refused", non_retryable=True) from None


class Callers(Interceptor):
    """Interceptor for workers whose workflows take updates: ``Worker(interceptors=[Callers(), ...])``.

    ``required``: refuse an update that names an author if Temporal names no client for it.
    """

    def __init__(self, *, required: bool = False) -> None:
        self._required = required

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        return _Required if self._required else _Named


class _Named(WorkflowInboundInterceptor):
    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        super().handle_update_validator(_with_caller(input))

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        return await super().handle_update_handler(_with_caller(input))


class _Required(_Named):
    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        # Only the validator checks this: an update that was accepted before the setting must replay as it ran.
        if any(map(_names_author, input.args)) and caller_of(input.headers) is None:
            raise ValueError("Temporal does not say who asks: connect with a client certificate to a server that does")
        super().handle_update_validator(input)


def _with_caller(input: HandleUpdateInput) -> HandleUpdateInput:
    caller = caller_of(input.headers)
    # The garden's own processes forward requests of users, with the names of these users.
    if caller is None or caller.organization == TEMPORAL_PROCESSES:
        return input
    return replace(
        input,
        args=[each.model_copy(update={"by": caller.name}) if _names_author(each) else each for each in input.args],
    )


def _names_author(argument: Any) -> bool:
    return isinstance(argument, ApiModel) and "by" in type(argument).model_fields
