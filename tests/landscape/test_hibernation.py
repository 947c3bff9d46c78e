"""A Shoot is maintained, falls asleep by its schedule, wakes up with what it knew, and is deleted in its sleep.

The tests run in the order in which they stand. How long it takes is printed: ``pytest -rP``.
"""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import CREATION, DELETION, Shoot, eventually, refused

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(DELETION + 60, func_only=True)]

SECONDS = 180
"""To fall asleep or to wake up; 20 where the machine has nothing else to do."""
CONDITIONS = ("APIServerAvailable", "ControlPlaneHealthy", "EveryNodeReady", "SystemComponentsHealthy")


@pytest.fixture(scope="module")
def sleeper(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot with a pool of one machine, and one without machines that its autoscaler may let grow."""
    shoot = Shoot(landscape, "sleeper", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest()
    [pool] = manifest["spec"]["provider"]["workers"]
    taint = {"key": "for", "value": "batch", "effect": "NoSchedule"}
    grows = {**pool, "name": "batch", "minimum": 0, "maximum": 1, "taints": [taint]}
    manifest["spec"]["provider"]["workers"].append(grows)
    shoot.apply(manifest)
    shoot.wait_for_state("Succeeded", CREATION)
    yield shoot
    shoot.remove()


def test_a_schedule_that_never_fires_is_refused(sleeper: Shoot) -> None:
    kubectl: list[str | Path] = [BIN / "kubectl", f"--kubeconfig={sleeper.landscape.directory}/kubeconfigs/garden.yaml"]
    for schedule, complaint in (
        ({"start": "0 0 30 2 *"}, "schedule '0 0 30 2 *' never fires"),
        ({"end": "0 6 * * *", "location": "Mars/Olympus"}, "'Mars/Olympus' is no time zone"),
    ):
        patch = json.dumps({"spec": {"hibernation": {"schedules": [schedule]}}})
        where = ("-n", "garden-local", "patch", "shoot", sleeper.name, "--type=merge", "-p", patch)
        assert complaint in refused(*kubectl, *where)


def test_a_shoot_is_maintained_on_request(sleeper: Shoot) -> None:
    sleeper.garden("annotate", "shoot", sleeper.name, "gardener.cloud/operation=maintain")

    def maintained() -> bool:
        return bool((sleeper.get()["status"].get("lastMaintenance") or {}).get("state") == "Succeeded")

    eventually(maintained, "the maintenance is told to be done", 60)
    eventually(lambda: not _operation(sleeper), "the annotation is answered", 60)
    sleeper.wait_for_state("Succeeded", SECONDS)


def test_a_schedule_hibernates_the_shoot_and_stops_all_its_pods(sleeper: Shoot) -> None:
    sleeper.kubectl("create", "configmap", "memory", "--from-literal=of=yesterday")
    volumes = _volumes(sleeper)
    assert all(map(sleeper.address_of, sleeper.host_names))

    due = datetime.now(UTC) + timedelta(seconds=75)
    schedule = {"start": f"{due.minute} {due.hour} * * *", "location": "UTC"}
    _patch(sleeper, {"hibernation": {"schedules": [schedule]}})
    eventually(lambda: sleeper.get()["spec"]["hibernation"].get("enabled"), "the schedule fires", 120)
    fired = time.monotonic()
    late = datetime.now(UTC) - due.replace(second=0, microsecond=0)
    _await_hibernated(sleeper, True)

    print(f"schedule fired {late.total_seconds():.1f} s after its time; asleep {time.monotonic() - fired:.1f} s later")
    assert _pods(sleeper) == []
    assert sleeper.control_plane("get", "machines", "-o", "name") == ""
    assert sleeper.control_plane("get", "deployment", "cluster-autoscaler", "-o", "jsonpath={.spec.replicas}") == "0"
    infrastructure = f"infra-{sleeper.technical_id}"
    assert sleeper.landscape.kubectl("cloud", "-n", infrastructure, "get", "pods", "-o", "name") == ""
    assert [sleeper.address_of(name) for name in sleeper.host_names] == ["", ""]
    assert _volumes(sleeper) == volumes, "its data stay"
    assert "Hibernated" in sleeper.garden("describe", "shoot", sleeper.name)


def test_a_hibernated_shoot_is_healthy(sleeper: Shoot) -> None:
    def reasons() -> set[str]:
        conditions = {each["type"]: each for each in sleeper.get()["status"]["conditions"]}
        return {f"{conditions[each]['status']} {conditions[each]['reason']}" for each in CONDITIONS}

    eventually(lambda: reasons() == {"True ConditionNotChecked"}, "conditions are not checked", 60)


def test_a_reconciliation_does_not_wake_it(sleeper: Shoot) -> None:
    before = sleeper.flows()[0]["workflowId"]
    sleeper.garden("annotate", "shoot", sleeper.name, "gardener.cloud/operation=reconcile")
    eventually(lambda: sleeper.flows()[0]["workflowId"] != before, "the reconciliation begins", 60)
    sleeper.wait_for_state("Succeeded", SECONDS)

    assert sleeper.get()["status"]["hibernated"] is True
    assert _pods(sleeper) == []


def test_a_shoot_that_wakes_up_has_its_objects(sleeper: Shoot) -> None:
    began = time.monotonic()
    _patch(sleeper, {"hibernation": {"enabled": False, "schedules": None}})
    _await_hibernated(sleeper, False)
    print(f"awake after {time.monotonic() - began:.1f} s")

    memory = json.loads(sleeper.kubectl("get", "configmap", "memory", "-o", "json"))
    assert memory["data"] == {"of": "yesterday"}
    sleeper.control_plane("rollout", "status", "deployment/cluster-autoscaler", "--timeout=90s")
    assert {pool: len(names) for pool, names in sleeper.nodes().items()} == {"pool": 1}, "each has its minimum"
    nodes = json.loads(sleeper.kubectl("get", "nodes", "-o", "json"))["items"]
    conditions = [{each["type"]: each["status"] for each in node["status"]["conditions"]} for node in nodes]
    assert [each["Ready"] for each in conditions] == ["True"]
    for condition in CONDITIONS:
        path = f"--for=condition={condition}"
        sleeper.garden("wait", path, f"shoot/{sleeper.name}", "--timeout=60s", timeout=70)


def test_a_hibernated_shoot_can_be_deleted(sleeper: Shoot) -> None:
    sleeper.kubectl("create", "namespace", "of-the-user")
    _patch(sleeper, {"hibernation": {"enabled": True}})
    _await_hibernated(sleeper, True)
    uid, began = sleeper.uid, time.monotonic()
    sleeper.delete()

    print(f"{uid} is deleted in its sleep in {time.monotonic() - began:.1f} s")
    assert not any(sleeper.traces().values()), sleeper.traces()


def _patch(shoot: Shoot, spec: dict[str, Any]) -> None:
    shoot.garden("patch", "shoot", shoot.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def _await_hibernated(shoot: Shoot, hibernated: bool) -> None:
    path = f"jsonpath={{.status.hibernated}}={str(hibernated).lower()}"
    shoot.garden("wait", f"--for={path}", f"shoot/{shoot.name}", f"--timeout={SECONDS}s", timeout=SECONDS + 10)
    shoot.wait_for_state("Succeeded", SECONDS)


def _operation(shoot: Shoot) -> str:
    annotations: dict[str, str] = shoot.get()["metadata"].get("annotations") or {}
    return annotations.get("gardener.cloud/operation", "")


def _pods(shoot: Shoot) -> list[str]:
    return shoot.control_plane("get", "pods", "-o", "name").split()


def _volumes(shoot: Shoot) -> set[str]:
    """Claims with the names of their volumes."""
    claims = json.loads(shoot.control_plane("get", "persistentvolumeclaims", "-o", "json"))["items"]
    return {f"{claim['metadata']['name']} {claim['spec']['volumeName']}" for claim in claims}
