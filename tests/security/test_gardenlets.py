"""Attacks by Gardenlets: a gardenlet deploys the chart that its Gardenlet names, with all its rights in the seed."""

from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.unit.admission.test_managed_seeds import gardenlet
from tests.unit.admission.test_seed_authorizer import GARDEN, SEED_MANAGEMENT, Garden
from tests.unit.admission.test_seed_authorizer import ask as ask_authorizer
from tests.unit.admission.webhooks import FakeGarden, ask
from workers.admission.app import application
from workers.admission.seed_authorizer import application as authorizer


@pytest.mark.attack(actor="T1", asset="A2", finding=18)
async def test_a_project_names_the_chart_of_a_seeds_gardenlet() -> None:
    async with TestClient(TestServer(application(FakeGarden()))) as client:
        answer: dict[str, Any] = await ask(client, "/validate", "CREATE", gardenlet(namespace="garden-local"))

    assert not answer["allowed"]
    assert "metadata.namespace: must be garden" in answer["status"]["message"]


@pytest.mark.attack(actor="T3", asset="A2", finding=4)
@pytest.mark.parametrize(
    "question",
    [
        f"get gardenlets.{SEED_MANAGEMENT} garden/seed-2",
        f"list gardenlets.{SEED_MANAGEMENT} garden/",
        f"watch gardenlets.{SEED_MANAGEMENT}",
        f"patch gardenlets.{SEED_MANAGEMENT} garden/seed-2",
        f"patch gardenlets.{SEED_MANAGEMENT}/status garden/seed-2",
        f"patch gardenlets.{SEED_MANAGEMENT} elsewhere/seed-1",
        f"create gardenlets.{SEED_MANAGEMENT} garden/seed-1",
        f"delete gardenlets.{SEED_MANAGEMENT} garden/seed-1",
        "get secrets garden/pull-seed-2",
        "get secrets elsewhere/pull-seed-1",
        "patch secrets garden/pull-seed-1",
    ],
)
async def test_a_gardenlet_reaches_the_upgrade_of_another_seed(question: str) -> None:
    """Credentials of a registry, and the chart of another seed's gardenlet, are not for this seed."""
    async with TestClient(TestServer(authorizer(Garden(GARDEN), Garden(GARDEN)))) as client:
        assert not (await ask_authorizer(client, question))["allowed"]
