"""What may be asked of a Shoot by annotations, and when. Source: spec/api-core.md 10.1, 10.2."""

from __future__ import annotations

from api import constants
from api.core.v1beta1.shoot import Shoot
from api.labels import is_true
from api.meta import KubeObject
from api.validation.field import Faults, Path

_ANNOTATIONS = Path("metadata") / "annotations"
_OFFERED = (constants.OPERATION_RECONCILE, constants.OPERATION_RETRY)
_ALONE = (constants.OPERATION_RETRY,)


def operations(shoot: KubeObject, annotation: str = constants.OPERATION) -> list[str]:
    """Operations that an annotation asks for; parallel ones are joined by ``;``."""
    return [each for each in shoot.metadata.annotations.get(annotation, "").split(";") if each]


def check_operations(shoot: Shoot, old: Shoot | None) -> Faults:
    """Faults of operation annotations that are new or changed."""
    faults = Faults()
    for annotation in (constants.OPERATION, constants.MAINTENANCE_OPERATION):
        asked = operations(shoot, annotation)
        if old is not None and asked == operations(old, annotation):
            continue
        path = _ANNOTATIONS @ annotation
        for each in asked:
            if each not in _OFFERED:
                faults.unsupported(path, each, _OFFERED)
            if each in _ALONE and len(asked) > 1:
                faults.forbidden(path, f"{each} cannot be combined with other operations")
        last = shoot.status.last_operation if shoot.status else None
        failed = last is not None and last.state == "Failed"
        if annotation == constants.OPERATION and constants.OPERATION_RETRY in asked and not failed:
            state = last.state if last else "none"
            faults.forbidden(path, f"retry is for Shoots whose last operation has state Failed, it is {state}")
    forced = constants.CONFIRMATION_FORCE_DELETION
    before = old.metadata.annotations if old else {}
    if is_true(shoot.metadata.annotations.get(forced)) and not is_true(before.get(forced)):
        faults.forbidden(_ANNOTATIONS @ forced, "this version does not force-delete")
    return faults


def check_deletion_confirmed(obj: KubeObject) -> Faults:
    """A DELETE needs the owner's second word."""
    faults = Faults()
    if not is_true(obj.metadata.annotations.get(constants.CONFIRMATION_DELETION)):
        detail = (
            f'must be "true" before the object can be deleted: annotate it with {constants.CONFIRMATION_DELETION}=true'
        )
        faults.forbidden(_ANNOTATIONS @ constants.CONFIRMATION_DELETION, detail)
    return faults


def check_finalizer_kept(shoot: Shoot, old: Shoot) -> Faults:
    """Gardener's finalizer falls only when the cluster is gone, or never was."""
    faults = Faults()
    dropped = constants.FINALIZER in old.metadata.finalizers and constants.FINALIZER not in shoot.metadata.finalizers
    status = old.status
    if not dropped or status is None or not status.uid:
        return faults
    last = status.last_operation
    if last is None or (last.type, last.state, last.progress) != ("Delete", "Succeeded", 100):
        detail = f"{constants.FINALIZER} cannot be removed while the cluster may exist; delete the Shoot instead"
        faults.forbidden(Path("metadata") / "finalizers", detail)
    return faults
