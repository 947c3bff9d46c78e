"""Prerequisites of a flow from the garden: referenced objects and living extensions."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.clusters import ClusterView
from activities.seed.references import ReferenceActivities
from activities.seed.required_extensions import RequiredExtensionActivities
from api.contracts.operations import OperationType, ShootRef, ShootTask
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until

NAMESPACE = "shoot--local--demo"
SECRETS, CONFIG_MAPS = "/api/v1/secrets", "/api/v1/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/leases"
REGISTRATIONS = "/apis/core.gardener.cloud/v1beta1/controllerregistrations"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.CREATE,
    trigger="2026-11-21T10:00:00.000000Z",
)


class Around:
    """A garden, a seed, and what a Shoot says."""

    def __init__(self, garden: ApiServer, seed: ApiServer, clusters: Any) -> None:
        self.garden, self.seed = garden, seed
        self.clusters = clusters
        self.spec: dict[str, Any] = {"provider": {"type": "local", "workers": []}}

    def refer(self, *references: tuple[str, str]) -> None:
        self.spec["resources"] = [
            {"name": name, "resourceRef": {"apiVersion": "v1", "kind": kind, "name": name}} for kind, name in references
        ]

    def copies(self) -> set[tuple[str, str]]:
        return {(path, name) for path, place, name in self.seed.objects if place == NAMESPACE}


@pytest.fixture
async def around() -> AsyncIterator[Around]:
    async with (
        GardenServer().running() as garden,
        ApiServer().running() as seed,
        garden.client() as garden_client,
        seed.client() as seed_client,
    ):
        caches = Caches(seed_client)
        clusters = SimpleNamespace(garden=garden_client, seed=seed_client, seed_caches=caches)
        made = Around(garden, seed, clusters)

        async def cluster(_: str) -> ClusterView:
            spec = {"shoot": {"spec": made.spec}, "seed": {"spec": {"dns": {"internal": {"type": "local"}}}}}
            return ClusterView({"metadata": {"name": NAMESPACE}, "spec": spec})

        clusters.cluster = cluster
        yield made
        await caches.close()


def put(garden: ApiServer, path: str, name: str) -> None:
    garden.put(path, {"metadata": {"name": name, "namespace": "garden-local"}, "data": {"key": "dmFsdWU="}})


async def test_referenced_objects_are_copied_and_follow_the_shoot(around: Around) -> None:
    put(around.garden, SECRETS, "key")
    put(around.garden, CONFIG_MAPS, "settings")
    around.seed.put(SECRETS, {"metadata": {"name": "ref-of-another-owner", "namespace": NAMESPACE}})
    activities = ReferenceActivities(around.clusters)
    around.refer(("Secret", "key"), ("ConfigMap", "settings"))
    await activities.deploy_references(TASK)
    others = (SECRETS, "ref-of-another-owner")
    assert around.copies() == {(SECRETS, "ref-key"), (CONFIG_MAPS, "ref-settings"), others}
    copy = around.seed.find(SECRETS, "ref-key", NAMESPACE)
    assert copy is not None
    assert copy["data"] == {"key": "dmFsdWU="}

    around.refer(("ConfigMap", "settings"))
    await activities.deploy_references(TASK)
    assert around.copies() == {(CONFIG_MAPS, "ref-settings"), others}
    await activities.delete_references(TASK)
    assert around.copies() == {others}


async def test_a_second_run_writes_nothing(around: Around) -> None:
    put(around.garden, SECRETS, "key")
    around.refer(("Secret", "key"))
    activities = ReferenceActivities(around.clusters)
    await activities.deploy_references(TASK)
    before = around.seed.find(SECRETS, "ref-key", NAMESPACE)
    await activities.deploy_references(TASK)
    assert around.seed.find(SECRETS, "ref-key", NAMESPACE) == before


async def test_a_broken_reference_is_a_configuration_problem(around: Around) -> None:
    around.refer(("Secret", "missing"))
    with pytest.raises(ApplicationError, match="Secret garden-local/missing") as refused:
        await ReferenceActivities(around.clusters).deploy_references(TASK)
    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"
    assert refused.value.non_retryable


def register(around: Around, name: str = "provider-local") -> None:
    resources = [{"kind": "DNSRecord", "type": "local"}]
    around.garden.put(REGISTRATIONS, {"metadata": {"name": name}, "spec": {"resources": resources}})


def beat(around: Around, age: timedelta = timedelta(), holder: str = "provider-local") -> None:
    renewed = (datetime.now(UTC) - age).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    metadata = {"name": "gardener-extension-heartbeat", "namespace": f"extension-{holder}"}
    around.seed.put(LEASES, {"metadata": metadata, "spec": {"holderIdentity": holder, "renewTime": renewed}})


async def required_now(around: Around) -> Any:
    activities = RequiredExtensionActivities(around.clusters, pause=0.01)
    return await ActivityEnvironment().run(activities.wait_required_extensions, TASK)


async def test_a_shoot_whose_extensions_are_alive_may_begin(around: Around) -> None:
    register(around)
    beat(around, timedelta(minutes=1))
    assert (await required_now(around)).note == "provider-local"


async def test_an_extension_that_comes_back_meanwhile_is_waited_for(around: Around) -> None:
    register(around)
    waiting = asyncio.create_task(required_now(around))
    await until(lambda: around.garden.count("GET", REGISTRATIONS) > 1)
    assert not waiting.done()
    beat(around)
    assert (await asyncio.wait_for(waiting, 10)).note == "provider-local"


@pytest.mark.parametrize(
    ("registered", "age", "complaint"),
    [
        (False, None, "no ControllerRegistration offers DNSRecord of type local"),
        (True, None, "provider-local sends no heartbeat"),
        (True, timedelta(minutes=6), "provider-local has sent no heartbeat since"),
    ],
)
async def test_missing_extensions_are_named(
    around: Around, registered: bool, age: timedelta | None, complaint: str
) -> None:
    """Otherwise a flow would wait in vain for the first object without a controller."""
    if registered:
        register(around)
    if age is not None:
        beat(around, age)
    with pytest.raises(ApplicationError, match=complaint) as failed:
        await required_now(around)
    assert not failed.value.non_retryable


GOOD = {"Valid": "True", "Installed": "True", "Healthy": "True"}


def install(around: Around, seed: str = TASK.seed, metadata: dict[str, Any] | None = None, **changes: str) -> None:
    """A registration with a deployment, and its installation on a seed."""
    spec = {
        "resources": [{"kind": "DNSRecord", "type": "local"}],
        "deployment": {"deploymentRefs": [{"name": "provider-local"}]},
    }
    around.garden.put(REGISTRATIONS, {"metadata": {"name": "provider-local"}, "spec": spec})
    conditions = [{"type": k, "status": v, "message": f"why {k}"} for k, v in (GOOD | changes).items()]
    installation = {
        "metadata": {"name": f"provider-local-{seed}", **(metadata or {})},
        "spec": {"registrationRef": {"name": "provider-local"}, "seedRef": {"name": seed}},
        "status": {"conditions": conditions},
    }
    around.garden.put(REGISTRATIONS.replace("registrations", "installations"), installation)


async def test_an_installed_extension_runs_if_its_conditions_say_so(around: Around) -> None:
    install(around, Progressing="True", Required="False")
    assert (await required_now(around)).note == "provider-local"


ENDING = {"deletionTimestamp": "2026-11-26T05:00:00Z", "finalizers": ["core.gardener.cloud/controllerinstallation"]}


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({"Healthy": "False"}, "ControllerInstallation provider-local-.*: condition Healthy is False: why Healthy"),
        ({"Installed": "Unknown"}, "condition Installed is Unknown"),
        ({"Valid": "False", "Healthy": "False"}, "condition Valid is False: why Valid"),
        ({"metadata": ENDING}, "ControllerInstallation provider-local-.* is being deleted"),
        ({"seed": "another"}, "ControllerRegistration provider-local has no ControllerInstallation on this seed yet"),
    ],
)
async def test_an_extension_that_is_not_installed_is_named(around: Around, found: Any, complaint: str) -> None:
    """A heartbeat does not count: it may be that of the extension's last version."""
    install(around, **found)
    beat(around)
    with pytest.raises(ApplicationError, match=complaint) as failed:
        await required_now(around)
    assert not failed.value.non_retryable
