"""Processes die in the middle of a creation: it continues where it stopped, and nothing is created twice."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from temporalio.api.enums.v1 import EventType

from tests.landscape.conftest import Landscape
from tests.landscape.shoots import CREATION, Shoot, started, temporal

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.chaos, pytest.mark.timeout(120, func_only=True)]

_VICTIMS = (
    ("wait_etcds", "{seed}/gardenlet"),
    ("wait_apiserver", "temporal"),
    ("wait_resource_manager", "{seed}/kube-apiserver"),
    ("wait_worker", "garden/controller-manager"),
)
"""Once this task has started, that process is killed; the creation is still running then."""


@dataclass(frozen=True)
class Disturbed:
    """A Shoot that has been created while one process after the other was killed."""

    shoot: Shoot
    starts: dict[str, tuple[int, int]]
    """Starts of each process that was killed: before and afterwards."""


@pytest.fixture(scope="module")
def disturbed(landscape: Landscape, shoot: Shoot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disturbed]:
    """Created next to the Shoot that tests share, which exists already."""
    shoot = Shoot(landscape, "disturbed", tmp_path_factory.mktemp("kubeconfigs"))
    before = _starts(landscape)
    shoot.apply(shoot.manifest())
    try:
        killed = asyncio.run(_disturb(shoot))
        shoot.wait_for_state("Succeeded", CREATION)
        after = _starts(landscape)
        yield Disturbed(shoot, {name: (before[name], after[name]) for name in killed})
    finally:
        shoot.remove()


async def _disturb(shoot: Shoot) -> list[str]:
    """Kill all victims, each at its time; returns their names."""
    client = await temporal(shoot.landscape)
    killed = []
    for task, victim in _VICTIMS:
        await started(client, shoot, task)
        killed.append(victim.format(seed=shoot.seed))
        shoot.landscape.gardener("kill", killed[-1])
    return killed


def _starts(landscape: Landscape) -> dict[str, int]:
    return {name: process["starts"] for name, process in landscape.status["processes"].items()}


def test_the_creation_succeeded_though_each_process_was_killed(disturbed: Disturbed) -> None:
    for name, (before, after) in disturbed.starts.items():
        assert after > before, f"{name} was not killed"
    assert disturbed.shoot.get()["status"]["lastOperation"]["state"] == "Succeeded"
    [row] = disturbed.shoot.flows()
    assert (row["operation"], row["attempt"], row["state"]) == ("Create", "1", "Completed")


async def test_no_task_was_started_over(disturbed: Disturbed) -> None:
    """A task that was interrupted is one more attempt of the same activity; what was finished is not touched."""
    client = await temporal(disturbed.shoot.landscape)
    [row] = disturbed.shoot.flows()
    ordered: Counter[str] = Counter()
    unanswered = 0
    async for event in client.get_workflow_handle(row["workflowId"]).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            ordered[event.activity_task_scheduled_event_attributes.activity_type.name] += 1
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
            unanswered += 1

    assert sum(ordered.values()) - len(ordered) == unanswered, ordered.most_common(5)


def test_the_flow_reports_its_interruptions(disturbed: Disturbed) -> None:
    flow = disturbed.shoot.flow()
    told = [each["text"] for each in flow["interruptions"]]

    assert any("its worker was lost" in text for text in told), f"of the gardenlet: {told}"
    assert any("the workflow's worker" in text and "went on" in text for text in told), (
        f"of the controller-manager: {told}"
    )
    repeated = {task["name"]: task["error"] for task in flow["tasks"] if task["attempts"] > 1}
    assert repeated, "tasks that were tried again say so, and why"
    assert all(repeated.values()), repeated
    text = disturbed.shoot.gardener("flow", "show", disturbed.shoot.reference)
    assert "interruptions:" in text
    assert "went on with attempt" in text


def test_a_disturbed_shoot_has_the_secrets_of_an_undisturbed_one(disturbed: Disturbed, shoot: Shoot) -> None:
    """A key created twice would be a Secret more: names end with a hash of the content."""

    def kinds(of: Shoot) -> Counter[str]:
        names = (
            secret["metadata"]["name"].replace(of.technical_id, "").replace(of.name, "") for secret in of.secrets()
        )
        return Counter(re.sub(r"-[0-9a-f]{5,16}(?=-|$)", "", name) for name in names)

    assert kinds(disturbed.shoot) == kinds(shoot)


def test_a_disturbed_shoot_has_no_duplicate_objects(disturbed: Disturbed) -> None:
    shoot = disturbed.shoot
    machines = json.loads(shoot.control_plane("get", "machines.machine.sapcloud.io", "-o", "json"))["items"]
    pods = json.loads(
        shoot.landscape.kubectl("cloud", "-n", f"infra-{shoot.technical_id}", "get", "pods", "-o", "json")
    )
    nodes = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]

    names = [[each["metadata"]["name"] for each in found] for found in (machines, pods["items"], nodes)]
    assert len(names[0]) == 1
    assert names[0] == names[1] == names[2]
    claims = json.loads(shoot.control_plane("get", "pvc", "-o", "json"))["items"]
    assert len(claims) == 3, "one volume of each etcd, and of Prometheus"
    assert len(shoot.backups()) == 1


def test_it_works(disturbed: Disturbed) -> None:
    for condition in ("APIServerAvailable", "ControlPlaneHealthy", "EveryNodeReady", "SystemComponentsHealthy"):
        disturbed.shoot.garden(
            "wait", f"--for=condition={condition}", f"shoot/{disturbed.shoot.name}", "--timeout=60s", timeout=70
        )
    assert disturbed.shoot.kubectl("-n", "kube-system", "logs", "-l", "app=vpn-shoot", "--tail=1")
