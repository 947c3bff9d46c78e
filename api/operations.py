"""What flows and activities say to each other: references, never objects, never secret values."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from api.model import ApiModel

GARDEN_QUEUE = "garden"
"""Task queue of all Shoot workflows and of activities that touch only the garden."""


def seed_queue(seed: str) -> str:
    """Task queue polled by the gardenlet of one seed."""
    return f"seed-{seed}"


class OperationType(StrEnum):
    """``lastOperation.type`` of a Shoot."""

    CREATE = "Create"
    RECONCILE = "Reconcile"
    DELETE = "Delete"
    MIGRATE = "Migrate"
    RESTORE = "Restore"


class ShootRef(ApiModel):
    """Names one Shoot for all time: delete and recreate it, and the uid differs."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, shoot: Mapping[str, Any]) -> Self:
        """Of a Shoot as the API has it."""
        metadata = shoot["metadata"]
        return cls(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def lifecycle_id(shoot: ShootRef) -> str:
    """Workflow id of a Shoot's lifecycle; those of its operations and rotations begin with it."""
    return f"shoot/{shoot.namespace}/{shoot.name}/{shoot.uid}"


class ShootTask(ApiModel):
    """Input of every activity of a Shoot's flow.

    What the Shoot should look like is not in here: activities read it from the ``Cluster``
    resource in the seed, which the flow's first task pinned for this generation.
    """

    shoot: ShootRef
    technical_id: str
    """Control-plane namespace in the seed: ``shoot--<project>--<name>``."""
    seed: str
    generation: int
    operation: OperationType
    destination: str = ""
    """Seed that the control plane goes to; empty if it stays."""
    trigger: str = ""
    """RFC 3339 start of the operation; written as ``gardener.cloud/timestamp`` on extension objects."""


class ForwardTask(ApiModel):
    """Input of ``forward_apiserver_sni``."""

    task: ShootTask
    address: str
    """Of the gateway of the seed that the control plane goes to: an IP address, or a host name."""


class ResealShootState(ApiModel):
    """Input of ``reseal_shoot_state``."""

    shoot: ShootRef
    seed: str
    """The seed whose gardenlet is to read the ShootState."""
    sources: tuple[str, ...]
    """Seeds whose gardenlets may have written it: the garden gave the Shoot's control plane to them."""


class TaskResult(ApiModel):
    """Small result of an activity, kept in the flow's outcome."""

    secrets: tuple[str, ...] = ()
    """Names of the Secrets that the secrets manager handed out; what no task names is cleaned up."""
    note: str = ""
    """One short human-readable line, for example an address."""


class ExtensionKind(StrEnum):
    """Kinds of ``extensions.gardener.cloud/v1alpha1`` that a flow deploys."""

    INFRASTRUCTURE = "Infrastructure"
    CONTROL_PLANE = "ControlPlane"
    WORKER = "Worker"
    NETWORK = "Network"
    OPERATING_SYSTEM_CONFIG = "OperatingSystemConfig"
    DNS_RECORD = "DNSRecord"
    BACKUP_BUCKET = "BackupBucket"
    BACKUP_ENTRY = "BackupEntry"
    EXTENSION = "Extension"


class Wait(ApiModel):
    """How long an activity waits for an object, and when an error it reports becomes final.

    Source: spec/extensions.md 1.4.
    """

    timeout: timedelta
    severe_after: timedelta = Field(default=timedelta(seconds=30))


class SeedTask(ApiModel):
    """Input of every activity that bootstraps a seed."""

    name: str
    uid: str
    generation: int
    trigger: str
    """RFC 3339 start of the operation."""
