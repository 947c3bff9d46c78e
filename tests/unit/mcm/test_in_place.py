"""In-place updates: machines stay, one after another is drained and updated, whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.constants import EXCLUDED_FROM_LOAD_BALANCERS
from api.machine import in_place
from api.resources import MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET, NODE, POD
from kube.cache import Caches
from kube.controller import Requeue
from kube.errors import NotFound, Unreachable
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.mcm.processes import running
from tests.unit.mcm.test_sets_and_deployments import deployment, machines, names, set_phase
from workers.machine_controller_manager.config import MachineControllerManagerConfig
from workers.machine_controller_manager.in_place_rollout import Members, Sizes, plan_selection, plan_sizes
from workers.machine_controller_manager.machine_deployment import MachineDeploymentController
from workers.machine_controller_manager.machine_set import MachineSetController
from workers.machine_controller_manager.machine_update import MachineUpdate

NAMESPACE = "shoot--dev--one"


class Pool:
    """A MachineDeployment that is updated in place, its machines and their nodes."""

    def __init__(self) -> None:
        self.seed, self.shoot = FakeCluster(), FakeCluster()
        self.most_cordoned = 0
        self.results: dict[str, str] = {}
        """Results that the node agents report, by node; ``successful`` without an entry."""
        self.answers = True
        self.uids: set[str] = set()

    async def prepare(self, replicas: int, orchestration: str = "Auto", **bounds: Any) -> None:
        made = deployment(replicas)
        settings = {"maxSurge": 0, "maxUnavailable": 1, **bounds, "orchestrationType": orchestration}
        made["spec"]["strategy"] = {"type": "InPlaceUpdate", "inPlaceUpdate": settings}
        await self.seed.create(made)

    async def set_class(self, name: str) -> None:
        patch = {"spec": {"template": {"spec": {"class": {"name": name}}}}}
        await self.seed.patch(MACHINE_DEPLOYMENT, "pool-z1", NAMESPACE, patch)

    def classes(self) -> list[str]:
        return sorted(each["spec"]["class"]["name"] for each in machines(self.seed))

    def node(self, name: str) -> dict[str, Any]:
        return self.shoot.objects[NODE, "", name]

    def settled(self, class_: str, count: int) -> bool:
        """Whether all machines are of a class, run, and have nodes without traces of an update."""
        found = machines(self.seed)
        labels = [set(node["metadata"].get("labels") or {}) for node in self.shoot.of(NODE)]
        return (
            self.classes() == [class_] * count
            and all(_phase(each) == "Running" for each in found)
            and not any(each & {in_place.CANDIDATE, in_place.SELECTED, in_place.RESULT} for each in labels)
            and not any(node["spec"].get("unschedulable") for node in self.shoot.of(NODE))
            and not any(in_place.annotation(each, in_place.SINCE) for each in found)
        )

    @asynccontextmanager
    async def controllers(self, *, helper: bool = True) -> AsyncIterator[None]:
        """The controllers of one process. The helper does the work of clouds, kubelets and node agents."""
        caches, shoot_caches = Caches(self.seed), Caches(self.shoot)
        loops = [
            MachineDeploymentController(self.seed, caches, self.shoot, shoot_caches, NAMESPACE).run(),
            MachineSetController(self.seed, caches, NAMESPACE).run(),
        ]
        if helper:
            loops.append(self._help())
        async with running(*loops, caches=(caches, shoot_caches)):
            yield

    async def _help(self) -> None:
        config = MachineControllerManagerConfig(namespace=NAMESPACE)
        update = MachineUpdate(self.seed, self.shoot, config)
        while True:
            for machine in self.seed.of(MACHINE):
                try:
                    await self.step(update, dict(machine))
                except (NotFound, Unreachable):
                    continue
            await asyncio.sleep(0)
            await asyncio.sleep(0.005)

    async def step(self, update: MachineUpdate, machine: dict[str, Any]) -> Requeue | None:
        name = machine["metadata"]["name"]
        if machine["metadata"].get("deletionTimestamp"):
            await self.seed.patch(MACHINE, name, NAMESPACE, {"metadata": {"finalizers": []}})
            await self.shoot.delete(NODE, name)
            return None
        node = self.shoot.objects.get((NODE, "", name))
        if node is None:
            await self.shoot.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}})
            self.uids.add(machine["metadata"]["uid"])
            await set_phase(self.seed, machine, "Running")
            return None
        if self.answers and in_place.reason_of(node) == in_place.IS_READY and not in_place.result_of(node):
            told = self.results.get(name, in_place.SUCCESSFUL)
            labels = {"metadata": {"labels": {in_place.RESULT: told}}}
            node = await self.shoot.patch(NODE, name, None, labels)
        cordoned = sum(bool(each["spec"].get("unschedulable")) for each in self.shoot.of(NODE))
        self.most_cordoned = max(self.most_cordoned, cordoned)
        if in_place.is_under_way(machine):
            return await update.advance(machine, node)
        if in_place.annotation(machine, in_place.SINCE):
            await update.finish(machine, node)
        elif _phase(machine) in in_place.PHASES:
            await set_phase(self.seed, machine, "Running")
        return None

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110  the conditions are about several clusters
                await asyncio.sleep(0.005)


def _phase(machine: dict[str, Any]) -> str:
    return str(((machine.get("status") or {}).get("currentStatus") or {}).get("phase") or "")


@pytest.fixture
def pool() -> Pool:
    return Pool()


async def test_machines_move_to_the_new_class_one_after_another_and_stay(pool: Pool) -> None:
    await pool.prepare(3)
    async with pool.controllers():
        await pool.until(lambda: pool.settled("class-a", 3))
        before = names(machines(pool.seed))
        await pool.set_class("class-b")
        await pool.until(lambda: pool.settled("class-b", 3))
        await pool.until(lambda: len(pool.seed.of(MACHINE_SET)) == 1)

    assert names(machines(pool.seed)) == before
    assert len(pool.uids) == 3, "no machine was created in between"
    assert pool.most_cordoned == 1
    (found,) = pool.seed.of(MACHINE_SET)
    assert found["spec"]["replicas"] == 3
    for each in machines(pool.seed):
        assert each["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
    for node in pool.shoot.of(NODE):
        assert in_place.reason_of(node) == in_place.HAS_SUCCEEDED
        taints = [taint["key"] for taint in node["spec"]["taints"]]
        assert taints == ["node.gardener.cloud/critical-components-not-ready"]


@pytest.mark.parametrize("unavailable", [2, "67%"])
async def test_as_many_machines_are_updated_at_once_as_may_be_unavailable(pool: Pool, unavailable: Any) -> None:
    await pool.prepare(3, maxUnavailable=unavailable)
    async with pool.controllers():
        await pool.until(lambda: pool.settled("class-a", 3))
        await pool.set_class("class-b")
        await pool.until(lambda: pool.settled("class-b", 3))

    assert pool.most_cordoned == 2
    assert len(pool.uids) == 3


async def test_with_a_surge_a_new_machine_comes_first_and_one_old_machine_goes(pool: Pool) -> None:
    await pool.prepare(2, maxSurge=1, maxUnavailable=0)
    async with pool.controllers():
        await pool.until(lambda: pool.settled("class-a", 2))
        before = names(machines(pool.seed))
        await pool.set_class("class-b")
        await pool.until(lambda: pool.settled("class-b", 2))
        await pool.until(lambda: len(pool.seed.of(MACHINE_SET)) == 1)

    assert len(names(machines(pool.seed)) & before) == 1
    assert len(pool.uids) == 3


async def test_a_manual_pool_waits_for_the_label_of_each_node(pool: Pool) -> None:
    await pool.prepare(2, "Manual")
    async with pool.controllers():
        await pool.until(lambda: pool.settled("class-a", 2))
        first, second = sorted(names(machines(pool.seed)))
        await pool.set_class("class-b")

        def is_candidate(name: str) -> bool:
            labels = pool.node(name)["metadata"].get("labels") or {}
            return labels.get(in_place.CANDIDATE) == "true"

        await pool.until(lambda: is_candidate(first) and is_candidate(second))
        await asyncio.sleep(0.2)
        assert pool.classes() == ["class-a", "class-a"]
        assert pool.most_cordoned == 0
        label = {"metadata": {"labels": {in_place.SELECTED: "true"}}}
        await pool.shoot.patch(NODE, second, None, label)
        await pool.until(lambda: pool.classes() == ["class-a", "class-b"])
        await asyncio.sleep(0.1)
        assert is_candidate(first)
        assert pool.classes() == ["class-a", "class-b"]
        await pool.shoot.patch(NODE, first, None, label)
        await pool.until(lambda: pool.settled("class-b", 2))


async def test_a_failed_update_stops_the_rollout_until_it_succeeds(pool: Pool) -> None:
    await pool.prepare(2)
    async with pool.controllers():
        await pool.until(lambda: pool.settled("class-a", 2))
        for name in names(machines(pool.seed)):
            pool.results[name] = in_place.FAILED
        await pool.set_class("class-b")
        await pool.until(lambda: any(_phase(each) == in_place.UPDATE_FAILED for each in machines(pool.seed)))
        await asyncio.sleep(0.2)
        assert sorted(map(_phase, machines(pool.seed))) == [in_place.UPDATE_FAILED, "Running"]
        assert pool.most_cordoned == 1
        (failed,) = (each for each in machines(pool.seed) if _phase(each) == in_place.UPDATE_FAILED)
        assert failed["status"]["lastOperation"]["state"] == "Failed"
        assert "names no reason" in failed["status"]["lastOperation"]["description"]
        pool.results.clear()
        label = {"metadata": {"labels": {in_place.RESULT: in_place.SUCCESSFUL}}}
        await pool.shoot.patch(NODE, failed["metadata"]["name"], None, label)
        await pool.until(lambda: pool.settled("class-b", 2))

    assert len(pool.uids) == 2


async def test_a_change_back_in_the_middle_updates_what_was_released_once_more(pool: Pool) -> None:
    """The node agent may have begun already; a machine that was not released needs no update."""
    await pool.prepare(3)
    async with pool.controllers():
        await pool.until(lambda: pool.settled("class-a", 3))
        before = names(machines(pool.seed))
        await pool.set_class("class-b")
        await pool.until(lambda: "class-b" in pool.classes())
        pool.answers = False
        await pool.until(lambda: any(_phase(each) == in_place.UPDATING for each in machines(pool.seed)))
        await pool.set_class("class-a")
        await asyncio.sleep(0.1)
        pool.answers = True
        await pool.until(lambda: pool.settled("class-a", 3))
        await pool.until(lambda: len(pool.seed.of(MACHINE_SET)) == 1)

    assert names(machines(pool.seed)) == before
    assert len(pool.uids) == 3
    assert pool.most_cordoned == 1


@pytest.mark.parametrize("lost", [("patch", MACHINE), ("patch", MACHINE_SET)])
async def test_a_process_that_is_killed_anywhere_loses_and_doubles_no_machine(pool: Pool, lost: Any) -> None:
    """Each write of the update gets through, then its answer is lost together with the process."""
    await pool.prepare(2)
    async with pool.controllers():
        await pool.until(lambda: pool.settled("class-a", 2))
    before = names(machines(pool.seed))
    original, kills = pool.seed.patch, 0
    killed = asyncio.Event()

    async def patch(res: Any, *args: Any, **options: Any) -> Any:
        nonlocal kills
        answer = await original(res, *args, **options)
        if ("patch", res) == lost and kills < 12 and not options.get("subresource"):
            kills += 1
            killed.set()
            raise Unreachable(0, "connection lost", "x")
        return answer

    pool.seed.patch = patch  # type: ignore[method-assign]
    await pool.set_class("class-b")
    async with asyncio.timeout(30):
        while kills < 12 and not pool.settled("class-b", 2):
            killed.clear()
            async with pool.controllers():
                await pool.until(lambda: killed.is_set() or pool.settled("class-b", 2))
    async with pool.controllers():
        await pool.until(lambda: pool.settled("class-b", 2))
        await pool.until(lambda: len(pool.seed.of(MACHINE_SET)) == 1)
        await asyncio.sleep(0.1)

    assert kills >= 2
    assert names(machines(pool.seed)) == before
    assert len(pool.uids) == 2


async def test_the_pool_grows_and_shrinks_while_it_is_updated(pool: Pool) -> None:
    await pool.prepare(2)
    async with pool.controllers():
        await pool.until(lambda: pool.settled("class-a", 2))
        pool.answers = False
        await pool.set_class("class-b")
        await pool.until(lambda: any(_phase(each) == in_place.UPDATING for each in machines(pool.seed)))
        await pool.seed.patch(MACHINE_DEPLOYMENT, "pool-z1", NAMESPACE, {"spec": {"replicas": 3}})
        await pool.until(lambda: pool.classes() == ["class-a", "class-a", "class-b"])
        await pool.seed.patch(MACHINE_DEPLOYMENT, "pool-z1", NAMESPACE, {"spec": {"replicas": 2}})
        await pool.until(lambda: pool.classes() == ["class-a", "class-b"])
        pool.answers = True
        await pool.until(lambda: pool.settled("class-b", 2))


async def test_a_machine_that_fails_is_replaced_by_one_of_the_new_class(pool: Pool) -> None:
    await pool.prepare(2, "Manual")
    async with pool.controllers():
        await pool.until(lambda: pool.settled("class-a", 2))
        await pool.set_class("class-b")
        await pool.until(lambda: len(pool.seed.of(MACHINE_SET)) == 2)

        def is_marked(each: dict[str, Any]) -> bool:
            return bool((each["metadata"].get("labels") or {}).get(in_place.NO_SCALE_UP))

        await pool.until(lambda: any(map(is_marked, pool.seed.of(MACHINE_SET))))
        await set_phase(pool.seed, machines(pool.seed)[0], "Failed")
        await pool.until(lambda: pool.classes() == ["class-a", "class-b"])
        await pool.until(lambda: len(pool.uids) == 3)


# One machine


async def machine_with_node(pool: Pool, phase: str = "Running", **annotations: str) -> dict[str, Any]:
    machine = await pool.seed.create(
        {
            "apiVersion": MACHINE.api_version,
            "kind": MACHINE.kind,
            "metadata": {"name": "m", "namespace": NAMESPACE, "annotations": annotations},
            "spec": {"class": {"kind": "MachineClass", "name": "class-a"}},
        }
    )
    await set_phase(pool.seed, machine, phase)
    await pool.shoot.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m"}, "spec": {}})
    return await pool.seed.get(MACHINE, "m", NAMESPACE)


async def advance(pool: Pool, **config: Any) -> Requeue | None:
    update = MachineUpdate(pool.seed, pool.shoot, MachineControllerManagerConfig(namespace=NAMESPACE, **config))
    machine = await pool.seed.get(MACHINE, "m", NAMESPACE)
    return await update.advance(machine, pool.shoot.objects.get((NODE, "", "m")))


def ago(**passed: int) -> str:
    return (datetime.now(UTC) - timedelta(**passed)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_a_node_is_released_only_once_it_is_empty(pool: Pool) -> None:
    await machine_with_node(pool, **{in_place.TARGET: "class-b", in_place.SINCE: ago(minutes=1)})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}}
    await pool.shoot.create({**pod, "spec": {"nodeName": "m"}})
    assert await advance(pool) == Requeue(2.0)
    assert pool.node("m")["spec"]["unschedulable"] is True
    assert EXCLUDED_FROM_LOAD_BALANCERS not in (pool.node("m")["metadata"].get("labels") or {}), "it stays"
    assert in_place.reason_of(pool.node("m")) == ""
    told = pool.seed.objects[MACHINE, NAMESPACE, "m"]["status"]["lastOperation"]
    assert told["type"] == "InPlaceUpdate"
    assert "default/p" in told["description"]

    await pool.shoot.delete(POD, "p", "default")
    await advance(pool)
    assert in_place.reason_of(pool.node("m")) == in_place.IS_READY
    machine = await pool.seed.get(MACHINE, "m", NAMESPACE)
    assert _phase(machine) == in_place.UPDATING
    assert in_place.is_released(machine)


async def test_pods_that_cannot_be_evicted_hold_an_update_until_the_drain_timeout(pool: Pool) -> None:
    await machine_with_node(pool, **{in_place.TARGET: "class-b", in_place.SINCE: ago(minutes=3)})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default", "finalizers": ["x"]}}
    await pool.shoot.create({**pod, "spec": {"nodeName": "m"}})
    assert await advance(pool, drain_timeout=timedelta(minutes=5)) == Requeue(2.0)
    await advance(pool, drain_timeout=timedelta(minutes=2))
    assert in_place.reason_of(pool.node("m")) == in_place.IS_READY


async def test_a_node_that_has_not_answered_for_long_is_not_drained(pool: Pool) -> None:
    """Its pods could not end. The update may mend it."""
    await machine_with_node(pool, "Unknown", **{in_place.TARGET: "class-b", in_place.SINCE: ago(minutes=1)})
    await pool.shoot.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {"nodeName": "m"},
        }
    )
    ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": ago(minutes=6)}
    await pool.shoot.patch(NODE, "m", None, {"status": {"conditions": [ready]}}, subresource="status")
    await advance(pool)
    assert in_place.reason_of(pool.node("m")) == in_place.IS_READY
    assert pool.shoot.of(POD)


async def test_an_update_without_result_fails_after_its_timeout(pool: Pool) -> None:
    marks = {in_place.TARGET: "class-b", in_place.SINCE: ago(minutes=9), in_place.DRAINED_FOR: "class-b"}
    machine = await machine_with_node(pool, in_place.UPDATING, **marks)
    condition = {"type": in_place.CONDITION, "status": "True", "reason": in_place.IS_READY}
    await pool.shoot.patch(NODE, "m", None, {"status": {"conditions": [condition]}}, subresource="status")
    begun = {"status": {"currentStatus": {"lastUpdateTime": ago(minutes=5)}}}
    await pool.seed.patch(MACHINE, "m", NAMESPACE, begun, subresource="status")
    waits = await advance(pool, in_place_update_timeout=timedelta(minutes=6))
    assert waits is not None
    assert 50 < waits.after <= 61
    await pool.seed.patch(MACHINE, "m", NAMESPACE, {"spec": {"inPlaceUpdateTimeout": "4m"}})
    assert await advance(pool) is None
    machine = await pool.seed.get(MACHINE, "m", NAMESPACE)
    assert _phase(machine) == in_place.UPDATE_FAILED
    assert "no result within 0:04:00" in machine["status"]["lastOperation"]["description"]
    assert in_place.reason_of(pool.node("m")) == in_place.HAS_FAILED

    await pool.shoot.patch(NODE, "m", None, {"metadata": {"labels": {in_place.RESULT: in_place.SUCCESSFUL}}})
    await advance(pool)
    assert _phase(await pool.seed.get(MACHINE, "m", NAMESPACE)) == in_place.UPDATED, "a late result counts"


async def test_a_result_that_a_node_writes_before_it_is_asked_does_not_count(pool: Pool) -> None:
    """A node writes its labels itself: it must not skip its drain, or end an update that has not begun."""
    await machine_with_node(pool, **{in_place.TARGET: "class-b", in_place.SINCE: ago(minutes=1)})
    await pool.shoot.patch(NODE, "m", None, {"metadata": {"labels": {in_place.RESULT: in_place.SUCCESSFUL}}})
    await advance(pool)
    assert in_place.result_of(pool.node("m")) == ""
    assert _phase(await pool.seed.get(MACHINE, "m", NAMESPACE)) == in_place.UPDATING


async def test_a_cancelled_update_leaves_a_usable_node_without_the_taint(pool: Pool) -> None:
    machine = await machine_with_node(pool, **{in_place.SINCE: ago(minutes=1)})
    labels = {"metadata": {"labels": {in_place.SELECTED: "true"}}, "spec": {"unschedulable": True}}
    node = await pool.shoot.patch(NODE, "m", None, labels)
    await MachineUpdate(pool.seed, pool.shoot, MachineControllerManagerConfig(namespace=NAMESPACE)).finish(
        machine, node
    )
    node = pool.node("m")
    assert not node["spec"].get("unschedulable")
    assert not node["spec"]["taints"]
    assert in_place.SELECTED not in node["metadata"]["labels"]
    assert not in_place.annotation(await pool.seed.get(MACHINE, "m", NAMESPACE), in_place.SINCE)


# Decisions


def members(replicas: int, *machines_: str, name: str = "x") -> Members:
    """A set with machines: a phase, or ``>`` for one whose update is under way; ``!`` for a chosen one."""
    made = []
    for index, each in enumerate(machines_):
        annotations = {}
        if each == ">":
            annotations[in_place.TARGET] = "class-b"
        if each == "!":
            annotations["machinepriority.machine.sapcloud.io"] = "1"
        phase = {">": "InPlaceUpdating", "!": "Running", "r": "Running", "u": "Unknown", "p": "Pending"}[each]
        metadata = {"name": f"{name}{index}", "annotations": annotations}
        made.append({"metadata": metadata, "status": {"currentStatus": {"phase": phase}}})
    return Members({"spec": {"replicas": replicas}, "metadata": {}}, made)


@pytest.mark.parametrize(
    ("wanted", "new", "old", "moving", "surge", "sizes"),
    [
        (3, members(3, *"rrr"), [], [], 0, Sizes(3, ())),
        (3, members(0), [members(3, *"rrr")], [0], 0, Sizes(0, (3,))),
        (3, members(0), [members(3, *"rr>")], [1], 0, Sizes(1, (2,))),
        (3, members(0, ">"), [members(2, *"rr")], [0], 0, Sizes(1, (2,))),  # moved, not counted yet
        (3, members(0), [members(3, *"rr")], [0], 0, Sizes(1, (2,))),  # an old machine has failed
        (4, members(0), [members(3, *"rrr")], [0], 0, Sizes(1, (3,))),
        (2, members(1, "r"), [members(2, *"rr")], [0], 0, Sizes(1, (1,))),
        (2, members(2, *"r!"), [members(1, "r")], [0], 0, Sizes(1, (1,))),
        (1, members(1, "r"), [members(1, ">")], [0], 0, Sizes(0, (1,))),
        (3, members(0), [members(2, *"rr"), members(1, "!")], [0, 0], 0, Sizes(0, (2, 1))),
        (2, members(0), [members(2, *"rr"), members(1, "!")], [0, 0], 0, Sizes(0, (2, 0))),
        (3, members(0), [members(3, *"rrr")], [0], 1, Sizes(1, (3,))),
        (3, members(3, *"rrr"), [members(1, "r")], [0], 1, Sizes(3, (0,))),
        (3, members(3, *"rrp"), [members(1, "r")], [0], 1, Sizes(3, (1,))),
        (0, members(1, "r"), [members(1, "r")], [0], 0, Sizes(0, (0,))),
    ],
)
def test_sizes_of_the_sets(
    wanted: int, new: Members, old: list[Members], moving: list[int], surge: int, sizes: Sizes
) -> None:
    assert plan_sizes(wanted, new, old, moving, surge=surge, unavailable=0) == sizes


@pytest.mark.parametrize(
    ("wanted", "new", "old", "unavailable", "selected"),
    [
        (3, members(0), [members(3, *"rrr")], 1, ["x0"]),
        (3, members(0), [members(3, *"rrr")], 2, ["x0", "x1"]),
        (3, members(0), [members(3, *"r>r")], 1, []),
        (3, members(0), [members(3, *"rru")], 1, ["x2"]),
        (3, members(0), [members(3, *"rrp")], 1, []),
        (3, members(1, "p"), [members(2, *"rr")], 1, []),
        (3, members(1, "r"), [members(2, *"rr")], 1, ["x0"]),
        (3, members(3, *"rrr"), [members(1, "r")], 1, []),
        (3, members(1, "r"), [members(3, *"rrr")], 0, ["x0"]),
    ],
)
def test_selection_of_machines(
    wanted: int, new: Members, old: list[Members], unavailable: int, selected: list[str]
) -> None:
    found = plan_selection(wanted, new.replicas, new, old, unavailable=unavailable)
    assert [each["metadata"]["name"] for each in found] == selected
