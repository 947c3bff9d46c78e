"""A tenant extends its cloud profile at a real API server that asks our admission: what is granted, and what is not."""

import contextlib
import functools
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from api import resources
from kube.client import KubeClient
from kube.errors import ApiError, Forbidden
from tests.garden_api_server import ALICE, NAMESPACE, OTHER_NAMESPACE, api_server
from tests.gardens import ApiServer, admission, asks_admission, controllers
from tests.unit.api.profiles import BIG, CHILD
from tests.unit.api.shoots import PROFILE, PROJECT, changed
from tests.unit.kube.waiting import until
from workers.admission.limits import ResourceAdmissionConfiguration
from workers.controller_manager.profiles import run_profile_controllers
from workers.setup import set_up_garden

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(180)]

RBAC = "rbac.authorization.k8s.io"
KIND = resources.NAMESPACED_CLOUD_PROFILE
LATER = "2030-01-01T00:00:00Z"
LIMITS = ResourceAdmissionConfiguration.model_validate(
    {
        "limits": [
            {"apiGroups": [KIND.group], "apiVersions": ["*"], "resources": ["namespacedcloudprofiles"], "size": "5k"},
            {"apiGroups": [KIND.group], "apiVersions": ["*"], "resources": ["cloudprofiles"], "count": 2},
        ]
    }
)
_EXTENDS = ("get", "list", "watch", "create", "update", "patch", "delete")


class Garden:
    """A garden with admission and the controller of profiles, as its operator and as a member of one project."""

    def __init__(self, operator: KubeClient, member: KubeClient) -> None:
        self.operator = operator
        self.member = member

    async def prepare(self) -> None:
        """Apply the objects that an operator and the project controller apply."""
        await self.grant("member", *_EXTENDS)
        for each in (changed(PROFILE, "spec.limits", {"maxNodesTotal": 10}), PROJECT | {"metadata": {"name": "local"}}):
            await self.operator.apply(each, manager="test")
        await until(functools.partial(self._may_create, changed(CHILD, "metadata", _place("probe"))), 60)

    async def _may_create(self, obj: dict[str, Any]) -> bool:
        with contextlib.suppress(ApiError):
            await self.member.request("POST", KIND.path(NAMESPACE), query={"dryRun": "All"}, body=_bare(obj))
            return True
        return False

    async def grant(self, role: str, *verbs: str) -> None:
        """Give the member verbs by a Role, as the project controller and operators do."""
        rule = {"apiGroups": [KIND.group], "resources": [KIND.plural], "verbs": list(verbs)}
        await self.operator.apply(_object(f"{RBAC}/v1", "Role", role, NAMESPACE, rules=[rule]), manager="test")
        subjects = [{"apiGroup": RBAC, "kind": "User", "name": ALICE}]
        reference = {"apiGroup": RBAC, "kind": "Role", "name": role}
        binding = _object(f"{RBAC}/v1", "RoleBinding", role, NAMESPACE, roleRef=reference, subjects=subjects)
        await self.operator.apply(binding, manager="test")

    async def status(self, name: str, namespace: str) -> dict[str, Any]:
        """Status of a profile once the controller has written it for the present generation."""

        async def written() -> dict[str, Any] | None:
            found = await self.operator.get(KIND, name, namespace)
            status: dict[str, Any] = found.get("status") or {}
            return status if status.get("observedGeneration") == found["metadata"]["generation"] else None

        return dict(await until(written))


def _place(name: str, namespace: str = NAMESPACE) -> dict[str, str]:
    return {"name": name, "namespace": namespace}


def _bare(obj: dict[str, Any]) -> dict[str, Any]:
    """The object without the metadata that an API server sets."""
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace") if key in obj["metadata"]}
    return {**obj, "metadata": metadata}


def _object(api_version: str, kind: str, name: str, namespace: str | None = None, **content: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


@pytest.fixture
async def garden(server: ApiServer, tmp_path: Path) -> AsyncIterator[Garden]:
    async with (
        server.client() as operator,
        server.client(ALICE) as member,
        admission(operator, tmp_path, LIMITS) as webhooks,
    ):
        await set_up_garden(operator, webhooks)
        await asks_admission(operator)
        garden = Garden(operator, member)
        await garden.prepare()
        async with controllers(operator, run_profile_controllers):
            yield garden


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
async def test_a_member_widens_a_profile_at_a_real_api_server(garden: Garden) -> None:
    """One API server for the whole story: it starts once."""
    mine = _bare(changed(CHILD, "spec.machineTypes", [BIG]))
    await garden.member.create(mine)
    status = await garden.status("mine", NAMESPACE)
    assert [each["name"] for each in status["cloudProfileSpec"]["machineTypes"]] == ["local", "old", "big"]

    # Fields that need a verb of their own.
    for patch in (
        {"kubernetes": {"versions": [{"version": "1.35.9", "expirationDate": LATER}]}},
        {"machineImages": [{"name": "own", "versions": [{"version": "1.0.0", "architectures": ["amd64"]}]}]},
        {"providerConfig": {"kind": "X"}},
        {"limits": {"maxNodesTotal": 1000}},
    ):
        with pytest.raises(Forbidden, match="user alice may not"):
            await garden.member.patch(KIND, "mine", NAMESPACE, {"spec": patch})
    await garden.member.patch(KIND, "mine", NAMESPACE, {"spec": {"limits": {"maxNodesTotal": 5}}})

    # The merged status: neither beside the spec, nor by the subresource.
    forged = {"cloudProfileSpec": PROFILE["spec"] | {"limits": {"maxNodesTotal": 999}}, "observedGeneration": 99}
    await garden.member.patch(KIND, "mine", NAMESPACE, {"status": forged})
    with pytest.raises(Forbidden):
        await garden.member.patch(KIND, "mine", NAMESPACE, {"status": forged}, subresource="status")
    assert (await garden.status("mine", NAMESPACE))["cloudProfileSpec"]["limits"] == {"maxNodesTotal": 5}

    # The parent, and another parent.
    with pytest.raises(ApiError, match="field is immutable"):
        await garden.member.patch(KIND, "mine", NAMESPACE, {"spec": {"parent": {"name": "other"}}})
    with pytest.raises(ApiError, match="has old, which a project cannot change"):
        await garden.member.patch(KIND, "mine", NAMESPACE, {"spec": {"machineTypes": [BIG | {"name": "old"}]}})

    # Another project.
    theirs = changed(mine, "metadata", _place("theirs", OTHER_NAMESPACE))
    await garden.operator.create(theirs)
    for request in (
        garden.member.get(KIND, "theirs", OTHER_NAMESPACE),
        garden.member.patch(KIND, "theirs", OTHER_NAMESPACE, {"spec": {"machineTypes": []}}),
        garden.member.list(KIND),
    ):
        with pytest.raises(Forbidden):
            await request

    # What an operator grants, works.
    await garden.grant("verbs", "modify-spec-kubernetes")
    override = {"kubernetes": {"versions": [{"version": "1.36.3", "expirationDate": LATER}]}}

    async def accepted() -> bool:
        with contextlib.suppress(Forbidden):
            return bool(await garden.member.patch(KIND, "mine", NAMESPACE, {"spec": override}))
        return False

    await until(accepted)
    versions = (await garden.status("mine", NAMESPACE))["cloudProfileSpec"]["kubernetes"]["versions"]
    assert {"version": "1.36.3", "expirationDate": LATER} in versions
    stages = (await garden.operator.get(resources.CLOUD_PROFILE, "local"))["status"]["kubernetes"]["versions"]
    assert {"version": "1.36.3", "classification": "supported"} in stages

    # Clients find the children of a profile by a field selector.
    found = await garden.operator.list(KIND, fields="spec.parent.name=local")
    assert sorted(each["metadata"]["name"] for each in found) == ["mine", "theirs"]
    assert not await garden.operator.list(KIND, fields="spec.parent.name=nowhere")


@pytest.mark.attack(actor="T1", asset="A1", finding=15)
async def test_a_member_fills_the_memory_of_all_processes_with_large_objects(garden: Garden) -> None:
    """An operator has limited the size of these objects, and the number of others."""
    note = {"annotations": {"note": "x" * 6000}}
    large = changed(CHILD, "metadata", _place("large") | note)
    with pytest.raises(Forbidden, match="the operator of the garden allows 5k"):
        await garden.member.create(large)
    small = _bare(changed(CHILD, "metadata.name", "small"))
    await garden.member.create(small)
    with pytest.raises(Forbidden, match="the operator of the garden allows 5k"):
        await garden.member.patch(KIND, "small", NAMESPACE, {"metadata": note})

    await garden.operator.create(_bare(changed(PROFILE, "metadata.name", "second")))
    with pytest.raises(Forbidden, match="the garden has 2 cloudprofiles or more"):
        await garden.operator.create(_bare(changed(PROFILE, "metadata.name", "third")))


async def test_the_secret_of_the_internal_domain_is_one(garden: Garden) -> None:
    """The operator may do everything, so admission alone refuses; the client hides messages about Secrets."""
    annotations = {"dns.gardener.cloud/provider": "local", "dns.gardener.cloud/domain": "internal.example.org"}
    made = _object("v1", "Secret", "internal", "garden")
    made["metadata"] |= {"labels": {"gardener.cloud/role": "internal-domain"}, "annotations": annotations}
    await garden.operator.create(made)
    with pytest.raises(Forbidden):
        await garden.operator.create({**made, "metadata": made["metadata"] | {"name": "second"}})
    await garden.operator.delete(resources.SECRET, "internal", "garden")


async def test_users_see_the_parents_of_profiles_and_the_stages_of_versions(garden: Garden) -> None:
    await garden.member.create(_bare(changed(CHILD, "metadata.name", "shown")))
    table = await garden.member.request(
        "GET", KIND.path(NAMESPACE), accept="application/json;as=Table;v=v1;g=meta.k8s.io"
    )
    assert [each["name"] for each in table["columnDefinitions"]] == ["Name", "Parent Name", "Parent Kind", "Age"]
    assert ["shown", "local", "CloudProfile"] in [each["cells"][:3] for each in table["rows"]]

    soon = (datetime.now(UTC) + timedelta(seconds=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    lifecycle = [{"classification": "preview"}, {"classification": "supported", "startTime": soon}]
    versions = [*PROFILE["spec"]["kubernetes"]["versions"][1:], {"version": "1.38.0", "lifecycle": lifecycle}]
    await garden.operator.patch(
        resources.CLOUD_PROFILE, "local", None, {"spec": {"kubernetes": {"versions": versions}}}
    )

    async def is_at(stage: str) -> bool:
        found = await garden.operator.get(resources.CLOUD_PROFILE, "local")
        return {"version": "1.38.0", "classification": stage} in found["status"]["kubernetes"]["versions"]

    await until(functools.partial(is_at, "preview"))
    await until(functools.partial(is_at, "supported"), 30)
    merged = (await garden.status("shown", NAMESPACE))["cloudProfileSpec"]["kubernetes"]["versions"]
    assert next(each for each in merged if each["version"] == "1.38.0")["lifecycle"] == lifecycle
