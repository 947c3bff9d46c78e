"""A project widens its cloud profile beyond what an operator allows, or takes the profile of another project."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from api.decisions.profiles import profile_of, profile_reference, types_digest
from tests.unit.admission.test_quotas import limit
from tests.unit.admission.webhooks import FakeGarden, ask, patched
from tests.unit.api.profiles import BIG, CHILD
from tests.unit.api.shoots import PROFILE, SHOOT, changed, complete
from tests.unit.api.test_quota import quota
from workers.admission.app import application

NAMESPACED = {"kind": "NamespacedCloudProfile", "name": "mine"}
THEIRS = changed(changed(CHILD, "metadata.namespace", "garden-other"), "spec.machineTypes", [BIG])
VERBS = (
    "modify-spec-machinetypes",
    "modify-spec-kubernetes",
    "modify-spec-machineimages",
    "modify-spec-providerconfig",
    "raise-spec-limits",
)
LATER = "2030-01-01T00:00:00Z"


@pytest.fixture
def garden() -> FakeGarden:
    """A garden whose tenants have no custom verb. An operator has limited its profile to 10 nodes."""
    garden = FakeGarden()
    garden.objects = [changed(PROFILE, "spec.limits", {"maxNodesTotal": 10}), *garden.objects[1:]]
    garden.denied |= {(verb, "namespacedcloudprofiles") for verb in VERBS}
    return garden


@pytest.fixture
async def client(garden: FakeGarden) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(application(garden))) as client:
        yield client


async def refusal(client: Any, obj: dict[str, Any], old: dict[str, Any] | None = None) -> str:
    response = await ask(client, "/validate", "UPDATE" if old else "CREATE", obj, old)
    assert not response["allowed"], "the attack has succeeded"
    return str(response["status"]["message"])


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.kubernetes", {"versions": [{"version": "1.35.9", "expirationDate": LATER}]}),
        ("spec.machineImages", [{"name": "evil", "versions": [{"version": "1.0.0", "architectures": ["amd64"]}]}]),
        ("spec.providerConfig", {"kind": "CloudProfileConfig", "imagesDirectory": "/etc"}),
        ("spec.limits", {"maxNodesTotal": 1000}),
    ],
    ids=["an expired version", "an image of its own", "a directory of the host", "more nodes"],
)
async def test_a_project_without_the_verb_widens_its_profile(client: Any, path: str, value: Any) -> None:
    """Neither at the creation nor later; the author's own right decides, whatever other right the author has."""
    new = changed(CHILD, path, value)
    assert "user alice may not" in await refusal(client, new)
    assert "user alice may not" in await refusal(client, new, CHILD)


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
async def test_a_project_declares_a_machine_type_usable_that_an_operator_has_withdrawn(
    client: Any, garden: FakeGarden
) -> None:
    withdrawn = BIG | {"name": "old", "usable": True}
    assert "a project cannot change" in await refusal(client, changed(CHILD, "spec.machineTypes", [withdrawn]))
    # Nor does a Shoot get a type that its own project declares unusable.
    garden.objects.append(changed(CHILD, "spec.machineTypes", [BIG | {"usable": False}]))
    shoot = changed(
        complete("spec.provider.workers.0.machine.type", "big").to_wire(), "spec.cloudProfile", {**NAMESPACED}
    )
    assert 'machine.type: Unsupported value: "big"' in await refusal(client, shoot)


APPROVED = "quota.gardener.cloud/approved-types"
TINY = BIG | {"cpu": "500m", "memory": "2Gi"}


async def as_stored(client: Any, obj: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await ask(client, "/mutate", "UPDATE" if old else "CREATE", obj, old)
    return patched(changed(obj), answer) if "patch" in answer else obj


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
async def test_a_project_chooses_what_a_quota_counts_for_its_machines(client: Any, garden: FakeGarden) -> None:
    """The cloud makes the machines by the name of their type, whatever amounts the project writes beside it."""
    shoot = changed(complete("spec.provider.workers.0.machine.type", "big").to_wire(), "spec.cloudProfile", NAMESPACED)
    own = changed(CHILD, "spec.machineTypes", [TINY])
    limit(garden, quota({"cpu": "10"}), "local")
    for forged in (own, changed(own, "metadata.annotations", {APPROVED: str(types_digest(own))})):
        stored = await as_stored(client, forged)
        garden.objects.append(stored)
        assert "the project itself has chosen the amounts of big" in await refusal(client, shoot)
        garden.objects.remove(stored)
    # Nor does the project approve later, or change types that an operator has approved.
    stored = changed(own, "metadata.annotations", {})
    approved = changed(own, "metadata.annotations", {APPROVED: str(types_digest(own))})
    assert "user alice may not modify-spec-machinetypes" in await refusal(client, approved, stored)
    smaller = changed(approved, "spec.machineTypes", [TINY | {"cpu": "400m"}])
    stored = await as_stored(client, smaller, approved)
    assert APPROVED not in stored["metadata"]["annotations"]


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
async def test_a_project_makes_machines_that_run_count_less(client: Any, garden: FakeGarden) -> None:
    """Amounts that the machines no longer count would be free for further machines."""
    approved = changed(CHILD, "spec.machineTypes", [BIG])
    approved = changed(approved, "metadata.annotations", {APPROVED: str(types_digest(approved))})
    shoot = changed(complete("spec.provider.workers.0.machine.type", "big").to_wire(), "spec.cloudProfile", NAMESPACED)
    garden.objects += [approved, shoot]
    told = "big: Shoots use it, and Quotas count its amounts: ask an operator"
    assert told in await refusal(client, changed(approved, "spec.machineTypes", [TINY]), approved)
    # Neither by another profile of the project, to which the Shoot changes.
    limit(garden, quota({"cpu": "100"}), "local")
    other = changed(changed(CHILD, "metadata.name", "other"), "spec.machineTypes", [TINY])
    garden.objects.append(other)
    moved = changed(shoot, "spec.cloudProfile.name", "other")
    assert "the project itself has chosen the amounts of big" in await refusal(client, moved, shoot)


@pytest.mark.attack(actor="T1", asset="A1", finding=18)
async def test_a_project_writes_the_merged_status_itself(client: Any, garden: FakeGarden) -> None:
    """No process reads the status: it is for users. The API server also has a right of its own for it."""
    forged = {"cloudProfileSpec": PROFILE["spec"] | {"machineTypes": [BIG]}, "observedGeneration": 1}
    garden.objects.append(changed(CHILD, "status", forged))
    shoot = changed(
        complete("spec.provider.workers.0.machine.type", "big").to_wire(), "spec.cloudProfile", {**NAMESPACED}
    )
    assert 'machine.type: Unsupported value: "big"' in await refusal(client, shoot)


@pytest.mark.attack(actor="T1", asset="A1", finding=17)
@pytest.mark.parametrize(
    "name",
    [
        "mine",
        "garden-other/mine",
        "../../garden-other/namespacedcloudprofiles/mine",
        "..%2F..%2Fgarden-other%2Fnamespacedcloudprofiles%2Fmine",
        "mine?namespace=garden-other",
    ],
)
async def test_a_shoot_names_the_profile_of_another_project(client: Any, garden: FakeGarden, name: str) -> None:
    """The name alone is looked up, in the Shoot's own namespace; a text that is no name reads nothing."""
    garden.objects.append(THEIRS)
    shoot = changed(
        complete("spec.provider.workers.0.machine.type", "big").to_wire(), "spec.cloudProfile", {**NAMESPACED}
    )
    shoot["spec"]["cloudProfile"]["name"] = name
    assert "there is no such NamespacedCloudProfile" in await refusal(client, shoot)


@pytest.mark.attack(actor="T1", asset="A1", finding=17)
@pytest.mark.parametrize("kind", ["CloudProfile", "NamespacedCloudProfile"])
@pytest.mark.parametrize("name", ["../secrets/x", "a/b", "a%2Fb", "a?b", "a#b", "..", ".", "A b", ""])
async def test_a_shoot_leads_a_process_to_another_path_by_the_name_of_its_profile(kind: str, name: str) -> None:
    """The controller-manager and gardenlets read the profile by this name, with their own rights."""
    read = []

    async def find(*what: Any) -> None:
        read.append(what)

    shoot = changed(SHOOT, "spec.cloudProfile", {"kind": kind, "name": name})
    shoot["spec"].pop("cloudProfileName", None)
    assert await profile_of(shoot, find) is None
    assert profile_reference(shoot) is None
    assert not read


@pytest.mark.attack(actor="T1", asset="A1", finding=25)
async def test_a_member_removes_the_finalizer_of_a_profile_in_use(client: Any, garden: FakeGarden) -> None:
    """Without the profile the amounts of its Shoots are unknown, and a Quota that several projects share is blocked."""
    held = changed(CHILD, "metadata.finalizers", ["gardener"])
    shoot = changed(complete("spec.purpose", "evaluation", bound=True).to_wire(), "spec.cloudProfile", {**NAMESPACED})
    garden.objects += [held, shoot]

    answer = await refusal(client, changed(held, "metadata.finalizers", []), held)
    assert "it is used by Shoots: garden-local/demo" in answer
