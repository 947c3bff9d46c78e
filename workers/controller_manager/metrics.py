"""Metrics of the garden's objects, with the names of Gardener's metrics exporter.

They are computed from the watch cache at each scrape, so no stored value can be stale. Cost: O(Shoots) per scrape.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api import constants, resources
from kube.cache import Caches

Object = Mapping[str, Any]

_STATUS = {"True": 1, "False": 0, "Unknown": -1, "Progressing": 2}
_STATES = {"Succeeded": 1, "Processing": 2, "Pending": 3, "Aborted": 4, "Error": 5, "Failed": 6}
_SHOOT = ("name", "project")


class GardenCollector(Collector):
    """Collector of these metrics: ``REGISTRY.register(GardenCollector(caches))``, once per process with the caches."""

    def __init__(self, caches: Caches) -> None:
        self._shoots = caches.of(resources.SHOOT)
        self._seeds = caches.of(resources.SEED)
        self._projects = caches.of(resources.PROJECT)

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples, so that a registration does not read the caches."""
        return families([], [], [])

    def collect(self) -> Iterable[Metric]:
        return families(self._shoots.list(), self._seeds.list(), self._projects.list())


def families(shoots: Iterable[Object], seeds: Iterable[Object], projects: Iterable[Object]) -> Iterator[Metric]:
    """All metrics of these objects."""
    known = list(projects)
    named = {str(each["spec"].get("namespace", "")): str(each["metadata"]["name"]) for each in known}
    yield from _of_shoots(list(shoots), named)
    yield from _of_seeds(list(seeds))
    states: Counter[str] = Counter((each.get("status") or {}).get("phase", "Pending") for each in known)
    status = GaugeMetricFamily("garden_projects_status", "Count of Projects by phase.", labels=["status"])
    for phase, count in sorted(states.items()):
        status.add_metric([phase], count)
    yield status


def _of_shoots(shoots: list[Object], projects: Mapping[str, str]) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "garden_shoot_info",
        "Information about a Shoot.",
        labels=[*_SHOOT, "iaas", "version", "region", "seed", "technical_id", "purpose", "is_hibernated"],
    )
    condition = GaugeMetricFamily(
        "garden_shoot_condition",
        "Conditions of a Shoot: 1 True, 0 False, -1 Unknown, 2 Progressing.",
        labels=[*_SHOOT, "condition", "operation", "purpose", "iaas"],
    )
    state = GaugeMetricFamily(
        "garden_shoot_operation_states",
        "Last operation: 1 Succeeded, 2 Processing, 3 Pending, 4 Aborted, 5 Error, 6 Failed.",
        labels=[*_SHOOT, "operation"],
    )
    progress = GaugeMetricFamily(
        "garden_shoot_operation_progress_percent",
        "Progress of the last operation.",
        labels=[*_SHOOT, "operation"],
    )
    since = GaugeMetricFamily(
        "garden_shoot_operation_start_timestamp",
        "Since when the present operation, retries included, is not done; absent if it is.",
        labels=[*_SHOOT, "operation"],
    )
    created = GaugeMetricFamily("garden_shoot_creation_timestamp", "When a Shoot was created.", labels=list(_SHOOT))
    asleep = GaugeMetricFamily("garden_shoot_hibernated", "Whether a Shoot sleeps.", labels=list(_SHOOT))
    least = GaugeMetricFamily("garden_shoot_node_min_total", "Least number of nodes.", labels=list(_SHOOT))
    most = GaugeMetricFamily("garden_shoot_node_max_total", "Greatest number of nodes.", labels=list(_SHOOT))
    total = GaugeMetricFamily(
        "garden_shoot_operations_total",
        "Count of Shoots by their last operation and its state.",
        labels=["operation", "state", "iaas", "seed"],
    )
    operations: Counter[tuple[str, str, str, str]] = Counter()
    for shoot in shoots:
        metadata, spec, status = shoot["metadata"], shoot["spec"], shoot.get("status") or {}
        place = [metadata["name"], projects.get(metadata["namespace"], metadata["namespace"])]
        purpose, seed = spec.get("purpose", ""), status.get("seedName") or spec.get("seedName") or ""
        provider = spec["provider"]["type"]
        hibernated = bool(status.get("hibernated"))
        last = status.get("lastOperation") or {}
        operation = last.get("type", "")
        version, region = spec["kubernetes"]["version"], spec.get("region", "")
        shown = str(hibernated).lower()
        info.add_metric([*place, provider, version, region, seed, status.get("technicalID", ""), purpose, shown], 1)
        for each in [*(status.get("conditions") or ()), *(status.get("constraints") or ())]:
            value = _STATUS.get(each["status"], -1)
            condition.add_metric([*place, each["type"], operation, purpose, provider], value)
        if operation:
            state.add_metric([*place, operation], _STATES.get(last.get("state", ""), 0))
            progress.add_metric([*place, operation], last.get("progress", 0))
            operations[operation, last.get("state", ""), provider, seed] += 1
        if begun := status.get("retryCycleStartTime"):
            since.add_metric([*place, operation], datetime.fromisoformat(begun).timestamp())
        created.add_metric(place, datetime.fromisoformat(metadata["creationTimestamp"]).timestamp())
        asleep.add_metric(place, int(hibernated))
        pools = spec["provider"].get("workers") or ()
        least.add_metric(place, sum(pool["minimum"] for pool in pools))
        most.add_metric(place, sum(pool["maximum"] for pool in pools))
    for labels, count in sorted(operations.items()):
        total.add_metric(labels, count)
    yield from (info, condition, state, progress, since, created, asleep, least, most, total)


def _of_seeds(seeds: list[Object]) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "garden_seed_info", "Information about a Seed.", labels=["name", "iaas", "region", "visible", "protected"]
    )
    condition = GaugeMetricFamily(
        "garden_seed_condition",
        "Conditions of a Seed: 1 True, 0 False, -1 Unknown, 2 Progressing.",
        labels=["name", "condition"],
    )
    expiration = GaugeMetricFamily(
        "garden_seed_client_certificate_expiration_timestamp",
        "Until when the gardenlet's certificate for the garden is valid; absent where it has no such certificate.",
        labels=["name"],
    )
    for seed in seeds:
        name, spec = seed["metadata"]["name"], seed["spec"]
        if until := (seed.get("status") or {}).get("clientCertificateExpirationTimestamp"):
            expiration.add_metric([name], datetime.fromisoformat(until).timestamp())
        visible = ((spec.get("settings") or {}).get("scheduling") or {}).get("visible", True)
        protected = any(each["key"] == constants.TAINT_SEED_PROTECTED for each in spec.get("taints") or ())
        provider = spec["provider"]
        shown = [str(flag).lower() for flag in (visible, protected)]
        info.add_metric([name, provider["type"], provider["region"], *shown], 1)
        for each in (seed.get("status") or {}).get("conditions") or ():
            condition.add_metric([name, each["type"]], _STATUS.get(each["status"], -1))
    yield from (info, condition, expiration)
