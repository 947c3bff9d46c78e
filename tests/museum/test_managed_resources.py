"""ManagedResources, and the objects that they make."""

from typing import Any

import pytest

from tests.unit.kube.waiting import until
from tests.unit.resource_manager.conftest import clients, manager, source, target
from tests.unit.resource_manager.test_garbage_collector import LABEL

__all__ = ["clients", "manager", "source", "target"]

BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
CONFIG_MAPS = "/api/v1/configmaps"


@pytest.mark.exhibit(
    threads=["gardener/gardener#7156"],
    happened="The deletion of a ManagedResource left all objects with the label for garbage collection, but the "
    "collector deletes ConfigMaps and Secrets alone, so that other kinds stayed for ever.",
    here="The deletion leaves only ConfigMaps and Secrets to the collector.",
)
async def test_gardener_7156_a_label_for_garbage_saves_no_other_kind(manager: Any, target: Any) -> None:
    metadata = {"name": "app", "namespace": "kube-system", "labels": LABEL}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": {}}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    manager.write(budget, settings)
    await manager.start(garbageCollector={"enabled": True})
    await manager.sees("Applied", "True")
    assert target.find(BUDGETS, "app", "kube-system")

    manager.delete()

    await until(lambda: manager.get() is None)
    assert target.find(BUDGETS, "app", "kube-system") is None
    assert target.find(CONFIG_MAPS, "app", "kube-system"), "the collector deletes it"
