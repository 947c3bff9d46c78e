"""A Shoot in the garden: the lifecycle's view of it, and an operation's writes to its status.

Every write is a merge patch of the fields that belong to the operation. So it never changes conditions, networking
and advertised addresses, which other components write. Source: spec/flows.md 1.4.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.garden.credentials import cloud_credentials, is_workload_identity
from activities.garden.events import MANAGER, MESSAGE_LIMIT, record
from activities.garden.live import control_plane_of, find_shoot
from activities.garden.status import last_error, patch_status
from api import constants, resources
from api.contracts import repair
from api.contracts.flows import (
    FinishOperation,
    LastOperation,
    RecordRepair,
    Refusal,
    ShootFacts,
    ShootRules,
    ShootView,
    StartedOperation,
    StartOperation,
)
from api.contracts.operations import MIGRATIONS, OperationType, ShootRef, ShootTask
from api.contracts.repair import UNKNOWN_USER, Action, Repair
from api.contracts.rotation import Kind, Phase
from api.decisions import dual_stack, encryption, in_place_updates, live_migration, rotation, ssh
from api.decisions.conditions import CONDITIONS, WEBHOOK_CONSTRAINTS, after_success
from api.decisions.issuer import is_managed
from api.decisions.live_migration import Stage
from api.decisions.registrations import versions_by_phase, wanted_extensions
from api.decisions.rotation import RotationFacts
from api.durations import parse_duration
from api.errors import ErrorCode
from api.images import OWN_VERSION
from api.labels import is_true
from api.names import backup_entry_names
from api.times import micro_timestamp, timestamp
from kube.cache import Caches
from kube.client import KubeClient
from kube.edit import Change, edit, patch_as_read, retry_on_conflict
from kube.errors import NotFound

INITIALIZE = "initializeOperation"
"""taskID of errors that occurred before a flow. Source: spec/flows.md 1.4."""


class ShootActivities:
    """One instance per controller-manager."""

    def __init__(self, garden: KubeClient, caches: Caches, rules: ShootRules) -> None:
        self._garden = garden
        self._caches = caches
        self._rules = rules

    # Reading the Shoot

    @activity.defn
    async def look_at_shoot(self, shoot: ShootRef) -> ShootView | None:
        """Everything that the lifecycle's decision needs; None if this Shoot does not exist any more."""
        live = await self._find(shoot)
        if live is None:
            return None
        metadata, status = live["metadata"], live.get("status") or {}
        annotations = metadata.get("annotations") or {}
        last = status.get("lastOperation")
        spec = live["spec"]
        maintenance, window = spec.get("maintenance") or {}, (spec.get("maintenance") or {}).get("timeWindow")
        confined = bool(maintenance.get("confineSpecUpdateRollout"))
        asleep = bool((spec.get("hibernation") or {}).get("enabled"))
        seed = status.get("seedName") or spec.get("seedName")
        leaves = "deletionTimestamp" in metadata or seed != spec.get("seedName")
        found, bastions, prepared_at, migration_fault = await asyncio.gather(
            self._seed(seed),
            self._bastions(shoot, seed if leaves else None),
            self._prepared_at(live),
            self._migration_fault(seed, spec.get("seedName")),
        )
        return ShootView(
            generation=metadata["generation"],
            deleting="deletionTimestamp" in metadata,
            finalizer=constants.FINALIZER in (metadata.get("finalizers") or ()),
            uid_recorded=bool(status.get("uid")),
            spec_seed=live["spec"].get("seedName"),
            status_seed=status.get("seedName"),
            observed_generation=status.get("observedGeneration") or 0,
            last_operation=_last_operation(last) if last else None,
            gardener_version=(status.get("gardener") or {}).get("version", ""),
            our_version=OWN_VERSION,
            operations=_operations(annotations),
            repairs=repair.asked(annotations),
            asked_by=annotations.get(constants.REPAIR_BY, ""),
            ignored=self._may_hold_back(shoot) and is_true(annotations.get(constants.SHOOT_IGNORE)),
            rate_limited=any(
                ErrorCode.INFRA_RATE_LIMITS_EXCEEDED in (error.get("codes") or ())
                for error in status.get("lastErrors") or ()
            ),
            uid=shoot.uid,
            force_delete=is_true(annotations.get(constants.CONFIRMATION_FORCE_DELETION)),
            source_lost=annotations.get(constants.CONTROL_PLANE_MIGRATION) == constants.MIGRATION_BAD_CASE,
            hibernation_switched=asleep != bool(status.get("hibernated")),
            confined=confined,
            in_window_only=confined or self._rules.reconcile_in_maintenance_only,
            window=(window["begin"], window["end"]) if window else None,
            sync_period=self._sync_period(shoot, annotations),
            bastions=bastions,
            emergency_stop=found is not None
            and constants.EMERGENCY_STOP in (found["metadata"].get("annotations") or {}),
            seed_exists=found is not None,
            seed_fault=seed_fault(found) if found else "",
            prepared_at=prepared_at,
            migration_fault=migration_fault,
            in_place_pending=any(in_place_updates.pending_of(live).values()),
        )

    async def _seed(self, name: str | None) -> dict[str, Any] | None:
        return await self._garden.find(resources.SEED, name) if name else None

    async def _prepared_at(self, live: Mapping[str, Any]) -> str:
        """The destination seed, if it has begun to take over the control plane from the source; else empty.

        The sign is a BackupEntry that names the destination. The first one is the entry for the source's bucket.
        """
        status = live.get("status") or {}
        last = status.get("lastOperation") or {}
        if last.get("type") not in MIGRATIONS or last.get("state") in ("Succeeded", "Aborted"):
            return ""
        namespace = await control_plane_of(self._garden, ShootRef.of(live))
        names = backup_entry_names(namespace, live["metadata"]["uid"])
        entries = await asyncio.gather(
            *(self._garden.find(resources.CORE_BACKUP_ENTRY, each, live["metadata"]["namespace"]) for each in names)
        )
        for entry in entries:
            seed = str(entry["spec"].get("seedName") or "") if entry else ""
            if seed and seed != status.get("seedName"):
                return seed
        return ""

    async def _migration_fault(self, source: str | None, destination: str | None) -> str:
        """Why the control plane cannot move now to the seed that the owner wants; empty if it can, or need not move."""
        if source is None or destination is None or source == destination:
            return ""
        found = await self._garden.find(resources.SEED, destination)
        return seed_fault(found) if found else f"Seed {destination} does not exist"

    def _may_hold_back(self, shoot: ShootRef) -> bool:
        """Whether annotations may exclude the Shoot from regular operations. Source: spec/flows.md 1.3, row 3."""
        return self._rules.respect_sync_period_overwrite or shoot.namespace == constants.GARDEN_NAMESPACE

    def _sync_period(self, shoot: ShootRef, annotations: Mapping[str, str]) -> timedelta:
        """Period between regular operations. An annotation can only lengthen this period; an invalid one is ignored."""
        period = self._rules.sync_period
        if self._may_hold_back(shoot) and (text := annotations.get(constants.SHOOT_SYNC_PERIOD)):
            with contextlib.suppress(ValueError):
                period = max(period, parse_duration(text))
        return period

    async def _bastions(self, shoot: ShootRef, seed: str | None) -> tuple[str, ...]:
        """Names of the Shoot's Bastions on this seed; none without a seed.

        A lost seed deletes its own Bastions when it comes back.
        """
        if seed is None:
            return ()
        found = await self._garden.list(resources.OPERATIONS_BASTION, shoot.namespace)
        specs = {each["metadata"]["name"]: each["spec"] for each in found}
        there = (name for name, spec in specs.items() if spec["shootRef"]["name"] == shoot.name)
        return tuple(sorted(name for name in there if specs[name].get("seedName") == seed))

    @activity.defn
    async def abandon_source(self, shoot: ShootRef) -> None:
        """Let the destination take over, although the source has not released the control plane.

        The operator's annotation is removed last, so that a second run does what is left.
        """
        await retry_on_conflict(f"editing Shoot {shoot}", lambda: self._abandon_source(shoot))

    async def _abandon_source(self, shoot: ShootRef) -> None:
        live = await self._find(shoot)
        status, destination = (live.get("status") or {}, live["spec"].get("seedName")) if live else ({}, None)
        source = status.get("seedName")
        if live is not None and source and destination and source != destination:
            last = {
                "type": str(OperationType.MIGRATE),
                "state": "Aborted",
                "progress": 0,
                "description": f"Seed {source} is lost; {destination} takes over.",
                "lastUpdateTime": timestamp(),
            }
            change = {"lastOperation": last, "lastErrors": None, "seedName": destination}
            if live_migration.of_attempt(live) is Stage.MOVING:
                change |= live_migration.told(live, Stage.FELL_BACK, f"seed {source} is lost", timestamp())
            await patch_status(self._garden, shoot, change, version=live["metadata"]["resourceVersion"])
            live = await self._find(shoot)
        if live is not None and constants.CONTROL_PLANE_MIGRATION in (live["metadata"].get("annotations") or {}):
            await self._patch_metadata(live, {"annotations": {constants.CONTROL_PLANE_MIGRATION: None}})

    # An operation's start and end

    @activity.defn
    async def start_operation(self, request: StartOperation) -> StartedOperation:
        """Record the start of an operation: finalizer, technical ID, uid, seed, generation, lastOperation.

        The activity also removes the annotation that requested the operation. A second run writes the same again,
        with a later time.
        """

        async def start() -> StartedOperation:
            live = await self._claim(await self._get(request.shoot), request)
            return await self._begin(live, request)

        return await retry_on_conflict(f"editing Shoot {request.shoot}", start)

    async def _claim(self, live: dict[str, Any], request: StartOperation) -> dict[str, Any]:
        """Add our finalizer and remove the annotations of answered operations, with one write, or none."""
        metadata = live["metadata"]
        change: dict[str, Any] = {}
        finalizers = list(metadata.get("finalizers") or ())
        if constants.FINALIZER not in finalizers and "deletionTimestamp" not in metadata:
            change["finalizers"] = [*finalizers, constants.FINALIZER]
        annotations = metadata.get("annotations") or {}
        if annotation := _without_operations(annotations, request.consume):
            # The reason of a forced completion is valid for this completion only.
            forced = {rotation.FORCED_COMPLETION: None} if rotation.FORCED_COMPLETION in annotations else {}
            change["annotations"] = {**annotation, **forced}
        return await self._patch_metadata(live, change) if change else live

    async def _begin(self, live: dict[str, Any], request: StartOperation) -> StartedOperation:
        now = datetime.now(UTC)
        metadata, spec, status = live["metadata"], live["spec"], live.get("status") or {}
        deleting = request.operation is OperationType.DELETE
        generation = metadata["generation"]
        seed = status.get("seedName") or spec["seedName"]
        last = status.get("lastOperation") or {}
        cycle_start = _cycle_start(live, now, deleting=deleting)
        destination = ""
        if request.operation is OperationType.MIGRATE:
            destination = await self._prepared_at(live) or spec["seedName"]
        technical = await self._technical_id(live, request)
        errors = [each for each in status.get("lastErrors") or () if each.get("taskID") != INITIALIZE]
        verb = _VERBS.get(request.operation, "Reconciliation")
        rotations = rotation.status_of(live) if deleting else _begun_rotations(live, request, now)
        stage = live_migration.of_attempt(live) if request.operation in _MOVES else Stage.NONE
        operation = request.operation
        if operation is OperationType.MIGRATE and stage is Stage.MOVING:
            operation = OperationType.LIVE_MIGRATE
        change = {
            "technicalID": technical,
            "uid": metadata["uid"],
            "observedGeneration": generation,
            "gardener": {"id": MANAGER, "name": MANAGER, "version": OWN_VERSION},
            "retryCycleStartTime": timestamp(cycle_start),
            "lastOperation": {
                "type": str(operation),
                "state": "Processing",
                "progress": 0,
                "description": f"{verb} of Shoot cluster initialized, attempt {request.attempt}.",
                "lastUpdateTime": timestamp(now),
            },
            "lastErrors": errors or None,
            **({} if deleting else {"seedName": seed}),
            **_credentials_change(live, rotations, creating=request.operation is OperationType.CREATE),
            **_constraint_change(status, rotations),
        }
        if request.operation is OperationType.MIGRATE and last.get("type") not in MIGRATIONS:
            change |= live_migration.told(live, stage, f"members of etcd join those in seed {seed}", timestamp(now))
        await patch_status(self._garden, request.shoot, change, version=metadata["resourceVersion"])
        task = ShootTask(
            shoot=request.shoot,
            technical_id=technical,
            seed=seed,
            generation=generation,
            operation=operation,
            destination=destination,
            trigger=micro_timestamp(now),
        )
        if constants.OPERATION_RETRY in request.consume:
            retried = Repair(action=Action.RETRY, by=request.asked_by or UNKNOWN_USER)
            await self._event(task, request.attempt, "Normal", "RepairRetry", f"{retried}")
        await self._event(task, request.attempt, *_STARTED[deleting])
        await self._rotation_events(task, request.attempt, rotation.status_of(live), rotations)
        seen = await self._facts(live, seed)
        return StartedOperation(
            task=task,
            facts=seen.model_copy(
                update={
                    "rotations": () if deleting else rotation.active(rotations),
                    "live": operation is OperationType.LIVE_MIGRATE,
                    "fell_back": stage is Stage.FELL_BACK,
                }
            ),
            started=now,
            retry_cycle_start=cycle_start,
        )

    async def _technical_id(self, live: dict[str, Any], request: StartOperation) -> str:
        """The computed technical ID. Raises ForeignTechnicalID if the status holds another one."""
        computed = await control_plane_of(self._garden, request.shoot)
        recorded = (live.get("status") or {}).get("technicalID") or computed
        if recorded == computed:
            return computed
        text = (
            f"status.technicalID is {recorded}, but the names of Project and Shoot make {computed}: another client "
            "than the controller-manager wrote it. No operation starts until an operator has found that client in the "
            "garden's audit log, and has corrected the status"
        )
        await self._tell(request.shoot, recorded, "Warning", "ForeignTechnicalID", text)
        raise ApplicationError(f"Shoot {request.shoot}: {text}", type="ForeignTechnicalID")

    @activity.defn
    async def finish_operation(self, request: FinishOperation) -> None:
        """Record the end of an operation; a second run writes the same. A Shoot that is gone needs no record.

        The write that records a success also advances rotations of credentials, so they advance only once.
        """
        await retry_on_conflict(f"editing Shoot {request.task.shoot}", lambda: self._finish(request))

    async def _finish(self, request: FinishOperation) -> None:
        task = request.task
        live = await self._find(task.shoot)
        if live is None:
            return
        now = datetime.now(UTC)
        succeeded = request.state == "Succeeded"
        if succeeded and task.operation is not OperationType.DELETE:
            live = await self._take_off_tasks(live, request)
        status = live.get("status") or {}
        progress = 100 if succeeded else (status.get("lastOperation") or {}).get("progress", 0)
        change: dict[str, Any] = {
            "lastOperation": {
                "type": str(task.operation),
                "state": request.state,
                "progress": progress,
                "description": request.description[:MESSAGE_LIMIT],
                "lastUpdateTime": timestamp(now),
            },
            "lastErrors": [last_error(each.message, each.name, each.codes, each.at) for each in request.failed] or None,
        }
        if not succeeded and not request.failed:
            change["lastErrors"] = [last_error(request.description, INITIALIZE, (), now)]
        if request.state in ("Succeeded", "Failed"):
            change["retryCycleStartTime"] = None
        if request.live and succeeded:
            change |= live_migration.told(live, Stage.MOVED, "users missed no API server", timestamp(now))
        if request.falls_back:
            change |= live_migration.told(live, Stage.FELL_BACK, _text(request)[:MESSAGE_LIMIT], timestamp(now))
        if succeeded and task.operation in MIGRATIONS:
            # The destination with which the operation began, not the spec's seed of now: the owner may have aborted
            # the migration too late.
            change["seedName"] = task.destination
        elif succeeded and task.operation is not OperationType.DELETE:
            change["seedName"] = task.seed
            change["hibernated"] = request.hibernated
            for field, types in (("conditions", CONDITIONS), ("constraints", WEBHOOK_CONSTRAINTS)):
                if known := status.get(field):
                    change[field] = after_success(known, types, now)
            if (status.get("lastOperation") or {}).get("state") == "Processing":
                before = rotation.status_of(live)
                rotations = rotation.succeed(before, RotationFacts.of_shoot(live), timestamp(now))
                change |= _credentials_change(live, rotations)
                await self._rotation_events(task, request.attempt, before, rotations)
        await patch_status(self._garden, task.shoot, change, version=live["metadata"]["resourceVersion"])
        deleting = task.operation is OperationType.DELETE
        if succeeded:
            await self._event(task, request.attempt, *_SUCCEEDED[deleting])
        else:
            type_, reason = _FAILED[deleting]
            await self._event(task, request.attempt, type_, reason, _text(request))

    async def _take_off_tasks(self, live: dict[str, Any], request: FinishOperation) -> dict[str, Any]:
        """Remove the tasks that the operation has done from the annotation; tasks requested meanwhile stay."""
        asked = _tasks(live["metadata"].get("annotations") or {})
        left = [each for each in asked if each not in request.tasks]
        if left == asked:
            return live
        return await self._patch_metadata(live, {"annotations": {constants.SHOOT_TASKS: ",".join(left) or None}})

    @activity.defn
    async def refuse_operation(self, request: Refusal) -> None:
        """Write why no operation starts now, and remove operations without effect; writes only changed fields."""
        await retry_on_conflict(f"editing Shoot {request.shoot}", lambda: self._refuse(request))

    async def _refuse(self, request: Refusal) -> None:
        live = await self._find(request.shoot)
        if live is None:
            return
        metadata = live["metadata"]
        if annotation := _without_operations(metadata.get("annotations") or {}, request.consume):
            if request.event:  # first: after the removal of the annotation, a second run would not record it
                version = metadata["resourceVersion"]
                await self._tell(request.shoot, version, "Warning", request.event, request.description)
            live = await self._patch_metadata(live, {"annotations": annotation})
        await self._say(live, request)

    async def _say(self, live: dict[str, Any], request: Refusal) -> None:
        last = (live.get("status") or {}).get("lastOperation") or {}
        if not request.state or (last.get("state"), last.get("description")) == (request.state, request.description):
            return
        default = OperationType.DELETE if "deletionTimestamp" in live["metadata"] else OperationType.CREATE
        operation = {
            "type": last.get("type", str(default)),
            "state": request.state,
            "progress": last.get("progress", 0),
            "description": request.description,
            "lastUpdateTime": timestamp(),
        }
        await patch_status(
            self._garden, request.shoot, {"lastOperation": operation}, version=live["metadata"]["resourceVersion"]
        )

    # Actions of users

    @activity.defn
    async def record_repair(self, request: RecordRepair) -> None:
        """Record a repair in an Event, then remove its annotation; a second run finds both done."""
        made = request.repair
        if request.refused:
            text = f"{made.action} {made.task}".strip() + f", asked for by {made.by}, is refused: {request.refused}"
            event = ("Warning", "RepairRefused", text)
        else:
            event = ("Normal", f"Repair{made.action.name.title()}", f"{made}")
        occasion = f"{made.action}/{made.task}/{made.by}/{made.at or ''}"
        wish = made.model_copy(update={"at": None})
        await self._tell(request.shoot, occasion, *event)
        name = repair.annotation(made.action)

        def without(live: dict[str, Any]) -> dict[str, Any] | None:
            annotations = live["metadata"].get("annotations") or {}
            if name not in annotations or wish not in repair.asked(annotations):
                return None
            return {"metadata": {"annotations": repair.without(annotations, name)}}

        await self._edit(request.shoot, without)

    @activity.defn
    async def release_shoot(self, shoot: ShootRef) -> None:
        """Remove our finalizer; a second run finds it removed, or the Shoot gone."""

        def without(live: dict[str, Any]) -> dict[str, Any] | None:
            finalizers = live["metadata"].get("finalizers") or []
            left = [each for each in finalizers if each != constants.FINALIZER]
            return {"metadata": {"finalizers": left}} if left != finalizers else None

        await self._edit(shoot, without)

    # The Shoot

    async def _find(self, shoot: ShootRef) -> dict[str, Any] | None:
        return await find_shoot(self._garden, shoot)

    async def _edit(self, shoot: ShootRef, change: Change) -> None:
        await edit(self._garden, resources.SHOOT, shoot.name, shoot.namespace, change, uid=shoot.uid)

    async def _patch_metadata(self, live: dict[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
        return await patch_as_read(self._garden, resources.SHOOT, live, {"metadata": metadata})

    async def _get(self, shoot: ShootRef) -> dict[str, Any]:
        live = await self._find(shoot)
        if live is None:
            raise ApplicationError(
                f"Shoot {shoot} with uid {shoot.uid} does not exist any more", type="ShootGone", non_retryable=True
            )
        return live

    async def _facts(self, live: dict[str, Any], seed: str) -> ShootFacts:
        spec, annotations = live["spec"], live["metadata"].get("annotations") or {}
        seed_object = await self._garden.find(resources.SEED, seed) or {"spec": {}}
        registrations = await self._garden.list(resources.CONTROLLER_REGISTRATION)
        extensions = wanted_extensions(live, registrations)
        pools = spec["provider"].get("workers") or ()
        hibernated = bool((spec.get("hibernation") or {}).get("enabled"))
        return ShootFacts(
            extensions=versions_by_phase(extensions),
            tasks=tuple(each for each in _tasks(annotations) if each in constants.ANSWERED_TASKS),
            extension_minutes=max((each.timeout.total_seconds() / 60 for each in extensions), default=3),
            container_runtimes=any((pool.get("cri") or {}).get("containerRuntimes") for pool in pools),
            workerless=not pools,
            hibernated=hibernated,
            waking=not hibernated and bool((live.get("status") or {}).get("hibernated")),
            backup=bool(seed_object["spec"].get("backup")),
            skip_readiness=constants.SHOOT_SKIP_READINESS in annotations,
            skip_cleanup=is_true(annotations.get(constants.SHOOT_SKIP_CLEANUP)),
            managed_issuer=is_managed(annotations),
            ssh_access=ssh.has_access(live),
            dual_stack=dual_stack.has_ipv6(live),
            failure_tolerance=bool((spec.get("controlPlane") or {}).get("highAvailability")),
            credentials=await self._credentials_version(live),
        )

    async def _credentials_version(self, live: dict[str, Any]) -> str:
        """Uid and version of the Secret with the cloud credentials; empty if the Secret cannot be found.

        The task that copies the Secret decides whether a missing Secret is an error. The version of a WorkloadIdentity
        is its generation: controllers write its status, labels and finalizers.
        """
        try:
            secret = await cloud_credentials(self._garden, live)
        except NotFound:
            secret = None
        if secret is None:
            return ""
        version = secret["metadata"]["generation" if is_workload_identity(secret) else "resourceVersion"]
        return f"{secret['metadata']['uid']}/{version}"

    async def _rotation_events(
        self, task: ShootTask, attempt: int, before: rotation.Status, after: rotation.Status
    ) -> None:
        for kind in rotation.PHASED:
            phase = rotation.phase_of(after, kind)
            if phase is not rotation.phase_of(before, kind):
                text = f"Rotation of the {kind.words} is {phase}"
                await self._event(task, attempt, "Normal", f"{kind[0].upper()}{kind[1:]}{phase}", text)

    async def _event(self, task: ShootTask, attempt: int, type_: str, reason: str, message: str) -> None:
        await self._tell(task.shoot, f"{task.generation}/{attempt}/{task.trigger}", type_, reason, message)

    async def _tell(self, shoot: ShootRef, occasion: str, type_: str, reason: str, message: str) -> None:
        await record(self._garden, shoot, f"{occasion}/{reason}", type_, reason, message)


def _text(request: FinishOperation) -> str:
    return "; ".join(f"{each.name}: {each.message}" for each in request.failed) or request.description


def _last_operation(last: Mapping[str, Any]) -> LastOperation:
    """For decisions, a live migration is a migration."""
    type_ = OperationType.MIGRATE if last["type"] in MIGRATIONS else last["type"]
    return LastOperation(type=type_, state=last["state"], updated=last.get("lastUpdateTime"))


_MOVES = (OperationType.MIGRATE, OperationType.RESTORE)
_VERBS = {
    OperationType.DELETE: "Deletion",
    OperationType.MIGRATE: "Migration",
    OperationType.RESTORE: "Restoration",
}
_STARTED = {
    False: ("Normal", "Reconciling", "Reconciling Shoot cluster"),
    True: ("Normal", "Deleting", "Deleting Shoot cluster"),
}
_SUCCEEDED = {
    False: ("Normal", "Reconciled", "Reconciled Shoot cluster"),
    True: ("Normal", "Deleted", "Deleted Shoot cluster"),
}
_FAILED = {False: ("Warning", "ReconcileError"), True: ("Warning", "DeleteError")}


def seed_fault(seed: Mapping[str, Any]) -> str:
    """Why the Seed accepts no operation now; empty if it accepts one. Source: spec/flows.md 1.3, row 6."""
    metadata, status = seed["metadata"], seed.get("status") or {}
    if "deletionTimestamp" in metadata:
        return ""
    name = metadata["name"]
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    for type_ in (constants.SEED_GARDENLET_READY, constants.SEED_SYSTEM_COMPONENTS_HEALTHY):
        condition = conditions.get(type_)
        if condition is None or condition["status"] != "True":
            state = f"{condition['status']}: {condition.get('message', '')}" if condition else "not reported"
            return f"Seed {name} is not ready: condition {type_} is {state}"
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        return f"Seed {name} has changed and its gardenlet has not seen it yet"
    served = (status.get("gardener") or {}).get("version", OWN_VERSION)
    if served != OWN_VERSION:
        return f"Seed {name} is served by a gardenlet {served}, and this is {OWN_VERSION}: bring it to the same version"
    return ""


def _cycle_start(live: Mapping[str, Any], now: datetime, *, deleting: bool) -> datetime:
    """When the first attempt of this operation began.

    It is the first one if the spec or our version has changed since the attempt before, or if a deletion begins.
    """
    status = live.get("status") or {}
    first = (
        not status.get("retryCycleStartTime")
        or status.get("observedGeneration") != live["metadata"]["generation"]
        or (status.get("gardener") or {}).get("version") != OWN_VERSION
        or (deleting and (status.get("lastOperation") or {}).get("type") != OperationType.DELETE)
    )
    return now if first else datetime.fromisoformat(status["retryCycleStartTime"])


def _begun_rotations(live: dict[str, Any], request: StartOperation, now: datetime) -> dict[str, Any]:
    """Rotations of credentials with those that this operation begins."""
    facts = RotationFacts.of_shoot(live)
    stores = request.operation is not OperationType.CREATE or encryption.known(live) is not None
    if request.operation in _MOVES or not stores:
        # A move keeps the stored data as they are, and before the first operation there are no stored data.
        facts = dataclasses.replace(facts, encryption_changes=False)
    return rotation.begin(rotation.status_of(live), request.consume, facts, timestamp(now))


def _credentials_change(
    live: Mapping[str, Any], rotations: Mapping[str, Any], *, creating: bool = False
) -> dict[str, Any]:
    """Part of a status patch for ``status.credentials``; empty if nothing changes.

    ``encryptionAtRest`` is the wanted encryption from a cluster's first operation on. After a change of the encryption,
    the field is updated when the rotation of the key ends: only then are all stored data encrypted as wanted.
    """
    before = rotation.status_of(live)
    patch = rotation.patch_of(before, rotations)
    change: dict[str, Any] = {"rotation": patch} if patch else {}
    phases = [rotation.phase_of(each, Kind.ETCD_ENCRYPTION_KEY) for each in (before, rotations)]
    rewritten = phases == [Phase.COMPLETING, Phase.COMPLETED]
    untold = encryption.known(live) is None and (creating or not encryption.changes(live))
    if rewritten or untold:
        change["encryptionAtRest"] = encryption.Encryption.wanted(live).status()
    return {"credentials": change} if change else {}


def _constraint_change(status: Mapping[str, Any], rotations: Mapping[str, Any]) -> dict[str, Any]:
    """Part of a status patch that removes constraints about users of old credentials if no rotation waits for them."""
    over = {
        rotation.constraint_of(kind)
        for kind in rotation.PHASED
        if rotation.phase_of(rotations, kind) is not Phase.PREPARED
    }
    known = status.get("constraints") or []
    left = [each for each in known if each["type"] not in over]
    return {"constraints": left} if len(left) < len(known) else {}


def _operations(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Values of the operation annotation; ``;`` separates parallel operations."""
    return tuple(part.strip() for part in annotations.get(constants.OPERATION, "").split(";") if part.strip())


def _tasks(annotations: Mapping[str, str]) -> list[str]:
    return [each for each in annotations.get(constants.SHOOT_TASKS, "").split(",") if each]


def _without_operations(annotations: Mapping[str, str], consumed: tuple[str, ...]) -> dict[str, str | None]:
    """Merge patch of the annotations that removes these operations; empty if there is nothing to remove."""
    operations = _operations(annotations)
    left = [each for each in operations if each not in consumed]
    if len(left) == len(operations):
        return {}
    author = repair.without(annotations) if constants.OPERATION_RETRY in consumed else {}
    return {constants.OPERATION: ";".join(left) or None, **author}
