"""Members of Projects at a real API server with our admission: what each role may do, and attacks on more than that."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from activities.secrets.crypto import KeyAlgorithm, new_key, public_ssh
from api import resources
from api.access import RBAC
from api.resources import Resource
from kube.client import MERGE_PATCH
from kube.errors import ApiError, Forbidden, Invalid
from tests.gardens import SCHEDULER, RealGarden, person, real_garden
from tests.pages import check_table
from tests.unit.admission.webhooks import BINDING, SECRET
from tests.unit.api.shoots import CORE, PROFILE, REGISTRATION, SHOOT, changed
from tests.unit.kube.waiting import until

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
    pytest.mark.asyncio(loop_scope="module"),
]

Object = dict[str, Any]

SYSTEM = "gardener.cloud:system:"
STRANGER, CREATOR, ADMINISTRATOR, VIEWER_OF_ALL = "stranger", "creator", "administrator", "viewer-of-all"
OLGA, ANNA, VERA, UMA, SAM, EVE = "olga", "anna", "vera", "uma", "sam", "eve"
RON, LEO = "ron", "leo"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def garden(kubernetes_is_built: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealGarden]:
    directory: Path = tmp_path_factory.mktemp("garden")
    users = (STRANGER, CREATOR, ADMINISTRATOR, VIEWER_OF_ALL, OLGA, ANNA, VERA, UMA, SAM, EVE, RON, LEO)
    async with real_garden(directory, *users) as garden:
        for user, role in {
            CREATOR: "project-creation",
            ADMINISTRATOR: "administrators",
            VIEWER_OF_ALL: "viewers",
        }.items():
            await garden.admin.apply(binding(role, f"{SYSTEM}{role}", user), manager="test")
        labels = {"rbac.gardener.cloud/aggregate-to-extension-role": "x"}
        rules = [{"apiGroups": ["example.org"], "resources": ["things"], "verbs": ["get", "list"]}]
        await garden.admin.apply(role_of("ClusterRole", "extension-of-tests", rules, labels=labels), manager="test")
        await garden.project("team", *TEAM)
        await garden.project("other", owner=person("oscar"))
        yield garden


TEAM = (
    person(ANNA, "admin"),
    person(VERA, "viewer"),
    person(UMA, "uam"),
    person(SAM, "serviceaccountmanager"),
    person(EVE, "extension:x"),
    person(LEO, "viewer"),
)


def role_of(kind: str, name: str, rules: list[Object], namespace: str = "", labels: Object | None = None) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": labels or {}}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules}


def binding(name: str, role: str, user: str, namespace: str = "", kind: str = "ClusterRole") -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }


# The matrix of roles


class Asked(NamedTuple):
    """One row of the matrix: requests for one kind."""

    group: str
    plural: str
    where: str = "own"
    """Namespace: that of the Project, that of another Project, another one; empty for the cluster."""
    name: str = ""

    @property
    def shown(self) -> tuple[str, str]:
        """Cells of the resource and of its API group."""
        where = " of another Project" if self.where == "other" else f" `{self.name}`" if self.name else ""
        return f"`{self.plural}`{where}", self.group or "–"

    @property
    def place(self) -> tuple[str, str]:
        namespaces = {"own": "garden-team", "other": "garden-other"}
        return namespaces.get(self.where, self.where), self.name


USUAL = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
READ = frozenset({"get", "list", "watch"})
CUSTOM = {
    "projects": ("manage-members", "modify-spec-tolerations-whitelist"),
    "namespacedcloudprofiles": (
        "modify-spec-kubernetes",
        "modify-spec-machineimages",
        "modify-spec-machinetypes",
        "modify-spec-providerconfig",
    ),
    "shoots": ("mark-self-hosted", "repair"),
    **dict.fromkeys(("roles", "clusterroles"), ("bind", "escalate")),
}
"""Verbs that Kubernetes or admission asks for in addition to the usual ones."""

C, S = "core.gardener.cloud", "security.gardener.cloud"
PROFILE_VERBS = "all, " + ", ".join(CUSTOM["namespacedcloudprofiles"])
PROJECT_VERBS = "all, " + ", ".join(CUSTOM["projects"])
MEMBERS = {
    "any user": STRANGER,
    "owner": OLGA,
    "admin": ANNA,
    "viewer": VERA,
    "uam": UMA,
    "serviceaccountmanager": SAM,
    "extension:x": EVE,
}
# Source: spec/api-core.md 11. One letter for one column: a all, r read, - nothing; other rights are spelled.
OF_MEMBERS: dict[Asked, str | tuple[str, ...]] = {
    Asked("", "secrets"): "-aa----",
    Asked("", "configmaps"): "-aar---",
    Asked("", "events"): "-rrr---",
    Asked("events.k8s.io", "events"): "-rrr---",
    Asked("", "resourcequotas"): "-rrr---",
    Asked("", "serviceaccounts"): "-arr-a-",
    Asked("", "serviceaccounts/token"): ("-", "create", "-", "-", "-", "create", "-"),
    Asked("", "pods"): "-------",
    Asked(C, "shoots"): "-aar---",
    Asked(C, "shoots/adminkubeconfig"): ("-", "create", "create", "-", "-", "-", "-"),
    Asked(C, "shoots/viewerkubeconfig"): ("-", "create", "create", "create", "-", "-", "-"),
    Asked(C, "shoots/binding"): "-------",
    Asked(C, "shoots/finalizers"): ("-", "update", "update", "-", "-", "-", "-"),
    Asked(C, "shoots/status"): "-------",
    Asked(C, "secretbindings"): "-aar---",
    Asked(C, "plants"): "-aar---",
    Asked(C, "quotas"): "-aar---",
    Asked(C, "namespacedcloudprofiles"): "-aar---",
    Asked(C, "internalsecrets"): "-------",
    Asked(C, "shootstates"): "-------",
    Asked(C, "backupentries"): "-------",
    Asked(S, "credentialsbindings"): "-aar---",
    Asked(S, "workloadidentities"): "-aa----",
    Asked(S, "workloadidentities/token"): "-------",
    Asked("operations.gardener.cloud", "bastions"): "-aar---",
    Asked(RBAC, "roles"): "-aar---",
    Asked(RBAC, "rolebindings"): "-aar---",
    Asked("example.org", "things"): ("-", "-", "-", "-", "-", "-", "get, list"),
    Asked("", "namespaces", "", "garden-team"): ("-", "get", "get", "get", "-", "-", "-"),
    Asked(C, "projects", "", "team"): (
        "-",
        "delete, get, patch, update, manage-members",
        "delete, get, patch, update",
        "get",
        "get, patch, update, manage-members",
        "-",
        "-",
    ),
    Asked(C, "projects", "", "other"): "-------",
    Asked("", "secrets", "other"): "-------",
    Asked(C, "shoots", "other"): "-------",
    Asked(C, "cloudprofiles", ""): "rrrrrrr",
    Asked(C, "controllerregistrations", ""): "rrrrrrr",
    Asked(C, "exposureclasses", ""): "rrrrrrr",
    Asked(C, "seeds", ""): "rrrrrrr",
    Asked(C, "backupbuckets", ""): "-------",
    Asked("apiextensions.k8s.io", "customresourcedefinitions", ""): "rrrrrrr",
    Asked(RBAC, "clusterroles", ""): "-------",
    Asked(RBAC, "clusterrolebindings", ""): "-------",
    Asked("authentication.k8s.io", "tokenreviews", ""): ("create",) * 7,
    Asked("authorization.k8s.io", "selfsubjectaccessreviews", ""): ("create",) * 7,
    Asked("", "configmaps", "gardener-system-public", "gardener-info"): "rrrrrrr",
    Asked("", "configmaps", "kube-system", "cluster-identity"): "rrrrrrr",
}
OPERATORS = {"project-creation": CREATOR, "administrators": ADMINISTRATOR, "viewers": VIEWER_OF_ALL}
OF_OPERATORS: dict[Asked, str | tuple[str, ...]] = {
    Asked("", "secrets"): "-a-",
    Asked("", "configmaps"): "-ar",
    Asked("", "events"): "-ar",
    Asked("", "resourcequotas"): "-ar",
    Asked("", "namespaces", ""): "-ar",
    Asked("", "serviceaccounts"): "-ar",
    Asked("", "serviceaccounts/token"): ("-", "create", "-"),
    Asked("", "pods"): "---",
    Asked(C, "shoots"): ("-", "all, repair", "read"),
    Asked(C, "shoots/adminkubeconfig"): "-a-",
    Asked(C, "shoots/viewerkubeconfig"): ("-", "all", "create"),
    Asked(C, "shoots/binding"): "-a-",
    Asked(C, "projects", ""): ("create", PROJECT_VERBS, "read"),
    Asked(C, "cloudprofiles", ""): "rar",
    Asked(C, "namespacedcloudprofiles"): ("-", PROFILE_VERBS, "read"),
    Asked(C, "seeds", ""): "rar",
    Asked(C, "plants"): "-ar",
    Asked(C, "quotas"): "-ar",
    Asked(C, "backupbuckets", ""): "-ar",
    Asked(C, "backupentries"): "-ar",
    Asked(C, "controllerinstallations", ""): "-ar",
    Asked(C, "internalsecrets"): "-a-",
    Asked(C, "shootstates"): "-a-",
    Asked(S, "credentialsbindings"): "-ar",
    Asked(S, "workloadidentities"): "-a-",
    Asked(S, "workloadidentities/token"): "---",
    Asked("operations.gardener.cloud", "bastions"): "-ar",
    Asked("seedmanagement.gardener.cloud", "gardenlets"): "-ar",
    Asked("seedmanagement.gardener.cloud", "managedseeds"): "-ar",
    Asked("seedmanagement.gardener.cloud", "managedseedsets"): "-ar",
    Asked("seedmanagement.gardener.cloud", "seedautoscalers"): "-ar",
    Asked(RBAC, "clusterroles", ""): "-ar",
    Asked(RBAC, "clusterrolebindings", ""): "-ar",
    Asked("admissionregistration.k8s.io", "validatingwebhookconfigurations", ""): "-ar",
    Asked("certificates.k8s.io", "certificatesigningrequests", ""): "-a-",
}
LETTERS = {"a": "all", "r": "read", "-": "-"}


async def cell(garden: RealGarden, user: str, asked: Asked) -> str:
    """All verbs that a user has on a kind, as the API server answers."""
    verbs = (*USUAL, *CUSTOM.get(asked.plural, ()))
    resource = Resource(asked.group, "v1", asked.plural, asked.plural)
    answers = await asyncio.gather(*(garden.may(user, each, resource, *asked.place) for each in verbs))
    allowed = [verb for verb, may in zip(verbs, answers, strict=True) if may]
    if set(USUAL) <= set(allowed):
        allowed = ["all", *(each for each in allowed if each not in USUAL)]
    elif set(allowed) >= READ:
        allowed = ["read", *(each for each in allowed if each not in READ)]
    return ", ".join(allowed) or "-"


async def has_all_rights(garden: RealGarden) -> bool:
    """Whether the controllers have bound all members, and have filled the aggregated roles."""
    namespace = "garden-team"
    checks = (
        (OLGA, "create", Resource("", "v1", "", "serviceaccounts/token")),
        (ANNA, "delete", resources.SHOOT),
        (VERA, "get", resources.SHOOT),
        (SAM, "delete", resources.SERVICE_ACCOUNT),
        (EVE, "get", Resource("example.org", "v1", "", "things")),
        (UMA, "manage-members", resources.PROJECT),
        (ADMINISTRATOR, "delete", resources.SECRET),
        (ADMINISTRATOR, "delete", resources.SEED),
        (ADMINISTRATOR, "delete", resources.SERVICE_ACCOUNT),
        (VIEWER_OF_ALL, "get", resources.SHOOT),
        (VIEWER_OF_ALL, "create", Resource("core.gardener.cloud", "v1beta1", "", "shoots/viewerkubeconfig")),
    )
    return all([await garden.may(user, verb, kind, namespace, "team") for user, verb, kind in checks])


@pytest.mark.parametrize(
    ("table", "users", "expected"), [("members", MEMBERS, OF_MEMBERS), ("operators", OPERATORS, OF_OPERATORS)]
)
async def test_each_role_may_do_what_the_specification_says_and_nothing_else(
    garden: RealGarden, table: str, users: dict[str, str], expected: dict[Asked, str | tuple[str, ...]]
) -> None:
    """The API server is asked for each verb. docs/access.md shows the same answers."""
    await until(functools.partial(has_all_rights, garden), 60)

    answers = {asked: [await cell(garden, user, asked) for user in users.values()] for asked in expected}

    spelled = {
        asked: [LETTERS[each] for each in cells] if isinstance(cells, str) else list(cells)
        for asked, cells in expected.items()
    }
    assert answers == spelled
    check_table("access.md", table, [[*asked.shown, *cells] for asked, cells in answers.items()])


# Attacks


async def refused(garden: RealGarden, user: str, project: str, **spec: Any) -> str:
    """The API server's answer to a change of a Project that must not succeed."""
    with pytest.raises((Forbidden, Invalid)) as answer:
        await garden.change_project(user, project, **spec)
    return str(answer.value)


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
@pytest.mark.parametrize("user", [STRANGER, VERA, SAM, EVE])
async def test_a_member_who_may_only_read_changes_members(garden: RealGarden, user: str) -> None:
    answer = await refused(garden, user, "team", members=[*TEAM, person(user, "admin")])

    assert "cannot patch resource" in answer


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
@pytest.mark.parametrize(
    "spec",
    [
        {"owner": person(ANNA)},
        {"members": [*TEAM, person(ANNA + "2", "admin")]},
        {"members": [*TEAM[1:], person(ANNA, "admin", "uam")]},
        {"members": [*TEAM, person("system:authenticated", "admin", kind="Group")]},
        {"members": [*TEAM, person("default", "uam", kind="ServiceAccount") | {"namespace": "garden-team"}]},
        {"members": [*TEAM, person("system:serviceaccount:garden-team:default", "uam")]},
        {"members": [], "owner": None},
    ],
    ids=["owner", "another person", "uam", "a group", "a service account", "a service account as user", "no owner"],
)
async def test_an_admin_makes_himself_owner_or_manager_of_members(garden: RealGarden, spec: Object) -> None:
    """An admin reads the Secrets of the namespace, and so the tokens of its ServiceAccounts."""
    answer = await refused(garden, ANNA, "team", **spec)

    assert "spec.members: user anna may not manage-members projects" in answer
    await garden.change_project(ANNA, "team", purpose="what an admin may change")


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
@pytest.mark.parametrize("user", [OLGA, ANNA, UMA])
async def test_a_member_puts_tolerations_on_the_whitelist_of_the_project(garden: RealGarden, user: str) -> None:
    """They reserve seeds for the Projects that an operator has chosen."""
    answer = await refused(garden, user, "team", tolerations={"whitelist": [{"key": "seed.gardener.cloud/protected"}]})

    assert f"user {user} may not modify-spec-tolerations-whitelist projects" in answer


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
@pytest.mark.parametrize(
    "role",
    [
        "cluster-admin",
        "system:masters",
        f"{SYSTEM}administrators",
        "extension:other:x",
        "extension:../../x",
        "extension:x\n",
        "extension:*",
        "extension:X",
        "extension:",
        "extension:" + "x" * 21,
    ],
)
async def test_a_manager_of_members_gives_himself_a_role_from_outside_of_the_project(
    garden: RealGarden, role: str
) -> None:
    """The name of an extension role becomes part of the name of a ClusterRole, and the value of a label."""
    answer = await refused(garden, UMA, "team", members=[*TEAM[:2], *TEAM[3:], person(UMA, "uam", role)])

    assert "spec.members" in answer
    assert "roles: Unsupported value" in answer


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
async def test_an_extension_role_of_one_project_gives_rights_in_another(garden: RealGarden) -> None:
    """The names of Projects begin alike, and the roles have the same name."""
    things = Resource("example.org", "v1", "Thing", "things")
    await garden.project("te", person(RON, "extension:x"))

    await until(functools.partial(garden.may, RON, "get", things, "garden-te"), 60)

    assert not await garden.may(RON, "get", things, "garden-team")
    assert not await garden.may(EVE, "get", things, "garden-te")
    assert await garden.may(EVE, "get", things, "garden-team")


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
@pytest.mark.parametrize(
    "rule",
    [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [C], "resources": ["internalsecrets"], "verbs": ["get"]},
        {"apiGroups": [C], "resources": ["shoots"], "verbs": ["repair"]},
        {"apiGroups": [C], "resources": ["shoots/binding"], "verbs": ["update"]},
        {"apiGroups": [S], "resources": ["workloadidentities/token"], "verbs": ["create"]},
        {"apiGroups": [C], "resources": ["namespacedcloudprofiles"], "verbs": ["modify-spec-kubernetes"]},
        {"apiGroups": [RBAC], "resources": ["roles"], "verbs": ["escalate"]},
    ],
    ids=lambda rule: f"{rule['resources'][0]} {rule['verbs'][0]}",
)
async def test_an_admin_writes_a_role_with_rights_that_he_does_not_have(garden: RealGarden, rule: Object) -> None:
    with pytest.raises(Forbidden, match="attempting to grant RBAC permissions not currently held"):
        await garden.clients[ANNA].create(role_of("Role", "mine", [rule], "garden-team"))


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
@pytest.mark.parametrize("role", ["cluster-admin", f"{SYSTEM}administrators", f"{SYSTEM}operators"])
async def test_an_admin_binds_a_role_that_is_stronger_than_his_own(garden: RealGarden, role: str) -> None:
    for namespace, refusal in (("garden-team", "not currently held"), ("garden-other", "cannot create resource")):
        with pytest.raises(Forbidden, match=refusal):
            await garden.clients[ANNA].create(binding("mine", role, ANNA, namespace))
    with pytest.raises(Forbidden, match="cannot create resource"):
        await garden.clients[ANNA].create(binding("mine", role, ANNA))


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
@pytest.mark.parametrize("user", [OLGA, ANNA, UMA])
async def test_a_member_labels_a_cluster_role_so_that_it_is_aggregated_to_his_own(
    garden: RealGarden, user: str
) -> None:
    labels = {"rbac.gardener.cloud/aggregate-to-project-member": "true"}
    with pytest.raises(Forbidden, match="cannot patch resource"):
        await garden.clients[user].patch(
            resources.CLUSTER_ROLE, "cluster-admin", None, {"metadata": {"labels": labels}}
        )
    with pytest.raises(Forbidden, match="cannot create resource"):
        await garden.clients[user].create(role_of("ClusterRole", "mine", [], labels=labels))


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
async def test_a_member_keeps_the_rights_after_leaving_the_project(garden: RealGarden) -> None:
    may = functools.partial(garden.may, LEO, "get", resources.SHOOT, "garden-team")
    await until(may, 60)

    await garden.change_project(UMA, "team", members=list(TEAM[:-1]))

    async def lost() -> bool:
        return not await may() and not await garden.may(LEO, "get", resources.PROJECT, "", "team")

    await until(lost)


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
async def test_an_admin_adds_a_subject_to_the_binding_of_the_project(garden: RealGarden) -> None:
    """Only the members in the spec have the roles. An admin may pass on own rights by a binding of another name."""
    subjects = [{"apiGroup": RBAC, "kind": "User", "name": each} for each in (ANNA, OLGA, RON)]
    await garden.clients[ANNA].patch(
        resources.ROLE_BINDING, f"{SYSTEM}project-member", "garden-team", {"subjects": subjects}
    )

    async def taken_back() -> bool:
        found = await garden.admin.get(resources.ROLE_BINDING, f"{SYSTEM}project-member", "garden-team")
        return RON not in {each["name"] for each in found["subjects"]}

    await until(taken_back)


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
async def test_a_stranger_adopts_a_namespace_that_an_earlier_project_has_left(garden: RealGarden) -> None:
    """It is labelled for a Project of that name, and its Secrets are still there."""
    labels = {"gardener.cloud/role": "project", "project.gardener.cloud/name": "past"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "garden-past", "labels": labels}}
    await garden.admin.create(namespace)
    project = {
        "apiVersion": CORE,
        "kind": "Project",
        "metadata": {"name": "past"},
        "spec": {"namespace": "garden-past"},
    }

    with pytest.raises(Forbidden, match=r"spec\.namespace: user creator may not update Namespace garden-past"):
        await garden.clients[CREATOR].create(project)
    assert not await garden.may(CREATOR, "get", resources.SECRET, "garden-past")


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
@pytest.mark.parametrize("name", ["garden-other", "garden", "kube-system", "garden-team"])
async def test_a_stranger_makes_a_project_in_the_namespace_of_another(garden: RealGarden, name: str) -> None:
    project = {"apiVersion": CORE, "kind": "Project", "metadata": {"name": "mine"}, "spec": {"namespace": name}}

    with pytest.raises((Forbidden, Invalid)):
        await garden.clients[CREATOR].create(project)


async def test_a_user_who_may_create_projects_owns_what_he_created(garden: RealGarden) -> None:
    """The rights come from the controller-manager: the creator has no other role in the garden."""
    client = garden.clients[CREATOR]
    members = [person(VERA, "viewer")]
    await client.create(
        {"apiVersion": CORE, "kind": "Project", "metadata": {"name": "fresh"}, "spec": {"members": members}}
    )
    await until(functools.partial(garden.may, CREATOR, "get", resources.PROJECT, "", "fresh"))
    namespace = (await until(functools.partial(garden.ready, "fresh")))["spec"]["namespace"]

    await until(functools.partial(garden.may, CREATOR, "create", resources.SHOOT, namespace))
    await until(functools.partial(garden.may, VERA, "list", resources.SHOOT, namespace))
    await client.patch(
        resources.PROJECT,
        "fresh",
        None,
        {"metadata": {"annotations": {"confirmation.gardener.cloud/deletion": "true"}}},
    )
    await client.delete(resources.PROJECT, "fresh")
    await until(functools.partial(_is_gone, garden, "fresh"), 60)
    assert not [
        each
        for kind in (resources.CLUSTER_ROLE, resources.CLUSTER_ROLE_BINDING)
        for each in await garden.admin.list(kind)
        if "fresh" in each["metadata"]["name"]
    ]


async def _is_gone(garden: RealGarden, project: str) -> bool:
    return await garden.admin.find(resources.PROJECT, project) is None


# Shoots


@pytest_asyncio.fixture(loop_scope="module")
async def shoot(garden: RealGarden) -> AsyncIterator[Object]:
    """A Shoot in a Project whose deletions need two users, and a user who may change Shoots but read no Secrets."""
    approval = [{"resource": "shoots", "selector": {}, "includeServiceAccounts": True}]
    members = (person(ANNA, "admin"), person(VERA, "admin"))
    await garden.project("local", *members, dualApprovalForDeletion=approval)
    for each in (PROFILE, REGISTRATION, SECRET, changed(SECRET, "metadata.name", "secret")):
        await garden.admin.apply(each, manager="test")
    await until(functools.partial(garden.may, ANNA, "create", resources.SHOOT, "garden-local"), 60)
    await garden.clients[ANNA].apply(BINDING, manager="test")
    rules = [{"apiGroups": [C], "resources": ["shoots"], "verbs": ["get", "patch"]}]
    await garden.clients[ANNA].apply(role_of("Role", "editor", rules, "garden-local"), manager="test")
    await garden.clients[ANNA].apply(binding("editor", "editor", RON, "garden-local", "Role"), manager="test")
    bare = changed(SHOOT, "metadata", {"name": "demo", "namespace": "garden-local"})
    made: Object = await until(functools.partial(_created, garden, bare), 60)
    yield made
    annotations = {"metadata": {"annotations": {"confirmation.gardener.cloud/deletion": "true"}}}
    if await garden.admin.find(resources.SHOOT, "demo", "garden-local"):
        await garden.process.patch(resources.SHOOT, "demo", "garden-local", annotations)
        await garden.admin.delete(resources.SHOOT, "demo", "garden-local")


async def _created(garden: RealGarden, obj: Object) -> Object | None:
    """The new object; None while admission's caches do not know the objects that it refers to."""
    with contextlib.suppress(Forbidden):
        return await garden.clients[ANNA].create(obj)
    return None


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
async def test_one_user_confirms_and_deletes_a_shoot_that_two_must_delete(garden: RealGarden, shoot: Object) -> None:
    """The name of the user who confirmed is admission's: what the user writes is not believed."""
    anna, vera = garden.clients[ANNA], garden.clients[VERA]
    annotations = {
        "confirmation.gardener.cloud/deletion": "true",
        "deletion.gardener.cloud/confirmed-by": VERA,
    }
    await anna.patch(resources.SHOOT, "demo", "garden-local", {"metadata": {"annotations": annotations}})
    for forged in (VERA, None):
        change = {"metadata": {"annotations": {"deletion.gardener.cloud/confirmed-by": forged}}}
        await anna.patch(resources.SHOOT, "demo", "garden-local", change)
        with pytest.raises(Forbidden, match="anna confirmed the deletion: another user must delete it"):
            await anna.delete(resources.SHOOT, "demo", "garden-local")

    assert await vera.delete(resources.SHOOT, "demo", "garden-local")


@pytest.mark.attack(actor="T1", asset="A1", finding=17)
@pytest.mark.parametrize("name", ["secret", "there-is-none"])
async def test_a_user_without_the_right_to_read_secrets_uses_one_by_a_shoot(
    garden: RealGarden, shoot: Object, name: str
) -> None:
    """The answer is the same for a Secret that does not exist."""
    reference = {"apiVersion": "v1", "kind": "Secret", "name": name}
    change = {"spec": {"resources": [{"name": "mine", "resourceRef": reference}]}}
    await until(functools.partial(garden.may, RON, "patch", resources.SHOOT, "garden-local"))

    with pytest.raises(Forbidden, match=f"user ron may not get Secret garden-local/{name}"):
        await garden.clients[RON].patch(resources.SHOOT, "demo", "garden-local", change)


@pytest.mark.attack(actor="T1", asset="A1", finding=17)
@pytest.mark.parametrize("name", ["local", "there-is-none"])
async def test_an_admin_binds_the_credentials_of_another_project(garden: RealGarden, name: str) -> None:
    other = changed(
        changed(BINDING, "metadata", {"name": "stolen", "namespace": "garden-team"}), "credentialsRef.name", name
    )

    with pytest.raises(Forbidden, match=f"user anna may not get Secret garden-far/{name}"):
        await garden.clients[ANNA].create(changed(other, "credentialsRef.namespace", "garden-far"))


@pytest.mark.attack(actor="T1", asset="A1", finding=25)
@pytest.mark.parametrize("kind", ["CredentialsBinding", "Shoot"])
async def test_an_admin_names_a_secret_of_another_project_by_a_path(
    garden: RealGarden, shoot: Object, kind: str
) -> None:
    """RBAC lets the admin get an object of any name in the own namespace; processes of the garden read the others."""
    await garden.admin.apply(changed(SECRET, "metadata", {"name": "far", "namespace": "garden-other"}), manager="test")
    name, anna = "../../garden-other/secrets/far", garden.clients[ANNA]
    stolen = changed(changed(BINDING, "metadata.name", "stolen"), "credentialsRef.name", name)
    reference = {"name": "mine", "resourceRef": {"apiVersion": "v1", "kind": "Secret", "name": name}}

    change = {"spec": {"resources": [reference]}}
    asked = {
        "CredentialsBinding": lambda: anna.create(stolen),
        "Shoot": lambda: anna.patch(resources.SHOOT, "demo", "garden-local", change),
    }

    with pytest.raises(Forbidden, match="there is no such Secret"):
        await asked[kind]()


@pytest.mark.attack(actor="T1", asset="A3", finding=18)
async def test_a_member_makes_a_bastion_for_a_shoot_of_another_project(garden: RealGarden) -> None:
    """A Bastion names a Shoot of its own namespace, so the way to another's is a Bastion in that namespace."""

    def bastion(namespace: str, shoot: str) -> Object:
        return {
            "apiVersion": "operations.gardener.cloud/v1alpha1",
            "kind": "Bastion",
            "metadata": {"name": "anna", "namespace": namespace},
            "spec": {
                "shootRef": {"name": shoot},
                "sshPublicKey": public_ssh(new_key(KeyAlgorithm.P256)).decode(),
                "ingress": [{"ipBlock": {"cidr": "198.51.100.7/32"}}],
            },
        }

    await until(functools.partial(has_all_rights, garden), 60)
    with pytest.raises(Forbidden, match="cannot create resource"):
        await garden.clients[ANNA].create(bastion("garden-other", "theirs"))
    with pytest.raises(ApiError, match="shoot garden-team/theirs not found"):
        await garden.clients[ANNA].create(bastion("garden-team", "theirs"))
    with pytest.raises(ApiError):
        await garden.clients[ANNA].create(bastion("garden-team", "../garden-other/theirs"))


_MASTER = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
_TOKEN = {"kubernetes.io/service-account.name": "clusterrole-aggregation-controller"}
WRITES_OF_A_PROCESS: dict[str, tuple[str, str, Object]] = {
    "a role": ("POST", f"/apis/{RBAC}/v1/clusterroles", {"metadata": {"name": "mine"}, "rules": [_MASTER]}),
    "its own role": ("PATCH", f"/apis/{RBAC}/v1/clusterroles/{SYSTEM}operators", {"rules": [_MASTER]}),
    "a binding": ("POST", f"/apis/{RBAC}/v1/clusterrolebindings", binding("mine", "cluster-admin", SCHEDULER)),
    "a binding in a namespace": (
        "POST",
        f"/apis/{RBAC}/v1/namespaces/kube-system/rolebindings",
        binding("mine", "cluster-admin", SCHEDULER, "kube-system"),
    ),
    "a role of a Project": (
        "PATCH",
        f"/apis/{RBAC}/v1/clusterroles/gardener.cloud:system:project-member-aggregation",
        {"rules": [_MASTER]},
    ),
    "a Secret that asks for a token of a controller": (
        "POST",
        "/api/v1/namespaces/kube-system/secrets",
        {"metadata": {"name": "t", "annotations": _TOKEN}, "type": "kubernetes.io/service-account-token"},
    ),
    "a token": (
        "POST",
        "/api/v1/namespaces/kube-system/serviceaccounts/clusterrole-aggregation-controller/token",
        {"spec": {}},
    ),
    "approval of a certificate, which may name any group": (
        "PATCH",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests/of-a-bootstrap-token/approval",
        {"status": {"conditions": []}},
    ),
    "credentials of a Project": ("POST", "/api/v1/namespaces/garden-team/secrets", {"metadata": {"name": "local"}}),
}


@pytest.mark.attack(actor="T6", asset="A1", finding=18)
@pytest.mark.parametrize("wanted", WRITES_OF_A_PROCESS)
async def test_an_attacker_in_one_process_of_the_garden_gives_it_more_rights(garden: RealGarden, wanted: str) -> None:
    """The scheduler is taken over. The controller-manager alone writes roles, and Secrets that ask for tokens, and
    approves certificates."""
    verb, path, body = WRITES_OF_A_PROCESS[wanted]
    format_of_patch = MERGE_PATCH if verb == "PATCH" else None

    with pytest.raises(Forbidden):
        await garden.clients[SCHEDULER].request(verb, path, body=body, content_type=format_of_patch)
