"""Tests that change the Shoot: hibernation, rotations, maintenance, and the loss of a machine."""

from typing import Any

from api import resources
from api.constants import OPERATION_MAINTAIN, OPERATION_RECONCILE
from kube.errors import ApiError
from workers.cli.garden_tests.context import HIBERNATED_BY, Context, expect, is_ready
from workers.cli.garden_tests.model import Label, TestFailed, TestSkipped, garden_test


@garden_test("a Shoot hibernates and wakes up", Label.BETA, timeout=1800)
async def hibernation(context: Context) -> None:
    await context.needs_workers()
    async with context.own_namespace("hibernation") as namespace:
        await context.deploy(namespace)
        await context.may_hibernate()
        try:
            await context.change({"hibernation": {"enabled": True}}, {HIBERNATED_BY: context.run})
            asleep = (await context.live())["status"].get("hibernated")
            expect(asleep, "the hibernation has succeeded, but status.hibernated is not true")
        finally:
            await context.change({"hibernation": {"enabled": False}}, {HIBERNATED_BY: None})
        await context.cluster(renew=True)
        awake = await context.live()
        expect(not awake["status"].get("hibernated"), "the Shoot is awake, but status.hibernated is true")
        await context.healthy()
        await context.deploy(namespace)


@garden_test("all credentials rotate", Label.BETA, timeout=3600)
async def rotation(context: Context) -> None:
    """Both phases; between them old and new credentials are valid."""
    old = await context.open_cluster()
    try:
        await context.operate("rotate-credentials-start")
        await context.until(lambda shoot: phases(shoot) == {"Prepared"}, "rotations are prepared", seconds=None)
        await context.reconciled()
        await old.list(resources.NAMESPACE)
        await (await context.cluster(renew=True)).list(resources.NAMESPACE)
        await context.operate("rotate-credentials-complete")
        await context.until(lambda shoot: phases(shoot) == {"Completed"}, "rotations are completed", seconds=None)
        await context.reconciled()
        await (await context.cluster(renew=True)).list(resources.NAMESPACE)
        try:
            await old.list(resources.NAMESPACE)
        except ApiError:
            pass
        else:
            raise TestFailed("a kubeconfig from before the rotation still works after its completion")
    finally:
        await old.close()
    await context.healthy()


@garden_test("a reconciliation and a maintenance succeed", Label.RELEASE, Label.SERIAL, timeout=1800)
async def maintenance(context: Context) -> None:
    version = (await context.live())["spec"]["kubernetes"]["version"]
    await context.operate(OPERATION_RECONCILE)
    await context.reconciled()
    before = ((await context.live())["status"].get("lastMaintenance") or {}).get("triggeredTime")
    await context.operate(OPERATION_MAINTAIN)

    def maintained(shoot: dict[str, Any]) -> bool:
        last = shoot["status"].get("lastMaintenance") or {}
        return last.get("triggeredTime") != before and last.get("state") in ("Succeeded", "Failed")

    last = (await context.until(maintained, "the maintenance has ended"))["status"]["lastMaintenance"]
    expect(last["state"] == "Succeeded", f"the maintenance has failed: {last.get('failureReason')}")
    await context.reconciled()
    now = (await context.live())["spec"]["kubernetes"]["version"]
    expect(_numbers(now) >= _numbers(version), f"the maintenance changed Kubernetes from {version} to {now}")
    await context.healthy()


@garden_test("a machine that is deleted is replaced", Label.RELEASE, Label.DISRUPTIVE, timeout=1800)
async def machine(context: Context) -> None:
    seed, cluster = context.needs_seed(), await context.cluster()
    namespace = (await context.live())["status"]["technicalID"]
    machines = await seed.list(resources.MACHINE, namespace)
    if not machines:
        raise TestSkipped("the Shoot has no machines")
    before = {each["metadata"]["uid"] for each in await cluster.list(resources.NODE) if is_ready(each)}
    victim = machines[0]["metadata"]
    await seed.delete(resources.MACHINE, victim["name"], namespace, uid=victim["uid"])
    await context.wait_until(
        cluster,
        resources.NODE,
        None,
        lambda found: (
            len({each["metadata"]["uid"] for each in found if is_ready(each)} - before) >= 1
            and sum(map(is_ready, found)) >= len(before)
        ),
        what=f"a new node is ready in place of machine {victim['name']}",
        seconds=1200,
    )
    await context.healthy()


def phases(shoot: dict[str, Any]) -> set[str]:
    """Phases of the rotations that have two steps."""
    found = shoot["status"].get("credentials", {}).get("rotation") or {}
    return {found.get(name, {}).get("phase", "") for name in ("certificateAuthorities", "serviceAccountKey")}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split("-")[0].split("."))


TESTS = (hibernation, rotation, maintenance, machine)
