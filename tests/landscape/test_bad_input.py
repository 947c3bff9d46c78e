"""Mistakes of users: refused where possible, else reported in the Shoot, which continues after the correction."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import CREATION, DELETION, NAMESPACE, CloudCredentials, Shoot, eventually, refused

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(120, func_only=True)]


CREDENTIALS = "not-accepted"
"""Name of a Secret with credentials that the cloud does not accept, and of the binding to it."""
TOO_LARGE = {"name": "larger-than-the-cloud", "cpu": "2", "gpu": "0", "memory": "100Ti", "architecture": "amd64"}
"""Type of a machine for which the cloud has no room: a creation that waits for it stays where it is."""


def _pool(**fields: Any) -> dict[str, Any]:
    return {"name": "pool", "machine": {"type": "local"}, "minimum": 1, "maximum": 2} | fields


def _workers(**fields: Any) -> dict[str, Any]:
    return {"provider": {"type": "local", "workers": [_pool(**fields)]}}


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"regoin": "local"}, 'unknown field "spec.regoin"'),
        (_workers(machines=3), 'unknown field "spec.provider.workers[0].machines"'),
        (_workers(minimum="many"), "spec.provider.workers[0].minimum in body must be of type integer"),
        (_workers(minimum=3), "spec.provider.workers[0].minimum: Forbidden: must not be greater than maximum 2"),
        (_workers(machine={"type": "huge"}), 'Unsupported value: "huge": supported values: "local"'),
        (
            {"cloudProfile": {"name": "none"}},
            'spec.cloudProfile.name: Not found: "none": there is no such CloudProfile',
        ),
        (
            {"credentialsBindingName": "none"},
            'spec.credentialsBindingName: Not found: "none": there is no such CredentialsBinding',
        ),
        ({"seedName": "none"}, 'spec.seedName: Not found: "none": there is no such Seed'),
        ({"region": "mars"}, 'spec.region: Unsupported value: "mars": supported values: "local"'),
        ({"networking": {"type": "none"}}, "no extension is registered for Network; registered: ['flannel']"),
        (
            {"kubernetes": {"version": "9.9.9"}},
            'spec.kubernetes.version: Unsupported value: "9.9.9": supported values: ',
        ),
        ({"kubernetes": {"version": "latest"}}, "spec.kubernetes.version: Invalid value"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_impossible_spec_is_refused_with_the_field(
    landscape: Landscape, tmp_path: Any, change: dict[str, Any], answer: str
) -> None:
    shoot = Shoot(landscape, "impossible", tmp_path)
    kubectl: list[str | Path] = [BIN / "kubectl", f"--kubeconfig={landscape.directory}/kubeconfigs/garden.yaml"]

    said = refused(*kubectl, "create", "-f", "-", stdin=json.dumps(shoot.manifest(**change)))

    assert answer in said


def test_an_accepted_field_without_effect_is_reported(landscape: Landscape, tmp_path: Any) -> None:
    manifest = Shoot(landscape, "possible", tmp_path).manifest(
        monitoring={"alerting": {"emailReceivers": ["a@example.org"]}}
    )
    command = landscape.argv("garden", "create", "--dry-run=server", "-f", "-")

    done = subprocess.run(command, input=json.dumps(manifest), capture_output=True, text=True, timeout=60, check=True)

    assert "Warning: spec.monitoring.alerting.emailReceivers: this garden sends no mails" in done.stderr


# Wrong credentials for the cloud cannot be noticed before their use. The tests run in the order in which they stand.


@pytest.fixture(scope="module")
def unauthenticated(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot whose binding names a Secret that the cloud does not accept; its operation has failed.

    With other credentials its creation comes as far as its machine, for which the cloud has no room.
    """
    shoot = Shoot(landscape, "wrong", tmp_path_factory.mktemp("kubeconfigs"))
    credentials = CloudCredentials(shoot, CREDENTIALS)
    credentials.write(credentials.with_token("unknown-token"))
    credentials.bind()
    profile = _profile_with(TOO_LARGE)
    shoot.garden("apply", "-f", "-", stdin=json.dumps(profile))
    shoot.garden("wait", "--for=jsonpath={.status.observedGeneration}=1", _PROFILE, "--timeout=60s", timeout=70)
    manifest = shoot.manifest(
        credentialsBindingName=CREDENTIALS,
        cloudProfile={"kind": profile["kind"], "name": profile["metadata"]["name"]},
    )
    manifest["spec"]["provider"]["workers"][0]["machine"]["type"] = TOO_LARGE["name"]
    shoot.apply(manifest)
    shoot.wait_for_state("Failed", CREATION)
    assert shoot.uid
    yield shoot
    credentials.write(credentials.good)
    shoot.remove()
    credentials.remove()
    shoot.garden("delete", _PROFILE)


@pytest.fixture(scope="module")
def finished(unauthenticated: Shoot) -> frozenset[str]:
    """Tasks that the first attempt has finished."""
    return frozenset(task["name"] for task in unauthenticated.flow()["tasks"] if task["state"] == "Finished")


def test_wrong_credentials_are_reported_with_a_code_and_a_remedy(unauthenticated: Shoot) -> None:
    status = unauthenticated.get()["status"]

    [error] = status["lastErrors"]
    assert error["codes"] == ["ERR_INFRA_UNAUTHENTICATED"]
    assert error["taskID"] == "wait_infrastructure"
    assert "check the Secret behind the Shoot's binding" in error["description"]
    assert "unknown-token" not in json.dumps(status)
    assert status["lastOperation"]["type"] == "Create"
    assert "wait_infrastructure" in status["lastOperation"]["description"]


def test_a_change_of_an_immutable_field_is_refused(unauthenticated: Shoot) -> None:
    change = json.dumps({"spec": {"region": "mars"}})
    kubectl = unauthenticated.landscape.argv("garden", "-n", NAMESPACE)

    said = refused(*kubectl, "patch", "shoot", unauthenticated.name, "--type=merge", "-p", change)

    assert "spec.region" in said
    assert "immutable" in said


def test_only_tasks_that_need_the_cloud_are_blocked(unauthenticated: Shoot) -> None:
    states = {task["name"]: task["state"] for task in unauthenticated.flow()["tasks"]}

    assert states["wait_infrastructure"] == "Failed"
    assert states["deploy_worker"] == "Blocked"
    assert states["wait_apiserver"] == "Finished"


def test_an_error_that_only_a_user_can_fix_is_not_retried(unauthenticated: Shoot) -> None:
    """Not in the operation, and not by another one."""
    [flow] = unauthenticated.flows()
    task = next(each for each in unauthenticated.flow()["tasks"] if each["name"] == "wait_infrastructure")

    assert (flow["state"], flow["attempt"], task["attempts"]) == ("Failed", "1", 1)
    described = unauthenticated.garden("describe", "shoot", unauthenticated.name)
    assert "ReconcileError" in described


@pytest.mark.timeout(CREATION + 60, func_only=True)
def test_once_fixed_the_operation_continues_from_the_failed_task(
    unauthenticated: Shoot, finished: frozenset[str]
) -> None:
    shoot = unauthenticated
    credentials = CloudCredentials(shoot, CREDENTIALS)
    credentials.write(credentials.good)
    if len(shoot.flows()) == 1:  # if the test runs again, its attempt is there
        shoot.garden("annotate", "shoot", shoot.name, "gardener.cloud/operation=retry")

    eventually(lambda: len(shoot.flows()) == 2, "a second attempt", 30)
    flow = eventually(lambda: _once(shoot, "deploy_worker"), "the second attempt orders machines", CREATION)
    tasks = {task["name"]: task for task in flow["tasks"]}
    assert (flow["operation"], flow["generation"], flow["attempt"]) == ("Create", 2, 2)
    kept = {name for name, task in tasks.items() if task["state"] == "Kept"}
    assert {"init_secrets", "wait_etcds", "wait_apiserver", "deploy_resource_manager"} <= kept
    assert kept <= finished, "only what was finished is kept"
    assert tasks["deploy_cloud_secret"]["state"] == "Finished", "its copy of the credentials was wrong"
    assert tasks["wait_infrastructure"]["state"] == "Finished"
    assert "gardener.cloud/operation" not in shoot.get()["metadata"]["annotations"]
    assert not shoot.get()["status"].get("lastErrors")


@pytest.mark.slow
@pytest.mark.timeout(CREATION + DELETION, func_only=True)
def test_a_shoot_deleted_during_its_creation_leaves_nothing(unauthenticated: Shoot) -> None:
    shoot = unauthenticated
    last = shoot.get()["status"]["lastOperation"]
    assert (last["type"], last["state"]) == ("Create", "Processing"), "this test begins in the middle of a creation"

    shoot.delete()

    assert shoot.traces() == {"garden": [], "seed": [], "cloud": [], "dns": [], "bucket": []}
    newest = shoot.flows()[0]
    assert (newest["operation"], newest["state"]) == ("Delete", "Completed")


def _once(shoot: Shoot, task: str) -> dict[str, Any] | None:
    """The flow, once it has come to a task."""
    flow = shoot.flow()
    return flow if any(each["name"] == task and each["started"] for each in flow["tasks"]) else None


_PROFILE = f"namespacedcloudprofile/{TOO_LARGE['name']}"


def _profile_with(machine_type: dict[str, str]) -> dict[str, Any]:
    """A profile of the project that adds a type of machines, and has its name."""
    return {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "NamespacedCloudProfile",
        "metadata": {"name": machine_type["name"]},
        "spec": {"parent": {"kind": "CloudProfile", "name": "local"}, "machineTypes": [machine_type]},
    }
