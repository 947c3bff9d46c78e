"""``shoots/binding`` sets the seed of a Shoot, and nothing else."""

import copy
from typing import Any

import pytest

from api import resources
from tests.garden_api_server import ALICE, NAMESPACE, VICTOR, Garden

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(120, func_only=True)]


async def shoot(garden: Garden, **spec: Any) -> dict[str, Any]:
    """The Shoot as a user reads it, with changes of its spec."""
    read = copy.deepcopy(await garden.admin.get(resources.SHOOT, "demo", NAMESPACE))
    read["spec"] |= spec
    return read


@pytest.fixture(autouse=True)
async def binders(garden: Garden) -> None:
    """Members may not bind; Victor may, and has no other right to write Shoots."""
    metadata = {"name": "people-binder", "namespace": NAMESPACE}
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": ["core.gardener.cloud"], "resources": ["shoots/binding"], "verbs": ["update"]}]
    for each in (
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "people-binder"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": VICTOR}],
        },
    ):
        await garden.admin.apply(each, manager="test")


async def bind(garden: Garden, user: str, body: dict[str, Any], query: str = "") -> Any:
    return await garden.ask(user, "binding", method="PUT", body=body, query=query)


async def test_a_user_with_the_right_binds_a_shoot_to_a_seed(garden: Garden) -> None:
    bound = await bind(garden, VICTOR, await shoot(garden, seedName="seed-1"))
    moved = await bind(garden, VICTOR, await shoot(garden, seedName="seed-2"))

    assert (bound.status, bound.content["spec"]["seedName"]) == (200, "seed-1"), bound.content
    assert (moved.status, moved.content["spec"]["seedName"]) == (200, "seed-2")
    assert (await shoot(garden))["spec"]["seedName"] == "seed-2"


async def test_a_dry_run_binds_nothing(garden: Garden) -> None:
    answer = await bind(garden, VICTOR, await shoot(garden, seedName="seed-1"), "?dryRun=All")

    assert answer.content["spec"]["seedName"] == "seed-1"
    assert "seedName" not in (await shoot(garden))["spec"]


async def test_a_member_without_the_right_binds_nothing(garden: Garden) -> None:
    answer = await bind(garden, ALICE, await shoot(garden, seedName="seed-1"))

    assert answer.status == 403
    assert 'User "alice" cannot update resource "shoots/binding"' in answer.message
    assert "seedName" not in (await shoot(garden))["spec"]


@pytest.mark.parametrize(
    ("spec", "status", "said"),
    [
        ({"seedName": "seed-1", "region": "elsewhere"}, 403, "only spec.seedName can be changed"),
        ({}, 422, "spec.seedName: Required value"),
        ({"seedName": 1}, 422, "spec.seedName: Required value"),
    ],
)
async def test_nothing_but_the_seed_changes(garden: Garden, spec: dict[str, Any], status: int, said: str) -> None:
    answer = await bind(garden, VICTOR, await shoot(garden, **spec))

    assert answer.status == status
    assert said in answer.message


@pytest.mark.parametrize("field", ["resourceVersion", "uid"])
async def test_a_shoot_that_has_changed_is_not_bound(garden: Garden, field: str) -> None:
    read = await shoot(garden, seedName="seed-1")
    read["metadata"][field] = "1"

    answer = await bind(garden, VICTOR, read)

    assert (answer.status, answer.content["reason"]) == (409, "Conflict")
