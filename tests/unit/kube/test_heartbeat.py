"""A waiting activity sends heartbeats, and learns from them of its cancellation."""

import asyncio
import dataclasses

import pytest
from temporalio.testing import ActivityEnvironment

from activities.heartbeat import heartbeating, last_position
from kube.waits import record_waits, recorded_waits, waiting_for
from tests.unit.kube.waiting import until


async def test_heartbeats_go_out_while_something_long_is_awaited():
    beats = []
    env = ActivityEnvironment()
    env.on_heartbeat = lambda *details: beats.append(details)

    async def long():
        await until(lambda: len(beats) >= 4)
        return "done"

    async def run():
        return await heartbeating(long(), interval=0.02, details=lambda: "waiting for x")

    answer = await env.run(run)

    assert answer == "done"
    assert beats[0] == ("", "waiting for x")


async def test_a_cancelled_activity_cancels_what_it_awaits_and_lets_it_clean_up():
    cleaned = []

    async def long():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            cleaned.append(True)
            raise

    task = asyncio.create_task(heartbeating(long(), interval=0.01))
    await asyncio.sleep(0.03)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert cleaned == [True]


async def test_a_failure_is_raised_unchanged():
    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        await heartbeating(fail())


async def test_outside_an_activity_no_heartbeat_is_sent():
    async def quick():
        return 1

    assert await heartbeating(quick()) == 1


async def test_a_heartbeat_names_all_that_is_waited_for():
    beats = []
    env = ActivityEnvironment()
    env.on_heartbeat = lambda *details: beats.append(details)

    main, both = "Etcd shoot--local--demo/main", "Etcd shoot--local--demo/main; Etcd shoot--local--demo/events"

    async def one(name, told):
        with waiting_for(f"Etcd shoot--local--demo/{name}"):
            await until(lambda: (told, "") in beats)

    async def run():
        record_waits()  # as the interceptor of all activities does: gather starts its tasks at once
        await heartbeating(asyncio.gather(one("main", main), one("events", both)), interval=0.02)

    await env.run(run)

    assert beats.index((both, "")) < beats.index((main, ""))


async def test_a_wait_outside_of_an_activity_is_not_recorded():
    with waiting_for("x"):
        assert recorded_waits() is None


async def test_an_attempt_reads_the_position_of_the_previous_one():
    beats = []
    env = ActivityEnvironment()
    env.on_heartbeat = lambda *details: beats.append(details)

    async def run():
        assert last_position() is None
        await heartbeating(asyncio.sleep(0.01), position=lambda: {"page": 3})

    await env.run(run)
    again = ActivityEnvironment()
    again.info = dataclasses.replace(again.info, heartbeat_details=beats[-1])

    assert beats[-1] == ("", "", {"page": 3})
    assert again.run(last_position) == {"page": 3}
