"""An event that comes again is one Event with a count, not another object in etcd each minute."""

from collections.abc import Iterator
from typing import Any

import pytest

from kube import events
from kube.events import emit, record
from tests.unit.garden_controllers.conftest import Garden
from tests.unit.kube.api_server import refuse

PROJECT = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Project", "metadata": {"name": "dev", "uid": "u1"}}


@pytest.fixture(autouse=True)
def _new_process() -> Iterator[None]:
    events._counts.clear()
    yield
    events._counts.clear()


def written(garden: Garden) -> list[dict[str, Any]]:
    return [obj for (path, _, _), obj in garden.api.objects.items() if path == "/api/v1/events"]


async def say(garden: Garden, message: str = "still has Shoots: a") -> None:
    await emit(garden.client, PROJECT, "gardener-controller-manager", "NamespaceNotEmpty", message, "Warning")


async def test_the_same_event_raises_the_count(garden: Garden) -> None:
    for _ in range(3):
        await say(garden)
    (event,) = written(garden)
    assert (event["count"], event["reason"], event["type"]) == (3, "NamespaceNotEmpty", "Warning")
    assert event["firstTimestamp"] <= event["lastTimestamp"]


async def test_another_message_is_another_event(garden: Garden) -> None:
    await say(garden)
    await say(garden, "still has Shoots: b")
    assert sorted(each["message"] for each in written(garden)) == ["still has Shoots: a", "still has Shoots: b"]


async def test_another_process_continues_an_event_without_reading_it(garden: Garden) -> None:
    """Gardenlets may create and patch Events; those of other tenants are not theirs to read."""
    await say(garden)
    events._counts.clear()
    garden.api.answer = lambda request: refuse(403, "Forbidden", "no") if request.method == "GET" else None
    await say(garden)
    await say(garden)
    assert [each["count"] for each in written(garden)] == [3]


async def test_an_expired_event_is_created_again(garden: Garden) -> None:
    await say(garden)
    name = written(garden)[0]["metadata"]["name"]
    garden.api.remove("/api/v1/events", name, "default")
    await say(garden)
    assert [each["count"] for each in written(garden)] == [1]


async def test_no_more_events_are_remembered_than_a_process_can_hold(
    garden: Garden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_REMEMBERED", 2)
    for number in range(4):
        await say(garden, f"message {number}")
    assert len(events._counts) == 2


async def test_a_message_of_long_characters_is_shortened_to_what_the_api_server_accepts(garden: Garden) -> None:
    """It counts bytes, and an activity whose Event is refused would fail at each attempt."""
    for text in ("é" * 2000, "集" * 2000, "😀" * 2000):
        await say(garden, text)
        await record(garden.client, PROJECT, "gardener-controller-manager", "Normal", "Repaired", text, occasion=text)
    messages = [each["message"] for each in written(garden)]
    assert len(messages) == 6
    for each in messages:
        assert 990 < len(each.encode()) <= 1024
        assert len(set(each)) == 1
