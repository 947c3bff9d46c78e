"""Codes of errors of machines: ``Machine.status.lastOperation.errorCode``.

They are the names of gRPC's status codes, as in the drivers of Gardener's machine-controller-manager.
"""

from collections.abc import Mapping
from enum import StrEnum

from api.errors import ErrorCode


class MachineCode(StrEnum):
    """Kind of the error that an operation on a machine ended with."""

    INVALID_ARGUMENT = "InvalidArgument"
    """The MachineClass, or a Secret that it refers to, cannot be used as it is."""
    UNAUTHENTICATED = "Unauthenticated"
    """The cloud does not accept the credentials."""
    PERMISSION_DENIED = "PermissionDenied"
    """The credentials lack a right in the cloud."""
    RESOURCE_EXHAUSTED = "ResourceExhausted"
    """The cloud has no capacity for the machine, or the account has no quota for it."""
    NOT_FOUND = "NotFound"
    """The machine does not exist in the cloud."""
    FAILED_PRECONDITION = "FailedPrecondition"
    """The node of the machine cannot be drained, because pods stay on it."""
    UNIMPLEMENTED = "Unimplemented"
    """There is no driver for the provider that the MachineClass names."""
    UNAVAILABLE = "Unavailable"
    """The cloud does not answer, or cannot execute the request now."""
    INTERNAL = "Internal"
    """The driver has failed in another way."""

    @property
    def needs_change(self) -> bool:
        """Whether the same request fails until a user or operator changes something."""
        return self in _NEEDS_CHANGE

    @property
    def error_code(self) -> ErrorCode | None:
        """Gardener's code for the Shoot of the machine; None: there is none for this kind of error."""
        return _ERROR_CODES.get(self)


_NEEDS_CHANGE = frozenset(
    {
        MachineCode.INVALID_ARGUMENT,
        MachineCode.UNAUTHENTICATED,
        MachineCode.PERMISSION_DENIED,
        MachineCode.FAILED_PRECONDITION,
        MachineCode.UNIMPLEMENTED,
    }
)

_ERROR_CODES: Mapping[MachineCode, ErrorCode] = {
    MachineCode.UNAUTHENTICATED: ErrorCode.INFRA_UNAUTHENTICATED,
    MachineCode.PERMISSION_DENIED: ErrorCode.INFRA_UNAUTHORIZED,
    MachineCode.INVALID_ARGUMENT: ErrorCode.CONFIGURATION_PROBLEM,
    MachineCode.FAILED_PRECONDITION: ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM,
    MachineCode.RESOURCE_EXHAUSTED: ErrorCode.INFRA_RESOURCES_DEPLETED,
    MachineCode.UNAVAILABLE: ErrorCode.RETRYABLE_INFRA_DEPENDENCIES,
}
