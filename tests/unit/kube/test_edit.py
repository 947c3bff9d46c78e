"""Edits are computed again from the newer object after a conflict, and end with a useful error if that goes on."""

import pytest

from api.resources import CONFIG_MAP
from kube.edit import edit, patch_as_read
from kube.errors import Conflict


def config_map(**data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": "ns"}, "data": data}


def raised(live):
    return {"data": {"count": str(int(live["data"]["count"]) + 1)}}


def racing(client, times):
    """A change that another writer forestalls so many times, between its read and its write."""
    left = [times]

    def change(live):
        place = next(each for each in client.api.objects if each[2] == "one")
        if left[0] > 0:
            left[0] -= 1
            stored = client.api.objects[place]
            stored["data"]["count"] = str(int(stored["data"]["count"]) + 10)
            stored["metadata"]["resourceVersion"] = str(int(stored["metadata"]["resourceVersion"]) + 1000)
        return raised(live)

    return change


@pytest.fixture
async def racer(api, client):
    client.api = api
    await client.create(config_map(count="0"))
    return client


async def test_edit_computes_the_patch_again_after_a_conflict(racer):
    """The other writer's change must not be lost."""
    written = await edit(racer, CONFIG_MAP, "one", "ns", racing(racer, 2))

    assert written
    assert written["data"] == {"count": "21"}
    assert (await racer.get(CONFIG_MAP, "one", "ns"))["data"] == {"count": "21"}


async def test_edit_names_the_object_and_the_conflicts_when_it_stops(racer):
    with pytest.raises(Conflict, match=r"^editing ConfigMap ns/one: .*5 update conflicts in a row; will retry"):
        await edit(racer, CONFIG_MAP, "one", "ns", racing(racer, 5))


async def test_edit_without_a_change_sends_no_request(api, racer):
    before = len(api.requests)

    unchanged = await edit(racer, CONFIG_MAP, "one", "ns", lambda live: None)
    assert unchanged
    assert unchanged["data"] == {"count": "0"}
    assert [method for method, _ in api.requests[before:]] == ["GET"]


async def test_edit_of_another_object_of_the_same_name_does_nothing(racer):
    """The object that was meant is gone; its successor has another owner."""
    assert await edit(racer, CONFIG_MAP, "one", "ns", raised, uid="of the former") is None
    assert (await racer.get(CONFIG_MAP, "one", "ns"))["data"] == {"count": "0"}


async def test_edit_of_an_object_that_is_gone_returns_none(racer):
    assert await edit(racer, CONFIG_MAP, "two", "ns", raised) is None


async def test_patch_as_read_refuses_a_newer_object(racer):
    read = await racer.get(CONFIG_MAP, "one", "ns")
    await racer.patch(CONFIG_MAP, "one", "ns", {"data": {"count": "7"}})

    with pytest.raises(Conflict):
        await patch_as_read(racer, CONFIG_MAP, read, raised(read))
