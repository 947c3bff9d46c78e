"""Stops controllers that would replace healthy machines because their nodes cannot report.

Nodes that cannot reach their API server look dead to the controllers beside it, which can reach it. These controllers
would evict pods, replace machines and scale the cluster. So the watchdog stops them while most node leases have expired
although the API server answers, and starts them again once the nodes report. Source: spec/flows.md 2 and 10; Gardener's
dependency-watchdog.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from activities.clusters import Clusters
from activities.seed.namespace import is_foreign
from api import constants, resources
from kube.client import Object
from kube.errors import ApiError
from workers.gardenlet.care.checks import lease_expired, outline_of_lease
from workers.gardenlet.config import WatchdogConfig
from workers.gardenlet.garden_caches import own_seed, shoots_here

log = logging.getLogger(__name__)

STOPPED = ("kube-controller-manager", "machine-controller-manager", "cluster-autoscaler")
"""Deployments to stop, in the order in which they are started again; they are stopped in the reverse order."""
_PROBE_SECONDS = 8.0
_PARALLEL = 20


PROBER, WEEDER = "prober", "weeder"
"""The two parts of the dependency watchdog, by their names in ``spec.settings.dependencyWatchdog`` of a Seed."""


def is_switched_on(seed: Object | None, part: str) -> bool:
    """Whether a Seed has a part of the dependency watchdog enabled, which is the default."""
    settings = ((seed or {}).get("spec") or {}).get("settings") or {}
    return bool(((settings.get("dependencyWatchdog") or {}).get(part) or {}).get("enabled", True))


class Verdict(Enum):
    """Result of one probe."""

    REPORTING = "the nodes report"
    SILENT = "the nodes do not report"
    UNKNOWN = "the state of the nodes is unknown"


def judge(nodes: Sequence[Object], leases: Sequence[Object], limit: float, now: datetime) -> Verdict:
    """Verdict from the leases of nodes that exist; UNKNOWN without nodes."""
    names = {each["metadata"]["name"] for each in nodes}
    held = [each for each in leases if each["metadata"]["name"] in names]
    if not held:
        return Verdict.UNKNOWN
    expired = sum(lease_expired(each, now) for each in held)
    return Verdict.SILENT if expired >= limit * len(held) else Verdict.REPORTING


def _named(node: Object) -> Object:
    return {"metadata": {"name": node["metadata"]["name"]}}


@dataclass(frozen=True)
class Scale:
    """A change of one Deployment."""

    name: str
    patch: Mapping[str, Any]


def stop(deployments: Mapping[str, Object]) -> list[Scale]:
    """Changes that stop those of the Deployments that run. An annotation keeps the number of replicas."""
    scales = []
    for name in reversed(STOPPED):
        deployment = deployments.get(name)
        replicas = (deployment or {}).get("spec", {}).get("replicas", 1)
        if deployment is None or not replicas or _stopped(deployment):
            continue
        annotations = {constants.SCALED_DOWN: "true", constants.REPLICAS_BEFORE: str(replicas)}
        scales.append(Scale(name, _patch(deployment, annotations, 0)))
    return scales


def start(deployments: Mapping[str, Object]) -> list[Scale]:
    """Changes that start again those Deployments that the watchdog has stopped."""
    scales = []
    for name in STOPPED:
        deployment = deployments.get(name)
        if deployment is None or not _stopped(deployment):
            continue
        before = (deployment["metadata"].get("annotations") or {}).get(constants.REPLICAS_BEFORE, "")
        annotations = {constants.SCALED_DOWN: None, constants.REPLICAS_BEFORE: None}
        scales.append(Scale(name, _patch(deployment, annotations, int(before) if before.isdigit() else 1)))
    return scales


def _stopped(deployment: Object) -> bool:
    return bool((deployment["metadata"].get("annotations") or {}).get(constants.SCALED_DOWN))


def _patch(deployment: Object, annotations: Mapping[str, str | None], replicas: int) -> dict[str, Any]:
    version = deployment["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": dict(annotations)}, "spec": {"replicas": replicas}}


class Watchdog:
    """Probes each shoot with nodes: reads the leases that the nodes have written.

    It reaches the API server as the components of the control plane do, not as the nodes do.
    """

    def __init__(self, clusters: Clusters, config: WatchdogConfig) -> None:
        self._clusters = clusters
        self._config = config
        self._shoots = shoots_here(clusters)
        self._seeds = own_seed(clusters)
        self._deployments = clusters.seed_caches.of(resources.DEPLOYMENT)
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)
        self._streak: dict[str, tuple[Verdict, int]] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        if not self._config.enabled:
            await asyncio.Event().wait()
        slots = asyncio.Semaphore(_PARALLEL)
        await self._namespaces.synced()
        while True:
            watched = [each for each in self._shoots.list() if self._is_watched(each)]
            names = {each["status"]["technicalID"] for each in watched}
            self._streak = {name: streak for name, streak in self._streak.items() if name in names}
            await asyncio.gather(*(self._probe(each, slots) for each in watched))
            await asyncio.sleep(self._config.probe_interval.total_seconds())  # leases expire by the clock

    def _is_watched(self, shoot: Object) -> bool:
        """Whether a Shoot has nodes, is not hibernated and is not being deleted.

        Hibernation and deletion stop the controllers in an order of their own.
        """
        status = shoot.get("status") or {}
        return (
            status.get("seedName") == self._clusters.seed_name
            and bool(status.get("technicalID"))
            and not is_foreign(self._namespaces, shoot)
            and "deletionTimestamp" not in shoot["metadata"]
            and bool(shoot["spec"]["provider"].get("workers"))
            and not (shoot["spec"].get("hibernation") or {}).get("enabled")
            and not status.get("hibernated")
        )

    async def _probe(self, shoot: Object, slots: asyncio.Semaphore) -> None:
        namespace = shoot["status"]["technicalID"]
        async with slots:
            try:
                if not is_switched_on(self._seeds.get(self._clusters.seed_name), PROBER):
                    # What the prober has stopped must not stay stopped, and only the prober starts it.
                    await self._act(namespace, Verdict.REPORTING)
                    return
                verdict = await self._ask(namespace)
                known, count = self._streak.get(namespace, (Verdict.UNKNOWN, 0))
                count = count + 1 if verdict is known else 1
                self._streak[namespace] = verdict, count
                if count >= self._config.failures:
                    await self._act(namespace, verdict)
            except ApiError as error:
                log.warning("checking the nodes of %s: %s", namespace, error)

    async def _ask(self, namespace: str) -> Verdict:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                client = await self._clusters.shoot(namespace)
                nodes, leases = await asyncio.gather(
                    client.list(resources.NODE, metadata_only=True, keep=_named),
                    client.list(resources.LEASE, "kube-node-lease", keep=outline_of_lease),
                )
        except (ApiError, TimeoutError):
            # The API server itself is down, so its controllers cannot do harm either.
            return Verdict.UNKNOWN
        return judge(nodes, leases, self._config.expired_leases, datetime.now(UTC))

    async def _act(self, namespace: str, verdict: Verdict) -> None:
        deployments = {each["metadata"]["name"]: each for each in self._deployments.list(namespace)}
        scales = []
        if verdict is Verdict.SILENT:
            scales = stop(deployments)
        elif verdict is Verdict.REPORTING:
            scales = start(deployments)
        for scale in scales:
            log.warning(
                "%s: %s; scaling %s to %d replicas",
                namespace,
                verdict.value,
                scale.name,
                scale.patch["spec"]["replicas"],
            )
            await self._clusters.seed.patch(resources.DEPLOYMENT, scale.name, namespace, scale.patch)
