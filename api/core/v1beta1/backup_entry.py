"""BackupEntry: a Shoot's backups in its seed's bucket. Its name is ``<technicalID>--<uid>``."""

from __future__ import annotations

from typing import ClassVar

from api.constants import CORE
from api.core.v1beta1.backup_bucket import ShootReference
from api.meta import (
    AGE,
    Column,
    Definition,
    KubeModel,
    KubeObject,
    LastError,
    LastOperation,
    Timestamp,
)


class BackupEntrySpec(KubeModel):
    """Exactly one of ``seedName`` and ``shootRef``."""

    bucket_name: str
    """Changes when the control plane moves to a seed with another bucket."""
    seed_name: str | None = None
    shoot_ref: ShootReference | None = None


class BackupEntryStatus(KubeModel):
    seed_name: str | None = None
    """Seed of its extension object; differs from the spec while a control plane moves."""
    migration_start_time: Timestamp | None = None
    last_operation: LastOperation | None = None
    last_error: LastError | None = None
    observed_generation: int | None = None


class BackupEntry(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "backupentries",
        ("bec",),
        columns=(
            Column("Bucket", ".spec.bucketName"),
            Column("Seed", ".spec.seedName"),
            Column("Operation", ".status.lastOperation.state"),
            Column("Progress", ".status.lastOperation.progress", "integer"),
            AGE,
        ),
        selectable=(".spec.bucketName", ".spec.seedName", ".spec.shootRef.name", ".spec.shootRef.namespace"),
    )

    spec: BackupEntrySpec
    status: BackupEntryStatus | None = None
