"""Components of the seed itself, against API servers in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from activities.seed.system import SeedSystemActivities
from api import resources
from api.contracts.operations import SeedTask
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until

TASK = SeedTask(name="seed-1", uid="5eed", generation=1, trigger="2026-11-21T10:00:00.000000Z")
DEPLOYMENTS, NODES = "/apis/apps/v1/deployments", "/api/v1/nodes"
KIND = "managedresources.resources.gardener.cloud"
MANAGED_RESOURCES = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
CLUSTER_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
NAME = "gardener-resource-manager"


class Seed:
    """A seed, and the activities of its gardenlet."""

    def __init__(self, garden: ApiServer, server: ApiServer, clusters: Clusters) -> None:
        self.garden = garden
        self.server = server
        self.clusters = clusters
        self.activities = SeedSystemActivities(clusters)

    def node(self, name: str) -> None:
        self.server.put(NODES, {"metadata": {"name": name}})

    def find(self, path: str, name: str, namespace: str | None = "garden") -> Any:
        return self.server.find(path, name, namespace)

    async def runs(self, name: str) -> None:
        """Roll a Deployment out, as kube-controller-manager does once it exists."""
        await until(lambda: self.find(DEPLOYMENTS, name))
        found = self.find(DEPLOYMENTS, name)
        replicas = found["spec"]["replicas"]
        counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), replicas)
        status = {"observedGeneration": found["metadata"]["generation"], **counts}
        self.server.change(DEPLOYMENTS, name, "garden", {"status": status})


@pytest.fixture
async def seed() -> AsyncIterator[Seed]:
    async with (
        GardenServer().running() as garden,
        ApiServer().running() as server,
        garden.client() as garden_client,
        server.client() as client,
    ):
        clusters = Clusters(garden_client, client, "seed-1")
        yield Seed(garden, server, clusters)
        await clusters.close()


async def deployed(seed: Seed) -> str:
    """Deploy the resource manager; returns the note of the activity."""
    result, _ = await asyncio.gather(seed.activities.deploy_seed_resource_manager(TASK), seed.runs(NAME))
    return result.note


@pytest.mark.parametrize(("nodes", "replicas"), [(0, 1), (1, 1), (3, 2)])
async def test_a_second_replica_runs_where_there_is_a_second_node(seed: Seed, nodes: int, replicas: int) -> None:
    for number in range(nodes):
        seed.node(f"node-{number}")

    assert await deployed(seed) == f"{replicas} replicas"

    assert seed.find(DEPLOYMENTS, NAME)["spec"]["replicas"] == replicas


async def test_a_second_run_writes_nothing(seed: Seed) -> None:
    await deployed(seed)
    before = seed.find(DEPLOYMENTS, NAME)
    await seed.activities.deploy_seed_resource_manager(TASK)

    assert seed.find(DEPLOYMENTS, NAME) == before


async def test_a_resource_manager_of_the_former_chart_is_named_with_its_release(seed: Seed) -> None:
    """The selector of a Deployment cannot change, and Helm would delete the gardenlet's objects with the release."""
    labels = {"app": "gardener", "app.kubernetes.io/instance": "seed-manifests"}
    chart = {"metadata": {"name": NAME, "labels": labels}, "spec": {"selector": {"matchLabels": labels}}}
    seed.server.put(DEPLOYMENTS, chart, "garden")

    with pytest.raises(ApplicationError, match="helm uninstall seed-manifests -n garden") as refused:
        await seed.activities.deploy_seed_resource_manager(TASK)

    assert not refused.value.non_retryable
    seed.server.remove(DEPLOYMENTS, NAME, "garden")
    await deployed(seed)


async def test_the_resource_manager_stays_until_the_last_managed_resource_of_the_seed_is_gone(seed: Seed) -> None:
    """It alone removes their finalizers. ManagedResources of shoots have resource managers of their own."""
    await deployed(seed)
    seed.server.put(resources.CUSTOM_RESOURCE_DEFINITION.path(), {"metadata": {"name": KIND}})
    for name, spec in (("ours", {"class": "seed"}), ("of-a-shoot", {})):
        seed.server.put(MANAGED_RESOURCES, {"metadata": {"name": name}, "spec": spec}, "shoot--a--b")

    deleting = asyncio.create_task(seed.activities.delete_seed_resource_manager(TASK))
    cache = seed.clusters.seed_caches
    await until(lambda: any(each.resource.plural == "managedresources" and each.is_synced for each in cache.started()))
    assert seed.find(DEPLOYMENTS, NAME)
    assert not deleting.done()
    seed.server.remove(MANAGED_RESOURCES, "ours", "shoot--a--b")
    await deleting

    assert not seed.find(DEPLOYMENTS, NAME)
    assert not seed.find(CLUSTER_ROLES, f"gardener.cloud:system:{NAME}", None)
    await seed.activities.delete_seed_resource_manager(TASK)


SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
PLACEHOLDERS = {f"reserve-excess-capacity-{index}" for index in range(2)}
RESERVED = {
    "resources": {"cpu": "1", "memory": "2Gi"},
    "nodeSelector": {"pool": "control-planes"},
    "tolerations": [{"key": "control-planes", "operator": "Exists", "effect": "NoSchedule"}],
}


async def placeholders(seed: Seed, reservation: dict[str, Any] | None) -> dict[str, Any]:
    """Pod specs of the placeholders that the seed has after its reconciliation."""
    settings = {"excessCapacityReservation": reservation} if reservation is not None else {}
    seed.garden.put(SEEDS, {"metadata": {"name": "seed-1"}, "spec": {"settings": settings}})
    await seed.activities.deploy_seed_excess_capacity(TASK)
    found = {name: seed.find(DEPLOYMENTS, name) for name in PLACEHOLDERS}
    return {name: each["spec"]["template"]["spec"] for name, each in found.items() if each}


async def test_each_reservation_has_a_placeholder_that_any_pod_displaces(seed: Seed) -> None:
    found = await placeholders(seed, {"enabled": True, "configs": [RESERVED, {"resources": {"cpu": "500m"}}]})

    assert found.keys() == PLACEHOLDERS
    pod = found["reserve-excess-capacity-0"]
    assert pod["priorityClassName"] == "gardener-reserve-excess-capacity"
    assert pod["containers"][0]["resources"]["requests"] == RESERVED["resources"]
    assert (pod["nodeSelector"], pod["tolerations"]) == (RESERVED["nodeSelector"], RESERVED["tolerations"])


async def test_a_seed_without_setting_reserves_the_default(seed: Seed) -> None:
    [pod] = (await placeholders(seed, None)).values()

    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "2", "memory": "6Gi"}


async def test_placeholders_that_are_not_wanted_any_more_are_deleted(seed: Seed) -> None:
    await placeholders(seed, {"configs": [RESERVED, RESERVED]})
    assert (await placeholders(seed, {"configs": [RESERVED]})).keys() == {"reserve-excess-capacity-0"}
    assert await placeholders(seed, {"enabled": False, "configs": [RESERVED]}) == {}

    await placeholders(seed, {"configs": [RESERVED]})
    await seed.activities.delete_seed_excess_capacity(TASK)
    assert not any(seed.find(DEPLOYMENTS, name) for name in PLACEHOLDERS)
