"""Start the workflow that cleans up in a seed what is left of Shoots that other seeds have taken over.

The gardenlet of that seed lists them in an annotation of its Seed (``api.contracts.remains``). A list is a claim: what
becomes of a Shoot is decided by the garden's own record of it. A condition of the Seed tells of the cleaning and of its
failures; the gardenlet removes it with its last claim.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

from temporalio.client import Client

from activities.garden.seed_status import write_seed_status
from activities.seed.extensions import says_taken_over
from api import constants, resources
from api.contracts.flows import FlowInput, ShootFacts
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.contracts.remains import BadRemains, Remnant, is_elsewhere, remains_of
from api.decisions.conditions import Finding, Operation, merge
from api.names import backup_entry_names, technical_id
from api.resources import ObjectView
from api.times import micro_timestamp
from kube.cache import BY_UID, Caches, Key, uids_of
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller
from workers.controller_manager.seed_flows import Refused, SeedFlow, SeedFlows, project_of, told_once
from workflows.shoot.forget import ForgetShoot, forget_id

log = logging.getLogger(__name__)


_NAMED_SHOOTS = 5
"""Shoots that a condition names; it counts the others."""


class RemainsWatcher:
    """One per garden."""

    def __init__(self, garden: KubeClient, caches: Caches, temporal: Client) -> None:
        self._garden = garden
        self._temporal = temporal
        self._seeds, self._shoots = caches.of(resources.SEED), caches.of(resources.SHOOT)
        self._projects, self._namespaces = caches.of(resources.PROJECT), caches.of(resources.NAMESPACE)
        self._shoots.index(BY_UID, uids_of)
        self._entries = caches.of(resources.CORE_BACKUP_ENTRY)
        self._flows: dict[str, SeedFlows] = {}
        """By seed."""
        self._claimed: dict[str, frozenset[str]] = {}
        """By seed, uids of the Shoots that its gardenlet names."""
        self._told: dict[str, object] = {}
        """By seed, what the log said last of claims that were refused."""
        self._controller = Controller("remains", self._reconcile, workers=4)

    async def run(self) -> None:
        """Watch until cancelled."""
        caches = (self._seeds, self._shoots, self._projects, self._namespaces, self._entries)
        await asyncio.gather(*(each.synced() for each in caches))
        self._controller.watch(self._seeds)
        self._controller.watch(self._shoots, keys=self._claiming)
        try:
            await self._controller.run()
        finally:
            await asyncio.gather(*(each.close() for each in self._flows.values()))

    def _claiming(self, event: WatchEvent) -> Iterable[Key]:
        """Seeds whose gardenlets name a Shoot."""
        uid = event.object["metadata"]["uid"]
        return [Key(None, seed) for seed, uids in self._claimed.items() if uid in uids]

    async def _reconcile(self, key: Key) -> None:
        seed = self._seeds.get(key.name)
        flows = self._flows.get(key.name)
        if seed is None or constants.SEED_REMAINS not in (seed["metadata"].get("annotations") or {}):
            self._claimed.pop(key.name, None)
            self._told.pop(key.name, None)
            if flows is not None:
                await flows.offer(())
            return
        if flows is None:
            look = partial(self._controller.enqueue, key)
            flows = self._flows[key.name] = SeedFlows(self._temporal, look)
        accepted = self._accepted(seed)
        await flows.offer([self._flow(each, seed) for each in accepted])
        await self._tell(seed, [each.shoot for each in accepted], flows)

    def _accepted(self, seed: ObjectView) -> list[Remnant]:
        """Claims that the garden's own record bears out; the log tells of the others, once."""
        name, accepted, refused = seed["metadata"]["name"], [], {}
        try:
            remains = remains_of(seed)
        except BadRemains as error:
            remains, refused = [], {"all": str(error)}
        self._claimed[name] = frozenset(each.uid for each in remains)
        for remnant in remains:
            try:
                self._judge(remnant, seed, next(iter(self._shoots.by_index(BY_UID, remnant.uid)), None), None)
                accepted.append(remnant)
            except Refused as error:
                refused[f"Shoot {remnant.shoot} with uid {remnant.uid}"] = str(error)
        for line in told_once(self._told, name, refused):
            log.warning("seed %s: its gardenlet asks for a cleanup that is refused: %s", name, line)
        return accepted

    def _judge(
        self, remnant: Remnant, seed: ObjectView, shoot: ObjectView | None, entry: ObjectView | None
    ) -> FlowInput:
        project = project_of(remnant.namespace, self._namespaces, self._projects)
        return judge(remnant, seed, shoot, entry, project)

    def _flow(self, remnant: Remnant, seed: ObjectView) -> SeedFlow:
        async def request() -> FlowInput | None:
            live = await self._garden.find(resources.SHOOT, remnant.name, remnant.namespace)
            if live is not None and live["metadata"]["uid"] != remnant.uid:
                live = None  # another Shoot has the name now
            source = backup_entry_names(remnant.technical_id, remnant.uid)[0]
            entry = await self._garden.find(resources.CORE_BACKUP_ENTRY, source, remnant.namespace)
            try:
                return self._judge(remnant, seed, live, entry)
            except Refused:
                return None

        name = seed["metadata"]["name"]
        return SeedFlow(forget_id(remnant.shoot, name), ForgetShoot.run, f"Forget {remnant.shoot} in {name}", request)

    async def _tell(self, seed: ObjectView, left: Sequence[ShootRef], flows: SeedFlows) -> None:
        known = (seed.get("status") or {}).get("conditions") or []
        if not known:
            return  # the Seed has never been ready, and comes here again when it is
        name, type_ = seed["metadata"]["name"], constants.SEED_MOVED_CONTROL_PLANES_CLEANED_UP
        failed = [each for each in left if flows.has_failed(forget_id(each, name))]
        if left:
            conditions = merge(known, [_finding(left, failed)], Operation.of(seed["status"]), {}, datetime.now(UTC))
        else:
            conditions = [each for each in known if each["type"] != type_]
        if conditions == known:
            return
        await write_seed_status(self._garden, seed, {"conditions": conditions})


def judge(
    remnant: Remnant, seed: ObjectView, shoot: ObjectView | None, entry: ObjectView | None, project: str | None
) -> FlowInput:
    """Input of the cleanup, made from the garden's objects.

    ``shoot`` has the claimed uid; None: no Shoot of the garden has it. ``entry`` is the garden's BackupEntry
    ``source-…`` of the claimed Shoot. ``project`` owns the claimed namespace.

    Raises:
        Refused: the Shoot is not whole in another seed, or names do not belong together.
    """
    name, generation, destination = seed["metadata"]["name"], 0, ""
    if remnant.deleted != (shoot is None):
        raise Refused(f"the Shoot is {'not ' if shoot is None else ''}in the garden")
    if shoot is not None:
        if ShootRef.of(shoot) != remnant.shoot:
            raise Refused(f"the uid is that of Shoot {ShootRef.of(shoot)}")
        if not is_elsewhere(shoot, name):
            raise Refused("its control plane is not complete in another seed")
        if shoot["status"]["technicalID"] != remnant.technical_id:
            raise Refused(f"{remnant.technical_id} is not the technical id in its status")
        generation, destination = shoot["metadata"]["generation"], shoot["status"]["seedName"]
    if project is None and shoot is not None:
        raise Refused(f"namespace {remnant.namespace} belongs to no Project")
    if not _is_technical_id(remnant, project):
        raise Refused(f"{remnant.technical_id} is not its technical id")
    task = ShootTask(
        shoot=remnant.shoot,
        technical_id=remnant.technical_id,
        seed=name,
        generation=generation,
        operation=OperationType.MIGRATE,
        destination=destination,
        trigger=micro_timestamp(),
    )
    return FlowInput(task=task, facts=ShootFacts(), source_entry=entry is not None and _tells_of(entry, seed))


def _is_technical_id(remnant: Remnant, project: str | None) -> bool:
    """``project`` is None when the Project is gone with its last Shoot."""
    if project is not None:
        return remnant.technical_id == technical_id(project, remnant.name)
    parts = remnant.technical_id.split("--")
    return len(parts) == 3 and remnant.technical_id == technical_id(parts[1], remnant.name)


def _tells_of(entry: ObjectView, seed: ObjectView) -> bool:
    """Whether a BackupEntry ``source-…`` is of a seed that was lost, or was made by a seed that a move did not reach.

    Another lost seed needs the mark in its own bucket, so that its etcds do not start when it is back.
    """
    made_by, bucket = entry["spec"].get("seedName"), entry["spec"]["bucketName"]
    return bucket == seed["metadata"]["uid"] or (made_by == seed["metadata"]["name"] and not says_taken_over(entry))


def _finding(left: Sequence[ShootRef], failed: Sequence[ShootRef]) -> Finding:
    type_, why = constants.SEED_MOVED_CONTROL_PLANES_CLEANED_UP, "Other seeds have taken over the control planes of"
    if failed:
        return Finding(
            type_,
            "False",
            "CleanupFailed",
            f"{why} {_names(failed)}. The cleanup of their remains failed, and is retried.",
        )
    return Finding(type_, "Progressing", "CleanupRunning", f"{why} {_names(left)}. Their remains are being deleted.")


def _names(shoots: Sequence[ShootRef]) -> str:
    names = [str(each) for each in shoots[:_NAMED_SHOOTS]]
    more = len(shoots) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
