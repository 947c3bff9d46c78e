"""Inputs and results of activities: references to objects, never objects or secret values."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from api.model import ApiModel
from api.names import backup_entry_names

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
    LIVE_MIGRATE = "LiveMigrate"
    """A migration during which users do not miss their API server."""
    RESTORE = "Restore"


MIGRATIONS = (OperationType.MIGRATE, OperationType.LIVE_MIGRATE)
LEAVING = (OperationType.DELETE, *MIGRATIONS)
"""Operations that take a control plane out of a seed."""


class ShootRef(ApiModel):
    """Identifies one Shoot: a Shoot that is deleted and created again has another uid."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, shoot: Mapping[str, Any]) -> Self:
        """Reference to a Shoot, given as the API has it."""
        metadata = shoot["metadata"]
        return cls(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def lifecycle_id(shoot: ShootRef) -> str:
    """Workflow id of a Shoot's lifecycle; ids of its operations and rotations begin with it."""
    return f"shoot/{shoot.namespace}/{shoot.name}/{shoot.uid}"


class ShootTask(ApiModel):
    """Input of every activity of a Shoot's flow.

    It does not hold the desired state: activities read that from the ``Cluster`` object in the seed, which the flow's
    first task has written for this generation.
    """

    shoot: ShootRef
    technical_id: str
    """Control-plane namespace in the seed: ``shoot--<project>--<name>``."""
    seed: str
    generation: int
    operation: OperationType
    destination: str = ""
    """Seed that the control plane moves to; empty if it does not move."""
    trigger: str = ""
    """RFC 3339 start of the operation; written as ``gardener.cloud/timestamp`` on extension objects."""


class ForwardTask(ApiModel):
    """Input of ``forward_apiserver_sni``."""

    task: ShootTask
    address: str
    """Address of the gateway of the destination seed: an IP address, or a host name."""


class OtherMembers(ApiModel):
    """Input of tasks for an etcd with members in two seeds: those in the other seed."""

    task: ShootTask
    gateway: str
    """IP address of the other seed's gateway."""
    prefix: str = ""
    """``memberNamePrefix`` of these members."""

    @classmethod
    def from_note(cls, task: ShootTask, note: str) -> Self:
        """From the note of ``expose_etcd_members`` in the other seed."""
        gateway, _, prefix = note.partition(" ")
        return cls(task=task, gateway=gateway, prefix=prefix)


class ResealShootState(ApiModel):
    """Input of ``reseal_shoot_state``."""

    shoot: ShootRef
    seed: str
    """Seed whose gardenlet must be able to decrypt the ShootState."""
    sources: tuple[str, ...]
    """Seeds whose gardenlets may have encrypted it: the control plane was assigned to them."""


class TaskResult(ApiModel):
    """Small result of an activity, kept in the flow's outcome."""

    secrets: tuple[str, ...] = ()
    """Names of the Secrets that the task got from the secrets manager; Secrets that no task names are deleted."""
    note: str = ""
    """One short human-readable line, for example an address."""


class Wait(ApiModel):
    """Time for which an activity waits for an object, and time after which an error of the object is final.

    Source: spec/extensions.md 1.4.
    """

    timeout: timedelta
    severe_after: timedelta = Field(default=timedelta(seconds=30))


class SeedTask(ApiModel):
    """Input of every activity of a Seed's flow."""

    name: str
    uid: str
    generation: int
    trigger: str
    """RFC 3339 start of the operation."""
    operation: OperationType = OperationType.RECONCILE
    """``lastOperation.type`` of the Seed: Create, Reconcile or Delete."""


def backup_entry_name(task: ShootTask) -> str:
    """Name of a Shoot's BackupEntry in garden and seed; also the prefix of its backups in the bucket."""
    return backup_entry_names(task.technical_id, task.shoot.uid)[1]


def source_backup_entry_name(task: ShootTask) -> str:
    """Name of the BackupEntry for the source seed's bucket, while the control plane moves."""
    return backup_entry_names(task.technical_id, task.shoot.uid)[0]
