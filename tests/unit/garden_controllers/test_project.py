"""A Project gets its namespace, and gives it back."""

import pytest

from api import resources
from tests.unit.api.shoots import PROJECT, SHOOT, changed
from tests.unit.garden_controllers.conftest import CORE
from workers.controller_manager.project import run_project_controller

LABELS = {"gardener.cloud/role": "project", "project.gardener.cloud/name": "local"}
MARK = "namespace.gardener.cloud/created-by-project-controller"


def phase(wanted):
    return lambda project: (project or {}).get("status", {}).get("phase") == wanted


def gone(obj):
    return obj is None


async def test_a_namespace_is_made_and_marked(garden):
    async with garden.running(run_project_controller(garden.client, garden.caches)):
        await garden.becomes(resources.PROJECT, "local", None, phase("Ready"))
    namespace = garden.api.find("/api/v1/namespaces", "garden-local")
    assert LABELS.items() <= namespace["metadata"]["labels"].items()
    assert namespace["metadata"]["annotations"][MARK] == "true"
    assert garden.api.find(f"{CORE}/projects", "local")["metadata"]["finalizers"] == ["gardener"]


async def test_a_name_is_chosen_for_who_does_not_care(garden):
    garden.api.put(f"{CORE}/projects", changed(PROJECT, "spec", {}))
    async with garden.running(run_project_controller(garden.client, garden.caches)):
        await garden.becomes(resources.PROJECT, "local", None, phase("Ready"))
    assert garden.api.find(f"{CORE}/projects", "local")["spec"]["namespace"] == "garden-local-1dee6"


async def test_a_foreign_namespace_is_not_taken(garden):
    garden.api.put("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "garden-local"}})
    async with garden.running(run_project_controller(garden.client, garden.caches)):
        await garden.becomes(resources.PROJECT, "local", None, phase("Failed"))
        [(reason, message)] = await garden.events(1)
    assert reason == "NamespaceReconcileFailed"
    assert "is not marked for project local" in message
    assert "labels" not in garden.api.find("/api/v1/namespaces", "garden-local")["metadata"]


@pytest.mark.parametrize("made", [True, False], ids=["made", "adopted"])
async def test_a_project_goes_after_its_shoots_and_takes_only_what_it_made(garden, made):
    if not made:
        namespace = {"kind": "Namespace", "metadata": {"name": "garden-local", "labels": LABELS}}
        garden.api.put("/api/v1/namespaces", namespace)
    garden.api.put(f"{CORE}/shoots", changed(SHOOT))
    async with garden.running(run_project_controller(garden.client, garden.caches)):
        await garden.becomes(resources.PROJECT, "local", None, phase("Ready"))
        await garden.client.delete(resources.PROJECT, "local")
        await garden.becomes(resources.PROJECT, "local", None, phase("Terminating"))
        assert ("NamespaceNotEmpty", "still has Shoots: demo") in await garden.events(2)
        garden.api.remove(f"{CORE}/shoots", "demo", "garden-local")
        await garden.becomes(resources.PROJECT, "local", None, gone)
    namespace = garden.api.find("/api/v1/namespaces", "garden-local")
    assert (namespace is None) == made
