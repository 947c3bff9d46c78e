"""Attacks by ManagedSeedSets: the controller-manager creates the Shoots of a set, and may use all credentials."""

from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from api.access import seeds_access
from api.constants import SEED_MANAGEMENT
from tests.unit.admission.test_managed_seed_sets import garden_with_a_seed, scaler, set_of_seeds
from tests.unit.admission.test_seed_authorizer import GARDEN, Garden
from tests.unit.admission.test_seed_authorizer import ask as ask_authorizer
from tests.unit.admission.webhooks import FakeGarden, ask
from workers.admission.app import application
from workers.admission.seed_authorizer import application as authorizer


@pytest.mark.attack(actor="T1", asset="A1", finding=17)
@pytest.mark.parametrize(
    ("right", "refused"),
    [
        (("get", "credentialsbindings"), "may not get CredentialsBinding"),
        (("update", "shoots/binding"), "spec.seedName"),
    ],
)
async def test_a_set_gives_its_author_what_the_author_may_not_give_to_a_shoot(
    right: tuple[str, str], refused: str
) -> None:
    garden = garden_with_a_seed(FakeGarden())
    wanted = set_of_seeds()
    wanted["spec"]["shootTemplate"]["spec"]["seedName"] = "seed-1"
    async with TestClient(TestServer(application(garden))) as client:
        allowed: dict[str, Any] = await ask(client, "/validate", "CREATE", wanted)
        garden.denied.add(right)
        answer: dict[str, Any] = await ask(client, "/validate", "CREATE", wanted)

    assert allowed["allowed"], allowed
    assert not answer["allowed"]
    assert refused in answer["status"]["message"]


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
@pytest.mark.parametrize("obj", [set_of_seeds(), scaler()], ids=["set", "autoscaler"])
async def test_a_project_makes_seeds_of_its_own(obj: dict[str, Any]) -> None:
    garden = garden_with_a_seed(FakeGarden())
    obj = {**obj, "metadata": {**obj["metadata"], "namespace": "garden-local"}}
    async with TestClient(TestServer(application(garden))) as client:
        answer: dict[str, Any] = await ask(client, "/validate", "CREATE", obj)

    assert not answer["allowed"]
    assert "metadata.namespace: must be garden" in answer["status"]["message"]


@pytest.mark.attack(actor="T3", asset="A1", finding=4)
@pytest.mark.parametrize(
    "question",
    [
        f"patch managedseedsets.{SEED_MANAGEMENT}/scale garden/pool",
        f"patch managedseedsets.{SEED_MANAGEMENT}/status garden/pool",
        f"create managedseedsets.{SEED_MANAGEMENT} garden/pool",
        f"delete managedseedsets.{SEED_MANAGEMENT} garden/pool",
        f"create seedautoscalers.{SEED_MANAGEMENT} garden/pool",
        "patch controllerrevisions.apps garden/pool-0123456789",
    ],
)
async def test_a_gardenlet_changes_a_set_of_seeds(question: str) -> None:
    """Templates of a set become Shoots of namespace garden, with the cloud credentials of the operator."""
    async with TestClient(TestServer(authorizer(Garden(GARDEN), Garden(GARDEN)))) as client:
        assert not (await ask_authorizer(client, question))["allowed"]

    granted = [
        rule
        for each in seeds_access()
        for rule in each.get("rules", ())
        if {"*", "managedseedsets", "managedseedsets/scale", "seedautoscalers"} & set(rule["resources"])
        and {SEED_MANAGEMENT, "*"} & set(rule["apiGroups"])
    ]
    assert not granted, "the role of unrestricted gardenlets"
