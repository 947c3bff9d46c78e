"""NamespacedCloudProfiles at admission: verbs of their authors, and the profile that a Shoot is checked against."""

import json
from base64 import b64decode
from typing import Any

import pytest

from api.decisions.profiles import types_digest
from tests.unit.admission.test_quotas import limit
from tests.unit.admission.webhooks import ask, patched
from tests.unit.api.profiles import BIG, CHILD
from tests.unit.api.shoots import PROFILE, SHOOT, changed, complete
from tests.unit.api.test_quota import quota

LATER = "2030-01-01T00:00:00Z"
OWN_IMAGE = [{"name": "own", "versions": [{"version": "1.0.0", "architectures": ["amd64"]}]}]
EXTENDED = changed(CHILD, "spec.machineTypes", [BIG])
NAMESPACED = {"kind": "NamespacedCloudProfile", "name": "mine"}


async def message(client: Any, operation: str, obj: dict[str, Any] | None, old: dict[str, Any] | None = None) -> str:
    """Message of the refusal; empty if the write is allowed."""
    response = await ask(client, "/validate", operation, obj, old)
    return "" if response["allowed"] else str(response["status"]["message"])


@pytest.mark.parametrize(
    ("path", "value", "verb"),
    [
        ("spec.kubernetes", {"versions": [{"version": "1.36.3", "expirationDate": LATER}]}, "modify-spec-kubernetes"),
        ("spec.machineImages", OWN_IMAGE, "modify-spec-machineimages"),
        ("spec.providerConfig", {"kind": "X"}, "modify-spec-providerconfig"),
        ("spec.limits", {"maxNodesTotal": 11}, "raise-spec-limits"),
    ],
)
async def test_an_author_needs_the_verb_of_a_field(client, garden, path, value, verb):
    garden.objects.append(changed(PROFILE, "spec.limits", {"maxNodesTotal": 10}))
    garden.objects.remove(PROFILE)
    new = changed(CHILD, path, value)
    assert await message(client, "CREATE", new) == ""
    garden.denied.add((verb, "namespacedcloudprofiles"))
    assert f"user alice may not {verb} namespacedcloudprofiles" in await message(client, "CREATE", new)
    assert verb in await message(client, "UPDATE", new, CHILD)
    labelled = changed(new, "metadata.labels", {"a": "b"})
    assert await message(client, "UPDATE", labelled, new) == "", "the field stays as it is"


async def test_a_profile_extends_a_cloud_profile_that_exists(client):
    lost = changed(CHILD, "spec.parent.name", "nowhere")
    assert 'spec.parent.name: Not found: "nowhere"' in await message(client, "CREATE", lost)
    assert "has old, which a project cannot change" in await message(
        client, "CREATE", changed(CHILD, "spec.machineTypes", [BIG | {"name": "old"}])
    )
    assert await message(client, "DELETE", None, CHILD) == "", "a finalizer decides"


async def test_a_shoot_is_completed_and_checked_by_its_merged_profile(client, garden):
    garden.objects.append(changed(EXTENDED, "spec.machineImages", OWN_IMAGE))
    shoot = changed(SHOOT, "spec.cloudProfile", NAMESPACED)
    shoot["spec"]["cloudProfileName"] = "local"
    shoot["spec"]["provider"]["workers"][0]["machine"] = {"type": "big", "image": {"name": "own"}}
    stored = patched(shoot, await ask(client, "/mutate", "CREATE", shoot))
    assert stored["spec"]["provider"]["workers"][0]["machine"]["image"] == {"name": "own", "version": "1.0.0"}
    assert "cloudProfileName" not in stored["spec"], "it would name another profile"
    garden.objects[2]["spec"]["resources"].append({"kind": "OperatingSystemConfig", "type": "own", "primary": True})
    try:
        assert await message(client, "CREATE", stored) == ""
    finally:
        garden.objects[2]["spec"]["resources"].pop()
    bare = changed(stored, "spec.cloudProfile", {"kind": "CloudProfile", "name": "local"})
    assert 'machine.type: Unsupported value: "big"' in await message(client, "CREATE", bare)


async def test_a_shoot_changes_its_profile_within_one_root_and_keeps_what_it_uses(client, garden):
    other = changed(changed(CHILD, "metadata.name", "other"), "spec.parent.name", "foreign")
    garden.objects += [EXTENDED, other, changed(PROFILE, "metadata.name", "foreign")]
    plain = complete().to_wire()
    big = changed(plain, "spec.cloudProfile", NAMESPACED)
    big["spec"]["provider"]["workers"][0]["machine"]["type"] = "big"
    assert await message(client, "UPDATE", changed(plain, "spec.cloudProfile", NAMESPACED), plain) == ""
    assert await message(client, "UPDATE", big, plain) == ""
    back = changed(big, "spec.cloudProfile", plain["spec"]["cloudProfile"])
    assert "local does not offer big, which the Shoot uses" in await message(client, "UPDATE", back, big)
    foreign = changed(plain, "spec.cloudProfile", {"kind": "NamespacedCloudProfile", "name": "other"})
    assert "must stay local, or a NamespacedCloudProfile that extends it" in await message(
        client, "UPDATE", foreign, plain
    )


APPROVED = "quota.gardener.cloud/approved-types"


async def stored_profile(client: Any, obj: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, Any]:
    """The profile as the API server would store it."""
    answer = await ask(client, "/mutate", "UPDATE" if old else "CREATE", obj, old)
    return patched(changed(obj), answer) if "patch" in answer else obj


async def test_a_quota_counts_types_of_a_project_once_an_operator_has_approved_them(client, garden):
    limit(garden, quota({"cpu": "20"}), "local")
    shoot = changed(complete("spec.provider.workers.0.machine.type", "big").to_wire(), "spec.cloudProfile", NAMESPACED)
    garden.denied.add(("modify-spec-machinetypes", "namespacedcloudprofiles"))
    made = await stored_profile(client, EXTENDED)
    garden.objects.append(made)
    assert APPROVED not in made["metadata"].get("annotations", {})
    assert await message(client, "CREATE", shoot) == (
        'shoots.core.gardener.cloud "demo" is forbidden: spec.provider.workers: a Quota limits them, and the project '
        "itself has chosen the amounts of big: ask an operator with verb modify-spec-machinetypes on "
        "namespacedcloudprofiles to approve them"
    )
    plain = changed(shoot, "spec.provider.workers.0.machine.type", "local")
    assert await message(client, "CREATE", plain) == "", "the type of the parent counts as the operator says"

    garden.denied.clear()
    asked = changed(made, "metadata.annotations", {APPROVED: "now"})
    approved = await stored_profile(client, asked, made)
    assert await message(client, "UPDATE", approved, made) == ""
    garden.objects[garden.objects.index(made)] = approved
    assert await message(client, "CREATE", shoot) == ""
    assert "cpu: 0 used, 24 asked, 20 allowed" in await message(
        client, "CREATE", changed(shoot, "spec.provider.workers.0.maximum", 3)
    )
    again = await stored_profile(client, changed(approved, "metadata.labels", {}), approved)
    assert again["metadata"]["annotations"] == approved["metadata"]["annotations"], "another write keeps the approval"


async def test_types_that_an_operator_writes_are_approved(client):
    made = await stored_profile(client, EXTENDED)
    assert made["metadata"]["annotations"] == {APPROVED: types_digest(made)}
    assert "annotations" not in (await stored_profile(client, CHILD))["metadata"], "it has no types"


async def test_a_shoot_with_types_that_are_not_approved_may_become_smaller(client, garden):
    """Its owner has made it before a Quota limited it."""
    limit(garden, quota({"cpu": "100"}), "local")
    garden.objects.append(EXTENDED)
    shoot = changed(complete("spec.provider.workers.0.machine.type", "big").to_wire(), "spec.cloudProfile", NAMESPACED)
    assert await message(client, "UPDATE", changed(shoot, "spec.provider.workers.0.maximum", 1), shoot) == ""
    larger = changed(shoot, "spec.provider.workers.0.maximum", 3)
    assert "the project itself has chosen the amounts of big" in await message(client, "UPDATE", larger, shoot)


async def test_a_profile_that_is_being_deleted_gets_no_new_shoots(client, garden):
    garden.objects.append(changed(CHILD, "metadata.deletionTimestamp", "2026-11-25T00:00:00Z"))
    plain = complete().to_wire()
    mine = changed(plain, "spec.cloudProfile", NAMESPACED)
    assert "mine is being deleted" in await message(client, "CREATE", mine)
    assert "mine is being deleted" in await message(client, "UPDATE", mine, plain)
    assert await message(client, "UPDATE", changed(mine, "spec.purpose", "testing"), mine) == ""


async def test_profiles_keep_what_shoots_use(client, garden):
    shoot = changed(complete("spec.provider.workers.0.machine.type", "big").to_wire(), "spec.cloudProfile", NAMESPACED)
    garden.objects += [EXTENDED, shoot]
    assert "big is used by Shoot garden-local/demo" in await message(client, "UPDATE", CHILD, EXTENDED)
    smaller = changed(PROFILE, "spec.kubernetes.versions", PROFILE["spec"]["kubernetes"]["versions"][:1])
    assert "1.37.1 is used by Shoot garden-local/demo" in await message(client, "UPDATE", smaller, PROFILE)
    garden.objects.remove(shoot)
    assert await message(client, "UPDATE", CHILD, EXTENDED) == ""
    assert await message(client, "UPDATE", smaller, PROFILE) == ""


async def test_a_new_cloud_profile_loses_versions_that_have_expired(client):
    """No Shoot uses a version of a profile that did not exist."""
    image = {"name": "local", "versions": [{"version": "1.0.0", "expirationDate": "2026-01-01T00:00:00Z"}]}
    new = changed(PROFILE, "spec.machineImages.0", image)
    stored = patched(changed(new), await ask(client, "/mutate", "CREATE", new))
    assert [each["version"] for each in stored["spec"]["kubernetes"]["versions"]] == [
        "1.38.0",
        "1.37.1",
        "1.37.0",
        "1.36.3",
    ]
    assert stored["spec"]["machineImages"][0] == image, "an image without versions would be refused"
    for unreadable in (" ", "2026-01-01T00:00:00"):
        bad = changed(PROFILE, "spec.kubernetes.versions", [{"version": "1.38.0", "expirationDate": unreadable}])
        assert (await ask(client, "/mutate", "CREATE", bad))["allowed"], "the API server refuses it next"
    again = await ask(client, "/mutate", "UPDATE", new, new)
    changes = json.loads(b64decode(again["patch"])) if "patch" in again else []
    assert not [each for each in changes if each["path"].startswith("/spec")], "a Shoot may use it by now"


@pytest.mark.parametrize("made", [PROFILE, CHILD], ids=lambda made: made["kind"])
async def test_a_profile_is_labelled_with_its_provider_for_webhooks_of_extensions(client, made):
    made = changed(made, "metadata", {key: made["metadata"].get(key, "") for key in ("name", "namespace")})
    stored = patched(changed(made), await ask(client, "/mutate", "CREATE", made))
    assert stored["metadata"]["labels"] == {"provider.extensions.gardener.cloud/local": "true"}
    assert "patch" not in await ask(client, "/mutate", "UPDATE", stored, stored)
