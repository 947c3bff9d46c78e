"""Versioning behaviour of workflows. Unset if worker versioning is off: Temporal then rejects any behaviour."""

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from api import versioning


def long_lived() -> VersioningBehavior:
    """Behaviour of a workflow that runs for months: it moves to the current version of our code.

    So its code changes behind ``workflow.patched``.
    """
    return VersioningBehavior.AUTO_UPGRADE if versioning.enabled else VersioningBehavior.UNSPECIFIED
