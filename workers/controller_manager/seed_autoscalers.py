"""Scales ManagedSeedSets by the use of their seeds. Source: GEP-13; decision record 21.

``api.decisions.seed_autoscaler`` decides, this module reads and writes. The time of a change is stored before the
change: a process that dies in between waits for the cooldown, and then decides again. It never scales twice at once.
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from pydantic import Field

from api import resources
from api.core.v1beta1.seed import Seed
from api.decisions.conditions import set_conditions
from api.decisions.managed_seed_sets import controller_of, is_seed_ready, replicas_of
from api.decisions.seed_autoscaler import Decision, SeedUse, decide
from api.decisions.seed_ranking import allocatable_shoots
from api.model import ApiModel
from api.resources import ObjectView
from api.seedmanagement.v1alpha1.seed_autoscaler import SeedAutoscaler
from api.times import timestamp
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.edit import patch_as_read
from kube.events import emit
from workers.controller_manager.managed_seed_sets import SHOOTS_BY_HOME, homes
from workers.lib.leader import Duration

log = logging.getLogger(__name__)

_NAME = "gardener-controller-manager"


class SeedAutoscalerConfig(ApiModel):
    sync_period: Duration = Field(default=timedelta(seconds=30), gt=timedelta())
    """Time between two evaluations of a SeedAutoscaler."""


async def run_seed_autoscaler_controller(client: KubeClient, caches: Caches, config: SeedAutoscalerConfig) -> None:
    """Run until cancelled."""
    scalers = caches.of(resources.SEED_AUTOSCALER)
    kinds = (resources.MANAGED_SEED_SET, resources.MANAGED_SEED, resources.SHOOT, resources.SEED)
    reconciler = SeedAutoscalerReconciler(client, caches, config)
    await asyncio.gather(scalers.synced(), *(caches.of(each).synced() for each in kinds))
    controller = Controller("seed-autoscalers", reconciler.reconcile, workers=1)
    controller.watch(scalers, when=lambda event: event.old is None or event.old["spec"] != event.object["spec"])

    def of_set(event: WatchEvent) -> Iterable[Key]:
        name, namespace = (event.object["metadata"][each] for each in ("name", "namespace"))
        return [key_of(each) for each in scalers.list(namespace) if each["spec"]["scaleTargetRef"]["name"] == name]

    controller.watch(caches.of(resources.MANAGED_SEED_SET), keys=of_set)
    await controller.run()


class SeedAutoscalerReconciler:
    def __init__(self, client: KubeClient, caches: Caches, config: SeedAutoscalerConfig) -> None:
        self._client = client
        self._caches = caches
        self._seeds, self._shoots = caches.of(resources.SEED), caches.of(resources.SHOOT)
        self._shoots.index(SHOOTS_BY_HOME, homes)
        self._config = config

    async def reconcile(self, key: Key) -> Requeue | None:
        found = await self._client.find(resources.SEED_AUTOSCALER, key.name, key.namespace)
        if found is None or "deletionTimestamp" in found["metadata"]:
            return None
        again, now = Requeue(self._config.sync_period.total_seconds()), datetime.now(UTC)
        scaler = SeedAutoscaler.of(found)
        target = await self._client.find(resources.MANAGED_SEED_SET, scaler.spec.scale_target_ref.name, key.namespace)
        if target is None or "deletionTimestamp" in target["metadata"]:
            why = (
                f"there is no ManagedSeedSet {scaler.spec.scale_target_ref.name}: create it, or correct scaleTargetRef"
            )
            await self._report(found, [("AbleToScale", "False", "FailedGetScale", why)], {}, now)
            return again
        others = self._rivals(key, scaler)
        if others:
            why = f"SeedAutoscaler {others[0]} scales the same ManagedSeedSet and is older: delete one of them"
            await self._report(found, [("AbleToScale", "False", "AmbiguousSelector", why)], {}, now)
            return again
        uses = await self._uses(target)
        replicas = target["spec"].get("replicas", 1)
        made = decide(scaler, replicas, uses, now)
        facts = {
            "currentReplicas": replicas,
            "desiredReplicas": made.replicas,
            "usedShoots": sum(each.used for each in uses),
            "allocatableShoots": sum(each.allocatable or 0 for each in uses if each.ready),
            "scaleDownSince": timestamp(made.down_since) if made.down_since else None,
            **({"lastScaleTime": timestamp(now)} if made.scaled else {}),
        }
        await self._report(found, _conditions(made), facts, now)
        if made.scaled:
            await patch_as_read(
                self._client,
                resources.MANAGED_SEED_SET,
                target,
                {"spec": {"replicas": made.replicas}},
                subresource="scale",
            )
            text = f"from {replicas} to {made.replicas} replicas: {made.message}"
            log.info("SeedAutoscaler %s: %s", key, text)
            await emit(self._client, found, _NAME, "SuccessfulRescale", text)
        return again

    def _rivals(self, key: Key, scaler: SeedAutoscaler) -> list[str]:
        """Names of older SeedAutoscalers for the same set: two would undo each other's changes."""
        own = (scaler.metadata.creation_timestamp or "", key.name)
        return [
            each["metadata"]["name"]
            for each in self._caches.of(resources.SEED_AUTOSCALER).list(key.namespace)
            if each["spec"]["scaleTargetRef"]["name"] == scaler.spec.scale_target_ref.name
            and (each["metadata"]["creationTimestamp"], each["metadata"]["name"]) < own
        ]

    async def _uses(self, target: Object) -> list[SeedUse]:
        """Use of each replica of the set. Shoots and ManagedSeeds are read from the API server, so that none is
        missed that the set has just created."""
        namespace, uid = target["metadata"]["namespace"], target["metadata"]["uid"]
        own: list[ObjectView] = []
        for kind in (resources.SHOOT, resources.MANAGED_SEED):
            own += [each for each in await self._client.list(kind, namespace) if controller_of(each) == uid]
        seeds = {each["metadata"]["name"]: each for each in self._seeds.list()}
        replicas = replicas_of(
            target["metadata"]["name"], own, seeds, lambda seed: len(self._shoots.by_index(SHOOTS_BY_HOME, seed))
        )
        return [
            SeedUse(
                name=each.name,
                used=each.users,
                allocatable=allocatable_shoots(Seed.of(dict(each.seed))) if each.seed is not None else None,
                ready=is_seed_ready(each.seed),
                removable=not each.kept_because,
            )
            for each in replicas
        ]

    async def _report(
        self, found: Object, told: Iterable[tuple[str, str, str, str]], facts: ObjectView, now: datetime
    ) -> None:
        known = found.get("status") or {}
        new = [
            {"type": type_, "status": status, "reason": reason, "message": message}
            for type_, status, reason, message in told
        ]
        status = {
            **facts,
            "observedGeneration": found["metadata"]["generation"],
            "conditions": set_conditions(known.get("conditions") or (), new, timestamp(now)),
        }
        change = {field: value for field, value in status.items() if value != known.get(field)}
        if change:
            await patch_as_read(
                self._client, resources.SEED_AUTOSCALER, found, {"status": change}, subresource="status"
            )


def _conditions(made: Decision) -> list[tuple[str, str, str, str]]:
    limited = "TooManyReplicas" if "maxReplicas" in made.limited else "TooFewReplicas"
    return [
        ("ScalingActive", "True", "ValidMetricFound", "the use of the seeds is known")
        if made.active
        else ("ScalingActive", "False", made.reason, made.message),
        ("AbleToScale", "True", made.reason if made.active else "ReadyForNewScale", made.message),
        ("ScalingLimited", "True", limited, made.limited)
        if made.limited
        else ("ScalingLimited", "False", "DesiredWithinRange", "the number of replicas is the recommended one"),
    ]
