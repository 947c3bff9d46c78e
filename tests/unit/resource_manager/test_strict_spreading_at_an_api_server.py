"""Workloads at a real API server while their cluster gets its second node, and loses it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from api.high_availability import HOST_SPREAD, SKIP
from api.resources import DEPLOYMENT, NODE, STATEFUL_SET, Resource
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.test_high_availability_at_an_api_server import (
    HOST,
    NAMESPACE,
    constraints,
    nodes,
    place,
    workload,
)
from tests.unit.resource_manager.webhook_cluster import Cluster, Object, of_seed
from workers.resource_manager.strict_spreading import StrictSpreading

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]
SOFT, STRICT = ("ScheduleAnyway", None), ("DoNotSchedule", 2)


@contextlib.asynccontextmanager
async def controller(cluster: Cluster) -> AsyncIterator[None]:
    task = asyncio.create_task(StrictSpreading(cluster.admin, cluster.caches.of(NODE)).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def workloads(cluster: Cluster) -> AsyncIterator[dict[str, Object]]:
    """Objects by name, created by ``create``, and deleted at the end."""
    made: dict[str, Object] = {}
    yield made
    for name, each in made.items():
        await cluster.admin.delete(_kind(each), name, NAMESPACE)


def _kind(obj: Object) -> Resource:
    return DEPLOYMENT if obj["kind"] == "Deployment" else STATEFUL_SET


async def create(cluster: Cluster, made: dict[str, Object], name: str, obj: Object) -> None:
    made[name] = await cluster.admin.create({**obj, "metadata": {**obj["metadata"], "name": name}})


async def seen(cluster: Cluster, made: dict[str, Object]) -> dict[str, tuple[object, int]]:
    """Constraint over nodes and generation of each workload."""
    live = {name: await cluster.admin.get(_kind(each), name, NAMESPACE) for name, each in made.items()}
    return {name: (constraints(each["spec"]).get(HOST), each["metadata"]["generation"]) for name, each in live.items()}


@pytest.mark.row("high availability", "a second node comes, or is lost: workloads are reviewed again, once")
async def test_workloads_are_spread_strictly_while_there_are_two_nodes(
    cluster: Cluster, workloads: dict[str, Object]
) -> None:
    """A strict constraint in a cluster of one node would keep the second pod Pending for ever."""
    own = {"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    async with of_seed(cluster):
        await place(cluster, tolerance="node")
        await nodes(cluster, "a")
        await create(cluster, workloads, "deployment", workload(of_type="server"))
        await create(cluster, workloads, "stateful-set", workload("StatefulSet", 2))
        await create(cluster, workloads, "single", workload())
        await create(
            cluster, workloads, "skipped", workload(replicas=2, labels={SKIP: ""}, topologySpreadConstraints=[own])
        )
        async with controller(cluster):
            found = []
            for name, wanted in (("b", STRICT), ("c", STRICT), ("c", STRICT), ("b", SOFT)):
                if name in [each["metadata"]["name"] for each in await cluster.admin.list(NODE)]:
                    await cluster.admin.delete(NODE, name)
                else:
                    await nodes(cluster, name)

                async def reviewed(wanted: object = wanted) -> bool:
                    now = await seen(cluster, workloads)
                    return now["deployment"][0] == now["stateful-set"][0] == wanted

                await until(reviewed, 30)
                found.append(await seen(cluster, workloads))

    rest = {"single": (None, 1), "skipped": (SOFT, 1)}
    both = ("deployment", "stateful-set")
    assert found[0] == found[1] == found[2] == {**dict.fromkeys(both, (STRICT, 2)), **rest}
    assert found[3] == {**dict.fromkeys(both, (SOFT, 3)), **rest}


@pytest.mark.row("high availability", "workloads that need no strict constraint are not written then")
async def test_workloads_without_failure_tolerance_stay(cluster: Cluster, workloads: dict[str, Object]) -> None:
    async with of_seed(cluster):
        await place(cluster, tolerance="")
        await nodes(cluster, "a")
        strict = {HOST_SPREAD: "true"}
        await create(cluster, workloads, "plain", workload(replicas=2))
        await create(cluster, workloads, "strict", workload(replicas=2, annotations=strict))
        async with controller(cluster):
            await nodes(cluster, "b")

            async def reviewed() -> bool:
                return (await seen(cluster, workloads))["strict"] == (STRICT, 2)

            await until(reviewed, 30)
            found = await seen(cluster, workloads)

    assert found["plain"] == (SOFT, 1)


@pytest.mark.row("high availability", "a node that came while no resource manager ran is considered at its start")
async def test_a_change_of_nodes_before_the_start_is_not_missed(cluster: Cluster, workloads: dict[str, Object]) -> None:
    async with of_seed(cluster):
        await place(cluster, tolerance="node")
        await nodes(cluster, "a")
        await create(cluster, workloads, "deployment", workload(replicas=2))
        await nodes(cluster, "b")
        before = await seen(cluster, workloads)
        async with controller(cluster):

            async def reviewed() -> bool:
                return (await seen(cluster, workloads))["deployment"] == (STRICT, 2)

            await until(reviewed, 30)

    assert before["deployment"] == (SOFT, 1)
