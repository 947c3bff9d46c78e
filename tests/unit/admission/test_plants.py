"""A Plant names a Secret that its author may read, and the Secret keeps what the Plant needs."""

import json
from typing import Any

import pytest

from tests.unit.admission.webhooks import ask
from tests.unit.api.shoots import changed
from tests.unit.api.test_plants import PLANT, encoded, kubeconfig

SECRET: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "crazy-kubeconfig", "namespace": "garden-local"},
    "data": {"kubeconfig": encoded(json.dumps(kubeconfig()).encode())},
}
RUNS = changed(SECRET, "data.kubeconfig", encoded(json.dumps(kubeconfig(user={"exec": {"command": "sh"}})).encode()))


@pytest.fixture
def garden(garden: Any) -> Any:
    garden.objects.append(SECRET)
    return garden


async def refusal(client: Any, *args: Any) -> str:
    response = await ask(client, "/validate", *args)
    assert not response["allowed"]
    return str(response["status"]["message"])


async def test_a_plant_with_a_usable_kubeconfig_is_accepted(client, garden):
    assert (await ask(client, "/validate", "CREATE", PLANT))["allowed"]
    assert (await ask(client, "/validate", "DELETE", None, PLANT))["allowed"]


async def test_a_secret_that_does_not_exist_is_named(client, garden):
    garden.objects.remove(SECRET)
    told = await refusal(client, "CREATE", PLANT)
    assert 'spec.secretRef.name: Not found: "crazy-kubeconfig": there is no such Secret' in told


async def test_the_author_of_a_plant_must_be_allowed_to_read_its_secret(client, garden):
    """The controller-manager would use the credentials of another author. The answer does not tell if they exist."""
    garden.denied.add(("get", "secrets"))
    told = await refusal(client, "CREATE", PLANT)
    assert "user alice may not get Secret garden-local/crazy-kubeconfig" in told
    garden.objects.remove(SECRET)
    assert await refusal(client, "CREATE", PLANT) == told
    relabelled = changed(PLANT, "spec.endpoints", [])
    assert (await ask(client, "/validate", "UPDATE", relabelled, PLANT))["allowed"], "the reference is not new"


async def test_a_kubeconfig_that_runs_a_program_is_refused_in_a_plant_and_in_its_secret(client, garden):
    garden.objects[garden.objects.index(SECRET)] = RUNS
    assert "exec: Forbidden: runs a program" in await refusal(client, "CREATE", PLANT)
    garden.objects.append(PLANT)
    without = changed(SECRET, "data", {})
    told = await refusal(client, "UPDATE", without, SECRET)
    assert "file: Required value: is empty: Plant crazy names it" in told
    private = encoded(json.dumps(kubeconfig("https://localhost")).encode())
    assert "Plant crazy names it" in await refusal(
        client, "UPDATE", changed(SECRET, "data.kubeconfig", private), SECRET
    )


async def test_a_plant_belongs_to_a_project(client, garden):
    """Its namespace is deleted with the Project, and members of the Project may see it."""
    elsewhere = changed(PLANT, "metadata.namespace", "default")
    assert "metadata.namespace: default belongs to no Project" in await refusal(client, "CREATE", elsewhere)


async def test_a_secret_keeps_its_finalizer_while_a_plant_names_it(client, garden):
    garden.objects.append(PLANT)
    held = changed(SECRET, "metadata.finalizers", ["gardener.cloud/reference-protection"])
    response = await ask(client, "/protect-references", "UPDATE", changed(held, "metadata.finalizers", []), held)
    assert "cannot be removed: Plants refer to it: crazy" in response["status"]["message"]
