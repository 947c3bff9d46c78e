"""Roles and bindings of a Project follow its members, whatever others do to them."""

import pytest

from api import resources
from tests.unit.api.shoots import PROJECT, changed
from tests.unit.garden_controllers.conftest import CORE
from tests.unit.kube.waiting import until
from workers.controller_manager.project import run_project_controller

RBAC = "/apis/rbac.authorization.k8s.io/v1"
SYSTEM, EXTENSION = "gardener.cloud:system:", "gardener.cloud:extension:project:local:"
MEMBERS = [
    {"kind": "User", "name": "olga", "roles": ["admin", "owner"]},
    {"kind": "User", "name": "vera", "roles": ["viewer", "extension:x"]},
    {"kind": "User", "name": "vito", "roles": ["viewer"]},
]


def with_members(*members):
    return changed(changed(PROJECT, "spec.members", list(members)), "spec.owner", {"kind": "User", "name": "olga"})


@pytest.fixture
async def running(garden):
    garden.api.put(f"{CORE}/projects", with_members(*MEMBERS))
    async with garden.running(run_project_controller(garden.client, garden.caches)):
        await until(lambda: bound(garden, "project-viewer") == ["vera", "vito"])
        await until(lambda: bound(garden, "x", EXTENSION) == ["vera"])
        yield garden


def bound(garden, role, prefix=SYSTEM, kind="rolebindings", namespace="garden-local"):
    """Names of the subjects of a binding; None if there is no such binding."""
    found = garden.api.find(f"{RBAC}/{kind}", f"{prefix}{role}", namespace)
    return found and [each["name"] for each in found.get("subjects") or ()]


def of_the_cluster(garden, role):
    return bound(garden, role, kind="clusterrolebindings", namespace=None)


def members(garden, *left):
    garden.api.change(f"{CORE}/projects", "local", None, {"spec": {"members": list(left)}})


async def test_a_member_who_leaves_loses_the_rights(running):
    members(running, *MEMBERS[:2])

    await until(lambda: bound(running, "project-viewer") == ["vera"])
    await until(lambda: of_the_cluster(running, "project-viewer:local") == ["vera"])


async def test_a_role_that_no_member_has_any_more_is_deleted(running):
    members(running, MEMBERS[0])

    await until(lambda: bound(running, "project-viewer") is None)
    await until(lambda: bound(running, "x", EXTENSION) is None)
    await until(lambda: of_the_cluster(running, "project-viewer:local") is None)
    await until(lambda: running.api.find(f"{RBAC}/clusterroles", f"{EXTENSION}x") is None)


@pytest.mark.parametrize("kind", ["rolebindings", "clusterrolebindings"])
async def test_a_subject_that_another_user_adds_is_taken_out(running, kind):
    name, namespace = ("project-viewer", "garden-local") if kind == "rolebindings" else ("project-viewer:local", None)
    subjects = [{"kind": "User", "name": each} for each in ("vera", "vito", "eve")]

    running.api.change(f"{RBAC}/{kind}", f"{SYSTEM}{name}", namespace, {"subjects": subjects})

    await until(lambda: bound(running, name, kind=kind, namespace=namespace) == ["vera", "vito"])


async def test_rules_that_another_user_adds_are_taken_out(running):
    name = f"{SYSTEM}project-viewer:local"
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]

    running.api.change(f"{RBAC}/clusterroles", name, None, {"rules": rules})

    await until(lambda: running.api.find(f"{RBAC}/clusterroles", name)["rules"][0]["verbs"] == ["get"])


async def test_a_binding_to_another_role_is_replaced(running):
    """The reference of a binding cannot be changed, so the API server refuses an apply."""
    name = f"{SYSTEM}project-viewer"
    running.api.remove(f"{RBAC}/rolebindings", name, "garden-local")
    other = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    running.api.put(
        f"{RBAC}/rolebindings", {"kind": "RoleBinding", "metadata": {"name": name}, "roleRef": other}, "garden-local"
    )

    def replaced():
        found = running.api.find(f"{RBAC}/rolebindings", name, "garden-local")
        return found and found["roleRef"]["kind"] == "ClusterRole"

    await until(replaced)


async def test_a_binding_with_the_name_of_an_extension_role_is_deleted_unless_a_member_has_the_role(running):
    binding = {"kind": "RoleBinding", "metadata": {"name": f"{EXTENSION}mine"}, "subjects": []}
    running.api.put(f"{RBAC}/rolebindings", binding, "garden-local")

    await until(lambda: bound(running, "mine", EXTENSION) is None)


async def test_roles_of_a_deleted_project_are_deleted_before_it(running):
    await running.client.delete(resources.PROJECT, "local")
    await running.becomes(resources.PROJECT, "local", None, lambda project: project is None)

    assert not [name for path, _, name in running.api.objects if path.startswith(f"{RBAC}/clusterrole")]


async def test_a_project_whose_namespace_is_not_its_own_gives_no_right_there(garden):
    garden.api.put("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "garden-local"}})
    garden.api.put(f"{CORE}/projects", with_members(*MEMBERS))
    async with garden.running(run_project_controller(garden.client, garden.caches)):
        await until(lambda: of_the_cluster(garden, "project:local") == ["olga"])
    assert not [name for path, _, name in garden.api.objects if path == f"{RBAC}/rolebindings"]
    rules = garden.api.find(f"{RBAC}/clusterroles", f"{SYSTEM}project:local")["rules"]
    assert [each["resources"] for each in rules] == [["projects"]]
