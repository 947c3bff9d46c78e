"""The scheduler: writes ``spec.seedName`` of new Shoots, or reports why no seed fits."""

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any

from pydantic import Field, NonNegativeInt

from api import resources
from api.constants import GARDEN_NAMESPACE
from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.decisions.profiles import profile_of, profile_reference
from api.decisions.scheduling import NoSeed, choose_seed
from api.decisions.seed_ranking import REGION_CONFIG_SELECTOR, Ranking, Score, Strategy, distances_from
from api.model import ApiModel
from api.resources import Object, Resource
from api.times import timestamp
from kube.cache import Caches, Key
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller, TryAgain
from kube.edit import patch_as_read
from kube.errors import Conflict
from kube.events import emit
from workers.lib.leader import LeaderElectionConfig, run_as_leader
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal

log = logging.getLogger(__name__)

_NAME = "gardener-scheduler"
_SCHEDULER = "default-scheduler"
_PROFILES = (resources.CLOUD_PROFILE, resources.NAMESPACED_CLOUD_PROFILE)


class ShootSchedulerConfig(ApiModel):
    """Which seed the scheduler chooses among those that fit."""

    candidate_determination_strategy: Strategy = Strategy.SAME_REGION
    score_weights: dict[Score, NonNegativeInt] = Field(default_factory=dict)
    """Weights of the scores of a seed; none: the seed with fewest Shoots comes first."""


class SchedulersConfig(ApiModel):
    shoot: ShootSchedulerConfig = ShootSchedulerConfig()


class SchedulerConfig(ApiModel):
    garden_client_connection: ClientConnection
    schedulers: SchedulersConfig = SchedulersConfig()
    health: HealthConfig = HealthConfig()
    leader_election: LeaderElectionConfig = LeaderElectionConfig()


async def run(config_path: str) -> None:
    """Run until SIGTERM."""
    config = load_config(SchedulerConfig, config_path)
    garden = kube_client(config.garden_client_connection)
    caches = Caches(garden)
    health = Health()
    health.ready = config.leader_election.leader_elect  # a replica that waits for the lease is ready, too
    runner = await health.serve(config.health)
    scheduler = Scheduler(garden, caches, config.schedulers.shoot)
    try:
        await run_until_signal(run_as_leader(garden, config.leader_election, _NAME, scheduler.run(health)))
    finally:
        await runner.cleanup()
        await caches.close()
        await garden.close()


_DEFAULTS = ShootSchedulerConfig()


class Scheduler:
    """Schedules one Shoot at a time: each decision must see the result of the previous one."""

    def __init__(self, garden: KubeClient, caches: Caches, config: ShootSchedulerConfig = _DEFAULTS) -> None:
        self._garden = garden
        self._config = config
        self._shoots = caches.of(resources.SHOOT)
        self._seeds = caches.of(resources.SEED)
        self._profiles = {each: caches.of(each) for each in _PROFILES}
        self._regions = caches.of(resources.CONFIG_MAP, GARDEN_NAMESPACE, REGION_CONFIG_SELECTOR)
        self._assumed: dict[str, str] = {}
        """Chosen seed by uid of a Shoot, until the cache holds the Shoot with its ``spec.seedName``."""
        self._controller = Controller("scheduler", self._schedule, workers=1, longest_delay=30)

    async def run(self, health: Health) -> None:
        """Run until cancelled."""
        caches = (self._shoots, self._seeds, self._regions, *self._profiles.values())
        await asyncio.gather(*(each.synced() for each in caches))
        self._controller.watch(self._shoots, when=_asks_for_a_seed)
        # A pending Shoot may fit after a Seed or a cloud profile has changed.
        self._controller.watch(self._seeds, keys=lambda event: self._waiting() if _worth_a_look(event) else ())
        for each in self._profiles.values():
            self._controller.watch(each, keys=lambda _: self._waiting(), when=_is_spec_change)
        self._controller.watch(self._regions, keys=lambda _: self._waiting())
        health.ready = True
        await self._controller.run()

    def _waiting(self) -> list[Key]:
        return [
            Key(each["metadata"]["namespace"], each["metadata"]["name"])
            for each in self._shoots.list()
            if _pending(each)
        ]

    async def _schedule(self, key: Key) -> None:
        obj = self._shoots.get(key.name, key.namespace)
        if obj is None or not _pending(obj):
            return
        try:
            shoot = Shoot.of(obj)
            profile = await self._profile_of(obj)
            seed = choose_seed(shoot, profile, self._all_seeds(), self._placed(), self._ranking(shoot, profile))
        except NoSeed as error:
            await self._report_failure(obj, str(error))
            raise TryAgain(str(error)) from None
        await self._bind(obj, seed)

    async def _profile_of(self, shoot: Object) -> CloudProfile:
        found = await profile_of(shoot, self._find_profile)
        if found is None:
            raise NoSeed(f"{profile_reference(shoot) or 'the cloud profile'} does not exist")
        return CloudProfile.of(found)

    async def _find_profile(self, kind: Resource, name: str, namespace: str | None) -> Object | None:
        return self._profiles[kind].get(name, namespace)

    def _ranking(self, shoot: Shoot, profile: CloudProfile) -> Ranking:
        """How seeds are compared for a Shoot. Distances that cannot be read do not count; the log names them."""
        distances: dict[str, int] = {}
        try:
            distances = distances_from(self._regions.list(), profile.metadata.name, shoot.spec.region)
        except ValueError as error:
            log.error("the distances between regions are taken from their names: %s", error)
        return Ranking(self._config.candidate_determination_strategy, self._config.score_weights, distances)

    def _all_seeds(self) -> list[Seed]:
        return [Seed.of(each) for each in self._seeds.list()]

    def _placed(self) -> Counter[str]:
        placed: Counter[str] = Counter()
        for each in self._shoots.list():
            uid, name = each["metadata"]["uid"], each["spec"].get("seedName")
            if name:
                self._assumed.pop(uid, None)
            if name := name or self._assumed.get(uid):
                placed[name] += 1
        return placed

    async def _bind(self, obj: dict[str, Any], seed: str) -> None:
        metadata = obj["metadata"]
        bound = await patch_as_read(self._garden, resources.SHOOT, obj, {"spec": {"seedName": seed}})
        self._assumed[metadata["uid"]] = seed
        await self._withdraw_failure(bound)
        log.info("shoot %s/%s goes to seed %s", metadata["namespace"], metadata["name"], seed)
        await emit(self._garden, obj, _NAME, "SchedulingSuccessful", f"Scheduled to seed '{seed}'")

    async def _withdraw_failure(self, bound: dict[str, Any]) -> None:
        """Remove the report that no seed fits, unless another component has written to the Shoot since."""
        last = (bound.get("status") or {}).get("lastOperation") or {}
        if (last.get("type"), last.get("state")) != ("Create", "Pending"):
            return
        patch = {"status": {"lastOperation": None}}
        with contextlib.suppress(Conflict):
            await patch_as_read(self._garden, resources.SHOOT, bound, patch, subresource="status")

    async def _report_failure(self, obj: dict[str, Any], reason: str) -> None:
        description = f"Failed to schedule Shoot: {reason}"
        last = obj.get("status", {}).get("lastOperation") or {}
        if last.get("description") == description:
            return  # reported already
        metadata = obj["metadata"]
        operation = {
            "type": "Create",
            "state": "Pending",
            "progress": 0,
            "description": description,
            "lastUpdateTime": timestamp(),
        }
        await self._garden.patch(
            resources.SHOOT,
            metadata["name"],
            metadata["namespace"],
            {"status": {"lastOperation": operation}},
            subresource="status",
        )
        await emit(self._garden, obj, _NAME, "SchedulingFailed", description, "Warning")


def _pending(shoot: dict[str, Any]) -> bool:
    spec = shoot["spec"]
    return (
        not spec.get("seedName")
        and "deletionTimestamp" not in shoot["metadata"]
        and spec.get("schedulerName", _SCHEDULER) == _SCHEDULER
        and not any(pool.get("controlPlane") for pool in spec["provider"].get("workers") or [])
    )


def _asks_for_a_seed(event: WatchEvent) -> bool:
    """Whether a pending Shoot is new or its spec has changed. The scheduler's own status reports do not count."""
    known = event.old["metadata"]["generation"] if event.old else None
    return event.type != "DELETED" and _pending(event.object) and event.object["metadata"]["generation"] != known


def _is_spec_change(event: WatchEvent) -> bool:
    """Whether an object is new or gone, or its spec has changed; its status does not count."""
    return event.old is None or event.old.get("spec") != event.object.get("spec")


def _worth_a_look(event: WatchEvent) -> bool:
    """Whether a change of a Seed can matter to pending Shoots; its heartbeats do not."""
    if event.old is None:
        return True

    def facts(seed: dict[str, Any]) -> Any:
        status = seed.get("status") or {}
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or []}
        return (
            seed["spec"],
            seed["metadata"].get("labels"),
            seed["metadata"].get("annotations"),
            status.get("allocatable"),
            bool(status.get("lastOperation")),
            conditions,
        )

    return bool(facts(event.old) != facts(event.object))
