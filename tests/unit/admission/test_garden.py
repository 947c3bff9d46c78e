"""Admission decides about gardenlets by its caches; before a refusal it reads a few single objects."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from api import resources
from kube.cache import Caches
from tests.unit.admission.test_seed_authorizer import GARDEN, ask, binding, shoot
from tests.unit.kube.api_server import ApiServer, _parse
from tests.unit.kube.waiting import until
from workers.admission import process, seed_authorizer
from workers.admission.process import CachedGarden
from workers.admission.seed_authorizer import application
from workers.lib.runtime import Health

KINDS = {
    each.kind: each
    for each in (
        resources.SHOOT,
        resources.SEED,
        resources.PROJECT,
        resources.NAMESPACED_CLOUD_PROFILE,
        resources.NAMESPACE,
        resources.SECRET,
        resources.CONTROLLER_DEPLOYMENT,
        resources.CONTROLLER_INSTALLATION,
        resources.GARDENLET,
        resources.CREDENTIALS_BINDING,
        resources.CORE_BACKUP_BUCKET,
        resources.CORE_BACKUP_ENTRY,
        resources.OPERATIONS_BASTION,
        resources.MANAGED_SEED,
        resources.CERTIFICATE_SIGNING_REQUEST,
    )
}
SHOOTS = resources.SHOOT.path()


@dataclass
class Running:
    """The seed authorizer with caches of an API server in memory."""

    api: ApiServer
    authorizer: TestClient[Any, Any]

    def put(self, obj: dict[str, Any]) -> None:
        self.api.put(KINDS[obj["kind"]].path(), obj)

    async def may(self, question: str) -> bool:
        return bool((await ask(self.authorizer, question))["allowed"])


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(seed_authorizer, "_LAG_SECONDS", 0.01)
    async with ApiServer().running() as api, api.client() as client, AsyncExitStack() as stack:
        for each in GARDEN:
            api.put(KINDS[each["kind"]].path(), each)
        caches = Caches(client)
        stack.push_async_callback(caches.close)
        garden = CachedGarden(client, caches)
        await asyncio.gather(*(each.synced(10) for each in caches.started()))
        authorizer = await stack.enter_async_context(TestClient(TestServer(application(garden, client))))
        await until(lambda: api.watching == len(caches.started()))
        yield Running(api, authorizer)


async def test_a_request_that_the_caches_allow_reads_nothing(running: Running) -> None:
    running.api.requests.clear()

    assert await running.may("get secrets team/cloud-demo")
    assert await running.may("get secrets garden-local/named")
    assert running.api.requests == []


async def test_requests_for_foreign_secrets_list_nothing_and_read_few_objects(running: Running) -> None:
    """A gardenlet that repeats refused requests must not keep the garden's API server busy."""
    for number in range(100):
        name = f"foreign-{number}"
        running.put({"kind": "Secret", "metadata": {"name": f"cloud-{name}", "namespace": "team"}})
        running.put(binding(name))
        for each in range(20):
            running.put(shoot(f"{name}-{each}", "seed-2", "seed-2", credentialsBindingName=f"of-{name}"))
    running.put(shoot("last", "seed-1", "seed-1"))
    await until(lambda: running.may("patch shoots.core.gardener.cloud garden-local/last"))
    running.api.requests.clear()

    assert not any([await running.may(f"get secrets team/cloud-foreign-{number}") for number in range(100)])

    names = [place[2] for _, path in running.api.requests if (place := _parse(path))]
    assert all(names), "a path without a name is a list"
    assert 0 < len(running.api.requests) <= 100 * 10


async def test_a_shoot_that_has_moved_is_read_if_the_caches_are_behind(running: Running) -> None:
    running.api.watches_flow.clear()
    assert not await running.may("get secrets team/cloud-other")

    running.api.change(SHOOTS, "other", "garden-local", {"spec": {"seedName": "seed-1"}})

    assert await running.may("get secrets team/cloud-other")


async def test_a_refusal_waits_for_an_object_that_the_caches_do_not_know(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name leads from the Secret to the new Shoot."""
    monkeypatch.setattr(seed_authorizer, "_LAG_SECONDS", 60)
    running.api.watches_flow.clear()
    running.put(shoot("new", "seed-1", "seed-1"))
    running.put(binding("new"))

    asked = asyncio.create_task(running.may("get secrets team/cloud-new"))
    await asyncio.wait([asked], timeout=0.1)
    assert not asked.done()
    running.api.watches_flow.set()

    assert await asked


async def test_few_refusals_of_a_seed_wait_at_the_same_time(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port answers a limited number of calls at once, those of other seeds among them."""
    monkeypatch.setattr(seed_authorizer, "_LAG_SECONDS", 60)
    asked = [asyncio.create_task(running.may(f"get secrets team/none-{number}")) for number in range(10)]

    await until(lambda: sum(each.done() for each in asked) == 8)

    await asyncio.wait(asked, timeout=0.1)
    waiting = [each for each in asked if not each.done()]
    assert len(waiting) == 2
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_collections_of_garbage_leave_out_the_caches_once_admission_is_ready() -> None:
    """A full collection of a garden with 500 Shoots takes longer than 99 of 100 reviews may take."""
    health = Health()
    async with ApiServer().running() as api, api.client() as client:
        caches = Caches(client)
        starting = asyncio.create_task(process._become_ready(caches, health, []))
        try:
            await until(lambda: health.ready)
            assert gc.get_freeze_count() > 10_000
        finally:
            gc.unfreeze()
            starting.cancel()
            await caches.close()
