"""Operations that fail for good, and what people do then: each is told as Event, in history and by ``flow show``.

The cloud's account of one Shoot loses its rights, and gets them back. The tests run in the order in which they stand.
"""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from api.contracts.flows import RecordRepair
from api.contracts.operations import ShootRef, lifecycle_id
from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import (
    CREATION,
    DELETION,
    CloudAccount,
    Shoot,
    eventually,
    refused,
    temporal,
    temporal_command,
)
from workers.cli.flow_view import read_flow

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(240, func_only=True)]

BROKEN = "wait_infrastructure"
STEP = {"deploy_infrastructure", BROKEN}
"""The wait, and who asks for what it waits for: one step, which runs again as a whole."""
OPERATOR = "olga"
RECONCILIATION = 120
SOON = 5.0
"""Seconds from an annotation to the next attempt: one, and what a machine adds that is busy many times over."""


@pytest.fixture(scope="module")
def account(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudAccount]:
    """Of a Shoot whose creation has failed, because its account may do nothing in the cloud."""
    shoot = Shoot(landscape, "mended", tmp_path_factory.mktemp("kubeconfigs"))
    account = CloudAccount(shoot, "account-with-changing-rights")
    account.open()
    shoot.apply(shoot.manifest(credentialsBindingName=account.name))
    shoot.wait_for_state("Failed", CREATION)
    assert shoot.uid
    yield account
    account.forbid()
    account.permit()
    shoot.remove()
    account.remove()


@pytest.fixture
def shoot(account: CloudAccount) -> Shoot:
    return account.shoot


def test_a_creation_that_fails_for_good_is_explained(shoot: Shoot) -> None:
    [error] = shoot.get()["status"]["lastErrors"]
    assert error["codes"] == ["ERR_INFRA_UNAUTHORIZED"]
    assert error["taskID"] == BROKEN

    shown = _row(shoot, BROKEN)
    assert shown.startswith(f"✘ {BROKEN}")
    assert "the credentials may not do this in the cloud" in shown

    told = json.loads(shoot.gardener("flow", "explain", shoot.reference, "-o", "json"))
    assert (told["state"], told["operation"], told["task"]) == ("Failed", "Create", BROKEN)
    assert told["object"] == f"Infrastructure {shoot.technical_id}/{shoot.name}"
    assert told["code"] == "ERR_INFRA_UNAUTHORIZED"
    assert "give the account behind the Shoot's binding the rights" in told["todo"]
    assert f"gardener flow retry {shoot.reference}" in told["todo"]


def test_once_mended_a_retry_begins_at_once_with_the_failed_task(account: CloudAccount, shoot: Shoot) -> None:
    account.permit()
    shoot.garden("annotate", "shoot", shoot.name, "gardener.cloud/operation=retry")
    asked = datetime.now(UTC)

    second = eventually(lambda: _attempt(shoot, 2), "a second attempt", 30)
    waited = (datetime.fromisoformat(second["started"]) - asked).total_seconds()
    print(f"the second attempt began {waited:.2f} s after kubectl had its answer")
    assert waited < SOON
    done = {name for name, task in _tasks(_flow(shoot, before=1)).items() if task["state"] == "Finished"}
    assert len(done) > 20
    again = {name for name in done if _tasks(second)[name]["state"] != "Kept"}
    assert again <= STEP, "no finished task runs again"


def test_a_paused_operation_starts_no_task(shoot: Shoot) -> None:
    eventually(lambda: _tasks(_flow(shoot))["deploy_worker"]["started"], "machines are ordered", CREATION)
    _repair(shoot, "pause", reason="the cloud is being looked at")
    assert "is paused already" in _refused(shoot, "pause", reason="again")

    standing = eventually(lambda: _standing(shoot), "all that ran has ended", CREATION)
    ready = [name for name, task in standing.items() if task["state"] == "Waiting" and _all_done(standing, task)]
    assert ready, "these could run"
    told = shoot.gardener("flow", "explain", shoot.reference)
    assert "but olga paused: the cloud is being looked at" in told
    assert f"`gardener flow resume {shoot.reference}`" in told


def test_it_is_canceled_put_back_and_goes_on_from_there(shoot: Shoot) -> None:
    _repair(shoot, "cancel", reason="wrong machine image")
    shoot.wait_for_state("Failed", 60)
    told = shoot.get()["status"]["lastOperation"]["description"]
    assert "olga canceled: wrong machine image" in told
    assert "`retry` runs the others" in told

    assert "did you mean deploy_coredns" in _refused(shoot, "reset", "--to", "deploy_coredn", reason="a typo")
    _repair(shoot, "reset", "--to", "deploy_coredns", reason="its manifest was mended")
    assert _flow(shoot)["attempt"] == 2, "it is paused still"
    _repair(shoot, "resume", reason="all is well")
    eventually(lambda: _attempt(shoot, 3), "a third attempt", 30)
    shoot.wait_for_state("Succeeded", CREATION)

    flow = _flow(shoot)
    tasks = _tasks(flow)
    assert tasks["deploy_coredns"]["state"] == "Finished", "it had run, and is after the task that was named"
    before = _tasks(_flow(shoot, before=1))
    again = {name for name, task in before.items() if task["state"] == "Finished" and tasks[name]["state"] != "Kept"}
    assert "deploy_coredns" in again
    assert not again & {"deploy_etcds", "wait_infrastructure", "deploy_worker"}, again
    shown = shoot.gardener("flow", "show", shoot.reference)
    assert "olga reset the operation to before deploy_coredns: its manifest was mended" in shown
    assert "olga resumed: all is well" in shown


def test_a_failed_task_is_skipped(account: CloudAccount, shoot: Shoot) -> None:
    _fail_reconciliation(account)
    assert "is finished already" in _refused(shoot, "skip", "deploy_etcds", reason="why not")
    assert f"did you mean {BROKEN}" in _refused(shoot, "skip", "wait_infrastructur", reason="a typo")
    _repair(shoot, "skip", BROKEN, reason="the network is there")
    account.permit()
    _retry(shoot)

    tasks = _tasks(_flow(shoot))
    assert (tasks[BROKEN]["state"], tasks[BROKEN]["started"]) == ("Skipped", None)
    assert tasks["cleanup_secrets"]["state"] == "Skipped", "nobody knows what the skipped task would have named"
    assert "olga skipped wait_infrastructure: the network is there" in _row(shoot, BROKEN)


def test_its_result_is_provided_by_an_annotation(account: CloudAccount, shoot: Shoot) -> None:
    _fail_reconciliation(account)
    text = json.dumps({"task": BROKEN, "result": {"note": "made by hand"}, "reason": "the cloud is slow"})
    shoot.garden("annotate", "shoot", shoot.name, f"repair.shoot.gardener.cloud/provide={text}")
    eventually(lambda: not _repair_annotations(shoot), "the annotation is followed", 30)
    account.permit()
    _retry(shoot)

    assert _tasks(_flow(shoot))[BROKEN]["state"] == "Kept"
    assert f"provided the result of {BROKEN}: the cloud is slow" in _row(shoot, BROKEN)


def test_a_result_is_provided_from_a_file(account: CloudAccount, shoot: Shoot, tmp_path: Path) -> None:
    _fail_reconciliation(account)
    file = tmp_path / "result.json"
    file.write_text('{"notes": "made by hand"}')
    assert "holds no result of a task" in _refused(
        shoot, "provide", BROKEN, "--result-file", str(file), reason="the cloud is slow"
    )
    file.write_text('{"note": "made by hand"}')
    _repair(shoot, "provide", BROKEN, "--result-file", str(file), reason="it took an hour")
    account.permit()
    _retry(shoot)

    assert "olga provided the result of wait_infrastructure: it took an hour" in _row(shoot, BROKEN)


def test_a_deletion_that_failed_is_replayed_and_goes_on(account: CloudAccount, shoot: Shoot, tmp_path: Path) -> None:
    account.forbid()
    shoot.delete(wait=False)
    eventually(lambda: _last(shoot) == ("Delete", "Failed"), "the deletion fails", DELETION)
    first = _flow(shoot)
    [failed] = [name for name, task in _tasks(first).items() if task["state"] == "Failed"]

    told = shoot.gardener("flow", "replay", shoot.reference)
    assert "every decision the same" in told
    history = tmp_path / "history.json"
    history.write_text(temporal_command(shoot.landscape, "workflow", "show", "-w", first["workflowId"]))
    key = shoot.landscape.facts["codecKeyFile"]
    told = shoot.gardener("flow", "replay", "--history", str(history), "--codec-key", key)
    assert "every decision the same" in told

    account.permit()
    _repair(shoot, "retry")
    eventually(lambda: _attempt(shoot, 2), "a second attempt", 30)
    shoot.garden("wait", "--for=delete", f"shoot/{shoot.name}", f"--timeout={DELETION}s", timeout=DELETION + 10)
    done = {name for name, task in _tasks(first).items() if task["state"] == "Finished"}
    second = _tasks(_flow(shoot))
    again = {name for name in done if second[name]["state"] not in ("Kept", "Skipped")}
    assert len(again) <= 1, f"{failed} and what it waits for are one step; these ran again: {again}"
    assert shoot.traces() == {"garden": [], "seed": [], "cloud": [], "dns": [], "bucket": []}


INTERVENTIONS = (
    ("pause", "olga paused: the cloud is being looked at"),
    ("cancel", "olga canceled: wrong machine image"),
    ("reset", "olga reset the operation to before deploy_coredns: its manifest was mended"),
    ("resume", "olga resumed: all is well"),
    ("skip", "olga skipped wait_infrastructure: the network is there"),
    ("provide", "olga provided the result of wait_infrastructure: it took an hour"),
    ("retry", "olga retried"),
)


async def test_each_intervention_is_an_event_and_in_history(shoot: Shoot) -> None:
    events = json.loads(shoot.garden("get", "events", f"--field-selector=involvedObject.uid={shoot.uid}", "-o", "json"))
    told = {(each["reason"], each["message"]) for each in events["items"]}
    kept = await _recorded(shoot)

    for action, text in INTERVENTIONS:
        assert (f"Repair{action.title()}", text) in told
        assert text in kept


# What the tests do


def _fail_reconciliation(account: CloudAccount) -> None:
    account.forbid()
    shoot = account.shoot
    operation = ("gardener.cloud/operation=reconcile", "shoot.gardener.cloud/tasks=deployInfrastructure")
    shoot.garden("annotate", "shoot", shoot.name, *operation)
    eventually(lambda: _last(shoot) == ("Reconcile", "Failed"), "the reconciliation fails", RECONCILIATION)
    assert [each["taskID"] for each in shoot.get()["status"]["lastErrors"]] == [BROKEN]


def _retry(shoot: Shoot) -> None:
    """Go on with the failed operation, to its end."""
    number = _flow(shoot)["attempt"] + 1
    _repair(shoot, "retry")
    eventually(lambda: _attempt(shoot, number), f"attempt {number}", 30)
    shoot.wait_for_state("Succeeded", RECONCILIATION)


def _repair(shoot: Shoot, action: str, *arguments: str, reason: str = "") -> None:
    said = shoot.gardener(*_command(shoot, action, *arguments, reason=reason))
    assert "is accepted" in said


def _refused(shoot: Shoot, action: str, *arguments: str, reason: str) -> str:
    command = _command(shoot, action, *arguments, reason=reason)
    return refused("env", f"GARDENER_LANDSCAPE={shoot.landscape.name}", BIN / "gardener", *command)


def _command(shoot: Shoot, action: str, *arguments: str, reason: str) -> list[str]:
    why = ["--reason", reason] if reason else []
    return ["flow", action, shoot.reference, *arguments, *why, "--by", OPERATOR]


# What they see


def _last(shoot: Shoot) -> tuple[str, str]:
    """Type and state of the last operation, once nothing more is asked for."""
    live = shoot.get()
    asked = "gardener.cloud/operation" in live["metadata"]["annotations"]
    last = live["status"]["lastOperation"]
    return last["type"], "" if asked else last["state"]


def _tasks(flow: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["name"]: task for task in flow["tasks"]}


def _attempt(shoot: Shoot, number: int) -> dict[str, Any] | None:
    """The newest operation, if it is this attempt."""
    flow = _flow(shoot)
    return flow if flow["attempt"] == number else None


def _flow(shoot: Shoot, before: int = 0) -> dict[str, Any]:
    """The newest operation, or one before it, as ``flow show`` tells it; sooner than by the command."""
    return asyncio.run(_read(shoot, before))


async def _read(shoot: Shoot, before: int) -> dict[str, Any]:
    client = await temporal(shoot.landscape)
    query = f'GardenerShoot = "{shoot.reference}" AND GardenerOperation != "" AND WorkflowId STARTS_WITH "shoot/"'
    found = [each async for each in client.list_workflows(query) if f"/{shoot.uid}/" in each.id]
    chosen = sorted(found, key=lambda each: each.start_time, reverse=True)[before]
    return (await read_flow(client, shoot.reference, chosen.id, chosen.run_id)).model_dump(mode="json", by_alias=True)


def _row(shoot: Shoot, task: str) -> str:
    """The task's line of ``flow show``."""
    lines = shoot.gardener("flow", "show", shoot.reference).splitlines()
    [line] = [line for line in lines if task in line.partition("  +")[0].split()]
    return line.strip(" ╰")


def _standing(shoot: Shoot) -> dict[str, dict[str, Any]] | None:
    """The tasks of an operation, if none runs."""
    tasks = _tasks(_flow(shoot))
    return None if any(task["state"] == "Running" for task in tasks.values()) else tasks


def _all_done(tasks: dict[str, dict[str, Any]], task: dict[str, Any]) -> bool:
    return all(tasks[before]["state"] in ("Finished", "Kept", "Skipped") for before in task["after"])


def _repair_annotations(shoot: Shoot) -> list[str]:
    return [name for name in shoot.get()["metadata"]["annotations"] if "repair.shoot.gardener.cloud" in name]


async def _recorded(shoot: Shoot) -> list[str]:
    """The interventions in the histories of what decides about the Shoot."""
    client = await temporal(shoot.landscape)
    lifecycle = lifecycle_id(ShootRef(namespace="garden-local", name=shoot.name, uid=shoot.uid))
    found = []
    async for each in client.list_workflows(f'WorkflowId = "{lifecycle}"'):
        async for event in client.get_workflow_handle(each.id, run_id=each.run_id).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                scheduled = event.activity_task_scheduled_event_attributes
                if scheduled.activity_type.name == "record_repair":
                    [told] = await client.data_converter.decode(scheduled.input.payloads, [RecordRepair])
                    found.append(f"{told.repair}")
    return found
