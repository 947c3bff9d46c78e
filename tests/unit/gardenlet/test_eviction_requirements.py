"""The gardenlet decides when the vertical pod autoscaler of its seed may take resources from running pods."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.clusters import Clusters
from api import resources
from api.crds import crds
from api.decisions.eviction_requirements import wanted_requirements
from kube.client import KubeClient
from kube.errors import ApiError
from tests.api_servers import ready
from tests.gardens import ADMIN, ApiServer
from tests.unit.kube.waiting import until
from workers.gardenlet.eviction_requirements import EvictionRequirements

RESTRICTION = "eviction-requirements.autoscaling.gardener.cloud/downscale-restriction"
ONLY_MORE = [{"resources": ["memory", "cpu"], "changeRequirement": "TargetHigherThanRequests"}]
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)


def autoscaler(name: str = "one", window: str = "", **annotations: str) -> dict[str, Any]:
    found = {RESTRICTION: annotations.get("restriction", "in-maintenance-window-only")}
    if window:
        found["shoot.gardener.cloud/maintenance-window"] = window
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"autoscaling.gardener.cloud/eviction-requirements": "managed-by-controller"},
            "annotations": found,
        },
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}},
    }


@pytest.mark.parametrize(
    ("window", "wanted", "until_hour"),
    [
        ("110000+0000,130000+0000", [], 13),
        ("130000+0200,150000+0200", [], 13),
        ("140000+0000,150000+0000", ONLY_MORE, 14),
        ("100000+0000,120000+0000", ONLY_MORE, 34),
    ],
)
def test_pods_get_less_in_the_window_alone(window: str, wanted: list[Any], until_hour: int) -> None:
    midnight = NOON.replace(hour=0)
    assert wanted_requirements(autoscaler(window=window), NOON) == (wanted, midnight + timedelta(hours=until_hour))


def test_pods_never_get_less() -> None:
    assert wanted_requirements(autoscaler(restriction="never"), NOON) == (ONLY_MORE, None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (autoscaler(restriction="always"), "must be never or in-maintenance-window-only, not 'always'"),
        (autoscaler(window="at night"), "must be like 220000"),
        (autoscaler(), "must be like 220000"),
    ],
)
def test_wrong_annotations_say_what_to_write(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wanted_requirements(wrong, NOON)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("seed"), {})
    with made.running():
        yield made


@pytest.fixture
async def seed(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with server.client(ADMIN) as client:
        await ready(client)
        yield client


@pytest.mark.binaries
@pytest.mark.timeout(120, func_only=True)
async def test_the_requirements_follow_the_annotations(seed: KubeClient, server: ApiServer) -> None:
    """A seed may get a vertical pod autoscaler while the gardenlet runs."""
    clusters = Clusters(server.client(ADMIN), server.client(ADMIN), "seed-1")
    task = asyncio.create_task(EvictionRequirements(clusters, served_seconds=0.1).run())

    async def requirements(name: str) -> list[Any] | None:
        found = await seed.get(resources.VERTICAL_POD_AUTOSCALER, name, "default")
        return (found["spec"].get("updatePolicy") or {}).get("evictionRequirements")

    async def restricted(name: str) -> bool:
        return await requirements(name) == ONLY_MORE

    async def free() -> bool:
        return await requirements("one") is None

    async def complains() -> bool:
        events = await seed.list(resources.EVENT, "default")
        return any(each["reason"] == "EvictionRequirementsInvalid" for each in events)

    try:
        for each in crds("autoscaled shoot"):
            await seed.apply(each, manager="test")
        now = datetime.now(UTC)
        begin, end = (f"{now + timedelta(hours=hours):%H%M%S}+0000" for hours in (-1, 1))
        await until(lambda: _applied(seed, autoscaler(restriction="never")), 60)
        await until(lambda: restricted("one"), 60)
        await seed.apply(autoscaler(window=f"{begin},{end}"), manager="test")
        await until(free, 60)
        await seed.apply(autoscaler(window=f"{end},{begin}"), manager="test")
        await until(lambda: restricted("one"), 60)
        await seed.apply(autoscaler("two", window="at night"), manager="test")
        await until(complains, 60)
        other = autoscaler("three", restriction="never")
        other["metadata"]["labels"] = {}
        await seed.apply(other, manager="test")
        assert await requirements("three") is None, "another controller sets them"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await clusters.close()


async def _applied(client: KubeClient, obj: dict[str, Any]) -> bool:
    """Whether the API server serves the kind already."""
    try:
        await client.apply_blindly(obj, manager="test")
    except ApiError:
        await asyncio.sleep(0.1)  # the clock of a poll
        return False
    return True
