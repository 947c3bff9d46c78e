"""Machines and their pools.

The machine controller runs over a seed, a cloud and a shoot in memory.
"""

from typing import Any

import pytest

from activities.provider_local.machines import machine_deployment as manifest
from api.constants import FINALIZER_MACHINE_CONTROLLER_MANAGER
from api.core.v1beta1.cloud_profile import CloudProfile
from api.decisions.maintenance import plan_maintenance
from api.resources import MACHINE
from kube.errors import Unreachable
from tests.unit.api import test_maintenance as maintenance
from tests.unit.api.shoots import PROFILE, changed, complete
from tests.unit.mcm.test_machines import NAME, NAMESPACE, World, world
from tests.unit.provider_local.test_machines import pool, wanted
from workers.machine_controller_manager import machine_deployment

__all__ = ["world"]


def interrupt(world: World) -> list[bool]:
    """The first creation of a machine's pod gets through, and its answer is lost; returns what tells that it was."""
    create, lost = world.cloud.create, list[bool]()

    async def lose_answer(obj: Any, *args: Any, **options: Any) -> Any:
        answer = await create(obj, *args, **options)
        if obj["kind"] == "Pod" and not lost:
            lost.append(True)
            world.seed.wake()
            raise Unreachable(0, "connection lost", "x")
        return answer

    world.cloud.create = lose_answer  # type: ignore[method-assign]
    return lost


@pytest.mark.exhibit(
    threads=["crossplane/crossplane-runtime#277"],
    happened="A resource whose name the cloud chose was lost when the controller ended before it had stored the name: "
    "the next run created another one, and nothing deleted the first.",
    here="A machine has the name of its object before it is created, so that the next run finds it and a deletion "
    "removes it.",
)
async def test_crossplane_runtime_277_no_machine_is_lost_with_the_answer_to_its_creation(world: World) -> None:
    lost = interrupt(world)
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: lost)
    assert len(world.pods) == 1
    assert "providerID" not in (world.machine or {})["spec"]

    await world.seed.delete(MACHINE, NAME, NAMESPACE)
    async with world.controller():
        await world.seed.until(lambda: world.machine is None)

    assert world.pods == []


@pytest.mark.exhibit(
    threads=["gardener/machine-controller-manager#445"],
    happened="A machine that was deleted while it was being created left its virtual machine behind.",
    here="The object has its finalizer before the creation begins, and the deletion that follows removes what the "
    "creation has made.",
)
async def test_machine_controller_manager_445_a_machine_deleted_while_it_is_created(world: World) -> None:
    create, deleted = world.cloud.create, list[bool]()

    async def deleted_meanwhile(obj: Any, *args: Any, **options: Any) -> Any:
        if obj["kind"] == "Pod" and not deleted:
            assert (world.machine or {})["metadata"]["finalizers"] == [FINALIZER_MACHINE_CONTROLLER_MANAGER]
            await world.seed.delete(MACHINE, NAME, NAMESPACE)
            deleted.append(True)
        return await create(obj, *args, **options)

    world.cloud.create = deleted_meanwhile  # type: ignore[method-assign]
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.machine is None)

    assert deleted
    assert world.pods == []


@pytest.mark.exhibit(
    threads=["gardener/machine-controller-manager#798", "gardener/gardener#4910"],
    happened="Of a pool with maxSurge 1 and maxUnavailable 0 over several zones, all zones but the first got 0 of "
    "both, and nodes there were drained before new ones had joined.",
    here="Where both numbers are 0, a MachineDeployment may have one machine more, so each zone gets a new machine "
    "before it loses an old one.",
)
def test_machine_controller_manager_798_each_zone_surges_before_it_drains() -> None:
    zones = wanted(pool(zones=["a", "b", "c"], minimum=3, maximum=3, maxSurge=1, maxUnavailable=0))
    assert [(each.max_surge, each.max_unavailable) for each in zones] == [(1, 0), (0, 0), (0, 0)]

    for each in zones:
        spec = manifest(each, NAMESPACE, "local", 1)["spec"]
        new, old = sized(0, available=0), sized(1, available=1)
        surged = machine_deployment.plan_scaling(spec, new, [old])
        assert (surged.new, surged.old) == (1, (1,))
        starting = machine_deployment.plan_scaling(spec, sized(1, available=0), [old])
        assert (starting.new, starting.old) == (1, (1,)), "the old machine stays until the new one has joined"
        joined = machine_deployment.plan_scaling(spec, sized(1, available=1), [old])
        assert (joined.new, joined.old) == (1, (0,))


def sized(replicas: int, *, available: int) -> dict[str, Any]:
    """A MachineSet."""
    return {"spec": {"replicas": replicas}, "status": {"replicas": replicas, "availableReplicas": available}}


@pytest.mark.exhibit(
    threads=["gardener/gardener#2604"],
    happened="Of two pools with different images, one with an expired image, maintenance did not update the expired "
    "one by force.",
    here="Maintenance decides for each pool by the version that the pool has.",
)
def test_gardener_2604_an_expired_image_of_one_pool_of_two() -> None:
    versions = [maintenance.version(each) for each in ("1.0.0 expired", "1.1.0", "1.2.0")]
    profile = changed(PROFILE, maintenance.IMAGES, {"name": "local", "updateStrategy": "major", "versions": versions})
    off, value = maintenance.OFF
    obj = changed(complete().to_wire(), off, value)
    (one,) = obj["spec"]["provider"]["workers"]
    pools = [
        {**one, "name": name, "machine": {**one["machine"], "image": {"name": "local", "version": version}}}
        for name, version in (("current", "1.1.0"), ("expired", "1.0.0"))
    ]
    made = plan_maintenance(changed(obj, "spec.provider.workers", pools), CloudProfile.of(profile), maintenance.NOW)

    images = {each["name"]: each["machine"]["image"]["version"] for each in made.spec["provider"]["workers"]}
    assert images == {"current": "1.1.0", "expired": "1.2.0"}
