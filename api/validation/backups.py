"""Rules of BackupBuckets and BackupEntries of the garden."""

from collections.abc import Mapping
from typing import Any

from api import constants
from api.meta import KubeObject
from api.validation.field import Faults, Path

_OPERATIONS = (constants.OPERATION_RECONCILE, constants.OPERATION_RETRY)


def check_backup_operation(obj: KubeObject, old: KubeObject | None) -> Faults:
    """Faults of an operation annotation that is new or changed."""
    faults = Faults()
    asked, before = (
        each.metadata.annotations.get(constants.OPERATION) if each is not None else None for each in (obj, old)
    )
    if asked is not None and asked != before and asked not in _OPERATIONS:
        faults.unsupported(Path("metadata.annotations") @ constants.OPERATION, asked, _OPERATIONS)
    return faults


def check_backup_bucket(name: str, spec: Mapping[str, Any], seed: Mapping[str, Any] | None) -> Faults:
    """Faults of a new BackupBucket. ``seed``: the Seed that it names; a seed has one bucket, named by its uid."""
    faults, path = Faults(), Path("spec") / "seedName"
    if spec.get("shootRef"):
        faults.forbidden(
            Path("spec") / "shootRef", "no gardenlet reconciles buckets of self-hosted Shoots: name a Seed"
        )
    elif not spec.get("seedName"):
        faults.forbidden(path, "a BackupBucket belongs to a Seed")
    elif seed is None:
        faults.forbidden(path, f"there is no Seed {spec['seedName']}")
    elif seed["metadata"]["uid"] != name:
        faults.forbidden(path, f"the bucket of Seed {spec['seedName']} has its uid as name, {seed['metadata']['uid']}")
    return faults
