"""BackupEntry: one Shoot's part of a backup bucket. Its controller writes Secret ``etcd-backup`` for the etcds."""

from __future__ import annotations

from typing import ClassVar

from api.extensions.v1alpha1.base import REGION, STATE, TYPE, ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import Column, Definition, KubeObject, Raw, SecretReference


class BackupEntrySpec(ExtensionSpec):
    region: str
    bucket_name: str
    secret_ref: SecretReference
    backup_bucket_provider_status: Raw | None = None


class BackupEntry(KubeObject):
    definition: ClassVar[Definition] = extension_kind(
        "backupentries",
        "be",
        columns=(TYPE, REGION, Column("Bucket", ".spec.bucketName"), STATE),
        namespaced=False,
    )

    spec: BackupEntrySpec
    status: ExtensionStatus | None = None
