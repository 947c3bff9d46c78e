"""The extension contract, kept once for all kinds (spec/extensions.md 1.2, 1.3, 1.5)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from activities.errors import permanent, transient
from activities.extension import Actuator, Extension
from api.errors import ErrorCode
from api.resources import CLUSTER, INFRASTRUCTURE
from kube.cache import Caches
from tests.unit.kube.fake_cluster import FakeCluster
from workers.extension.controller import ExtensionController

NAMESPACE = "shoot--dev--one"
FINALIZER = "extensions.gardener.cloud/infrastructure"
OPERATION = "gardener.cloud/operation"
TIMESTAMP = "gardener.cloud/timestamp"


class Recorder(Actuator):
    """Behaves as a test sets it, and records its calls."""

    resource = INFRASTRUCTURE
    type = "local"

    def __init__(self, seed: FakeCluster) -> None:
        super().__init__(seed)
        self.calls: list[str] = []
        self.error: Exception | None = None
        self._cluster = seed
        self.gate = asyncio.Event()
        self.gate.set()

    async def _call(self, name: str) -> dict[str, Any]:
        self.calls.append(name)
        self._cluster.wake()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {"nodesCIDR": "198.18.8.0/22", "state": {"seen": True}}

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        return await self._call("reconcile")

    async def delete(self, extension: Extension) -> None:
        await self._call("delete")

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        return await self._call("migrate")

    async def restore(self, extension: Extension) -> dict[str, Any]:
        return await self._call("restore")

    async def force_delete(self, extension: Extension) -> None:
        await self._call("force_delete")


@pytest.fixture
def seed() -> FakeCluster:
    return FakeCluster()


@asynccontextmanager
async def controller(seed: FakeCluster, *, interruptible: bool = False) -> AsyncIterator[Recorder]:
    actuator, caches = Recorder(seed), Caches(seed)
    running = asyncio.create_task(ExtensionController(seed, caches, actuator, interruptible=interruptible).run())
    try:
        yield actuator
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await caches.close()


def infrastructure(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "Infrastructure",
        "metadata": {"name": "one", "namespace": NAMESPACE, "annotations": annotations or {}},
        "spec": {"type": "local", "region": "local", **spec},
    }


def cluster(**shoot: Any) -> dict[str, Any]:
    return {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": NAMESPACE},
        "spec": {"shoot": {"metadata": {"name": "one", "generation": 1, **shoot.pop("metadata", {})}, **shoot}},
    }


def live(seed: FakeCluster) -> dict[str, Any] | None:
    return seed.objects.get((INFRASTRUCTURE, NAMESPACE, "one"))


def annotations(seed: FakeCluster) -> dict[str, str]:
    found = live(seed)
    assert found is not None
    return found["metadata"].get("annotations") or {}


def state(seed: FakeCluster) -> str:
    found = live(seed) or {}
    last = (found.get("status") or {}).get("lastOperation") or {}
    return str(last.get("state", ""))


async def test_a_triggered_object_is_reconciled_and_reports_success(seed: FakeCluster) -> None:
    await seed.create(infrastructure({OPERATION: "reconcile", TIMESTAMP: "1"}))
    async with controller(seed):
        await seed.until(lambda: state(seed) == "Succeeded")

    found = live(seed)
    assert found is not None
    assert found["metadata"]["annotations"] == {TIMESTAMP: "1"}
    assert found["metadata"]["finalizers"] == [FINALIZER]
    assert found["status"]["nodesCIDR"] == "198.18.8.0/22"
    assert found["status"]["state"] == {"seen": True}
    assert found["status"]["observedGeneration"] == 1
    assert found["status"]["lastOperation"]["type"] == "Create"


async def test_the_trigger_is_removed_before_the_work_begins(seed: FakeCluster) -> None:
    """A request during a run must not be taken for the request that started the run."""
    await seed.create(infrastructure({OPERATION: "reconcile"}))
    async with controller(seed) as actuator:
        actuator.gate.clear()
        await seed.until(lambda: actuator.calls)
        assert annotations(seed) == {}
        assert state(seed) == "Processing"
        await seed.patch(INFRASTRUCTURE, "one", NAMESPACE, {"metadata": {"annotations": {OPERATION: "reconcile"}}})
        actuator.gate.set()
        await seed.until(lambda: len(actuator.calls) == 2)
        await seed.until(lambda: state(seed) == "Succeeded" and annotations(seed) == {})


async def test_an_edit_of_the_spec_alone_is_no_reason_to_act(seed: FakeCluster) -> None:
    await seed.create(infrastructure({OPERATION: "reconcile"}))
    async with controller(seed) as actuator:
        await seed.until(lambda: state(seed) == "Succeeded")
        await seed.patch(INFRASTRUCTURE, "one", NAMESPACE, {"spec": {"region": "other"}})
        await asyncio.sleep(0.1)

    assert actuator.calls == ["reconcile"]


@pytest.mark.parametrize("spec", [{"type": "aws"}, {"class": "garden"}])
async def test_objects_of_others_are_left_alone(seed: FakeCluster, spec: dict[str, str]) -> None:
    await seed.create(infrastructure({OPERATION: "reconcile"}, **spec))
    async with controller(seed) as actuator:
        await asyncio.sleep(0.1)

    assert actuator.calls == []


async def test_an_error_that_only_a_user_can_fix_is_retried_only_on_request(seed: FakeCluster) -> None:
    await seed.create(infrastructure({OPERATION: "reconcile"}))
    async with controller(seed) as actuator:
        actuator.error = permanent(ErrorCode.INFRA_UNAUTHENTICATED, "credentials of Secret x are wrong")
        await seed.until(lambda: state(seed) == "Error")
        await asyncio.sleep(1)
        assert actuator.calls == ["reconcile"]
        found = live(seed)
        assert found is not None
        assert found["status"]["lastError"]["codes"] == ["ERR_INFRA_UNAUTHENTICATED"]
        assert found["status"]["lastError"]["description"] == "credentials of Secret x are wrong"
        assert found["status"]["observedGeneration"] == 1

        actuator.error = None
        await seed.patch(INFRASTRUCTURE, "one", NAMESPACE, {"metadata": {"annotations": {OPERATION: "reconcile"}}})
        await seed.until(lambda: state(seed) == "Succeeded")

    found = live(seed)
    assert found is not None
    assert "lastError" not in found["status"]
    assert found["status"]["lastOperation"]["type"] == "Create", "an unfinished creation keeps its name"


async def test_other_errors_are_tried_again_by_themselves(seed: FakeCluster) -> None:
    await seed.create(infrastructure({OPERATION: "reconcile"}))
    async with controller(seed) as actuator:
        actuator.error = transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, "the cloud is down")
        await seed.until(lambda: state(seed) == "Error")
        actuator.error = None
        await seed.until(lambda: state(seed) == "Succeeded")

    assert len(actuator.calls) >= 2


async def test_a_restarted_process_continues_unfinished_work(seed: FakeCluster) -> None:
    await seed.create(infrastructure())
    await seed.patch(
        INFRASTRUCTURE,
        "one",
        NAMESPACE,
        {"status": {"lastOperation": {"type": "Reconcile", "state": "Processing"}}},
        subresource="status",
    )
    async with controller(seed) as actuator:
        await seed.until(lambda: state(seed) == "Succeeded")

    assert actuator.calls == ["reconcile"]


async def test_a_request_waits_while_the_shoot_is_failed(seed: FakeCluster) -> None:
    failed = {"lastOperation": {"state": "Failed"}, "observedGeneration": 1}
    await seed.create(cluster(status=failed))
    await seed.create(infrastructure({OPERATION: "reconcile"}))
    async with controller(seed) as actuator:
        await asyncio.sleep(0.1)
        assert actuator.calls == []
        shoot = {"spec": {"shoot": {"status": {"lastOperation": {"state": "Processing"}}}}}
        await seed.patch(CLUSTER, NAMESPACE, None, shoot)
        await seed.until(lambda: state(seed) == "Succeeded")


async def test_wait_for_state_holds_until_it_becomes_restore(seed: FakeCluster) -> None:
    await seed.create(infrastructure({OPERATION: "wait-for-state"}))
    async with controller(seed) as actuator:
        await asyncio.sleep(0.1)
        assert actuator.calls == []
        await seed.patch(INFRASTRUCTURE, "one", NAMESPACE, {"metadata": {"annotations": {OPERATION: "restore"}}})
        await seed.until(lambda: state(seed) == "Succeeded" and annotations(seed) == {})

    found = live(seed)
    assert found is not None
    assert actuator.calls == ["restore"]
    assert found["status"]["lastOperation"]["type"] == "Restore"
    assert found["metadata"]["finalizers"] == [FINALIZER]


async def test_a_failed_migration_keeps_its_annotation_and_finalizer(seed: FakeCluster) -> None:
    """The caller sees by the annotation that the state is not final yet."""
    await seed.create(infrastructure({OPERATION: "reconcile"}))
    async with controller(seed) as actuator:
        await seed.until(lambda: state(seed) == "Succeeded")
        actuator.error = permanent(ErrorCode.CONFIGURATION_PROBLEM, "no")
        await seed.patch(INFRASTRUCTURE, "one", NAMESPACE, {"metadata": {"annotations": {OPERATION: "migrate"}}})
        await seed.until(lambda: state(seed) == "Error")

    found = live(seed)
    assert found is not None
    assert annotations(seed) == {OPERATION: "migrate"}
    assert found["metadata"]["finalizers"] == [FINALIZER]


async def test_a_migrated_object_is_released_and_then_ignored(seed: FakeCluster) -> None:
    await seed.create(infrastructure({OPERATION: "reconcile"}))
    async with controller(seed) as actuator:
        await seed.until(lambda: state(seed) == "Succeeded")
        await seed.patch(INFRASTRUCTURE, "one", NAMESPACE, {"metadata": {"annotations": {OPERATION: "migrate"}}})
        await seed.until(lambda: annotations(seed) == {})
        found = live(seed)
        assert found is not None
        assert found["metadata"].get("finalizers") in (None, [])
        assert found["status"]["lastOperation"]["type"] == "Migrate"
        await seed.patch(INFRASTRUCTURE, "one", NAMESPACE, {"metadata": {"annotations": {OPERATION: "reconcile"}}})
        await asyncio.sleep(0.1)

    assert actuator.calls == ["reconcile", "migrate"]


async def test_deletion_cleans_up_before_the_finalizer_goes(seed: FakeCluster) -> None:
    await seed.create(infrastructure({OPERATION: "reconcile"}))
    async with controller(seed) as actuator:
        await seed.until(lambda: state(seed) == "Succeeded")
        actuator.gate.clear()
        await seed.delete(INFRASTRUCTURE, "one", NAMESPACE)
        await seed.until(lambda: "delete" in actuator.calls)
        found = live(seed)
        assert found is not None
        assert found["metadata"]["finalizers"] == [FINALIZER]
        assert found["status"]["lastOperation"]["type"] == "Delete"
        actuator.gate.set()
        await seed.until(lambda: live(seed) is None)

    assert actuator.calls == ["reconcile", "delete"]


async def test_force_deletion_does_not_ask_the_provider(seed: FakeCluster) -> None:
    await seed.create(cluster(metadata={"annotations": {"confirmation.gardener.cloud/force-deletion": "true"}}))
    await seed.create(infrastructure({OPERATION: "reconcile"}))
    async with controller(seed) as actuator:
        await seed.until(lambda: state(seed) == "Succeeded")
        await seed.delete(INFRASTRUCTURE, "one", NAMESPACE)
        await seed.until(lambda: live(seed) is None)

    assert actuator.calls == ["reconcile", "force_delete"]


async def test_deletion_does_not_wait_for_a_long_creation(seed: FakeCluster) -> None:
    """A Shoot deleted in the middle of its creation must not wait for machines that never come."""
    await seed.create(infrastructure({OPERATION: "reconcile"}))
    async with controller(seed, interruptible=True) as actuator:
        actuator.gate.clear()
        await seed.until(lambda: actuator.calls)
        await seed.delete(INFRASTRUCTURE, "one", NAMESPACE)
        await seed.until(lambda: actuator.calls == ["reconcile", "delete"])
        actuator.gate.set()
        await seed.until(lambda: live(seed) is None)


async def test_a_long_run_is_not_disturbed_by_its_own_writes(seed: FakeCluster) -> None:
    await seed.create(infrastructure({OPERATION: "migrate", TIMESTAMP: "1"}))
    async with controller(seed, interruptible=True) as actuator:
        actuator.gate.clear()
        await seed.until(lambda: actuator.calls)
        await seed.patch(INFRASTRUCTURE, "one", NAMESPACE, {"status": {"x": 1}}, subresource="status")
        await asyncio.sleep(0.1)
        actuator.gate.set()
        await seed.until(lambda: state(seed) == "Succeeded")

    assert actuator.calls == ["migrate"]
