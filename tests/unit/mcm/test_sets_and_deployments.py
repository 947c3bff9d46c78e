"""MachineDeployments and MachineSets: never a machine twice, never too few while rolling."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import pytest

from api.machine.names import PRIORITY, TRIGGER_DELETION
from api.resources import MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from kube.cache import Caches
from kube.errors import Unreachable
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.mcm.processes import running
from workers.machine_controller_manager.machine_deployment import (
    MachineDeploymentController,
    Scaling,
    plan_scaling,
)
from workers.machine_controller_manager.machine_set import MachineSetController, free_names, is_settled, surplus
from workers.machine_controller_manager.objects import in_batches

NAMESPACE = "shoot--dev--one"


@pytest.fixture
def seed() -> FakeCluster:
    return FakeCluster()


@asynccontextmanager
async def controllers(seed: FakeCluster) -> AsyncIterator[None]:
    caches, shoot = Caches(seed), FakeCluster()
    shoot_caches = Caches(shoot)
    loops = (
        MachineDeploymentController(seed, caches, shoot, shoot_caches, NAMESPACE).run(),
        MachineSetController(seed, caches, NAMESPACE).run(),
    )
    async with running(*loops, caches=(caches, shoot_caches)):
        yield


def deployment(replicas: int, class_: str = "class-a") -> dict[str, Any]:
    return {
        "apiVersion": "machine.sapcloud.io/v1alpha1",
        "kind": "MachineDeployment",
        "metadata": {"name": "pool-z1", "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": {"name": "pool-z1"}},
            "template": {
                "metadata": {"labels": {"name": "pool-z1"}},
                "spec": {
                    "class": {"kind": "MachineClass", "name": class_},
                    "nodeTemplate": {"metadata": {"labels": {}}},
                },
            },
        },
    }


def machines(seed: FakeCluster) -> list[dict[str, Any]]:
    return [each for each in seed.of(MACHINE) if not each["metadata"].get("deletionTimestamp")]


async def set_phase(seed: FakeCluster, machine: dict[str, Any], phase: str) -> None:
    status = {"status": {"currentStatus": {"phase": phase}}}
    await seed.patch(MACHINE, machine["metadata"]["name"], NAMESPACE, status, subresource="status")


async def run_all(seed: FakeCluster) -> None:
    """Set all machines to Running, as the machine controller does once their nodes have joined."""
    for machine in machines(seed):
        await set_phase(seed, machine, "Running")


async def bury(seed: FakeCluster) -> None:
    """Let deleted machines go."""
    for machine in seed.of(MACHINE):
        if machine["metadata"].get("deletionTimestamp"):
            await seed.patch(MACHINE, machine["metadata"]["name"], NAMESPACE, {"metadata": {"finalizers": []}})


def available(seed: FakeCluster) -> int:
    (found,) = seed.of(MACHINE_DEPLOYMENT)
    return int((found.get("status") or {}).get("availableReplicas", 0))


async def test_a_deployment_becomes_machines_that_are_named_after_their_node(seed: FakeCluster) -> None:
    await seed.create(deployment(2))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 2)
        await run_all(seed)
        await seed.until(lambda: available(seed) == 2)

    for machine in machines(seed):
        assert machine["metadata"]["labels"]["node"] == machine["metadata"]["name"]
        assert machine["metadata"]["finalizers"], "nothing may be made for a machine that could vanish"
    (found,) = seed.of(MACHINE_DEPLOYMENT)
    assert found["status"]["updatedReplicas"] == 2
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]


async def test_a_controller_killed_between_two_machines_makes_none_twice(seed: FakeCluster) -> None:
    await seed.create(deployment(3))
    seed.refuse("patch", MACHINE_SET, None)
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) >= 1)
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 3)
        await asyncio.sleep(0.1)

    assert len(seed.of(MACHINE)) == 3


async def test_a_creation_whose_answer_was_lost_is_found_again(seed: FakeCluster) -> None:
    """The request got through, the answer did not: the next try must not make another one."""
    original = seed.create
    lost: list[Any] = []

    async def create(obj: Any, *, subresource: str = "", manager: str = "") -> Any:
        made = await original(obj, subresource=subresource, manager=manager)
        if obj["kind"] == "Machine" and not lost:
            lost.append(obj)
            raise Unreachable(0, "connection lost", "creating Machine")
        return made

    seed.create = create  # type: ignore[method-assign]
    await seed.create(deployment(1))
    async with controllers(seed):
        await seed.until(lambda: lost and available(seed) == 0 and seed.of(MACHINE))
        await asyncio.sleep(1)

    assert len(seed.of(MACHINE)) == 1


async def test_scaling_down_takes_what_does_not_run_first(seed: FakeCluster) -> None:
    await seed.create(deployment(3))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 3)
        running, *_ = machines(seed)
        await set_phase(seed, running, "Running")
        await seed.patch(MACHINE_DEPLOYMENT, "pool-z1", NAMESPACE, {"spec": {"replicas": 1}})
        await seed.until(lambda: len(machines(seed)) == 1)

    assert machines(seed)[0]["metadata"]["name"] == running["metadata"]["name"]


async def test_a_failed_machine_is_replaced_by_one_of_another_name(seed: FakeCluster) -> None:
    await seed.create(deployment(1))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 1)
        (first,) = machines(seed)
        await set_phase(seed, first, "Failed")
        await seed.until(
            lambda: [each for each in machines(seed) if each["metadata"]["name"] != first["metadata"]["name"]]
        )
        await bury(seed)
        await seed.until(lambda: len(seed.of(MACHINE)) == 1)


async def test_a_new_class_rolls_over_without_ever_having_too_few(seed: FakeCluster) -> None:
    await seed.create(deployment(2))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 2)
        await run_all(seed)
        await seed.until(lambda: available(seed) == 2)
        template = {"template": {"spec": {"class": {"name": "class-b"}}}}
        await seed.patch(MACHINE_DEPLOYMENT, "pool-z1", NAMESPACE, {"spec": template})

        def of_class(name: str) -> list[dict[str, Any]]:
            return [each for each in machines(seed) if each["spec"]["class"]["name"] == name]

        async with asyncio.timeout(10):
            while len(of_class("class-b")) < 2 or of_class("class-a"):
                await asyncio.sleep(0.02)
                running = [each for each in machines(seed) if each.get("status")]
                assert len(running) >= 2
                assert len(machines(seed)) <= 3
                await run_all(seed)
                await bury(seed)
        await bury(seed)
        await seed.until(lambda: len(seed.of(MACHINE_SET)) == 1)


async def test_pods_of_a_machine_that_will_be_replaced_are_sent_to_new_ones(seed: FakeCluster) -> None:
    """And a drain's timeout that is changed while it is stuck is that of this drain."""
    await seed.create(deployment(1))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 1)
        await run_all(seed)
        await seed.until(lambda: available(seed) == 1)
        (old,) = machines(seed)

        def spec_of_old() -> dict[str, Any]:
            spec: dict[str, Any] = seed.objects[MACHINE, NAMESPACE, old["metadata"]["name"]]["spec"]
            return spec

        change = {"class": {"name": "class-b"}, "nodeTemplate": {"metadata": {"labels": {"new": "yes"}}}}
        await seed.patch(MACHINE_DEPLOYMENT, "pool-z1", NAMESPACE, {"spec": {"template": {"spec": change}}})
        await seed.until(lambda: (spec_of_old()["nodeTemplate"].get("spec") or {}).get("taints"))
        (taint,) = spec_of_old()["nodeTemplate"]["spec"]["taints"]
        assert taint["key"] == "deployment.machine.sapcloud.io/prefer-no-schedule"
        assert taint["effect"] == "PreferNoSchedule"
        assert spec_of_old()["nodeTemplate"]["metadata"]["labels"] == {}, "that is the new ones' alone"
        await seed.until(lambda: len(machines(seed)) == 2)
        await run_all(seed)
        await seed.until(lambda: old["metadata"]["name"] not in {each["metadata"]["name"] for each in machines(seed)})
        await seed.patch(
            MACHINE_DEPLOYMENT, "pool-z1", NAMESPACE, {"spec": {"template": {"spec": {"drainTimeout": "1m"}}}}
        )
        await seed.until(lambda: spec_of_old().get("drainTimeout") == "1m")

    assert len(machines(seed)) == 1
    assert "spec" not in machines(seed)[0]["spec"]["nodeTemplate"]


async def test_new_labels_reach_machines_without_replacing_them(seed: FakeCluster) -> None:
    await seed.create(deployment(1))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 1)
        (before,) = machines(seed)
        labels = {"spec": {"template": {"spec": {"nodeTemplate": {"metadata": {"labels": {"new": "yes"}}}}}}}
        await seed.patch(MACHINE_DEPLOYMENT, "pool-z1", NAMESPACE, labels)
        await seed.until(lambda: machines(seed)[0]["spec"]["nodeTemplate"]["metadata"]["labels"] == {"new": "yes"})
        await seed.patch(
            MACHINE_DEPLOYMENT,
            "pool-z1",
            NAMESPACE,
            {"spec": {"template": {"spec": {"nodeTemplate": {"metadata": {"labels": {"new": None}}}}}}},
        )
        await seed.until(lambda: machines(seed)[0]["spec"]["nodeTemplate"]["metadata"]["labels"] == {})

    assert [each["metadata"]["uid"] for each in machines(seed)] == [before["metadata"]["uid"]]


async def test_a_deleted_deployment_waits_for_its_machines(seed: FakeCluster) -> None:
    await seed.create(deployment(1))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 1)
        await seed.delete(MACHINE_DEPLOYMENT, "pool-z1", NAMESPACE)
        await seed.until(lambda: not machines(seed))
        assert seed.of(MACHINE_DEPLOYMENT)
        await bury(seed)
        await seed.until(lambda: not seed.of(MACHINE_DEPLOYMENT))


def each_set(replicas: int, available: int, existing: int | None = None) -> dict[str, Any]:
    status = {"replicas": replicas if existing is None else existing, "availableReplicas": available}
    return {"spec": {"replicas": replicas}, "status": status}


def spec(
    replicas: int, surge: int | str = 1, unavailable: int | str = 0, kind: str = "RollingUpdate"
) -> dict[str, Any]:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"replicas": replicas, "strategy": {"type": kind, "rollingUpdate": rolling}}


@pytest.mark.parametrize(
    ("wanted", "new", "old", "plan"),
    [
        (spec(3), each_set(3, 3), [], Scaling(3, ())),
        (spec(3), each_set(0, 0), [each_set(3, 3)], Scaling(1, (3,))),
        (spec(3), each_set(1, 0), [each_set(3, 3)], Scaling(1, (3,))),
        (spec(3), each_set(1, 1), [each_set(3, 3)], Scaling(1, (2,))),
        (spec(3, 0, 1), each_set(0, 0), [each_set(3, 3)], Scaling(0, (2,))),
        (spec(4, "50%", "25%"), each_set(0, 0), [each_set(4, 4)], Scaling(2, (3,))),
        (spec(3), each_set(0, 0), [each_set(3, 2)], Scaling(1, (3,))),
        (spec(3), each_set(1, 1), [each_set(3, 2)], Scaling(1, (2,))),
        (spec(2, kind="Recreate"), each_set(0, 0), [each_set(2, 2)], Scaling(0, (0,))),
        (spec(2, kind="Recreate"), each_set(0, 0), [each_set(0, 0, existing=1)], Scaling(0, (0,))),
        (spec(2, kind="Recreate"), each_set(0, 0), [each_set(0, 0)], Scaling(2, (0,))),
        (spec(1), each_set(0, 0), [each_set(0, 0), each_set(0, 0)], Scaling(1, (0, 0))),
        (spec(2), each_set(3, 3), [], Scaling(2, ())),
    ],
)
def test_one_step_of_a_rollout(
    wanted: dict[str, Any], new: dict[str, Any], old: list[dict[str, Any]], plan: Scaling
) -> None:
    assert plan_scaling(wanted, new, old) == plan


def test_a_slot_keeps_its_name_and_is_not_reused_while_its_machine_is_there() -> None:
    found = {"metadata": {"name": "pool-z1-abcde", "uid": "u1"}}
    first, second, third = islice(free_names(found, set()), 3)

    assert next(free_names(found, set())) == first
    assert list(islice(free_names(found, {first}), 2)) == [second, third]
    assert next(free_names({"metadata": {"name": "pool-z1-abcde", "uid": "u2"}}, set())) != first


async def test_the_autoscaler_chooses_the_machines_to_delete(seed: FakeCluster) -> None:
    await seed.create(deployment(3))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 3)
        first, *others = machines(seed)
        await set_phase(seed, first, "Running")
        await shrink(seed, 2, first)
        await seed.until(lambda: len(machines(seed)) == 2)
        await seed.until(lambda: not named(seed))

    assert names(machines(seed)) == names(others), "though all the others do not even run"


async def test_a_chosen_machine_stays_once_no_machine_must_be_deleted(seed: FakeCluster) -> None:
    """Or it would go in place of the one that is chosen next, and asking for it again would do nothing."""
    await seed.create(deployment(2))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 2)
        first, other = machines(seed)
        await shrink(seed, 2, first)
        await seed.until(lambda: not named(seed))
        await shrink(seed, 1, other)
        await seed.until(lambda: len(machines(seed)) == 1)
        await seed.until(lambda: not named(seed))

    assert names(machines(seed)) == names([first])


async def test_the_priority_is_removed_with_the_name(seed: FakeCluster) -> None:
    await seed.create(deployment(2))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 2)
    first, _ = machines(seed)
    mark = {"metadata": {"annotations": {PRIORITY: "1"}}}
    await seed.patch(MACHINE, first["metadata"]["name"], NAMESPACE, mark)
    await shrink(seed, 2, first)
    async with controllers(seed):
        await seed.until(lambda: not named(seed))

    assert PRIORITY not in machines(seed)[0]["metadata"]["annotations"]


async def test_a_set_shrinks_only_after_its_chosen_machines_are_marked(seed: FakeCluster) -> None:
    await seed.create(deployment(2))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 2)
        await shrink(seed, 1, machines(seed)[0])
        await seed.until(lambda: len(machines(seed)) == 1)

    kinds = [kind for verb, kind, _ in seed.requests if verb == "patch"]
    assert kinds.index("Machine") < kinds.index("MachineSet")


async def test_a_name_added_while_another_is_removed_stays(seed: FakeCluster) -> None:
    await seed.create(deployment(2))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 2)
        gone = {"metadata": {"name": "long-gone"}}
        chosen, other = machines(seed)
        await set_phase(seed, chosen, "Running")
        patch, came = seed.patch, asyncio.Event()

        async def patch_late(res: Any, name: str, namespace: str | None, change: Any, **options: Any) -> Any:
            if res == MACHINE_DEPLOYMENT and TRIGGER_DELETION in str(change) and not came.is_set():
                came.set()
                await patch(res, name, namespace, shrunk(1, gone, chosen))
            return await patch(res, name, namespace, change, **options)

        await shrink(seed, 2, gone)
        seed.patch = patch_late  # type: ignore[assignment]
        await seed.until(lambda: came.is_set() and len(machines(seed)) == 1)

    assert names(machines(seed)) == names([other])


@pytest.mark.parametrize("lost", [("patch", MACHINE), ("patch", MACHINE_SET), ("delete", MACHINE)], ids=str)
async def test_a_controller_killed_before_any_step_deletes_the_chosen_machine(seed: FakeCluster, lost: Any) -> None:
    await seed.create(deployment(3))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 3)
    chosen, *others = machines(seed)
    verb, kind = lost
    seed.refuse(verb, kind, Unreachable(0, "connection lost", "writing"))
    await shrink(seed, 2, chosen)
    async with controllers(seed):
        await seed.until(lambda: any(each[:2] == (verb, kind.kind) for each in seed.requests))
    seed.refuse(verb, kind, None)
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 2)

    assert names(machines(seed)) == names(others)


def shrunk(size: int, *chosen: dict[str, Any]) -> dict[str, Any]:
    """Patch by which the autoscaler's provider shrinks a deployment."""
    named = ",".join(sorted(names(chosen)))
    return {"metadata": {"annotations": {TRIGGER_DELETION: named}}, "spec": {"replicas": size}}


async def shrink(seed: FakeCluster, size: int, *chosen: dict[str, Any]) -> None:
    seed.requests.clear()
    await seed.patch(MACHINE_DEPLOYMENT, "pool-z1", NAMESPACE, shrunk(size, *chosen))


def named(seed: FakeCluster) -> str:
    (found,) = seed.of(MACHINE_DEPLOYMENT)
    return str((found["metadata"].get("annotations") or {}).get(TRIGGER_DELETION) or "")


def names(found: Iterable[dict[str, Any]]) -> set[str]:
    return {each["metadata"]["name"] for each in found}


def test_priorities_come_before_all_else() -> None:
    chosen = {"metadata": {"name": "a", "annotations": {"machinepriority.machine.sapcloud.io": "1"}}}
    other = {"metadata": {"name": "b"}, "status": {"currentStatus": {"phase": "Pending"}}}

    assert surplus([other, chosen], 1) == [chosen]


def record_lists(seed: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Label selectors of all requests that list Machines from now on. A cache lists in another way."""
    selectors: list[str] = []
    original = seed.list

    async def recorded(res: Any, namespace: str | None = None, *, labels: str = "", **options: Any) -> Any:
        if res == MACHINE:
            selectors.append(labels)
        return await original(res, namespace, labels=labels, **options)

    monkeypatch.setattr(seed, "list", recorded)
    return selectors


async def test_machines_that_join_are_counted_without_a_list_request(
    seed: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a list for each event, 500 machines would cost 500 answers with 500 machines."""
    await seed.create(deployment(25))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 25)
        await seed.until(lambda: (seed.of(MACHINE_SET)[0].get("status") or {}).get("replicas") == 25)
        selectors = record_lists(seed, monkeypatch)
        await run_all(seed)
        await seed.until(lambda: available(seed) == 25)
        assert selectors == []


async def test_lists_of_machines_are_selected_by_the_api_server(
    seed: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    selectors = record_lists(seed, monkeypatch)
    await seed.create(deployment(3))
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 3)
        await shrink(seed, 2, machines(seed)[0])
        await seed.until(lambda: len(machines(seed)) == 2)

    assert selectors
    assert all("name=pool-z1" in each.split(",") for each in selectors)


async def test_machines_are_created_at_the_same_time_but_at_most_ten(seed: FakeCluster) -> None:
    original, running, most = seed.create, 0, 0

    async def create(obj: Any, *, subresource: str = "", manager: str = "") -> Any:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)  # lets the other requests of the batch begin
        running -= 1
        return await original(obj, subresource=subresource, manager=manager)

    await seed.create(deployment(25))
    seed.create = create  # type: ignore[method-assign]
    async with controllers(seed):
        await seed.until(lambda: len(machines(seed)) == 25)

    assert most == 10


async def test_after_a_refused_creation_no_further_batch_is_tried() -> None:
    tried: list[int] = []

    async def create(number: int) -> int:
        tried.append(number)
        if number == 3:
            raise Unreachable(0, "connection lost", "creating Machine")
        return number

    with pytest.raises(Unreachable):
        await in_batches(create, range(25))
    assert tried == list(range(10))
    assert await in_batches(create, [2, 1]) == [2, 1]


def a_set(**metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "s", "generation": 2, **metadata},
        "spec": {"replicas": 1, "template": {"spec": {"drainTimeout": "1m"}}},
        "status": {"observedGeneration": 2},
    }


def a_machine(phase: str = "Running", drain: str = "1m", **metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "spec": {"drainTimeout": drain}, "status": {"currentStatus": {"phase": phase}}}


GOING = {"deletionTimestamp": "2026-11-21T11:00:00Z"}


@pytest.mark.parametrize(
    ("found", "of_it", "settled"),
    [
        (a_set(), [a_machine()], True),
        (a_set(), [a_machine("Unknown"), a_machine(**GOING)], True),
        (a_set(), [a_machine(), a_machine("Failed", **GOING)], True),
        (a_set(), [], False),
        (a_set(), [a_machine(), a_machine()], False),
        (a_set(), [a_machine(), a_machine("Failed")], False),
        (a_set(), [a_machine(drain="2m")], False),
        (a_set(), [a_machine(), a_machine(drain="2m", **GOING)], False),
        (a_set(generation=3), [a_machine()], False),
        (a_set(**GOING), [a_machine()], False),
        (a_set(**GOING), [a_machine(**GOING)], True),
        (a_set(**GOING), [], False),
    ],
)
def test_a_set_whose_machines_are_as_wanted_needs_no_list(
    found: dict[str, Any], of_it: list[dict[str, Any]], settled: bool
) -> None:
    """A new generation, and the end of a deletion, always need the machines that the API server has."""
    assert is_settled(found, of_it) is settled
