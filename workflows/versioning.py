"""What workflows say of versions of our code; nothing where workers have none, since Temporal refuses that."""

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from api import versioning


def long_lived() -> VersioningBehavior:
    """Of what lives for months: it moves to the current version, so it changes behind ``workflow.patched``."""
    return VersioningBehavior.AUTO_UPGRADE if versioning.enabled else VersioningBehavior.UNSPECIFIED
