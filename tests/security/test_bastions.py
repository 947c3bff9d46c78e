"""A member opens the Bastion of another member to addresses of his own."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.unit.admission.test_bastion import BASTION, PROVIDER, SHOOT
from tests.unit.admission.webhooks import FakeGarden, ask, patched
from tests.unit.api.shoots import changed
from workers.admission.app import application

MINE = [{"ipBlock": {"cidr": "198.51.100.7/32"}}]


@pytest.fixture
async def client() -> AsyncIterator[TestClient[Any, Any]]:
    garden = FakeGarden()
    garden.objects += [SHOOT, PROVIDER]
    async with TestClient(TestServer(application(garden))) as client:
        yield client


@pytest.fixture
async def of_alice(client: TestClient[Any, Any]) -> dict[str, Any]:
    return patched(changed(BASTION), await ask(client, "/mutate", "CREATE", BASTION, user="alice"))


@pytest.mark.attack(actor="T1", asset="A3", finding=18)
async def test_a_member_changes_the_sources_of_the_bastion_of_another(
    client: TestClient[Any, Any], of_alice: dict[str, Any]
) -> None:
    opened = changed(of_alice, "spec.ingress", MINE)

    response = await ask(client, "/validate", "UPDATE", opened, of_alice, user="mallory")
    assert not response["allowed"]
    assert "spec.ingress: Forbidden: only its creator alice may change it" in response["status"]["message"]
    assert (await ask(client, "/validate", "UPDATE", opened, of_alice, user="alice"))["allowed"]


@pytest.mark.attack(actor="T1", asset="A3", finding=18)
async def test_a_member_becomes_the_creator_of_the_bastion_of_another(
    client: TestClient[Any, Any], of_alice: dict[str, Any]
) -> None:
    taken = changed(of_alice, "metadata.annotations", {"gardener.cloud/created-by": "mallory"})

    response = await ask(client, "/validate", "UPDATE", changed(taken, "spec.ingress", MINE), of_alice, user="mallory")
    assert not response["allowed"]
    assert "field is immutable" in response["status"]["message"]


async def test_another_member_may_keep_a_bastion_alive(client: TestClient[Any, Any], of_alice: dict[str, Any]) -> None:
    kept = changed(of_alice, "metadata.annotations", {
        **of_alice["metadata"]["annotations"], "gardener.cloud/operation": "keepalive",
    })  # fmt: skip

    assert (await ask(client, "/validate", "UPDATE", kept, of_alice, user="bob"))["allowed"]
