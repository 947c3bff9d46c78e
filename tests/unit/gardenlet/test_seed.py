"""A gardenlet registers its Seed, asks for its reconciliation at its start, and keeps its lease."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from kube import liveness
from kube.cache import Caches
from kube.errors import ApiError
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.gardenlet import seed as seed_module
from workers.gardenlet.config import ResourcesConfig, SeedConfig
from workers.gardenlet.seed import SeedController

SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
NAME = "seed-1"
OPERATION = "gardener.cloud/operation"
CONFIG = SeedConfig(metadata={"name": NAME}, spec={"backup": {"provider": "local"}})


class Running:
    """A gardenlet's controller, and its garden."""

    def __init__(self, garden: ApiServer, controller: SeedController) -> None:
        self.garden, self.controller = garden, controller

    @property
    def asked(self) -> str | None:
        seed = self.garden.find(SEEDS, NAME) or {"metadata": {}}
        operation: str | None = (seed["metadata"].get("annotations") or {}).get(OPERATION)
        return operation

    def ask(self, operation: str | None) -> None:
        self.garden.change(SEEDS, NAME, None, {"metadata": {"annotations": {OPERATION: operation}}})

    def condition(self, type_: str) -> dict[str, Any]:
        status = (self.garden.find(SEEDS, NAME) or {}).get("status") or {}
        return next((each for each in status.get("conditions", ()) if each["type"] == type_), {})

    def lease(self) -> dict[str, Any] | None:
        return self.garden.find("/apis/coordination.k8s.io/v1/leases", NAME, "gardener-system-seed-lease")


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with GardenServer().running() as garden:
        yield garden


class SeedCluster:
    """The seed's API server, of which the gardenlet asks the health alone."""

    healthy = True
    asked = 0

    async def request(self, method: str, path: str) -> str:
        self.asked += 1
        assert (method, path) == ("GET", "/healthz")
        if not self.healthy:
            raise ApiError(500, "etcd failed", "GET /healthz")
        return "ok"


@pytest.fixture
def seed_cluster() -> SeedCluster:
    return SeedCluster()


@pytest.fixture
async def start(garden: ApiServer, seed_cluster: SeedCluster) -> AsyncIterator[Callable[[], Running]]:
    tasks: list[asyncio.Task[None]] = []
    async with garden.client() as client:
        caches = Caches(client)

        def start() -> Running:
            clusters: Any = SimpleNamespace(garden=client, garden_caches=caches, seed=seed_cluster, seed_name=NAME)
            capacity = ResourcesConfig(capacity={"shoots": 100}, reserved={"shoots": "3"})
            controller = SeedController(clusters, CONFIG, "gardenlet", capacity)
            tasks.append(asyncio.create_task(controller.run()))
            return Running(garden, controller)

        yield start
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await caches.close()


async def test_a_starting_gardenlet_registers_its_seed_and_requests_its_reconciliation(
    start: Callable[[], Running],
) -> None:
    gardenlet = start()
    await until(lambda: gardenlet.asked == "reconcile" and gardenlet.lease())


async def test_a_gardenlet_requests_its_reconciliation_once(
    start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed_module, "LEASE_SECONDS", 0.01)
    gardenlet = start()
    await until(lambda: gardenlet.asked)
    gardenlet.ask(None)
    before = gardenlet.garden.count("PATCH", f"{SEEDS}/{NAME}")
    renewed = (gardenlet.lease() or {})["spec"]["renewTime"]
    await until(lambda: (gardenlet.lease() or {})["spec"]["renewTime"] > renewed)
    assert gardenlet.asked is None
    assert gardenlet.garden.count("PATCH", f"{SEEDS}/{NAME}") == before


async def test_an_existing_request_is_not_repeated(garden: ApiServer, start: Callable[[], Running]) -> None:
    metadata = {"name": NAME, "annotations": {OPERATION: "reconcile"}}
    before = garden.put(SEEDS, {"metadata": metadata, "spec": CONFIG.spec})["metadata"]["generation"]
    gardenlet = start()
    await until(gardenlet.lease)
    seed = garden.find(SEEDS, NAME)
    assert seed is not None
    assert (gardenlet.asked, seed["metadata"]["generation"]) == ("reconcile", before)


async def test_a_running_gardenlet_does_not_register_its_deleted_seed_again(
    start: Callable[[], Running], seed_cluster: SeedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator stops the gardenlet after the deletion; only a start of the gardenlet registers the Seed."""
    monkeypatch.setattr(seed_module, "LEASE_SECONDS", 0.01)
    gardenlet = start()
    await until(lambda: gardenlet.asked and gardenlet.lease())
    gardenlet.garden.remove(SEEDS, NAME)
    asked = seed_cluster.asked
    await until(lambda: seed_cluster.asked > asked + 10)
    writes = [each for each in gardenlet.garden.requests if each[0] != "GET"]
    await until(lambda: seed_cluster.asked > asked + 20)

    assert gardenlet.garden.find(SEEDS, NAME) is None
    assert [each for each in gardenlet.garden.requests if each[0] != "GET"] == writes

    start()
    await until(lambda: gardenlet.garden.find(SEEDS, NAME))


async def test_a_gardenlet_waits_until_another_operation_is_done(
    garden: ApiServer, start: Callable[[], Running]
) -> None:
    """An operator asked for it, and a Seed has room for one request."""
    metadata = {"name": NAME, "annotations": {OPERATION: "renew-kubeconfig"}}
    garden.put(SEEDS, {"metadata": metadata, "spec": CONFIG.spec})
    gardenlet = start()
    await until(gardenlet.lease)
    assert gardenlet.asked == "renew-kubeconfig"
    gardenlet.ask(None)
    await until(lambda: gardenlet.asked == "reconcile")


async def test_a_gardenlet_that_was_cut_off_restores_its_ready_condition(
    start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garden has said of its Seed that it is Unknown, and nothing else would say the contrary."""
    monkeypatch.setattr(seed_module, "LEASE_SECONDS", 0.05)
    gardenlet = start()
    await until(lambda: gardenlet.asked)
    unknown = [
        {"type": each, "status": "Unknown", "reason": "SeedStatusUnknown", "message": ""}
        for each in ("GardenletReady", "ExtensionsReady")
    ]
    gardenlet.garden.change(SEEDS, NAME, None, {"status": {"conditions": unknown}})
    await until(lambda: gardenlet.condition("GardenletReady")["status"] == "True")
    assert gardenlet.condition("ExtensionsReady")["status"] == "Unknown", "only what it knows"


async def test_a_gardenlet_keeps_the_capacity_of_its_seed(
    garden: ApiServer, start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resource that the configuration does not name any more goes."""
    monkeypatch.setattr(seed_module, "LEASE_SECONDS", 0.05)
    stale = {"capacity": {"volumes": "5"}, "allocatable": {"shoots": "7"}}
    garden.put(SEEDS, {"metadata": {"name": NAME}, "spec": CONFIG.spec, "status": stale})
    start()

    def amounts() -> tuple[Any, Any]:
        status = (garden.find(SEEDS, NAME) or {}).get("status") or {}
        return status.get("capacity"), status.get("allocatable")

    await until(lambda: amounts() == ({"shoots": 100}, {"shoots": "97"}))


@pytest.mark.parametrize(
    ("capacity", "reserved"), [({}, {"shoots": 1}), ({"shoots": "1"}, {"shoots": "2"}), ({"shoots": "1"}, {"x": "1"})]
)
def test_a_gardenlet_reserves_only_what_it_has(capacity: dict[str, Any], reserved: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"more than resources\.capacity"):
        ResourcesConfig(capacity=capacity, reserved=reserved)


async def test_the_lease_is_renewed_only_while_the_seed_is_healthy(
    start: Callable[[], Running], seed_cluster: SeedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the seed stays ill for a whole lease, the gardenlet's liveness fails until it is well again."""
    monkeypatch.setattr(seed_module, "LEASE_SECONDS", 0.05)
    seed_cluster.healthy = False
    gardenlet = start()
    await until(lambda: gardenlet.asked == "reconcile")
    monkeypatch.setattr(seed_module, "LEASE_DURATION_SECONDS", 0.2)
    await until(lambda: "has not been healthy for" in (liveness.fault() or ""))
    assert gardenlet.lease() is None

    seed_cluster.healthy = True
    await until(lambda: gardenlet.lease() and liveness.fault() is None)


async def test_a_gardenlet_without_garden_is_alive(
    garden: ApiServer, start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed_module, "LEASE_SECONDS", 0.02)
    monkeypatch.setattr(seed_module, "LEASE_DURATION_SECONDS", 0.5)
    gardenlet = start()
    await until(gardenlet.lease)
    garden.answer = lambda _: web.json_response({"kind": "Status", "message": "garden is away"}, status=503)
    asked = gardenlet.controller._seed_answered
    await until(lambda: gardenlet.controller._seed_answered > asked + 0.6)
    assert gardenlet.controller.fault() is None


async def test_a_garden_that_never_answers_does_not_stop_the_checks_of_the_seed(
    start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed_module, "LEASE_SECONDS", 0.02)
    monkeypatch.setattr(seed_module, "_ANSWER_SECONDS", 0.1)

    async def hang(_: SeedController, __: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SeedController, "_renew_lease", hang)
    gardenlet = start()
    await until(lambda: gardenlet.controller._seed_answered)
    asked = gardenlet.controller._seed_answered
    await until(lambda: gardenlet.controller._seed_answered > asked + 0.5)
    assert gardenlet.controller.fault() is None
