"""BackupBucket: a bucket for backups, one per seed."""

from __future__ import annotations

from typing import Annotated, ClassVar

from api.extensions.v1alpha1.base import REGION, STATE, TYPE, ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import IMMUTABLE, Definition, KubeObject, SecretReference


class BackupBucketSpec(ExtensionSpec):
    region: Annotated[str, IMMUTABLE]
    secret_ref: SecretReference


class BackupBucketStatus(ExtensionStatus):
    generated_secret_ref: SecretReference | None = None
    """Credentials that the controller made, copied to the garden."""


class BackupBucket(KubeObject):
    definition: ClassVar[Definition] = extension_kind(
        "backupbuckets", "bb", columns=(TYPE, REGION, STATE), namespaced=False
    )

    spec: BackupBucketSpec
    status: BackupBucketStatus | None = None
