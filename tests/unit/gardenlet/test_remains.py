"""What a gardenlet cleans up: control planes that are whole elsewhere, and nothing that is on its way."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.etcd.store import StoredObject
from activities.kube.cache import Caches, Key
from activities.kube.clusters import Clusters
from activities.kube.controller import Requeue
from api.constants import BACKUP_ENTRY_TAKEN_OVER
from api.constants import SEED_MOVED_CONTROL_PLANES_CLEANED_UP as CLEANED_UP
from api.flows import FinishedTask, FlowOutcome
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.gardenlet.remains import RemainsController, is_elsewhere

SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
KEY = Key("garden-a", "b")


def shoot(type_: str = "Restore", state: str = "Succeeded", *, spec: str = "seed-2", status: str = "seed-2") -> Any:
    return {
        "metadata": {"name": "b", "namespace": "garden-a", "uid": "0f3c", "generation": 3},
        "spec": {"seedName": spec},
        "status": {
            "seedName": status,
            "technicalID": "shoot--a--b",
            "lastOperation": {"type": type_, "state": state},
        },
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (shoot(), True),
        (shoot("Reconcile", "Error"), True),
        (shoot("Delete", "Processing"), True),
        (shoot("Restore", "Error"), False),
        (shoot("Migrate", "Aborted"), False),
        (shoot("Migrate", "Processing", status="seed-1"), False),
        (shoot("Reconcile", spec="seed-1"), False),
        (shoot("Reconcile", spec="seed-1", status="seed-1"), False),
        (shoot("Create", "Pending", status=""), False),
    ],
)
def test_only_what_is_whole_elsewhere_is_forgotten(found: Any, expected: bool) -> None:
    """Until the other seed has it, what is here may be all there is."""
    assert is_elsewhere(found, "seed-1") is expected


class Temporal:
    """Keeps what is started; it ends well, unless it is told to fail."""

    def __init__(self, *failures: FlowOutcome, held: bool = False) -> None:
        self.started: list[tuple[Any, dict[str, Any]]] = []
        self.let_go = asyncio.Event()
        """What is started ends when this is set."""
        if not held:
            self.let_go.set()
        self._failures = list(failures)

    async def start_workflow(self, _: Any, request: Any, **options: Any) -> Any:
        self.started.append((request, options))

        async def result() -> None:
            await self.let_go.wait()
            if self._failures:
                outcome = self._failures.pop(0)
                cause = ApplicationError("it failed", outcome.model_dump(mode="json"), type="FlowFailed")
                raise WorkflowFailureError(cause=cause)

        return SimpleNamespace(result=result)


SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
ENTRIES = "/apis/core.gardener.cloud/v1beta1/backupentries"
READY = {"type": "GardenletReady", "status": "True", "reason": "GardenletReady", "message": "it is"}
WELL = {"conditions": [READY], "lastOperation": {"type": "Reconcile", "state": "Succeeded"}}
SEED = {"metadata": {"name": "seed-1", "uid": "5eed"}, "status": WELL}


def mark(bucket: str = "5eed", taken_over: bool = True) -> dict[str, Any]:
    """The garden's BackupEntry of the bucket that the other seed goes on from."""
    annotations = {BACKUP_ENTRY_TAKEN_OVER: "true"} if taken_over else {}
    metadata = {"name": "source-shoot--a--b--0f3c", "namespace": "garden-a", "annotations": annotations}
    return {"metadata": metadata, "spec": {"bucketName": bucket, "seedName": "seed-2"}}


async def look(
    temporal: Temporal, uid: str | None, times: int = 1, entry: dict[str, Any] | None = None
) -> Requeue | None:
    """What the controller's last look asks for."""
    async with ApiServer().running() as garden, ApiServer().running() as seed:
        garden.put(SHOOTS, shoot())
        garden.put(SEEDS, SEED)
        if entry is not None:
            garden.put(ENTRIES, entry)
        if uid:
            annotations = {"shoot.gardener.cloud/uid": uid}
            seed.put("/api/v1/namespaces", {"metadata": {"name": "shoot--a--b", "annotations": annotations}})
        async with garden.client() as garden_client, seed.client() as client:
            caches, garden_caches = Caches(client), Caches(garden_client)
            clusters: Any = SimpleNamespace(seed_caches=caches, garden_caches=garden_caches, seed_name="seed-1")
            controller = RemainsController(clusters, temporal)  # type: ignore[arg-type]
            running = asyncio.create_task(controller.run())
            caches_of = (controller._shoots, controller._namespaces, controller._seeds, controller._entries)
            await asyncio.gather(*(each.synced(10) for each in caches_of))
            running.cancel()
            for _ in range(times):
                again: Requeue | None = await controller._reconcile(KEY)
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.gather(caches.close(), garden_caches.close())
    return again


class Bucket:
    """One that holds these objects, for whoever opens it."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.opened: list[tuple[Any, ...]] = []

    def __call__(self, *place: Any) -> "Bucket":
        self.opened.append(place)
        return self

    async def list(self, prefix: str) -> list[StoredObject]:
        assert prefix == "shoot--a--b--0f3c/etcd-main/v2/"
        return [StoredObject(prefix + name, 0, 0) for name in self._names]

    async def close(self) -> None:
        return None


FULL, FENCE, FINAL = "Full-00000000-00000007-1.gz", "Fence-00000007", "Full-00000000-00000007-1.gz.final"


@pytest.mark.parametrize(
    ("there", "names", "started"),
    [
        (False, (FULL, FENCE), True),
        (False, (FULL,), False),
        (False, (FINAL, FENCE), False),
        (True, (FULL, FENCE), False),
    ],
    ids=["taken over", "nobody took it over", "it was handed over", "it is in the garden"],
)
async def test_of_a_deleted_shoot_the_mark_in_the_bucket_says_what_may_go(
    monkeypatch: pytest.MonkeyPatch, there: bool, names: tuple[str, ...], started: bool
) -> None:
    """That the garden does not know it is not enough: it may have been restored from before the Shoot was made."""
    bucket = Bucket(*names)
    monkeypatch.setattr("workers.gardenlet.remains.open_store", bucket)
    temporal = Temporal()
    async with ApiServer().running() as garden, ApiServer().running() as seed:
        if there:
            garden.put(SHOOTS, shoot("Migrate", "Aborted"))
        annotations = {"shoot.gardener.cloud/uid": "0f3c"}
        seed.put("/api/v1/namespaces", {"metadata": {"name": "shoot--a--b", "annotations": annotations}})
        extensions = "/apis/extensions.gardener.cloud/v1alpha1"
        seed.put(f"{extensions}/clusters", {"metadata": {"name": "shoot--a--b"}, "spec": {"shoot": shoot()}})
        entry = {"type": "local", "bucketName": "bucket-1"}
        seed.put(f"{extensions}/backupentries", {"metadata": {"name": "shoot--a--b--0f3c"}, "spec": entry})
        secret = {"metadata": {"name": "etcd-backup"}, "data": {"token": "dA=="}}
        seed.put("/api/v1/secrets", secret, "shoot--a--b")
        async with garden.client() as garden_client, seed.client() as client:
            caches, garden_caches = Caches(client), Caches(garden_client)
            clusters: Any = SimpleNamespace(
                seed_caches=caches, garden_caches=garden_caches, seed_name="seed-1", seed=client, garden=garden_client
            )
            controller = RemainsController(clusters, temporal)  # type: ignore[arg-type]
            await asyncio.gather(*(each.synced(10) for each in (controller._shoots, controller._namespaces)))
            await controller._look_for_deleted(Key(None, "shoot--a--b"))
            await asyncio.gather(caches.close(), garden_caches.close())
    assert [request.task.destination for request, _ in temporal.started] == ([""] if started else [])
    assert all(place == ("local", {"token": "t"}, "bucket-1") for place in bucket.opened)


@pytest.mark.parametrize(
    ("uid", "started"), [("0f3c", 1), ("another", 0), (None, 0)], ids=["of this one", "of another", "none"]
)
async def test_it_is_forgotten_where_something_of_it_is_left(uid: str | None, started: int) -> None:
    """A namespace of the same name may be of a Shoot that was deleted, and made anew."""
    temporal = Temporal()
    assert await look(temporal, uid) is None
    ids = {options["id"] for _, options in temporal.started}
    assert ids == ({"shoot/garden-a/b/0f3c/forget/seed-1"} if started else set())
    for request, _ in temporal.started:
        assert (request.task.seed, request.task.destination) == ("seed-1", "seed-2")


@pytest.mark.parametrize(
    ("entry", "started"),
    [(mark(), 1), (mark(bucket="another"), 0), (mark(taken_over=False), 0)],
    ids=["our bucket", "another seed's", "handed over"],
)
async def test_it_is_not_done_before_the_mark_is_gone(entry: dict[str, Any], started: int) -> None:
    """Who ended between deleting the namespace and the mark goes on, or the Shoot could never move again."""
    temporal = Temporal()
    await look(temporal, None, entry=entry)
    assert len({options["id"] for _, options in temporal.started}) == started


async def test_the_seed_says_what_it_cleans_up_until_that_is_done() -> None:
    async with ApiServer().running() as garden, ApiServer().running() as seed:
        garden.put(SHOOTS, shoot())
        garden.put(SEEDS, SEED)
        garden.put(ENTRIES, mark())
        annotations = {"shoot.gardener.cloud/uid": "0f3c"}
        seed.put("/api/v1/namespaces", {"metadata": {"name": "shoot--a--b", "annotations": annotations}})

        def said() -> dict[str, str]:
            known = (garden.find(SEEDS, "seed-1") or {})["status"]["conditions"]
            return {each["type"]: f"{each['status']} {each['message']}" for each in known}

        async with garden.client() as garden_client, seed.client() as client:
            clusters = Clusters(garden_client, client, "seed-1")
            temporal = Temporal(FlowOutcome(), held=True)
            running = asyncio.create_task(RemainsController(clusters, temporal).run())  # type: ignore[arg-type]
            try:
                await until(lambda: "garden-a/b" in said().get(CLEANED_UP, ""))
                assert said()[CLEANED_UP].startswith("Progressing")
                temporal.let_go.set()
                await until(lambda: said()[CLEANED_UP].startswith("False"))
                assert "tried again" in said()[CLEANED_UP]
                seed.remove("/api/v1/namespaces", "shoot--a--b")
                garden.remove(ENTRIES, "source-shoot--a--b--0f3c", "garden-a")
                await until(lambda: set(said()) == {"GardenletReady"})
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await clusters.close()


async def test_what_could_not_be_forgotten_is_tried_again_from_where_it_failed() -> None:
    done = FinishedTask(name="delete_apiserver", digest="d", attempt=1, trigger="t")
    temporal = Temporal(FlowOutcome(finished=(done,)))
    assert await look(temporal, "0f3c", times=2) is None
    attempts = [request.attempt for request, _ in temporal.started[:2]]
    assert [each.number for each in attempts] == [1, 2]
    assert [each.kept.finished for each in attempts] == [(), (done,)]
