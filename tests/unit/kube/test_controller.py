"""A controller reconciles each key soon, once, again after a failure, and never twice at a time."""

import asyncio
import contextlib
import itertools
import logging
from functools import partial
from typing import Any

import pytest

from api.resources import CONFIG_MAP
from kube.cache import Caches, Key
from kube.controller import Controller, Queue, Requeue, TryAgain
from kube.errors import Conflict, NotFound
from tests.unit.kube.waiting import until

ONE, TWO = Key("ns", "one"), Key("ns", "two")


@contextlib.asynccontextmanager
async def running(controller):
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_many_hints_about_one_object_are_one_reconcile():
    seen = []

    async def reconcile(key):
        seen.append(key)

    controller = Controller("test", reconcile)
    for _ in range(10):
        controller.enqueue(ONE)
    controller.enqueue(TWO)
    async with running(controller):
        await until(lambda: TWO in seen)

    assert sorted(seen) == [ONE, TWO]


async def test_a_hint_during_a_reconcile_causes_another_one_after_it():
    """The running reconcile may have missed a change in between."""
    going, go = asyncio.Event(), asyncio.Event()
    seen = []
    active = 0

    async def reconcile(key):
        nonlocal active
        active += 1
        assert active == 1, "two workers look at one object"
        seen.append(key)
        going.set()
        await go.wait()
        active -= 1

    controller = Controller("test", reconcile, workers=3)
    async with running(controller):
        controller.enqueue(ONE)
        await going.wait()
        controller.enqueue(ONE)
        controller.enqueue(ONE)
        await asyncio.sleep(0.02)
        assert len(seen) == 1
        go.set()
        await until(lambda: len(seen) == 2 and active == 0)
        await asyncio.sleep(0.02)

    assert len(seen) == 2


async def test_a_failure_is_tried_again_with_growing_pauses(caplog):
    times: list[float] = []

    async def reconcile(key):
        times.append(asyncio.get_running_loop().time())
        if len(times) < 5:
            raise NotFound(404, "NotFound", "getting Secret ns/x")

    controller = Controller("test", reconcile, first_delay=0.02)
    async with running(controller):
        controller.enqueue(ONE)
        await until(lambda: len(times) == 5)

    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[0] < pauses[2] < pauses[3]
    assert "test: ns/one failed (4): getting Secret ns/x" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_bug_leaves_its_traceback_and_the_worker_lives_on(caplog):
    seen = []

    async def reconcile(key):
        seen.append(key)
        if key == ONE:
            raise KeyError("bug")

    controller = Controller("test", reconcile, workers=1, first_delay=10)
    async with running(controller):
        controller.enqueue(ONE)
        controller.enqueue(TWO)
        await until(lambda: TWO in seen)

    assert "Traceback" in caplog.text


@pytest.mark.parametrize("again", [Requeue(0.01), TryAgain("not yet", after=0.01)])
async def test_a_requeue_reconciles_later(again, caplog):
    caplog.set_level(logging.CRITICAL)
    seen = []

    async def reconcile(key):
        seen.append(key)
        if len(seen) > 2:
            return None
        if isinstance(again, Exception):
            raise again
        return again

    controller = Controller("test", reconcile, first_delay=100)
    async with running(controller):
        controller.enqueue(ONE)
        await until(lambda: len(seen) == 3)


async def test_an_earlier_appointment_comes_first():
    seen = []

    async def reconcile(key):
        seen.append(key)

    controller = Controller("test", reconcile)
    async with running(controller):
        controller.enqueue(ONE, after=0.08)
        controller.enqueue(TWO, after=0.02)
        await until(lambda: len(seen) == 2)

    assert seen == [TWO, ONE]


async def test_events_become_keys_that_the_controller_chooses(api, client):
    caches = Caches(client)
    seen = []

    async def reconcile(key):
        seen.append(key)

    controller = Controller("test", reconcile)
    api.put("/api/v1/configmaps", {"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}})
    api.put("/api/v1/configmaps", {"kind": "ConfigMap", "metadata": {"name": "b", "namespace": "ns"}})
    controller.watch(
        caches.of(CONFIG_MAP),
        keys=lambda event: [Key(None, event.object["metadata"]["name"].upper())],
        when=lambda event: event.object["metadata"]["name"] != "b",
    )
    async with running(controller):
        await until(lambda: seen)
    await caches.close()

    assert seen == [Key(None, "A")]


async def test_events_do_not_multiply_a_periodic_reconcile():
    """Each event once began an endless series of delayed requeues: a Shoot was checked 30 times a minute, not once."""
    period, times = 0.05, []

    async def reconcile(key):
        times.append(asyncio.get_running_loop().time())
        return Requeue(period)

    controller = Controller("test", reconcile)
    async with running(controller):
        for _ in range(10):
            seen = len(times)
            controller.enqueue(ONE)
            await until(partial(_longer, times, seen))
        before = len(times)
        await until(lambda: len(times) >= before + 5)

    pauses = [later - earlier for earlier, later in itertools.pairwise(times[before - 1 :])]
    assert min(pauses) > 0.9 * period


def _longer(items, length):
    return len(items) > length


async def test_of_two_delays_of_one_key_the_earlier_wins():
    queue = Queue()
    queue.add(ONE, 0.02)
    queue.add(ONE, 30.0)
    queue.add(TWO, 30.0)
    queue.add(TWO, 0.04)

    async with asyncio.timeout(10):
        assert [await queue.take(), await queue.take()] == [ONE, TWO]
    queue.close()


async def test_a_key_that_is_taken_has_no_pending_delay_any_more():
    queue = Queue()
    queue.add(ONE, 0.01)
    queue.add(ONE)
    assert await queue.take() == ONE
    queue.done(ONE)

    queue.add(TWO, 0.03)
    async with asyncio.timeout(10):
        assert await queue.take() == TWO
    queue.close()


async def test_a_delay_that_passes_while_a_worker_has_the_key_queues_it_afterwards():
    """The reason of the delay may have happened after the worker read the object."""
    queue = Queue()
    queue.add(ONE)
    assert await queue.take() == ONE
    queue.add(ONE, 0.01)
    queue.add(TWO, 0.03)
    async with asyncio.timeout(10):
        assert await queue.take() == TWO
        queue.done(ONE)
        assert await queue.take() == ONE
    queue.close()


async def test_an_expected_obstacle_becomes_a_warning_once_it_stays(caplog):
    caplog.set_level(logging.DEBUG)
    keys: list[Any] = []

    async def reconcile(key):
        keys.append(key)
        raise TryAgain("it has changed since it was read", after=0.001)

    async with running(Controller("test", reconcile)) as controller:
        controller.enqueue(ONE)
        await until(lambda: len(keys) > 5)

    levels = [each.levelname for each in caplog.records if "it has changed since it was read" in each.getMessage()]
    assert levels[:5] == ["DEBUG"] * 4 + ["WARNING"]


async def test_a_conflict_is_retried_soon_and_without_a_warning(caplog):
    """Two writers of one object are no fault: the next reconcile reads what the other one wrote."""
    attempts = itertools.count(1)
    done = asyncio.Event()

    async def reconcile(_):
        if next(attempts) < 3:
            raise Conflict(409, "Conflict", "patching Seed one")
        done.set()

    controller = Controller("test", reconcile, first_delay=60.0)
    controller.enqueue(ONE)
    with caplog.at_level(logging.WARNING):
        async with running(controller), asyncio.timeout(5):
            await done.wait()

    assert not caplog.records
