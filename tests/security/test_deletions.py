"""A member deletes more than the rules of the Project and of its namespace allow."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.unit.admission.webhooks import FakeGarden, ask
from tests.unit.api.shoots import PROJECT, changed, complete
from workers.admission.app import application

APPROVALS = [{"resource": "shoots", "selector": {}, "includeServiceAccounts": True}]
CONFIRMED = {"confirmation.gardener.cloud/deletion": "true", "deletion.gardener.cloud/confirmed-by": "alice"}


@pytest.fixture
def garden() -> FakeGarden:
    """A garden with a Project in which two users delete a Shoot."""
    garden = FakeGarden()
    garden.objects.remove(PROJECT)
    garden.objects.append(changed(PROJECT, "spec.dualApprovalForDeletion", APPROVALS))
    return garden


@pytest.fixture
async def client(garden: FakeGarden) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(application(garden))) as client:
        yield client


@pytest.mark.attack(actor="T1", asset="A3", finding=25)
@pytest.mark.parametrize(
    ("user", "group"),
    [
        ("system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccounts:kube-system"),
        ("system:kube-controller-manager", "system:authenticated"),
        ("gardener.cloud:system:controller-manager", "gardener.cloud:system:operators"),
    ],
)
async def test_one_user_has_a_controller_delete_a_shoot_that_two_must_delete(
    client: Any, garden: FakeGarden, user: str, group: str
) -> None:
    """The user confirms, and gives the Shoot an owner that does not exist: the garbage collector then deletes it."""
    shoot = changed(complete("spec.purpose", "evaluation", bound=True).to_wire(), "metadata.annotations", CONFIRMED)

    answer = await ask(client, "/validate", "DELETE", None, shoot, user=user, groups=[group])
    assert not answer["allowed"]
    assert "a controller is no second user" in answer["status"]["message"]
    assert (await ask(client, "/validate", "DELETE", None, shoot, user="bob"))["allowed"]


@pytest.mark.attack(actor="T1", asset="A1", finding=25)
async def test_an_owner_removes_the_finalizer_of_a_project_with_shoots(client: Any, garden: FakeGarden) -> None:
    """No member could change or delete the Shoots afterwards, and their machines would stay."""
    held = changed(PROJECT, "metadata.finalizers", ["gardener"])
    shoot = complete("spec.purpose", "evaluation", bound=True).to_wire()
    garden.objects.append(shoot)

    answer = await ask(client, "/validate", "UPDATE", changed(held, "metadata.finalizers", []), held)
    assert not answer["allowed"]
    assert "it still has Shoots: garden-local/demo" in answer["status"]["message"]
    garden.objects.remove(shoot)
    assert (await ask(client, "/validate", "UPDATE", changed(held, "metadata.finalizers", []), held))["allowed"]
