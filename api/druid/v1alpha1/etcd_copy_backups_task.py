"""EtcdCopyBackupsTask: copies the backups of an etcd from one bucket to another, once per migration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from api.constants import DRUID
from api.druid.v1alpha1.etcd import Store
from api.meta import AGE, EMPTY, Conditions, Definition, Duration, KubeModel, KubeObject, not_offered

_ALL = not_offered("all backups are copied")


class WaitForFinalSnapshot(KubeModel):
    enabled: bool
    timeout: Duration | None = None


class EtcdCopyBackupsTaskSpec(KubeModel):
    source_store: Store
    target_store: Store
    max_backup_age: Annotated[int | None, _ALL] = None
    """Maximum age of the copied backups, in days."""
    max_backups: Annotated[int | None, _ALL] = None
    pod_labels: Annotated[
        dict[str, str] | None, not_offered("the gardenlet copies backups, and no pod", unless=EMPTY)
    ] = None
    wait_for_final_snapshot: WaitForFinalSnapshot | None = None


class EtcdCopyBackupsTaskStatus(KubeModel):
    conditions: Conditions | None = None
    """Conditions ``Succeeded`` and ``Failed``."""
    last_error: str | None = None
    observed_generation: int | None = None


class EtcdCopyBackupsTask(KubeObject):
    definition: ClassVar[Definition] = Definition(DRUID, "v1alpha1", "etcdcopybackupstasks", columns=(AGE,))

    spec: EtcdCopyBackupsTaskSpec
    status: EtcdCopyBackupsTaskStatus | None = None
