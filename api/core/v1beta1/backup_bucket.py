"""BackupBucket: a seed's bucket for backups. Its name is the Seed's uid."""

from __future__ import annotations

from typing import Annotated, ClassVar

from api.constants import CORE
from api.meta import (
    AGE,
    IMMUTABLE,
    IMMUTABLE_ONCE_SET,
    Column,
    Definition,
    KubeModel,
    KubeObject,
    LastError,
    LastOperation,
    ObjectReference,
    Raw,
    SecretReference,
)


class BackupBucketProvider(KubeModel):
    type: str
    region: str


class ShootReference(KubeModel):
    name: str
    namespace: str


class BackupBucketSpec(KubeModel):
    """Exactly one of ``seedName`` and ``shootRef``."""

    provider: Annotated[BackupBucketProvider, IMMUTABLE]
    provider_config: Raw | None = None
    credentials_ref: ObjectReference
    seed_name: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    shoot_ref: Annotated[ShootReference | None, IMMUTABLE_ONCE_SET] = None


class BackupBucketStatus(KubeModel):
    provider_status: Raw | None = None
    generated_secret_ref: SecretReference | None = None
    last_operation: LastOperation | None = None
    last_error: LastError | None = None
    observed_generation: int | None = None


class BackupBucket(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "backupbuckets",
        ("bbc",),
        namespaced=False,
        columns=(
            Column("Provider", ".spec.provider.type"),
            Column("Seed", ".spec.seedName"),
            Column("Operation", ".status.lastOperation.state"),
            Column("Progress", ".status.lastOperation.progress", "integer"),
            AGE,
        ),
        selectable=(".spec.seedName", ".spec.shootRef.name", ".spec.shootRef.namespace"),
    )

    spec: BackupBucketSpec
    status: BackupBucketStatus | None = None
