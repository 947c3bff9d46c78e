"""What a gardenlet cleans up: control planes that are whole elsewhere, and nothing that is on its way."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.kube.cache import Caches, Key
from activities.kube.controller import Requeue
from api.flows import FinishedTask, FlowOutcome
from tests.unit.kube.api_server import ApiServer
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

    def __init__(self, *failures: FlowOutcome) -> None:
        self.started: list[tuple[Any, dict[str, Any]]] = []
        self._failures = list(failures)

    async def start_workflow(self, _: Any, request: Any, **options: Any) -> Any:
        self.started.append((request, options))

        async def result() -> None:
            if self._failures:
                outcome = self._failures.pop(0)
                cause = ApplicationError("it failed", outcome.model_dump(mode="json"), type="FlowFailed")
                raise WorkflowFailureError(cause=cause)

        return SimpleNamespace(result=result)


async def look(temporal: Temporal, uid: str | None, times: int = 1) -> Requeue | None:
    """What the controller's last look asks for."""
    async with ApiServer().running() as garden, ApiServer().running() as seed:
        garden.put(SHOOTS, shoot())
        if uid:
            annotations = {"shoot.gardener.cloud/uid": uid}
            seed.put("/api/v1/namespaces", {"metadata": {"name": "shoot--a--b", "annotations": annotations}})
        async with garden.client() as garden_client, seed.client() as client:
            caches, garden_caches = Caches(client), Caches(garden_client)
            clusters: Any = SimpleNamespace(seed_caches=caches, garden_caches=garden_caches, seed_name="seed-1")
            controller = RemainsController(clusters, temporal)  # type: ignore[arg-type]
            running = asyncio.create_task(controller.run())
            await asyncio.gather(*(each.synced(10) for each in (controller._shoots, controller._namespaces)))
            running.cancel()
            for _ in range(times):
                again: Requeue | None = await controller._reconcile(KEY)
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.gather(caches.close(), garden_caches.close())
    return again


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


async def test_what_could_not_be_forgotten_is_tried_again_from_where_it_failed() -> None:
    done = FinishedTask(name="delete_apiserver", digest="d", attempt=1, trigger="t")
    temporal = Temporal(FlowOutcome(finished=(done,)))
    assert await look(temporal, "0f3c", times=2) is None
    attempts = [request.attempt for request, _ in temporal.started[:2]]
    assert [each.number for each in attempts] == [1, 2]
    assert [each.kept.finished for each in attempts] == [(), (done,)]
