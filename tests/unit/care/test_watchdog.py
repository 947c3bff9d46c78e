"""When controllers are stopped, and how they come back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.seed import rollout
from tests.unit.kube.api_server import ApiServer
from workers.gardenlet.care import watchdog
from workers.gardenlet.care.watchdog import Verdict

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
DEPLOYMENTS = "/apis/apps/v1/deployments"
NAMESPACE = "shoot--local--demo"
DISABLED = {"prober": {"enabled": False}, "weeder": {"enabled": False}}


def node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def lease(name: str, ago: float) -> dict[str, Any]:
    renewed = (NOW - timedelta(seconds=ago)).isoformat()
    return {"metadata": {"name": name}, "spec": {"leaseDurationSeconds": 40, "renewTime": renewed}}


@pytest.mark.parametrize(
    ("ages", "verdict"),
    [
        ([], Verdict.UNKNOWN),
        ([5], Verdict.REPORTING),
        ([60], Verdict.SILENT),
        ([60, 5], Verdict.REPORTING),
        ([60, 60, 5], Verdict.SILENT),
        ([60, 60, 60, 5, 5], Verdict.SILENT),
        ([60, 60, 5, 5, 5], Verdict.REPORTING),
    ],
)
def test_missing_leases_of_most_nodes_mean_a_broken_connection(ages: list[float], verdict: Verdict) -> None:
    """One silent node is broken; most of them at once cannot reach the API server."""
    nodes = [node(f"n{index}") for index in range(len(ages))]
    leases = [lease(f"n{index}", ago) for index, ago in enumerate(ages)]

    assert watchdog.judge(nodes, [*leases, lease("gone", 999)], 0.6, NOW) is verdict


def deployment(name: str, replicas: int, **annotations: str) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": "1", "annotations": annotations}
    return {"metadata": metadata, "spec": {"replicas": replicas}}


RUNNING = {name: deployment(name, 2) for name in ("kube-controller-manager", "machine-controller-manager", "other")}


def test_controllers_are_stopped_once_and_restored_to_their_replicas() -> None:
    stopped = watchdog.stop(RUNNING)

    assert [(each.name, each.patch["spec"]["replicas"]) for each in stopped] == [
        ("machine-controller-manager", 0),
        ("kube-controller-manager", 0),
    ]
    after = {each.name: deployment(each.name, 0, **each.patch["metadata"]["annotations"]) for each in stopped}
    assert watchdog.stop(after) == []
    started = watchdog.start(after)
    assert [(each.name, each.patch["spec"]["replicas"]) for each in started] == [
        ("kube-controller-manager", 2),
        ("machine-controller-manager", 2),
    ]
    assert set(started[0].patch["metadata"]["annotations"].values()) == {None}


def test_controllers_stopped_by_others_stay_stopped() -> None:
    """Hibernation, or an operator."""
    asleep = {"kube-controller-manager": deployment("kube-controller-manager", 0)}

    assert watchdog.stop(asleep) == []
    assert watchdog.start(asleep) == []


async def test_a_reconciliation_leaves_stopped_controllers_stopped() -> None:
    wanted: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kube-controller-manager", "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "x"}]}},
        },
    }
    async with ApiServer().running() as api, api.client() as seed:
        await rollout.deploy(seed, [wanted])
        live = api.find(DEPLOYMENTS, "kube-controller-manager", NAMESPACE) or {}
        (stop,) = watchdog.stop({"kube-controller-manager": live})
        api.change(DEPLOYMENTS, "kube-controller-manager", NAMESPACE, dict(stop.patch))
        changed = {**wanted, "spec": {**wanted["spec"], "minReadySeconds": 1}}
        await rollout.deploy(seed, [changed])
        kept = api.find(DEPLOYMENTS, "kube-controller-manager", NAMESPACE) or {}

    assert kept["spec"]["replicas"] == 0
    assert kept["spec"]["minReadySeconds"] == 1
