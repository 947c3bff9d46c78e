"""Effects of schedules on a Shoot: they switch its hibernation, or maintain it."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.garden.hibernation import SwitchActivities
from activities.garden.maintenance import MaintenanceActivities
from api import resources
from api.contracts.operations import ShootRef, TaskResult
from api.contracts.schedules import ScheduledTime
from kube.client import KubeClient
from kube.errors import Conflict, Forbidden
from tests.unit.api.shoots import PROFILE, changed, complete
from tests.workflow.garden import FakeGarden

REF = ShootRef(namespace="garden-local", name="demo", uid="u-1")
NOW = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
"""Ahead of the clock: it stays the time of these tests however long others take before them."""
EVERY_MINUTE = "* * * * *"


def at(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


class Garden(FakeGarden):
    """Refuses changes of the spec, or loses a race, if the test sets that."""

    refuses: str = ""
    loses = False

    async def patch(self, res: Any, name: str, namespace: Any, patch: dict[str, Any], **rest: Any) -> dict[str, Any]:
        if self.refuses and "spec" in patch:
            raise Forbidden(403, "Forbidden", "patching Shoot", self.refuses)
        if self.loses and "spec" in patch:
            self.loses = False
            raise Conflict(409, "Conflict", "patching Shoot")
        return await super().patch(res, name, namespace, patch, **rest)


class World:
    def __init__(self, spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any):
        live = complete(bound=True).to_wire()
        live["metadata"] |= {"creationTimestamp": at(NOW - timedelta(days=1)), "generation": 1, **metadata}
        live["spec"] |= spec or {}
        live["status"] = {"lastOperation": {"type": "Reconcile", "state": "Succeeded"}, **(status or {})}
        self.garden = Garden(live, PROFILE)

    async def shoot(self) -> dict[str, Any]:
        return await self.garden.get(resources.SHOOT, "demo", "garden-local")

    async def switch(self) -> TaskResult:
        activities = SwitchActivities(cast(KubeClient, self.garden))
        request = ScheduledTime(shoot=REF, now=NOW)
        return cast(TaskResult, await ActivityEnvironment().run(activities.switch_hibernation, request))

    async def maintain(self) -> TaskResult:
        activities = MaintenanceActivities(cast(KubeClient, self.garden))
        request = ScheduledTime(shoot=REF, now=NOW)
        return cast(TaskResult, await ActivityEnvironment().run(activities.maintain_shoot, request))

    async def annotations(self) -> dict[str, str]:
        return dict((await self.shoot())["metadata"].get("annotations") or {})

    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.garden.events()]


# Hibernation


def scheduled(side: str = "start", *, enabled: bool = False) -> dict[str, Any]:
    return {"hibernation": {"enabled": enabled, "schedules": [{side: EVERY_MINUTE}]}}


@pytest.mark.parametrize(
    ("side", "enabled", "reason"), [("start", False, "Hibernated"), ("end", True, "WokenUp")], ids=["sleep", "wake"]
)
async def test_a_due_schedule_switches_hibernation_with_an_event(side: str, enabled: bool, reason: str) -> None:
    world = World(scheduled(side, enabled=enabled))
    await world.switch()

    live = await world.shoot()
    assert live["spec"]["hibernation"]["enabled"] is not enabled
    assert live["spec"]["hibernation"]["schedules"] == [{side: EVERY_MINUTE}]
    assert datetime.fromisoformat(live["status"]["lastHibernationTriggerTime"]) >= NOW
    assert world.reasons() == [reason]


async def test_a_second_start_for_the_same_time_changes_nothing() -> None:
    """The owner may have switched back since."""
    world = World(scheduled(), {"lastHibernationTriggerTime": at(NOW + timedelta(days=1))})
    assert (await world.switch()).note == "no schedule is due"
    assert world.garden.writes == []


async def test_an_unchanged_hibernation_needs_no_new_generation() -> None:
    world = World(scheduled(enabled=True))
    assert (await world.switch()).note == "hibernate at * * * * * UTC: spec.hibernation.enabled has this value already"
    assert world.garden.writes == ["Shoot demo status"]
    assert world.reasons() == []


async def test_schedules_due_before_the_creation_are_not_executed() -> None:
    world = World(scheduled(), creationTimestamp=at(NOW + timedelta(days=1)))
    assert (await world.switch()).note == "no schedule is due"


async def test_a_failed_shoot_is_left_to_its_owner() -> None:
    world = World(scheduled(), {"lastOperation": {"type": "Reconcile", "state": "Failed"}})
    assert "the last operation of the Shoot failed" in (await world.switch()).note
    assert world.garden.writes == []


async def test_a_refusal_is_recorded_and_not_repeated() -> None:
    world = World(scheduled())
    world.garden.refuses = "constraint HibernationPossible is False: webhook x"
    assert "HibernationPossible is False" in (await world.switch()).note
    ((reason, message),) = world.garden.events()
    assert reason == "HibernationFailed"
    assert message.startswith("hibernate at * * * * * UTC of Shoot garden-local/demo was refused: constraint")
    assert "lastHibernationTriggerTime" not in (await world.shoot())["status"]


async def test_a_schedule_that_is_due_just_after_an_operation_waits_for_the_check() -> None:
    """Care decides within a minute whether the Shoot may hibernate. The next schedule may be a day away."""
    constraint = {"type": "HibernationPossible", "status": "Progressing"}
    world = World(scheduled(), {"constraints": [constraint]})
    world.garden.refuses = "constraint HibernationPossible is Progressing"
    with pytest.raises(ApplicationError, match="is Progressing"):
        await world.switch()
    assert world.garden.events() == []
    world.garden.refuses = ""
    await world.switch()
    assert (await world.shoot())["spec"]["hibernation"]["enabled"] is True


async def test_concurrent_writes_are_not_overwritten() -> None:
    world = World(scheduled())
    world.garden.loses = True
    with pytest.raises(Conflict):
        await world.switch()
    await world.switch()
    assert (await world.shoot())["spec"]["hibernation"]["enabled"] is True


@pytest.mark.parametrize("metadata", [{"uid": "another"}, {"deletionTimestamp": at(NOW)}], ids=["another", "going"])
async def test_another_shoot_of_the_same_name_is_not_changed(metadata: dict[str, Any]) -> None:
    world = World(scheduled(), **metadata)
    assert (await world.switch()).note == "the Shoot is deleted or being deleted"
    assert (await world.maintain()).note == "the Shoot is deleted or being deleted"
    assert world.garden.writes == []


# Maintenance


def window(begin: timedelta, length: timedelta = timedelta(hours=1), **spec: Any) -> dict[str, Any]:
    """A window that begins so long after now, and versions that can be updated."""
    begun = NOW + begin
    times = {"begin": f"{begun:%H%M%S}+0000", "end": f"{begun + length:%H%M%S}+0000"}
    return {"maintenance": {"timeWindow": times, "autoUpdate": {"kubernetesVersion": True}}, **spec}


OPEN = window(timedelta(minutes=-10))
CLOSED = window(timedelta(hours=5))
OLD = {"kubernetes": {"version": "1.37.0"}}
ASKED = {"gardener.cloud/operation": "maintain"}


async def test_in_its_window_a_shoot_is_updated_and_reconciled() -> None:
    world = World({**OPEN, **OLD})
    await world.maintain()

    live = await world.shoot()
    assert live["spec"]["kubernetes"]["version"] == "1.37.1"
    assert live["status"]["lastMaintenance"]["state"] == "Succeeded"
    assert "Updated Kubernetes version from 1.37.0 to 1.37.1" in live["status"]["lastMaintenance"]["description"]
    assert live["metadata"]["annotations"]["gardener.cloud/operation"] == "reconcile"
    tasks = live["metadata"]["annotations"]["shoot.gardener.cloud/tasks"].split(",")
    assert {"deployInfrastructure", "deployDNSRecordInternal", "restartControlPlanePods"} <= set(tasks)
    assert "KubernetesVersionMaintenance" in world.reasons()


@pytest.mark.parametrize("spec", [CLOSED, window(timedelta(minutes=-50)), {"maintenance": {}}])
async def test_outside_of_the_effective_window_nothing_is_done(spec: dict[str, Any]) -> None:
    """In the last quarter of an hour nothing is begun: it would not end in the window."""
    world = World({**spec, **OLD})
    assert (await world.maintain()).note == "not now: the maintenance window is over"
    assert world.garden.writes == []


async def test_requested_maintenance_is_done_at_once_and_its_annotation_removed() -> None:
    world = World(CLOSED, annotations=ASKED)
    await world.maintain()

    assert (await world.annotations())["gardener.cloud/operation"] == "reconcile"
    last = (await world.shoot())["status"]["lastMaintenance"]
    assert (last["state"], datetime.fromisoformat(last["triggeredTime"]) >= NOW) == ("Succeeded", True)
    assert (await world.maintain()).note == "not now: the maintenance window is over"


async def test_the_next_attempt_records_the_end_of_a_killed_maintenance() -> None:
    begun = {"lastMaintenance": {"description": "x", "triggeredTime": at(NOW), "state": "Processing"}}
    world = World(CLOSED, begun)
    assert (await world.maintain()).note == "an earlier attempt has done the maintenance"
    assert (await world.shoot())["status"]["lastMaintenance"]["state"] == "Succeeded"


async def test_credentials_that_are_too_old_are_rotated_in_the_window_and_once() -> None:
    monthly = {"autoRotation": {"credentials": {"etcdEncryptionKey": {"rotationPeriod": "672h"}}}}
    window_and_period = {"maintenance": OPEN["maintenance"] | monthly}
    world = World(window_and_period, creationTimestamp=at(NOW - timedelta(days=29)))
    for _ in range(2):
        await world.maintain()
        assert (await world.annotations())["gardener.cloud/operation"] == "rotate-etcd-encryption-key"

    assert world.reasons().count("CredentialsRotationMaintenance") == 1
    world = World(window_and_period, creationTimestamp=at(NOW - timedelta(days=27)))
    await world.maintain()
    assert (await world.annotations())["gardener.cloud/operation"] == "reconcile"

    failed = {"lastOperation": {"type": "Reconcile", "state": "Failed"}}
    world = World(window_and_period, failed, creationTimestamp=at(NOW - timedelta(days=29)))
    await world.maintain()
    assert "CredentialsRotationMaintenance" not in world.reasons()


async def test_changes_that_waited_for_the_window_are_requested() -> None:
    put_off = "rotate-ssh-keypair;rotate-observability-credentials"
    world = World(OPEN, annotations={"maintenance.gardener.cloud/operation": put_off})
    await world.maintain()

    annotations = await world.annotations()
    assert annotations["gardener.cloud/operation"] == put_off
    assert "maintenance.gardener.cloud/operation" not in annotations


@pytest.mark.parametrize(
    ("annotations", "operation"),
    [
        ({}, None),
        ({"maintenance.shoot.gardener.cloud/needs-retry-operation": "true"}, "retry"),
        (ASKED, None),
    ],
    ids=["left alone", "needs retry", "asked"],
)
async def test_a_failed_shoot_is_retried_only_if_it_is_marked(
    annotations: dict[str, str], operation: str | None
) -> None:
    put_off = {"maintenance.gardener.cloud/operation": "rotate-ssh-keypair"}
    failed = {"lastOperation": {"type": "Reconcile", "state": "Failed"}}
    world = World(OPEN, failed, annotations={**put_off, **annotations})
    await world.maintain()

    found = await world.annotations()
    assert found.get("gardener.cloud/operation") == operation
    assert found["maintenance.gardener.cloud/operation"] == "rotate-ssh-keypair"
    assert "maintenance.shoot.gardener.cloud/needs-retry-operation" not in found


async def test_a_refused_update_fails_the_maintenance_and_not_the_shoot() -> None:
    world = World({**CLOSED, **OLD}, annotations=ASKED)
    world.garden.refuses = "spec.kubernetes.version: Forbidden: because"
    assert (await world.maintain()).note.startswith("refused: spec.kubernetes.version")

    live = await world.shoot()
    assert live["spec"]["kubernetes"]["version"] == "1.37.0"
    last = live["status"]["lastMaintenance"]
    assert (last["state"], last["failureReason"]) == ("Failed", "spec.kubernetes.version: Forbidden: because")
    assert "gardener.cloud/operation" not in live["metadata"].get("annotations", {})
    assert world.reasons() == ["MaintenanceFailed"]


async def test_a_part_that_cannot_be_updated_does_not_hold_up_the_others() -> None:
    vanished = {"name": "vanished", "version": "1.0.0"}
    live = changed(complete(bound=True).to_wire(), "spec.provider.workers.0.machine.image", vanished)
    world = World({**OPEN, **OLD, "provider": live["spec"]["provider"]})
    await world.maintain()

    shoot = await world.shoot()
    assert shoot["spec"]["kubernetes"]["version"] == "1.37.1"
    last = shoot["status"]["lastMaintenance"]
    assert last["state"] == "Failed"
    assert last["description"].startswith("Maintenance: (1/2) maintenance operations failed: Control Plane: Updated")
    assert "does not offer this image any more" in last["failureReason"]
