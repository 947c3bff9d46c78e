"""A new encryption key: all objects are written again before the old key is dropped, once and resumably."""

import asyncio
import dataclasses
import functools
from collections import Counter
from typing import Any

import pytest
from aiohttp import web
from temporalio.testing import ActivityEnvironment

from activities.heartbeat import heartbeating
from activities.secrets.configs import EtcdEncryptionKey
from activities.shoot import rewriting, rotation
from tests.unit.rotation.conftest import NAMESPACE, TASK, World

SECRETS, DEPLOYMENTS = "/api/v1/secrets", "/apis/apps/v1/deployments"
LABEL = "credentials.gardener.cloud/key-name"
KEY = "kube-apiserver-etcd-encryption-key"


async def prepare(world: World, *resources: str) -> str:
    """A cluster with a rotation under way; name of the new key."""
    world.pinned["spec"]["kubernetes"]["kubeAPIServer"] = {"encryptionConfig": {"resources": list(resources)}}
    await (await world.secrets()).generate(EtcdEncryptionKey(KEY))
    world.rotates("etcdEncryptionKey", "Preparing")
    new = await (await world.secrets()).generate(EtcdEncryptionKey(KEY))
    world.seed.put(DEPLOYMENTS, {"metadata": {"name": "kube-apiserver"}}, NAMESPACE)
    served = {
        "/apis": {"groups": [{"name": "apps", "preferredVersion": {"version": "v1"}}]},
        "/api/v1": {
            "resources": [
                {"name": "secrets", "kind": "Secret", "namespaced": True},
                {"name": "configmaps", "kind": "ConfigMap", "namespaced": True},
            ]
        },
        "/apis/apps/v1": {"resources": [{"name": "deployments", "kind": "Deployment", "namespaced": True}]},
    }
    world.shoot.answer = lambda request: web.json_response(served[request.path]) if request.path in served else None
    return new.name


async def run(activity: Any, env: ActivityEnvironment | None = None) -> str:
    note: str = (await (env or ActivityEnvironment()).run(activity, TASK)).note
    return note


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of four objects, and a heartbeat on each."""
    monkeypatch.setattr(rewriting, "PAGE", 4)
    monkeypatch.setattr(rotation, "heartbeating", functools.partial(heartbeating, interval=0.01))


class Writes:
    """Counts what the shoot's API server stores, and kills an attempt at one of its writes."""

    def __init__(self, world: World) -> None:
        self.of = Counter[str]()
        """Name of each object, and how often it was stored."""
        self.asked: list[str] = []
        """Continue tokens of lists of Secrets; empty: from the start."""
        self._world = world
        self._kill_at = 0
        self._env = ActivityEnvironment()
        self._served = world.shoot.answer
        self._store = world.shoot._store
        world.shoot.answer = self._answer
        world.shoot._store = self._count  # type: ignore[method-assign]

    async def attempt(self, activity: Any, kill_at: int = 0, after: ActivityEnvironment | None = None) -> Any:
        """Run it until its so-manieth write, knowing the last heartbeat of the attempt ``after`` which it comes."""
        self._kill_at, self._env = kill_at, ActivityEnvironment()
        if after is not None:
            self._env.info = dataclasses.replace(self._env.info, heartbeat_details=after.told)  # type: ignore[attr-defined]
        self._env.told = ()  # type: ignore[attr-defined]
        env = self._env

        def told(*details: Any) -> None:
            waits, sees, position = details
            env.told = (waits, sees, position.model_dump())  # type: ignore[attr-defined]

        env.on_heartbeat = told
        if not kill_at:
            return await run(activity, env)
        with pytest.raises(asyncio.CancelledError):
            await run(activity, env)
        await asyncio.sleep(0.05)  # what was on its way arrives, or does not
        return env

    def _answer(self, request: web.Request) -> web.Response | None:
        if request.method == "GET" and request.path == SECRETS:
            self.asked.append(request.query.get("continue", ""))
        if request.method == "PATCH" and self._kill_at:
            self._kill_at -= 1
            if not self._kill_at:
                self._env.cancel()
        return self._served(request)

    def _count(self, place: Any, obj: Any) -> Any:
        before = self._world.shoot.objects.get(place)
        after = self._store(place, obj)
        if before is not None and after is not before:
            self.of[place[2]] += 1
        return after


NAMES = [f"s-{number:02}" for number in range(14)]
ONCE = dict.fromkeys(NAMES, 1)


def marks(world: World) -> set[str]:
    live = world.seed.find(DEPLOYMENTS, "kube-apiserver", NAMESPACE)
    assert live is not None
    return {name.removeprefix("credentials.gardener.cloud/") for name in live["metadata"].get("annotations") or {}}


def labels(world: World, path: str, name: str) -> dict[str, str]:
    live = world.shoot.find(path, name, "apps")
    assert live is not None
    return dict(live["metadata"].get("labels") or {})


async def test_every_object_of_each_encrypted_kind_is_written_with_the_new_key(world: World) -> None:
    key = await prepare(world, "configmaps", "deployments.apps", "gone.example.org")
    world.shoot.put(SECRETS, {"metadata": {"name": "old", "labels": {LABEL: "an-earlier-key"}}}, "apps")
    world.shoot.put(SECRETS, {"metadata": {"name": "done", "labels": {LABEL: key}}}, "apps")
    world.shoot.put("/api/v1/configmaps", {"metadata": {"name": "plain"}}, "apps")
    world.shoot.put(DEPLOYMENTS, {"metadata": {"name": "web"}}, "apps")

    assert await run(world.activities.rewrite_add_label) == "3 objects"
    for path, name in ((SECRETS, "old"), ("/api/v1/configmaps", "plain"), (DEPLOYMENTS, "web")):
        assert labels(world, path, name) == {LABEL: key}
    assert marks(world) == {"resources-labeled"}
    assert await run(world.activities.rewrite_add_label) == "done before"


async def test_the_label_goes_again_and_the_marks_with_it(world: World) -> None:
    key = await prepare(world)
    world.shoot.put(SECRETS, {"metadata": {"name": "mine", "labels": {LABEL: key, "app": "x"}}}, "apps")
    await run(world.activities.rewrite_add_label)

    assert await run(world.activities.rewrite_remove_label) == "1 objects"
    assert labels(world, SECRETS, "mine") == {"app": "x"}
    assert marks(world) == set()
    assert await run(world.activities.rewrite_remove_label) == "0 objects"


async def test_a_rewrite_killed_in_the_middle_of_a_page_continues_there(world: World, small_pages: None) -> None:
    """Its token shows all of the page unwritten, as it was at the start; no object is written twice for that."""
    key = await prepare(world)
    for name in NAMES:
        world.shoot.put(SECRETS, {"metadata": {"name": name}}, "apps")
    writes = Writes(world)

    first = await writes.attempt(world.activities.rewrite_add_label, kill_at=7)
    assert 4 < len(writes.of) < 14
    token = first.told[2]["token"]
    assert first.told[2]["resource"] == "secrets"
    assert token
    assert first.told[2]["written"] >= 4
    assert marks(world) == set()

    writes.asked.clear()
    await writes.attempt(world.activities.rewrite_add_label, after=first)
    assert writes.asked[0] == token
    assert writes.of == ONCE
    assert all(labels(world, SECRETS, name) == {LABEL: key} for name in NAMES)
    assert marks(world) == {"resources-labeled"}

    last = await writes.attempt(world.activities.rewrite_remove_label, kill_at=6)
    await writes.attempt(world.activities.rewrite_remove_label, after=last)
    assert writes.of == dict.fromkeys(NAMES, 2)
    assert not any(labels(world, SECRETS, name) for name in NAMES)
    assert marks(world) == set()


async def test_rewritten_kinds_are_not_listed_again(world: World, small_pages: None) -> None:
    await prepare(world, "configmaps")
    world.shoot.put(SECRETS, {"metadata": {"name": "first"}}, "apps")
    for name in NAMES:
        world.shoot.put("/api/v1/configmaps", {"metadata": {"name": name}}, "apps")
    writes = Writes(world)

    first = await writes.attempt(world.activities.rewrite_add_label, kill_at=8)
    assert first.told[2]["resource"] == "configmaps"
    writes.asked.clear()
    await writes.attempt(world.activities.rewrite_add_label, after=first)
    assert writes.asked == []
    assert writes.of == ONCE | {"first": 1}


async def test_a_page_whose_token_has_expired_makes_its_kind_begin_again_with_what_is_left(
    world: World, small_pages: None
) -> None:
    await prepare(world)
    for name in NAMES:
        world.shoot.put(SECRETS, {"metadata": {"name": name}}, "apps")
    writes = Writes(world)

    first = await writes.attempt(world.activities.rewrite_add_label, kill_at=7)
    world.shoot.expire_pages()
    writes.asked.clear()
    await writes.attempt(world.activities.rewrite_add_label, after=first)
    assert writes.asked[0] == first.told[2]["token"] != ""
    assert writes.asked[1] == ""
    assert writes.of == ONCE


async def test_concurrent_changes_of_other_clients_are_kept(world: World, small_pages: None) -> None:
    key = await prepare(world)
    world.shoot.put(SECRETS, {"metadata": {"name": "busy"}}, "apps")
    served = world.shoot.answer
    changed: list[Any] = []

    def interfere(request: web.Request) -> web.Response | None:
        if request.method == "PATCH" and request.path.endswith("/busy") and len(changed) < 2:
            changed.append(world.shoot.change(SECRETS, "busy", "apps", {"data": {"a": str(len(changed))}}))
        return served(request)

    world.shoot.answer = interfere
    await run(world.activities.rewrite_add_label)
    live = world.shoot.find(SECRETS, "busy", "apps")
    assert live is not None
    assert live["data"] == {"a": "1"}
    assert live["metadata"]["labels"] == {LABEL: key}
