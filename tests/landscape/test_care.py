"""Conditions of a cluster while a part of it is broken, and controllers that are stopped meanwhile.

The tests run in the order in which they stand.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.landscape.shoots import NAMESPACE, Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(300, func_only=True)]

STOPPED = ("kube-controller-manager", "machine-controller-manager")
"""They would replace nodes that cannot report."""
SILENCE = 120
"""Seconds until leases of 40 s have expired and that was seen often enough."""


@pytest.fixture(scope="module")
def silent(shoot: Shoot) -> Iterator[Shoot]:
    """The cluster, with nodes that have no way to their API server any more."""
    _wait_until_well(shoot)
    _on_machines(shoot, "add")
    yield shoot
    _on_machines(shoot, "del", strict=False)
    _wait_until_well(shoot)


def test_controllers_rest_while_no_node_can_report(silent: Shoot) -> None:
    """A node that is only cut off runs on; a controller that replaced it would end its pods."""
    machines = _machines(silent)

    eventually(lambda: set(_replicas(silent).values()) == {0}, "controllers are stopped", SILENCE)

    assert _machines(silent) == machines
    eventually(lambda: _reason(silent, "ControlPlaneHealthy") == "ControllersScaledDown", "that is told", 90)
    condition = _conditions(silent)["ControlPlaneHealthy"]
    assert condition["status"] in ("Progressing", "False")
    assert condition["message"].endswith(", ".join(STOPPED))


def test_each_condition_says_what_is_wrong(silent: Shoot) -> None:
    eventually(lambda: _reason(silent, "EveryNodeReady") == "NodeUnhealthy", "nodes are unhealthy", 90)
    # Its own pods on the nodes, once they are counted out; the tunnel before that.
    faults = ("DaemonSetUnhealthy", "DeploymentUnhealthy", "TunnelConnectionBroken")
    eventually(lambda: _reason(silent, "SystemComponentsHealthy") in faults, "system components are missed", 90)
    conditions = _conditions(silent)
    assert conditions["SystemComponentsHealthy"]["status"] in ("Progressing", "False")
    assert conditions["APIServerAvailable"]["status"] == "True", "clients in the seed still reach it"
    labels = silent.get()["metadata"]["labels"]
    assert labels["shoot.gardener.cloud/status"] in ("progressing", "unhealthy")


def test_controllers_come_back_with_the_nodes(silent: Shoot) -> None:
    machines = _machines(silent)

    _on_machines(silent, "del")

    eventually(lambda: set(_replicas(silent).values()) == {1}, "controllers are started again", 90)
    _wait_until_well(silent)
    assert _machines(silent) == machines
    nodes = json.loads(silent.kubectl("get", "nodes", "-o", "json"))["items"]
    assert {node["metadata"]["name"] for node in nodes} == machines


def test_a_missing_component_is_named_and_restored_by_a_reconciliation(shoot: Shoot) -> None:
    _wait_until_well(shoot)
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps(_WEBHOOK))
    shoot.control_plane("delete", "deployment", "kube-scheduler")

    eventually(lambda: _reason(shoot, "ControlPlaneHealthy") == "DeploymentMissing", "the Deployment is missed", 90)
    message = _conditions(shoot)["ControlPlaneHealthy"]["message"]
    assert message == f"Deployment {shoot.technical_id}/kube-scheduler does not exist"
    constraint = eventually(lambda: _constraint(shoot, "False"), "the webhook is seen", 90)
    assert "owners-webhook" in constraint["message"]
    assert "scheduling.k8s.io/priorityclasses with failurePolicy Fail" in constraint["message"]

    shoot.kubectl("delete", "validatingwebhookconfiguration", _WEBHOOK["metadata"]["name"])
    shoot.garden("annotate", "shoot", shoot.name, "gardener.cloud/operation=reconcile")
    _wait_until_well(shoot)
    eventually(lambda: _constraint(shoot, "True"), "the constraint holds again", 90)
    assert shoot.control_plane("get", "deployment", "kube-scheduler", "-o", "name")


_WEBHOOK: dict[str, Any] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "owners-webhook"},
    "webhooks": [
        {
            "name": "no.answers.example",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "rules": [
                {
                    "apiGroups": ["scheduling.k8s.io"],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["priorityclasses"],
                }
            ],
        }
    ],
}
"""It is asked for nothing that these tests do."""


def _on_machines(shoot: Shoot, verb: str, *, strict: bool = True) -> None:
    """Add or delete a route that drops packets to the seed, on every machine."""
    address = shoot.address_of(shoot.host_names[0])
    for machine in sorted(_machines(shoot)):
        command = f"ip route {verb} blackhole {address}" + ("" if strict else " || true")
        infrastructure = f"infra-{shoot.technical_id}"
        shoot.landscape.kubectl("cloud", "-n", infrastructure, "exec", machine, "--", "sh", "-c", command)


def _machines(shoot: Shoot) -> set[str]:
    listed = shoot.landscape.kubectl("cloud", "-n", f"infra-{shoot.technical_id}", "get", "pods", "-o", "name")
    return {line.removeprefix("pod/") for line in listed.split()}


def _replicas(shoot: Shoot) -> dict[str, int]:
    found = json.loads(shoot.control_plane("get", "deployment", *STOPPED, "-o", "json"))["items"]
    return {each["metadata"]["name"]: each["spec"]["replicas"] for each in found}


def _conditions(shoot: Shoot) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in shoot.get()["status"]["conditions"]}


def _reason(shoot: Shoot, condition: str) -> str:
    reason: str = _conditions(shoot)[condition]["reason"]
    return reason


def _constraint(shoot: Shoot, status: str) -> dict[str, Any] | None:
    constraints = {each["type"]: each for each in shoot.get()["status"]["constraints"]}
    found: dict[str, Any] = constraints["HibernationPossible"]
    return found if found["status"] == status else None


def _wait_until_well(shoot: Shoot) -> None:
    """All conditions hold, and nothing runs."""
    shoot.wait_for_state("Succeeded", 120)

    def well() -> bool:
        return all(each["status"] == "True" for each in _conditions(shoot).values())

    eventually(well, f"all conditions of {NAMESPACE}/{shoot.name} hold", 180)
