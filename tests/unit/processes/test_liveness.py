"""/healthz fails where only a new process can help, and not while an API server is away."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from api.resources import CONFIG_MAP
from kube import cache as cache_module
from kube import controller as controller_module
from kube.cache import Cache, Key
from kube.client import KubeClient, Limits
from kube.controller import Controller
from kube.kubeconfig import endpoint_of
from tests.unit.kube.api_server import ApiServer, refuse
from tests.unit.kube.waiting import until
from workers.lib.runtime import Health, HealthConfig

Probe = Callable[[], Awaitable[tuple[int, str]]]


@pytest.fixture
async def probe() -> AsyncIterator[Probe]:
    """What a kubelet is told."""
    runner = await Health().serve(HealthConfig())
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession() as session:

        async def ask() -> tuple[int, str]:
            async with session.get(f"http://{host}:{port}/healthz") as answer:
                return answer.status, await answer.text()

        yield ask
    await runner.cleanup()


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        yield server


async def test_a_process_without_parts_is_alive(probe: Probe) -> None:
    assert await probe() == (200, "ok")


async def test_a_controller_whose_workers_never_end_is_not_alive(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "_STALLED_SECONDS", 0.05)
    free, done = asyncio.Event(), 0

    async def reconcile(key: Key) -> None:
        nonlocal done
        await free.wait()
        done += 1

    controller = Controller("test", reconcile, workers=1)
    running = asyncio.create_task(controller.run())
    controller.enqueue(Key("ns", "hangs"))
    await asyncio.sleep(0.1)
    assert await probe() == (200, "ok"), "nothing waits for the worker"

    controller.enqueue(Key("ns", "waits"))
    await asyncio.sleep(0.1)
    status, text = await probe()
    assert status == 500
    assert text.startswith("controller test: no worker is free for ")
    assert text.endswith("they reconcile ns/hangs")

    free.set()
    await until(lambda: done == 2)
    assert await probe() == (200, "ok")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await probe() == (200, "ok")


async def test_a_cache_that_is_refused_and_never_synced_is_not_alive(
    probe: Probe, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_SYNC_SECONDS", 0.2)
    api.answer = lambda _: refuse(403, "Forbidden", "not yours")
    async with api.client() as client, Cache(client, CONFIG_MAP) as cache:
        status = 0

        async def fails() -> bool:
            nonlocal status
            status, text = await probe()
            return status == 500 and "cache of configmaps: could not be listed" in text and "403" in text

        await until(fails)
        api.answer = lambda _: None
        await cache.synced(20)
        assert await probe() == (200, "ok")


async def test_a_tenants_api_server_that_refuses_everything_does_not_end_the_process(
    probe: Probe, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tenant would have the gardenlet of all others restarted."""
    monkeypatch.setattr(cache_module, "_SYNC_SECONDS", 0.0)
    api.answer = lambda _: refuse(503, "ServiceUnavailable", "no")
    endpoint = endpoint_of(json.loads(api.kubeconfig()))
    async with KubeClient(endpoint, limits=Limits()) as client, Cache(client, CONFIG_MAP) as cache:
        await until(lambda: cache.fault())
        assert await probe() == (200, "ok")


async def test_a_cache_of_an_api_server_that_is_away_is_alive(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process would not reach it either, and would have lost what this one knows."""
    monkeypatch.setattr(cache_module, "_SYNC_SECONDS", 0.0)
    async with ApiServer().running() as server:
        kubeconfig = server.kubeconfig()
    async with KubeClient.from_kubeconfig(kubeconfig) as client, Cache(client, CONFIG_MAP) as cache:
        await until(lambda: cache._last_error)
        assert await probe() == (200, "ok")


async def test_a_cache_that_hears_neither_answer_nor_error_is_not_alive(
    probe: Probe, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api.client() as client, Cache(client, CONFIG_MAP) as cache:
        await cache.synced(20)
        await until(lambda: api.watching)
        assert await probe() == (200, "ok")
        monkeypatch.setattr(cache_module, "_SILENCE_SECONDS", 0.05)
        await asyncio.sleep(0.1)
        status, text = await probe()
        assert status == 500
        assert text.startswith("cache of configmaps: neither an answer nor an error for ")
        api.bookmark()

        async def recovers() -> bool:
            api.bookmark()
            return (await probe())[0] == 200

        await until(recovers)
