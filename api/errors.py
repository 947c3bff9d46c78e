"""Gardener's error codes: kind of the error, whether a retry can succeed, and whether owner or operator must act."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """``codes`` of conditions and errors, and ``type`` of a final ApplicationError."""

    INFRA_UNAUTHENTICATED = "ERR_INFRA_UNAUTHENTICATED"
    INFRA_UNAUTHORIZED = "ERR_INFRA_UNAUTHORIZED"
    INFRA_QUOTA_EXCEEDED = "ERR_INFRA_QUOTA_EXCEEDED"
    INFRA_RATE_LIMITS_EXCEEDED = "ERR_INFRA_RATE_LIMITS_EXCEEDED"
    INFRA_DEPENDENCIES = "ERR_INFRA_DEPENDENCIES"
    RETRYABLE_INFRA_DEPENDENCIES = "ERR_RETRYABLE_INFRA_DEPENDENCIES"
    INFRA_RESOURCES_DEPLETED = "ERR_INFRA_RESOURCES_DEPLETED"
    CLEANUP_CLUSTER_RESOURCES = "ERR_CLEANUP_CLUSTER_RESOURCES"
    CONFIGURATION_PROBLEM = "ERR_CONFIGURATION_PROBLEM"
    RETRYABLE_CONFIGURATION_PROBLEM = "ERR_RETRYABLE_CONFIGURATION_PROBLEM"
    PROBLEMATIC_WEBHOOK = "ERR_PROBLEMATIC_WEBHOOK"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without an action of owner or operator."""
        return self not in _FINAL

    @property
    def user(self) -> bool:
        """Whether the owner of the cluster must act, not the operator."""
        return self not in _OPERATOR


# ERR_INFRA_RATE_LIMITS_EXCEEDED ends an operation, too; the lifecycle starts it again 10 to 15 minutes later.
_FINAL = frozenset(
    {
        ErrorCode.INFRA_UNAUTHENTICATED,
        ErrorCode.INFRA_UNAUTHORIZED,
        ErrorCode.INFRA_QUOTA_EXCEEDED,
        ErrorCode.INFRA_RATE_LIMITS_EXCEEDED,
        ErrorCode.INFRA_DEPENDENCIES,
        ErrorCode.CONFIGURATION_PROBLEM,
        ErrorCode.PROBLEMATIC_WEBHOOK,
    }
)
_OPERATOR = frozenset({ErrorCode.INFRA_RATE_LIMITS_EXCEEDED, ErrorCode.RETRYABLE_INFRA_DEPENDENCIES})
