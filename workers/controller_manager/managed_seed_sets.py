"""Keeps the replicas of ManagedSeedSets: Shoots, and ManagedSeeds that make seeds of them. Source: GEP-13.

``api.decisions.managed_seed_sets`` decides, this module reads and writes. A reconcile does one step: it stores the
intent in the status, writes one object of a replica, then stores the rest of the status. It reads all objects of a set
from the API server, so that a step of an earlier reconcile, or of a process that died, is never done twice:

- An ordinal counts as used once its Shoot exists, or an object of another owner has its name. A process that dies
  before the creation leaves the ordinal free, and the next reconcile creates the Shoot with the same ordinal.
- All other steps depend on what exists: a second run finds the first one's object, or its deletion.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from pydantic import Field

from api import constants, resources
from api.decisions.conditions import set_conditions
from api.decisions.managed_seed_sets import (
    Action,
    Members,
    Plan,
    Replica,
    Rules,
    Step,
    conditions,
    controller_of,
    members,
    plan,
    replicas_of,
)
from api.decisions.managed_seed_templates import (
    Revision,
    managed_seed_of,
    outdated_revisions,
    revision_data,
    revision_hash,
    shoot_of,
)
from api.model import ApiModel
from api.resources import ObjectView, Resource, resource_of
from api.seedmanagement.v1alpha1.managed_seed_set import ManagedSeedSet
from api.times import timestamp
from api.validation.operations import TWO_USERS
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.edit import patch_as_read
from kube.errors import AlreadyExists, ApiError, BadRequest, Conflict, Forbidden, Invalid
from kube.events import emit
from kube.finalizers import ensure_finalizer, remove_finalizer
from kube.objects import controller_reference
from workers.lib.leader import Duration

log = logging.getLogger(__name__)

_NAME = "gardener-controller-manager"
MANAGER = "managedseedset-controller"
SHOOTS_BY_HOME = "seeds of control planes"
"""Index of Shoots by the Seeds that host their control planes, or will."""
_ORPHAN = "orphan"
"""Finalizer of Kubernetes: the garbage collector takes the owner from all objects of the set."""
_MAX_COLLISIONS = 10
_REASONS = {
    Action.CREATE_SHOOT: "CreatingShoot",
    Action.CREATE_MANAGED_SEED: "CreatingManagedSeed",
    Action.UPDATE_SHOOT: "UpdatingShoot",
    Action.UPDATE_MANAGED_SEED: "UpdatingManagedSeed",
    Action.DELETE_SHOOT: "DeletingShoot",
    Action.DELETE_MANAGED_SEED: "DeletingManagedSeed",
    Action.RETRY_SHOOT: "RetryingShoot",
}


class ManagedSeedSetConfig(ApiModel):
    sync_period: Duration = Field(default=timedelta(minutes=30), gt=timedelta())
    """Time after which a set is reconciled again although nothing happened."""
    max_shoot_retries: int = Field(default=3, ge=0)
    """How many times a failed operation of a replica's Shoot is retried."""


async def run_managed_seed_set_controller(client: KubeClient, caches: Caches, config: ManagedSeedSetConfig) -> None:
    """Run until cancelled."""
    sets, seeds = caches.of(resources.MANAGED_SEED_SET), caches.of(resources.SEED)
    shoots, managed = caches.of(resources.SHOOT), caches.of(resources.MANAGED_SEED)
    reconciler = ManagedSeedSetReconciler(client, caches, config)
    await asyncio.gather(*(each.synced() for each in (sets, seeds, shoots, managed)))
    controller = Controller("managed-seed-sets", reconciler.reconcile, workers=2)
    controller.watch(sets)

    def of_replica(event: WatchEvent) -> Iterable[Key]:
        """Sets that own the object, or that may adopt it."""
        owners = {controller_of(each) for each in (event.object, event.old) if each}
        namespace = event.object["metadata"].get("namespace")
        return [key_of(each) for each in sets.list(namespace) if None in owners or each["metadata"]["uid"] in owners]

    def of_seeds(names: Collection[str]) -> Iterable[Key]:
        """Sets of Seeds: a replica and its Seed have the same name."""
        owners = {controller_of(each) for each in managed.list() if each["metadata"]["name"] in names}
        return [key_of(each) for each in sets.list() if each["metadata"]["uid"] in owners]

    def of_seed(event: WatchEvent) -> Iterable[Key]:
        return of_seeds((event.object["metadata"]["name"],))

    def of_guest(event: WatchEvent) -> Iterable[Key]:
        """Sets whose seeds a Shoot has left: a replica without Shoots may be removed."""
        left = homes(event.old or event.object) - (set() if event.type == "DELETED" else homes(event.object))
        return of_seeds(left) if left else ()

    controller.watch(shoots, keys=of_replica, when=lambda event: bool(sets.list()))
    controller.watch(shoots, keys=of_guest)
    controller.watch(managed, keys=of_replica)
    controller.watch(seeds, keys=of_seed)
    await controller.run()


class ManagedSeedSetReconciler:
    def __init__(self, client: KubeClient, caches: Caches, config: ManagedSeedSetConfig) -> None:
        self._client = client
        self._seeds, self._shoots = caches.of(resources.SEED), caches.of(resources.SHOOT)
        self._shoots.index(SHOOTS_BY_HOME, homes)
        self._config = config
        self._rules = Rules(config.max_shoot_retries)

    async def reconcile(self, key: Key) -> Requeue | None:
        found = await self._client.find(resources.MANAGED_SEED_SET, key.name, key.namespace)
        if found is None:
            return None
        deleting = "deletionTimestamp" in found["metadata"]
        if deleting and _ORPHAN in (found["metadata"].get("finalizers") or ()):
            raise TryAgain(
                f"the garbage collector has not released the replicas of ManagedSeedSet {key} yet", after=5.0
            )
        if not deleting:
            found = await ensure_finalizer(self._client, resources.MANAGED_SEED_SET, found, constants.FINALIZER)
        own = await self._claim(found)
        if deleting and not own:
            await remove_finalizer(self._client, resources.MANAGED_SEED_SET, found, constants.FINALIZER)
            return None
        found, revisions, update = await self._revisions(found)
        set_ = ManagedSeedSet.of(found)
        seeds = {each["metadata"]["name"]: each for each in self._seeds.list()}
        replicas = replicas_of(key.name, own, seeds, lambda seed: len(self._shoots.by_index(SHOOTS_BY_HOME, seed)))
        current = ((set_.status and set_.status.current_revision) or "").removeprefix(f"{key.name}-")
        by_hash = {each.hash: each for each in revisions}
        current = current if current in by_hash else update
        made = plan(set_, replicas, current, update, datetime.now(UTC), self._rules)
        found = await self._write_status(found, made.intent)
        fault = await self._try(found, made, replicas, by_hash)
        status = made.status
        if fault is not None and made.step and made.step.action is Action.CREATE_SHOOT:
            if not isinstance(fault, AlreadyExists):
                # If the Shoot exists nevertheless, the next reconcile reads it, and counts its ordinal as used.
                status = {**status, "nextReplicaNumber": status["nextReplicaNumber"] - 1}
            if isinstance(fault, Forbidden | Invalid | BadRequest):
                status = {**status, "pendingReplica": None}  # the API server has certainly created nothing
        told = conditions(set_, replicas, made, str(fault or ""), self._rules)
        known = (found.get("status") or {}).get("conditions") or []
        now = timestamp(datetime.now(UTC))
        found = await self._write_status(found, {**status, "conditions": set_conditions(known, told, now)})
        if fault is not None:
            raise fault
        await self._forget(set_, made, revisions, replicas)
        return Requeue(self._config.sync_period.total_seconds())

    async def _claim(self, found: Object) -> list[Object]:
        """Shoots and ManagedSeeds of the set, after it has adopted and released objects by its selector."""
        namespace = found["metadata"]["namespace"]
        objects: list[Object] = []
        for kind in (resources.SHOOT, resources.MANAGED_SEED):
            objects += await self._client.list(kind, namespace)
        sorted_: Members = members(ManagedSeedSet.of(found), objects)
        for each in sorted_.release:
            owners = [
                owner for owner in each["metadata"]["ownerReferences"] if owner["uid"] != found["metadata"]["uid"]
            ]
            await self._own(found, each, owners, "ReleasedReplica")
        adopted = [
            await self._own(
                found,
                each,
                [*(each["metadata"].get("ownerReferences") or ()), controller_reference(found)],
                "AdoptedReplica",
            )
            for each in sorted_.adopt
        ]
        return [*map(dict, sorted_.owned), *adopted]

    async def _own(self, found: Object, obj: ObjectView, owners: Sequence[ObjectView], reason: str) -> Object:
        resource = resource_of(obj["apiVersion"], obj["kind"])
        patched = await patch_as_read(self._client, resource, obj, {"metadata": {"ownerReferences": owners}})
        await emit(self._client, found, _NAME, reason, f"{resource.kind} {obj['metadata']['name']}, by its labels")
        return patched

    # Revisions

    async def _revisions(self, found: Object) -> tuple[Object, list[Revision], str]:
        """The set, its revisions, and the hash of the one with the present templates, which is created on demand."""
        listed = await self._client.list(resources.CONTROLLER_REVISION, found["metadata"]["namespace"])
        own = [each for each in listed if controller_of(each) == found["metadata"]["uid"]]
        data, newest = revision_data(found), max((each["revision"] for each in own), default=0)
        same = max((each for each in own if each["data"] == data), key=lambda each: each["revision"], default=None)
        if same is None:
            found, same = await self._new_revision(found, data, newest + 1)
            own.append(same)
        elif same["revision"] != newest:
            # The set has gone back to older templates: their revision becomes the newest. It is made again, because the
            # API server compares the bytes of its data, which a patch writes in another order, and refuses a change.
            own.remove(same)
            metadata = same["metadata"]
            await self._client.delete(
                resources.CONTROLLER_REVISION, metadata["name"], metadata["namespace"], uid=metadata["uid"]
            )
            found, same = await self._new_revision(found, data, newest + 1)
            own.append(same)
        return found, [_revision(each) for each in own], _revision(same).hash

    async def _new_revision(self, found: Object, data: Object, number: int) -> tuple[Object, Object]:
        """Create a revision. An object of another set or with other templates that has its name makes another hash."""
        metadata = found["metadata"]
        collisions = (found.get("status") or {}).get("collisionCount") or 0
        for _ in range(_MAX_COLLISIONS):
            hash_ = revision_hash(data, collisions)
            revision = {
                "apiVersion": resources.CONTROLLER_REVISION.api_version,
                "kind": resources.CONTROLLER_REVISION.kind,
                "metadata": {
                    "name": f"{metadata['name']}-{hash_}",
                    "namespace": metadata["namespace"],
                    "labels": {constants.REVISION_HASH: hash_},
                    "ownerReferences": [controller_reference(found)],
                },
                "data": data,
                "revision": number,
            }
            try:
                return found, await self._client.create(revision)
            except AlreadyExists:
                collisions += 1
                found = await self._write_status(found, {"collisionCount": collisions})
        raise TryAgain(f"ManagedSeedSet {key_of(found)}: the names of {_MAX_COLLISIONS} revisions are taken")

    async def _forget(
        self, set_: ManagedSeedSet, made: Plan, revisions: list[Revision], replicas: list[Replica]
    ) -> None:
        """Delete the revisions beyond ``revisionHistoryLimit``."""
        name, namespace = set_.metadata.name, set_.metadata.namespace
        used = {hash_ for each in replicas for hash_ in each.revisions}
        used |= {made.status[each].removeprefix(f"{name}-") for each in ("currentRevision", "updateRevision")}
        for each in outdated_revisions(revisions, used, set_.spec.revision_history_limit):
            await self._client.delete(resources.CONTROLLER_REVISION, f"{name}-{each.hash}", namespace, uid=each.uid)

    # Steps

    async def _try(
        self, found: Object, made: Plan, replicas: Sequence[Replica], revisions: dict[str, Revision]
    ) -> ApiError | None:
        """Do the step of a plan; returns why the API server refused it."""
        if made.step is None:
            return None
        replica = next((each for each in replicas if each.name == made.step.name), None)
        newest = max(revisions.values(), key=lambda each: each.number)
        try:
            await self._do(found, made.step, replica, revisions.get(made.step.revision, newest))
        except Conflict:
            raise
        except ApiError as error:
            await emit(self._client, found, _NAME, "StepFailed", f"cannot {made.step}: {error}", "Warning")
            return error
        log.info("ManagedSeedSet %s: %s", key_of(found), made.step)
        await emit(self._client, found, _NAME, _REASONS[made.step.action], str(made.step))
        return None

    async def _do(self, found: Object, step: Step, replica: Replica | None, revision: Revision) -> None:
        match step.action:
            case Action.CREATE_SHOOT:
                await self._create(resources.SHOOT, found, shoot_of(found, step.name, revision))
            case Action.CREATE_MANAGED_SEED:
                await self._create(resources.MANAGED_SEED, found, managed_seed_of(found, step.name, revision))
            case Action.UPDATE_SHOOT if replica and replica.shoot:
                await self._apply(found, shoot_of(found, step.name, revision, replica.shoot), replica.shoot)
            case Action.UPDATE_MANAGED_SEED if replica and replica.managed_seed:
                await self._apply(found, managed_seed_of(found, step.name, revision), replica.managed_seed)
            case Action.DELETE_SHOOT if replica and replica.shoot:
                await self._delete_shoot(replica.shoot)
            case Action.DELETE_MANAGED_SEED if replica and replica.managed_seed:
                uid = replica.managed_seed["metadata"]["uid"]
                await self._client.delete(resources.MANAGED_SEED, step.name, found["metadata"]["namespace"], uid=uid)
            case Action.RETRY_SHOOT if replica and replica.shoot:
                annotations = {constants.OPERATION: constants.OPERATION_RETRY}
                await patch_as_read(
                    self._client, resources.SHOOT, replica.shoot, {"metadata": {"annotations": annotations}}
                )

    async def _create(self, resource: Resource, found: Object, manifest: Object) -> None:
        """Create an object of a replica. A second run finds the first one's object, which this set controls."""
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        live = await self._client.find(resource, name, namespace)
        if live is not None and controller_of(live) != found["metadata"]["uid"]:
            why = f"{resource.kind} {namespace}/{name} exists and is not of this set: rename or delete it, or label it"
            raise AlreadyExists(409, "AlreadyExists", f"creating {resource.kind} {namespace}/{name}", why)
        await self._apply(found, manifest, live)

    async def _apply(self, found: Object, manifest: Object, live: ObjectView | None) -> None:
        metadata = {**manifest["metadata"], "ownerReferences": [controller_reference(found)]}
        # A change names the uid of the object that was read. A creation names none.
        metadata |= {"uid": live["metadata"]["uid"]} if live is not None else {}
        await self._client.apply_blindly({**manifest, "metadata": metadata}, manager=MANAGER)

    async def _delete_shoot(self, shoot: ObjectView) -> None:
        """Confirm the deletion of a Shoot, then delete it. A second run finds it confirmed, deleted or gone.

        A Project may require that another user deletes what the set has confirmed. The set then waits for that user.
        """
        metadata = shoot["metadata"]
        if constants.CONFIRMATION_DELETION not in (metadata.get("annotations") or {}):
            confirmed = {"metadata": {"annotations": {constants.CONFIRMATION_DELETION: "true"}}}
            await patch_as_read(self._client, resources.SHOOT, shoot, confirmed)
        name, namespace = metadata["name"], metadata["namespace"]
        try:
            await self._client.delete(resources.SHOOT, name, namespace, uid=metadata["uid"])
        except Forbidden as refusal:
            if TWO_USERS not in refusal.message:
                raise
            advice = (
                f"{TWO_USERS}, and the set has confirmed the deletion: delete the Shoot as a user, by `kubectl -n "
                f"{namespace} delete shoot {name}`, or let the selector of spec.dualApprovalForDeletion leave out the "
                "Shoots of the set"
            )
            raise Forbidden(refusal.status, refusal.reason, refusal.doing, advice) from None

    async def _write_status(self, found: Object, status: ObjectView) -> Object:
        """Store fields of the status that differ; a None removes a field."""
        known = found.get("status") or {}
        change = {field: value for field, value in status.items() if value != known.get(field)}
        if not change:
            return found
        return await patch_as_read(
            self._client, resources.MANAGED_SEED_SET, found, {"status": change}, subresource="status"
        )


def homes(shoot: ObjectView) -> set[str]:
    """Seeds that host the control plane of a Shoot, or will."""
    named = (shoot["spec"].get("seedName"), (shoot.get("status") or {}).get("seedName"))
    return {each for each in named if each}


def _revision(obj: ObjectView) -> Revision:
    hash_ = obj["metadata"]["labels"][constants.REVISION_HASH]
    return Revision(hash_, obj["revision"], obj["data"], obj["metadata"]["uid"])
