"""Roles that follow from the members of a Project, and the verb that a change of members needs."""

from typing import Any

import pytest

from api.core.v1beta1.project import Project
from api.decisions.project_access import must_manage_members, project_access, project_of_role
from api.defaulting.project import default_project, subject_of
from api.validation.garden import check_project

SYSTEM, EXTENSION = "gardener.cloud:system:", "gardener.cloud:extension:project:"


def user(name: str, *roles: str, kind: str = "User", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "roles": list(roles), **more}


def robot(*roles: str) -> dict[str, Any]:
    return user("robot", *roles, kind="ServiceAccount", namespace="garden-team")


def project(*members: dict[str, Any], name: str = "team", **spec: Any) -> Project:
    spec = {"owner": {"kind": "User", "name": "olga"}, **spec, "members": list(members)}
    metadata = {"name": name, "uid": "u-1"}
    found = Project.of(
        {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Project", "metadata": metadata, "spec": spec}
    )
    default_project(found, found, "olga")
    return found


def bound(*members: dict[str, Any], namespace: str | None = "garden-team") -> dict[str, list[str]]:
    """Names of the subjects by kind and name of their binding."""
    return {
        f"{each['kind']} {each['metadata']['name']}": sorted(subject["name"] for subject in each["subjects"])
        for each in project_access(project(*members), namespace)
        if "subjects" in each
    }


def test_each_role_has_its_bindings_and_the_owner_is_an_administrator():
    """The names are those by which Gardener's users find their rights: spec/api-core.md 11."""
    assert bound(user("anna", "admin"), user("vera", "viewer"), user("uma", "uam"), robot("serviceaccountmanager")) == {
        f"ClusterRoleBinding {SYSTEM}project:team": ["olga"],
        f"ClusterRoleBinding {SYSTEM}project-member:team": ["anna", "olga"],
        f"ClusterRoleBinding {SYSTEM}project-viewer:team": ["vera"],
        f"ClusterRoleBinding {SYSTEM}project-uam:team": ["uma"],
        f"RoleBinding {SYSTEM}project-member": ["anna", "olga"],
        f"RoleBinding {SYSTEM}project-viewer": ["vera"],
        f"RoleBinding {SYSTEM}project-serviceaccountmanager": ["olga", "robot"],
    }


def test_an_extension_role_is_aggregated_by_its_label_and_bound_in_the_namespace():
    members = (user("eve", "viewer", "extension:audit-log"), user("emil", "extension:audit-log"))
    name = f"{EXTENSION}team:audit-log"

    assert bound(*members)[f"RoleBinding {name}"] == ["emil", "eve"]
    [role] = [each for each in project_access(project(*members), "garden-team") if each["metadata"]["name"] == name][:1]
    label = {"rbac.gardener.cloud/aggregate-to-extension-role": "audit-log"}
    assert role["aggregationRule"] == {"clusterRoleSelectors": [{"matchLabels": label}]}
    assert list(project_of_role(role)) == ["team"]


def test_a_project_without_a_namespace_of_its_own_gives_no_right_in_any_namespace():
    """The name in its spec may be the name of another Project's namespace."""
    granted = project_access(project(user("anna", "admin"), user("eve", "extension:x")), None)

    assert not [each for each in granted if each["kind"] == "RoleBinding"]
    assert {rule["resources"][0] for each in granted for rule in each.get("rules", ())} == {"projects"}


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        (f"{SYSTEM}project:team", ["team"]),
        (f"{SYSTEM}project-member:team", ["team"]),
        (f"{EXTENSION}team:x", ["team"]),
        (f"{SYSTEM}project-member", []),
        (f"{SYSTEM}project-member-aggregation", []),
        ("cluster-admin", []),
    ],
)
def test_the_project_of_a_role_is_in_its_name(name, owner):
    assert list(project_of_role({"metadata": {"name": name}})) == owner


ANNA, GROUP = user("anna", "admin"), user("admins", "admin", kind="Group")
IN_DISGUISE = user("system:serviceaccount:garden-team:robot", "admin")


@pytest.mark.parametrize(
    ("before", "after", "needed"),
    [
        ([ANNA], [ANNA], False),
        ([ANNA], [ANNA, user("bert", "viewer")], True),
        ([ANNA], [], True),
        ([ANNA], [user("anna", "admin", "uam")], True),
        ([ANNA], [ANNA, GROUP], True),
        ([ANNA], [ANNA, user("system:authenticated", "viewer", kind="Group")], True),
        ([ANNA], [ANNA, robot("admin")], False),
        ([robot("admin")], [robot("viewer")], False),
        ([ANNA], [ANNA, robot("uam")], True),
        ([robot("admin", "uam")], [robot("admin")], True),
        ([ANNA], [ANNA, IN_DISGUISE], False),
        ([ANNA], [ANNA, IN_DISGUISE | {"roles": ["uam"]}], True),
    ],
)
def test_members_who_are_people_and_roles_that_manage_members_need_the_verb(before, after, needed):
    assert must_manage_members(project(*after), project(*before), subject_of("anna")) is needed


def test_the_owner_is_changed_only_with_the_verb():
    before, after = project(ANNA), project(ANNA, owner={"kind": "User", "name": "anna"})

    assert must_manage_members(after, before, subject_of("anna"))


def test_the_author_of_a_new_project_is_its_owner_and_chooses_the_members():
    assert not must_manage_members(project(ANNA), None, subject_of("olga"))
    assert must_manage_members(project(ANNA), None, subject_of("anna"))


@pytest.mark.parametrize(
    ("member", "fault"),
    [
        (user("a", "extension:x\n"), "spec.members[0].roles: Unsupported value"),
        (user("a", "extension:team:x"), "spec.members[0].roles: Unsupported value"),
        (user("a", "extension:../x"), "spec.members[0].roles: Unsupported value"),
        (user("a", "extension:"), "spec.members[0].roles: Unsupported value"),
        (user("a", "extension:" + 21 * "x"), "spec.members[0].roles: Unsupported value"),
        (user("a", "cluster-admin"), "spec.members[0].roles: Unsupported value"),
        (user("", "admin"), "spec.members[0].name: Required value"),
        (user("a", "admin", apiGroup="v1"), "spec.members[0].apiGroup: Unsupported value"),
        (user("a", "admin", namespace="garden"), "spec.members[0].namespace: Forbidden"),
        (user("a", "admin", kind="ServiceAccount"), "spec.members[0].namespace: Required value"),
        (user("a b", "admin", kind="ServiceAccount", namespace="x"), "spec.members[0].name: Invalid value"),
        (user("a", "admin", kind="ServiceAccount", namespace="x/y"), "spec.members[0].namespace: Invalid value"),
        (user("a", "admin", kind="ServiceAccount", namespace="x\n"), "spec.members[0].namespace: Invalid value"),
    ],
)
def test_a_member_that_rbac_would_refuse_or_misread_is_refused(member, fault):
    """One such member would keep the controller-manager from writing the roles of all others."""
    assert fault in str(check_project(project(member), ()))


@pytest.mark.parametrize(
    ("requirement", "fault"),
    [
        ({"key": "a", "operator": "Like", "values": ["b"]}, "matchExpressions[0].operator: Unsupported value"),
        ({"key": "a", "operator": "In"}, "operator In needs values"),
        ({"key": "a", "operator": "Exists", "values": ["b"]}, "operator Exists has no values"),
    ],
)
def test_a_selector_that_cannot_be_evaluated_is_refused(requirement, fault):
    approval = {"resource": "shoots", "selector": {"matchExpressions": [requirement]}}

    assert fault in str(check_project(project(dualApprovalForDeletion=[approval]), ()))
