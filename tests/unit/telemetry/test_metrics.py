"""Metrics of the garden's objects, and of operations and tasks."""

from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.samples import Sample

from api.contracts.flows import FinishOperation
from tests.unit.telemetry.test_tracing import TASK, ApiServer, work
from workers.controller_manager import metrics as garden
from workers.lib.metrics import flows

SHOOT: dict[str, Any] = {
    "metadata": {"name": "demo", "namespace": "garden-local", "creationTimestamp": "2026-11-21T09:00:00Z"},
    "spec": {
        "purpose": "production",
        "region": "local",
        "kubernetes": {"version": "1.37.1"},
        "provider": {"type": "local", "workers": [{"minimum": 1, "maximum": 3}, {"minimum": 2, "maximum": 2}]},
    },
    "status": {
        "seedName": "seed-1",
        "technicalID": "shoot--local--demo",
        "retryCycleStartTime": "2026-11-21T10:00:00Z",
        "lastOperation": {"type": "Reconcile", "state": "Processing", "progress": 40},
        "conditions": [{"type": "APIServerAvailable", "status": "True"}, {"type": "EveryNodeReady", "status": "False"}],
        "constraints": [{"type": "HibernationPossible", "status": "Progressing"}],
    },
}
SEED = {
    "metadata": {"name": "seed-1"},
    "spec": {"provider": {"type": "local", "region": "r"}, "taints": [{"key": "seed.gardener.cloud/protected"}]},
    "status": {
        "conditions": [{"type": "GardenletReady", "status": "Unknown"}],
        "clientCertificateExpirationTimestamp": "2026-11-21T10:00:00Z",
    },
}
PROJECT = {"metadata": {"name": "local"}, "spec": {"namespace": "garden-local"}, "status": {"phase": "Ready"}}


def samples(name: str) -> list[Sample]:
    return [
        sample
        for family in garden.families([SHOOT], [SEED], [PROJECT])
        for sample in family.samples
        if sample.name == name
    ]


@pytest.mark.parametrize(
    ("name", "value", "labels"),
    [
        ("garden_shoot_info", 1, {"name": "demo", "project": "local", "seed": "seed-1", "version": "1.37.1"}),
        ("garden_shoot_operation_states", 2, {"operation": "Reconcile"}),
        ("garden_shoot_operation_progress_percent", 40, {"operation": "Reconcile"}),
        ("garden_shoot_operation_start_timestamp", 1795255200, {"operation": "Reconcile"}),
        ("garden_shoot_creation_timestamp", 1795251600, {}),
        ("garden_shoot_hibernated", 0, {}),
        ("garden_shoot_node_min_total", 3, {}),
        ("garden_shoot_node_max_total", 5, {}),
        ("garden_shoot_operations_total", 1, {"state": "Processing", "seed": "seed-1"}),
        ("garden_seed_info", 1, {"name": "seed-1", "visible": "true", "protected": "true"}),
        ("garden_seed_condition", -1, {"name": "seed-1", "condition": "GardenletReady"}),
        ("garden_seed_client_certificate_expiration_timestamp", 1795255200, {"name": "seed-1"}),
        ("garden_projects_status", 1, {"status": "Ready"}),
    ],
)
def test_an_object_is_shown_under_the_exporters_names(name: str, value: float, labels: dict[str, str]) -> None:
    (sample,) = samples(name)

    assert sample.value == value
    assert labels.items() <= sample.labels.items()


def test_conditions_and_constraints_are_numbers() -> None:
    assert {each.labels["condition"]: each.value for each in samples("garden_shoot_condition")} == {
        "APIServerAvailable": 1,
        "EveryNodeReady": 0,
        "HibernationPossible": 2,
    }


async def test_a_task_is_counted_with_its_wait_and_its_result() -> None:
    def results() -> float:
        labels = {"task": "deploy_something", "result": "succeeded"}
        return REGISTRY.get_sample_value("gardener_flow_task_results_total", labels) or 0.0

    before = results()
    async with ApiServer().running() as api:
        await work(None, api)

    assert results() == before + 1


def test_an_operation_is_measured_from_its_start() -> None:
    labels = {"operation": "Reconcile", "result": "Failed"}
    flows.operation_ended(FinishOperation(task=TASK, attempt=1, state="Failed", description=""))

    assert REGISTRY.get_sample_value("gardener_flow_results_total", labels)
    assert REGISTRY.get_sample_value("gardener_flow_duration_seconds_count", labels)
