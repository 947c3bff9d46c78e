"""``gardener project members list|add|remove``."""

import json
from typing import Any

import pytest
from aiohttp import web

from tests.unit.cli.conftest import Command
from tests.unit.kube.api_server import ApiServer, refuse

PROJECTS = "/apis/core.gardener.cloud/v1beta1/projects"
ANN = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann", "role": "admin", "roles": ["owner"]}


@pytest.fixture(autouse=True)
def project(garden_server: ApiServer) -> None:
    metadata = {"name": "dev"}
    kind = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Project"}
    garden_server.put(PROJECTS, {**kind, "metadata": metadata, "spec": {"namespace": "garden-dev", "members": [ANN]}})


def members(server: ApiServer) -> dict[str, list[str]]:
    found: Any = server.find(PROJECTS, "dev")
    return {each["name"]: [each["role"], *each.get("roles", [])] for each in found["spec"]["members"]}


async def test_members_are_listed_with_their_roles(command: Command) -> None:
    assert (await command("project", "members", "list", "dev")).stdout == "User ann: admin, owner\n"
    rows = json.loads((await command("project", "members", "list", "dev", "-o", "json")).stdout)
    assert [(each["name"], each["roles"]) for each in rows] == [("ann", ["admin", "owner"])]


async def test_a_new_member_is_a_viewer_unless_a_role_is_named(garden_server: ApiServer, command: Command) -> None:
    await command("project", "members", "add", "dev", "bob")
    await command("project", "members", "add", "dev", "ops", "--kind", "group", "--role", "admin", "--role", "uam")

    assert members(garden_server) == {"ann": ["admin", "owner"], "bob": ["viewer"], "ops": ["admin", "uam"]}


async def test_a_member_gets_more_roles_and_keeps_its_own(garden_server: ApiServer, command: Command) -> None:
    result = await command("project", "members", "add", "dev", "ann", "--role", "uam")

    assert result.stdout == "User ann: admin, owner, uam\n"
    assert (await command("project", "members", "add", "dev", "ann")).stdout == "User ann: admin, owner, uam\n"
    assert members(garden_server) == {"ann": ["admin", "owner", "uam"]}


async def test_a_member_without_a_role_becomes_a_viewer(garden_server: ApiServer, command: Command) -> None:
    """Such a member may be older than the default of the garden."""
    bare = {key: value for key, value in ANN.items() if not key.startswith("role")}
    garden_server.change(PROJECTS, "dev", None, {"spec": {"members": [bare]}})

    assert (await command("project", "members", "add", "dev", "ann")).stdout == "User ann: viewer\n"


async def test_a_role_or_the_whole_member_is_removed(garden_server: ApiServer, command: Command) -> None:
    account = ("robot", "--kind", "serviceaccount", "--namespace", "garden-dev")
    await command("project", "members", "add", "dev", *account, "--role", "admin", "--role", "uam")
    await command("project", "members", "remove", "dev", *account, "--role", "admin")
    assert members(garden_server)["robot"] == ["uam"]

    await command("project", "members", "remove", "dev", *account)
    assert "robot" not in members(garden_server)


async def test_the_owner_cannot_be_removed(garden_server: ApiServer, command: Command) -> None:
    """The garden would add the owner again, and the command would have said that it is gone."""
    owner = {key: ANN[key] for key in ("kind", "apiGroup", "name")}
    garden_server.change(PROJECTS, "dev", None, {"spec": {"owner": owner}})
    await command("project", "members", "add", "dev", "ann", "--role", "uam")

    for roles in ((), ("--role", "owner"), ("--role", "uam", "--role", "admin")):
        result = await command("project", "members", "remove", "dev", "ann", *roles)
        assert result.exit_code == 1
        assert "User ann is the owner of Project dev, and an owner stays a member with roles admin and owner" in (
            result.stderr
        )
    assert members(garden_server) == {"ann": ["admin", "owner", "uam"]}

    await command("project", "members", "remove", "dev", "ann", "--role", "uam")
    assert members(garden_server) == {"ann": ["admin", "owner"]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("list", "gone"), "Project gone does not exist"),
        (("add", "gone", "bob"), "Project gone does not exist"),
        (("remove", "dev", "bob"), "User bob is no member of Project dev"),
        (("remove", "dev", "ann", "--role", "uam"), "User ann does not have role uam"),
    ],
)
async def test_an_unknown_project_or_member_ends_with_status_one(
    command: Command, arguments: tuple[str, ...], complaint: str
) -> None:
    result = await command("project", "members", *arguments)

    assert (result.exit_code, result.stderr) == (1, f"Error: {complaint}\n")


async def test_a_change_of_another_client_is_kept(garden_server: ApiServer, command: Command) -> None:
    """The command reads the members again if the Project has changed since."""
    refused: list[str] = []

    def once(request: web.Request) -> web.Response | None:
        if request.method != "PUT" or refused:
            return None
        refused.append(request.path)
        other = {**ANN, "name": "eve", "role": "viewer", "roles": []}
        garden_server.change(PROJECTS, "dev", None, {"spec": {"members": [ANN, other]}})
        return refuse(409, "Conflict", "the object has been modified")

    garden_server.answer = once
    await command("project", "members", "add", "dev", "bob")

    assert list(members(garden_server)) == ["ann", "eve", "bob"]
