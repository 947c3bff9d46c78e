"""Validation of the annotations that request an operation of a Shoot. Source: spec/api-core.md 10.1, 10.2."""

from __future__ import annotations

from datetime import datetime, timedelta

from api import constants
from api.contracts.repair import ANNOTATIONS, faults
from api.core.v1beta1.project import Project
from api.core.v1beta1.shoot import Shoot
from api.decisions.rotation import COMBINED, ROLLOUT, SINGLE, is_operation
from api.defaulting.project import subject_of
from api.errors import ErrorCode
from api.labels import is_true, matches
from api.meta import KubeObject
from api.times import parsed
from api.validation.field import Faults, Path
from api.validation.rotation import rotation_faults

_ANNOTATIONS = Path("metadata") / "annotations"
_OFFERED = (
    constants.OPERATION_RECONCILE,
    constants.OPERATION_RETRY,
    constants.OPERATION_MAINTAIN,
    constants.OPERATION_FORCE_IN_PLACE_UPDATE,
    *SINGLE,
    *COMBINED,
    f"{ROLLOUT}=<pools>",
)
_ALONE = (constants.OPERATION_RETRY, constants.OPERATION_MAINTAIN, constants.OPERATION_FORCE_IN_PLACE_UPDATE)


def operations(shoot: KubeObject, annotation: str = constants.OPERATION) -> list[str]:
    """Operations that an annotation requests; the annotation joins several by ``;``."""
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
            if each not in _OFFERED and not is_operation(each):
                faults.unsupported(path, each, _OFFERED)
            if each in _ALONE and len(asked) > 1:
                faults.forbidden(path, f"{each} cannot be combined with other operations")
        others = {constants.OPERATION, constants.MAINTENANCE_OPERATION} - {annotation}
        elsewhere = [each for other in others for each in operations(shoot, other)]
        for fault in rotation_faults(shoot.to_wire(), asked, elsewhere):
            faults.forbidden(path, fault)
        last = shoot.status.last_operation if shoot.status else None
        failed = last is not None and last.state == "Failed"
        if annotation == constants.OPERATION and constants.OPERATION_RETRY in asked and not failed:
            state = last.state if last else "none"
            faults.forbidden(path, f"retry needs a last operation in state Failed; its state is {state}")
    _check_force_deletion(shoot, old, faults)
    return faults


def check_expiration(shoot: Shoot, old: Shoot | None, allowed: timedelta | None, now: datetime) -> Faults:
    """Faults of a new or changed expiration time: it must be a time, and at most ``allowed`` after ``now``."""
    faults = Faults()
    annotation = constants.SHOOT_EXPIRATION_TIMESTAMP
    text = shoot.metadata.annotations.get(annotation)
    if text is None or (old is not None and old.metadata.annotations.get(annotation) == text):
        return faults
    path, end = _ANNOTATIONS @ annotation, parsed(text)
    if end is None:
        faults.invalid(path, text, "must be a time like 2026-11-21T00:00:00Z")
    elif allowed is not None and end > now + allowed:
        faults.forbidden(
            path, f"{text} is too late: the quotas allow an expiration at most {allowed.days} days from now"
        )
    return faults


_FORCE_DELETION_CODES = (
    ErrorCode.CLEANUP_CLUSTER_RESOURCES,
    ErrorCode.CONFIGURATION_PROBLEM,
    ErrorCode.INFRA_DEPENDENCIES,
    ErrorCode.INFRA_UNAUTHENTICATED,
    ErrorCode.INFRA_UNAUTHORIZED,
    ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM,
)
"""Errors of a deletion that may be permanent, for example lost credentials of the cloud."""


def _check_force_deletion(shoot: Shoot, old: Shoot | None, faults: Faults) -> None:
    """A force-deletion leaves resources in the cloud, so it needs a failed deletion, and it cannot be reverted."""
    annotation = constants.CONFIRMATION_FORCE_DELETION
    path = _ANNOTATIONS @ annotation
    asked = is_true(shoot.metadata.annotations.get(annotation))
    before = old is not None and is_true(old.metadata.annotations.get(annotation))
    if before and not asked:
        faults.forbidden(path, "a force-deletion cannot be reverted: it may have begun")
    if before or not asked:
        return
    if shoot.metadata.deletion_timestamp is None:
        faults.forbidden(path, "only a Shoot that is being deleted can be force-deleted: delete it first")
        return
    if not _may_be_permanent(shoot):
        codes = ", ".join(_FORCE_DELETION_CODES)
        detail = f"is allowed once the deletion has failed with one of {codes}, or with an error without a code"
        faults.forbidden(path, f"{detail}: wait, or correct the deletion's error")


def _may_be_permanent(shoot: Shoot) -> bool:
    """Whether the deletion has failed with an error that may be permanent.

    Without a code Gardener cannot tell whether the error will pass, and must not hold the owner's Shoot for ever.
    """
    errors = (shoot.status and shoot.status.last_errors) or []
    if {code for error in errors for code in error.codes or []}.intersection(_FORCE_DELETION_CODES):
        return True
    last = shoot.status.last_operation if shoot.status else None
    failed = last is not None and last.type == "Delete" and last.state in ("Error", "Failed")
    return failed and any(not error.codes for error in errors)


def new_repairs(shoot: Shoot, old: Shoot | None) -> list[str]:
    """Names of the new or changed annotations that request a repair of an operation."""
    now, before = shoot.metadata.annotations, old.metadata.annotations if old else {}
    return [name for name in ANNOTATIONS if name in now and now[name] != before.get(name)]


def check_repairs(shoot: Shoot, names: list[str]) -> Faults:
    """Faults of repairs that cannot be accepted in any state of the operation."""
    found = Faults()
    for name, fault in faults(shoot.metadata.annotations).items():
        if name in names:
            found.invalid(_ANNOTATIONS @ name, shoot.metadata.annotations[name], fault)
    return found


def check_deletion_confirmed(obj: KubeObject) -> Faults:
    """A deletion needs the annotation ``confirmation.gardener.cloud/deletion``."""
    faults = Faults()
    if not is_true(obj.metadata.annotations.get(constants.CONFIRMATION_DELETION)):
        detail = (
            f'must be "true" before the object can be deleted: annotate it with {constants.CONFIRMATION_DELETION}=true'
        )
        faults.forbidden(_ANNOTATIONS @ constants.CONFIRMATION_DELETION, detail)
    return faults


TWO_USERS = "the Project requires that two users delete a Shoot"
"""Part of the message of a refused deletion, by which a controller knows why it must leave the deletion to a user."""


def check_dual_approval(
    shoot: KubeObject, project: Project | None, user: str, *, by_controller: bool = False
) -> Faults:
    """Fault of a deletion that needs two users, if the same user confirms and deletes.

    ``spec.dualApprovalForDeletion`` of the Project selects such Shoots. Admission writes the name of the user who
    confirmed. ``by_controller``: a controller deletes. It is no second user: the user who confirmed can give the Shoot
    an owner that does not exist, and the garbage collector then deletes it.
    """
    faults, annotation = Faults(), constants.DELETION_CONFIRMED_BY
    is_account = subject_of(user).kind == "ServiceAccount" and not by_controller
    required = any(
        each.resource == "shoots"
        and matches(each.selector, shoot.metadata.labels)
        and (each.include_service_accounts or not is_account)
        for each in (project.spec.dual_approval_for_deletion if project else None) or ()
    )
    if required and by_controller:
        detail = f"{TWO_USERS}, and a controller is no second user"
        faults.forbidden(_ANNOTATIONS @ annotation, detail)
    elif required and shoot.metadata.annotations.get(annotation, user) == user:
        detail = f"{TWO_USERS}, and {user} confirmed the deletion: another user must delete it"
        faults.forbidden(_ANNOTATIONS @ annotation, detail)
    return faults


def check_finalizer_kept(shoot: Shoot, old: Shoot) -> Faults:
    """Gardener's finalizer can be removed only if the cluster is deleted, or was never created."""
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
