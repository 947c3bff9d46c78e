"""Caches keep up with a server that expires versions, ends watches, dies and comes back."""

import asyncio
import dataclasses

import aiohttp
import pytest

from api.resources import CONFIG_MAP, NAMESPACE
from kube import cache as module
from kube import client as client_module
from kube.cache import Cache, Caches, Key
from tests.unit.kube.api_server import refuse
from tests.unit.kube.waiting import until

CONFIG_MAPS = "/api/v1/configmaps"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_DELAY", 0.01)


@pytest.fixture
async def caches(client):
    caches = Caches(client)
    yield caches
    await caches.close()


def config_map(name="one", namespace="ns", **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


async def value_is(cache, value, name="one", timeout=20):
    return await cache.wait_for(name, "ns", lambda obj: obj is not None and obj["data"].get("a") == value, timeout)


async def watched(api, number=1):
    await until(lambda: api.watching >= number)


async def test_a_wait_wakes_on_the_event_and_asks_the_server_nothing(api, caches):
    api.put(CONFIG_MAPS, config_map(a="1"))
    cache = caches.of(CONFIG_MAP, "ns")
    waiting = asyncio.create_task(value_is(cache, "2"))
    await watched(api)
    before = len(api.requests)

    api.change(CONFIG_MAPS, "one", "ns", {"data": {"a": "2"}})

    assert await waiting is True
    assert len(api.requests) == before


async def test_a_wait_that_is_already_over_returns_at_once(api, caches):
    api.put(CONFIG_MAPS, config_map(a="2"))

    assert await value_is(caches.of(CONFIG_MAP, "ns"), "2")


async def test_a_wait_for_a_deletion_sees_it(api, caches):
    api.put(CONFIG_MAPS, config_map())
    cache = caches.of(CONFIG_MAP)
    await cache.synced()
    gone = asyncio.create_task(cache.wait_for("one", "ns", lambda obj: obj is None, 20))
    await asyncio.sleep(0)

    api.remove(CONFIG_MAPS, "one", "ns")

    assert await gone is True


async def test_a_wait_that_is_in_vain_ends_and_says_for_what(caches):
    with pytest.raises(TimeoutError, match="ConfigMap ns/one did not reach the expected state within"):
        await value_is(caches.of(CONFIG_MAP, "ns"), "2", timeout=0.1)


async def test_an_exception_of_a_predicate_ends_the_wait(api, caches):
    """An object that reports a final error must fail its flow at once, not after ten minutes."""
    api.put(CONFIG_MAPS, config_map())

    def refuse_it(obj):
        raise RuntimeError("final")

    with pytest.raises(RuntimeError, match="final"):
        await caches.of(CONFIG_MAP, "ns").wait_for("one", "ns", refuse_it, 5)


async def test_progress_is_reported_for_each_state_that_does_not_fit(api, caches):
    api.put(CONFIG_MAPS, config_map(a="1"))
    cache = caches.of(CONFIG_MAP, "ns")
    seen = []
    waiting = asyncio.create_task(
        cache.wait_for("one", "ns", lambda o: o["data"]["a"] == "3", 5, lambda o: seen.append(o["data"]["a"]))
    )
    await watched(api)
    api.change(CONFIG_MAPS, "one", "ns", {"data": {"a": "2"}})
    await value_is(cache, "2")
    api.change(CONFIG_MAPS, "one", "ns", {"data": {"a": "3"}})
    await waiting

    assert seen == ["1", "2"]


async def test_one_list_and_one_watch_serve_all_waiters(api, caches):
    api.put(CONFIG_MAPS, config_map(a="1"))

    await asyncio.gather(*(value_is(caches.of(CONFIG_MAP, "ns"), "1") for _ in range(50)))
    await watched(api)

    assert api.count("GET", "/api/v1/namespaces/ns/configmaps") == 2


async def test_a_version_that_expired_in_the_middle_of_a_watch_is_listed_again(api, caches):
    """Gap and all: what came and went while we were away must be right afterwards."""
    api.put(CONFIG_MAPS, config_map("stays", a="1"))
    api.put(CONFIG_MAPS, config_map("goes", a="1"))
    cache = caches.of(CONFIG_MAP, "ns")
    events = []
    cache.subscribe(lambda event: events.append((event.type, event.object["metadata"]["name"])))
    await cache.synced()
    await watched(api)
    api.watch_hook = lambda _: refuse(503, "ServiceUnavailable", "starting")
    api.cut_watches()
    api.change(CONFIG_MAPS, "stays", "ns", {"data": {"a": "2"}})
    api.remove(CONFIG_MAPS, "goes", "ns")
    api.put(CONFIG_MAPS, config_map("comes", a="1"))
    api.compact()
    api.watch_hook = lambda _: None

    await value_is(cache, "1", "comes")

    assert sorted(obj["metadata"]["name"] for obj in cache.list("ns")) == ["comes", "stays"]
    assert events[2:] == [("DELETED", "goes"), ("ADDED", "comes"), ("MODIFIED", "stays")]


async def test_an_object_that_was_replaced_while_no_watch_was_open_ends_and_begins(api, caches):
    """Without the end of the earlier object, controllers that wait for it would wait for ever."""
    api.put(CONFIG_MAPS, config_map(a="1"))
    cache = caches.of(CONFIG_MAP, "ns")
    await value_is(cache, "1")
    await watched(api)
    events = []
    cache.subscribe(lambda event: events.append((event.type, event.object["data"]["a"], event.old is not None)))
    api.watch_hook = lambda _: refuse(503, "ServiceUnavailable", "starting")
    api.cut_watches()
    api.remove(CONFIG_MAPS, "one", "ns")
    api.put(CONFIG_MAPS, config_map(a="2"))
    api.compact()
    api.watch_hook = lambda _: None

    await value_is(cache, "2")

    assert events == [("ADDED", "1", False), ("DELETED", "1", True), ("ADDED", "2", False)]


async def test_the_end_of_an_earlier_object_that_comes_late_does_not_remove_the_present_one(api, caches):
    """Subscribers that had forgotten the earlier object would take the present one for known after the next list."""
    earlier = api.put(CONFIG_MAPS, config_map(a="1"))
    cache = caches.of(CONFIG_MAP, "ns")
    await value_is(cache, "1")
    await watched(api)
    api.remove(CONFIG_MAPS, "one", "ns")
    api.put(CONFIG_MAPS, config_map(a="2"))
    await value_is(cache, "2")
    events = []
    cache.subscribe(lambda event: events.append((event.type, event.object["data"]["a"])))
    api.tell("DELETED", earlier)
    api.change(CONFIG_MAPS, "one", "ns", {"data": {"a": "3"}})

    await value_is(cache, "3")

    assert events == [("ADDED", "2"), ("MODIFIED", "3")]


async def test_an_expiry_reported_inside_a_watch_causes_a_new_list(api, caches):
    cache = caches.of(CONFIG_MAP, "ns")
    await watched(api)
    api.expire_watches()
    api.put(CONFIG_MAPS, config_map(a="1"))

    assert await value_is(cache, "1")


async def test_a_broken_watch_continues_from_its_version_without_a_list(api, caches):
    api.put(CONFIG_MAPS, config_map(a="1"))
    cache = caches.of(CONFIG_MAP, "ns")
    await cache.synced()
    for value in "234":
        await watched(api)
        api.cut_watches()
        api.change(CONFIG_MAPS, "one", "ns", {"data": {"a": value}})
        await value_is(cache, value)

    lists = api.count("GET", "/api/v1/namespaces/ns/configmaps") - 4
    assert lists <= 1


async def test_a_bookmark_saves_a_quiet_watch_from_expiry(api, caches):
    """Objects of other kinds move the version on; without bookmarks ours would be too old at the next reconnect."""
    cache = caches.of(CONFIG_MAP, "ns")
    await watched(api)
    for number in range(5):
        api.put("/api/v1/secrets", {"kind": "Secret", "metadata": {"name": f"s{number}", "namespace": "ns"}})
    api.compact()
    api.bookmark()
    await asyncio.sleep(0.05)
    before = len(api.requests)
    api.cut_watches()
    await asyncio.sleep(0.05)
    await watched(api)
    api.put(CONFIG_MAPS, config_map(a="1"))
    await value_is(cache, "1")

    assert len(api.requests) - before == 1, "the watch that was cut began again, and nothing was listed"


async def test_a_server_that_is_away_at_the_start_is_found_when_it_comes(api, caches):
    api.answer = lambda _: refuse(503, "ServiceUnavailable", "starting")
    cache = caches.of(CONFIG_MAP, "ns")
    with pytest.raises(TimeoutError, match="503 ServiceUnavailable"):
        await cache.synced(2)
    api.put(CONFIG_MAPS, config_map(a="1"))
    api.answer = lambda _: None

    assert await value_is(cache, "1")


async def test_a_wait_that_fails_because_of_a_broken_watch_names_it(api, caches):
    cache = caches.of(CONFIG_MAP, "ns")
    await watched(api)
    api.answer = lambda _: refuse(403, "Forbidden", "not yours")
    api.cut_watches()

    with pytest.raises(TimeoutError, match=r"the watch is broken: .*403 Forbidden"):
        await value_is(cache, "1", timeout=2)


async def test_a_watch_that_was_broken_and_is_whole_again_is_not_blamed(api, caches):
    cache = caches.of(CONFIG_MAP, "ns")
    await watched(api)
    api.watch_hook = lambda _: refuse(503, "ServiceUnavailable", "starting")
    api.cut_watches()
    await until(lambda: cache._last_error)
    api.watch_hook = lambda _: None
    await watched(api)

    with pytest.raises(TimeoutError) as failed:
        await value_is(cache, "1", timeout=0.5)

    assert "broken" not in str(failed.value)


async def test_a_handler_that_fails_does_not_stop_the_others(api, caches):
    cache = caches.of(CONFIG_MAP, "ns")
    seen = []
    cache.subscribe(lambda event: 1 / 0)
    cache.subscribe(lambda event: seen.append(event.type))
    api.put(CONFIG_MAPS, config_map(a="1"))
    await value_is(cache, "1")

    assert seen == ["ADDED"]


async def test_a_late_subscriber_gets_existing_objects_and_no_events_after_unsubscribing(api, caches):
    api.put(CONFIG_MAPS, config_map(a="1"))
    cache = caches.of(CONFIG_MAP, "ns")
    await cache.synced()
    seen = []
    leave = cache.subscribe(lambda event: seen.append(event.type))
    leave()
    await watched(api)
    api.change(CONFIG_MAPS, "one", "ns", {"data": {"a": "2"}})
    await value_is(cache, "2")

    assert seen == ["ADDED"]


async def test_namespaces_and_labels_are_kept_apart(api, caches):
    api.put(CONFIG_MAPS, config_map("a", "one"))
    api.put(CONFIG_MAPS, config_map("b", "two"))
    labelled = config_map("c", "two")
    labelled["metadata"]["labels"] = {"x": "y"}
    api.put(CONFIG_MAPS, labelled)
    whole, one, some = caches.of(CONFIG_MAP), caches.of(CONFIG_MAP, "one"), caches.of(CONFIG_MAP, labels="x=y")
    await asyncio.gather(whole.synced(), one.synced(), some.synced())

    assert len(whole.list()) == 3
    assert len(whole.list("two")) == 2
    assert one.get("a") is not None
    assert one.get("b") is None
    assert [obj["metadata"]["name"] for obj in some.list()] == ["c"]


async def test_a_cluster_scoped_kind_has_one_cache_whatever_namespace_is_asked(caches):
    assert caches.of(NAMESPACE, "ns") is caches.of(NAMESPACE)


async def test_a_released_namespace_is_not_watched_any_more(api, caches):
    caches.of(CONFIG_MAP, "ns")
    await watched(api)

    await caches.forget("ns")
    async with asyncio.timeout(5):
        while api.watching:
            api.bookmark()  # the server notices when it writes
            await asyncio.sleep(0.01)


async def test_the_cache_of_an_unused_namespace_is_dropped(api, caches, monkeypatch):
    """A gardenlet sees thousands of shoots come and go; a watch each would stay open for ever."""
    idle, subscribed, whole = caches.of(CONFIG_MAP, "ns"), caches.of(CONFIG_MAP, "other"), caches.of(CONFIG_MAP)
    subscribed.subscribe(lambda _: None)
    await watched(api, 3)
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.01)
    await asyncio.sleep(0.03)

    assert caches.of(CONFIG_MAP) is whole
    assert caches.of(CONFIG_MAP, "other") is subscribed
    assert caches.of(CONFIG_MAP, "ns") is not idle


async def test_a_cancelled_wait_leaves_nothing_behind(api, client):
    cache = Cache(client, CONFIG_MAP, "ns")
    cache.start()
    waiting = asyncio.create_task(value_is(cache, "1"))
    await watched(api)
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert not cache._waiters
    await cache.close()


def test_a_key_reads_like_kubectl():
    assert (str(Key("ns", "name")), str(Key(None, "name"))) == ("ns/name", "name")


async def test_a_cache_survives_the_end_of_connections_with_old_credentials(api, client, caches, monkeypatch):
    monkeypatch.setattr(client_module, "_ANSWER", aiohttp.ClientTimeout(total=0.05))
    api.put(CONFIG_MAPS, config_map(a="1"))
    cache = caches.of(CONFIG_MAP, "ns")
    assert await value_is(cache, "1")
    await watched(api)
    before = len(api.requests)

    client.reconfigure(dataclasses.replace(client.endpoint, tls_server_name="another"))
    await until(lambda: len(api.requests) > before)
    api.change(CONFIG_MAPS, "one", "ns", {"data": {"a": "2"}})

    assert await value_is(cache, "2", timeout=5)


def by_owner(obj):
    return (obj["data"]["owner"],) if "owner" in obj["data"] else ()


async def test_an_index_follows_creations_changes_and_deletions(api, caches):
    api.put(CONFIG_MAPS, config_map("one", owner="a"))
    cache = caches.of(CONFIG_MAP)
    await cache.synced()
    cache.index("owner", by_owner)
    await watched(api)

    def names(owner):
        return [each["metadata"]["name"] for each in cache.by_index("owner", owner)]

    assert names("a") == ["one"]
    api.put(CONFIG_MAPS, config_map("two", "other", owner="a"))
    await until(lambda: names("a") == ["one", "two"])
    api.change(CONFIG_MAPS, "one", "ns", {"data": {"owner": "b"}})
    await until(lambda: names("b") == ["one"])
    assert names("a") == ["two"]
    api.remove(CONFIG_MAPS, "two", "other")
    await until(lambda: not names("a"))
    assert (names("c"), names(None)) == ([], [])


async def test_an_index_is_right_after_a_version_that_expired(api, caches):
    api.put(CONFIG_MAPS, config_map("goes", owner="a"))
    cache = caches.of(CONFIG_MAP)
    cache.index("owner", by_owner)
    await watched(api)
    api.watch_hook = lambda _: refuse(503, "ServiceUnavailable", "starting")
    api.cut_watches()
    api.remove(CONFIG_MAPS, "goes", "ns")
    api.put(CONFIG_MAPS, config_map("comes", owner="a"))
    api.compact()
    api.watch_hook = lambda _: None

    await until(lambda: [each["metadata"]["name"] for each in cache.by_index("owner", "a")] == ["comes"])


async def test_two_components_share_an_index_and_cannot_define_it_differently(caches):
    cache = caches.of(CONFIG_MAP)
    cache.index("owner", by_owner)
    cache.index("owner", by_owner)
    with pytest.raises(ValueError, match=r"index owner of .* is defined with another function"):
        cache.index("owner", lambda obj: ())


async def test_an_object_that_an_index_cannot_read_does_not_stop_the_cache(api, caches):
    """An invalid object of one user must not blind a controller for all others."""
    cache = caches.of(CONFIG_MAP)
    cache.index("owner", lambda obj: (obj["data"]["owner"],))
    api.put(CONFIG_MAPS, config_map("strange"))
    api.put(CONFIG_MAPS, config_map("good", owner="a"))

    await until(lambda: len(cache.list()) == 2)
    assert [each["metadata"]["name"] for each in cache.by_index("owner", "a")] == ["good"]


async def test_events_wake_only_waits_that_they_concern(api, caches):
    """100 deletions at a time once read all objects of the kind after each event of any of them."""
    for number in range(3):
        api.put(CONFIG_MAPS, config_map("one", f"ns-{number}"))
    cache = caches.of(CONFIG_MAP)
    await cache.synced()
    await watched(api)
    asked = {"object": 0, "namespace": 0, "all": 0}

    def asks(what):
        def ask(_):
            asked[what] += 1
            return False

        return ask

    waits = [
        asyncio.create_task(cache.wait_for("one", "ns-0", asks("object"), 60)),
        asyncio.create_task(cache.wait_until(asks("namespace"), 60, namespace="ns-1")),
        asyncio.create_task(cache.wait_until(asks("all"), 60)),
    ]
    await until(lambda: asked == {"object": 1, "namespace": 1, "all": 1})
    for times, namespace in enumerate(("ns-0", "ns-1", "ns-2"), start=2):
        api.change(CONFIG_MAPS, "one", namespace, {"data": {"a": "1"}})
        await until(lambda: asked["all"] == times)

    assert asked == {"object": 2, "namespace": 2, "all": 4}
    for each in waits:
        each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


async def test_a_wait_for_a_namespace_sees_its_last_object_go(api, caches):
    api.put(CONFIG_MAPS, config_map("one", "ns"))
    api.put(CONFIG_MAPS, config_map("one", "other"))
    cache = caches.of(CONFIG_MAP)
    await cache.synced()
    await watched(api)
    empty = asyncio.create_task(cache.wait_until(lambda each: not each.list("ns"), 20, namespace="ns"))
    await asyncio.sleep(0)
    api.remove(CONFIG_MAPS, "one", "ns")

    assert await empty is True
