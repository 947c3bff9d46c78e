"""A project's additions to a CloudProfile: what they may be, and what its Shoots get."""

import pytest

from api import resources
from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.namespaced_cloud_profile import NamespacedCloudProfile
from api.decisions.profiles import merged, profile_of, profile_reference, root_of
from api.decisions.versions import current_stages, next_stage
from api.validation.namespaced_profile import (
    check_children,
    check_namespaced_profile,
    check_namespaced_profile_change,
    verbs_needed,
)
from tests.unit.api.profiles import BIG, CHILD
from tests.unit.api.shoots import NOW, PROFILE, SHOOT, changed, complete, profile

NAMESPACED = {"kind": "NamespacedCloudProfile", "name": "mine"}
LATER = "2030-01-01T00:00:00Z"


def spec_of(path, value, parent=PROFILE):
    return merged(parent, changed(CHILD, path, value))["spec"]


def faults(path, value, *, old=None, parent=PROFILE):
    before = NamespacedCloudProfile.of(old) if old else None
    new = NamespacedCloudProfile.of(changed(CHILD, path, value))
    return str(check_namespaced_profile(new, before, CloudProfile.of(parent), NOW))


def test_a_profile_without_additions_is_the_parent_under_another_name():
    result = merged(PROFILE, CHILD)
    assert result["spec"] == PROFILE["spec"]
    assert (result["kind"], result["metadata"]["name"]) == ("CloudProfile", "mine")


def test_an_expiration_date_replaces_that_of_the_parent():
    versions = spec_of("spec.kubernetes", {"versions": [{"version": "1.35.9", "expirationDate": LATER}]})
    found = {each["version"]: each for each in versions["kubernetes"]["versions"]}
    assert found["1.35.9"]["expirationDate"] == LATER
    assert found["1.37.1"] == {"version": "1.37.1", "classification": "supported"}


def test_an_expiration_date_replaces_the_last_stage_of_a_lifecycle():
    stages = [{"classification": "supported"}, {"classification": "expired", "startTime": "2026-01-01T00:00:00Z"}]
    parent = changed(PROFILE, "spec.kubernetes.versions.4", {"version": "1.35.9", "lifecycle": stages})
    spec = spec_of("spec.kubernetes", {"versions": [{"version": "1.35.9", "expirationDate": LATER}]}, parent)
    assert spec["kubernetes"]["versions"][4] == {
        "version": "1.35.9",
        "lifecycle": [{"classification": "supported"}, {"classification": "expired", "startTime": LATER}],
    }


def test_a_version_that_the_parent_does_not_have_any_more_is_not_offered():
    """Otherwise an old override would offer what an operator has withdrawn."""
    spec = spec_of("spec.kubernetes", {"versions": [{"version": "1.30.0", "expirationDate": LATER}]})
    assert spec["kubernetes"] == PROFILE["spec"]["kubernetes"]
    images = [{"name": "local", "versions": [{"version": "0.9.0", "expirationDate": LATER}]},
              {"name": "gone", "versions": [{"version": "1.0.0", "expirationDate": LATER}]}]  # fmt: skip
    found = {each["name"]: each["versions"] for each in spec_of("spec.machineImages", images)["machineImages"]}
    assert found == {each["name"]: each["versions"] for each in PROFILE["spec"]["machineImages"]}


def test_images_get_versions_and_new_images_come_last():
    images = [
        {"name": "local", "updateStrategy": "minor", "versions": [
            {"version": "2.0.0", "architectures": ["arm64"]}, {"version": "1.0.0", "expirationDate": LATER}]},
        {"name": "own", "versions": [{"version": "1.0.0", "architectures": ["amd64"]}]},
    ]  # fmt: skip
    spec = spec_of("spec.machineImages", images)
    assert [each["name"] for each in spec["machineImages"]] == ["other", "local", "own"]
    local, own = spec["machineImages"][1:]
    assert local["updateStrategy"] == "minor"
    assert local["versions"][2:] == [
        {"version": "1.0.0", "expirationDate": LATER},
        {"version": "2.0.0", "architectures": ["arm64"], "cri": [{"name": "containerd"}]},
    ]
    assert own["versions"][0]["cri"] == [{"name": "containerd"}]


def test_types_are_added_and_a_later_type_of_the_parent_does_not_change_nodes():
    spec = spec_of("spec.machineTypes", [BIG])
    assert [each["name"] for each in spec["machineTypes"]] == ["local", "old", "big"]
    parent = changed(PROFILE, "spec.machineTypes", [*PROFILE["spec"]["machineTypes"], BIG | {"cpu": "1"}])
    assert spec_of("spec.machineTypes", [BIG], parent)["machineTypes"][2] == BIG
    assert spec_of("spec.volumeTypes", [{"name": "v", "class": "premium"}])["volumeTypes"][0]["name"] == "v"


def test_certificates_are_added_and_settings_replaced():
    parent = changed(PROFILE, "spec.caBundle", "first\n")
    assert spec_of("spec.caBundle", "second", parent)["caBundle"] == "first\nsecond\n"
    assert spec_of("spec.limits", {"maxNodesTotal": 3})["limits"] == {"maxNodesTotal": 3}
    assert spec_of("spec.providerConfig", {"kind": "X"})["providerConfig"] == {"kind": "X"}


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec.kubernetes", {"versions": [{"version": "1.99.0", "expirationDate": LATER}]}, "has no such version"),
        ("spec.kubernetes", {"versions": [{"version": "1.36.3"}]}, "versions[0].expirationDate: Required value"),
        (
            "spec.kubernetes",
            {"versions": [{"version": "1.36.3", "expirationDate": "2026-11-21T12:00:00Z"}]},
            "must be in the future",
        ),
        (
            "spec.kubernetes",
            {"versions": [{"version": "1.38.0", "classification": "supported", "expirationDate": LATER}]},
            "versions[0].classification: Forbidden",
        ),
        (
            "spec.kubernetes",
            {"versions": [{"version": "1.38.0", "expirationDate": LATER}]},
            "the newest version must not expire",
        ),
        (
            "spec.machineImages",
            [
                {
                    "name": "local",
                    "versions": [{"version": "1.0.0", "architectures": ["arm64"], "expirationDate": LATER}],
                }
            ],
            "the parent has local 1.0.0: only expirationDate can be set",
        ),
        (
            "spec.machineImages",
            [{"name": "local", "versions": [{"version": "9.0.0", "expirationDate": LATER}]}],
            "a new version must name its architectures",
        ),
        ("spec.machineImages", [{"name": "own"}], "must have at least one version"),
        (
            "spec.machineImages",
            [{"name": "own", "versions": [{"version": "9", "architectures": ["amd64"]}]}],
            "must be a version like",
        ),
        ("spec.machineTypes", [BIG | {"name": "old"}], "has old, which a project cannot change"),
    ],
)
def test_what_a_project_may_not_add(path, value, complaint):
    assert complaint in faults(path, value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.kubernetes", {"versions": [{"version": "1.35.9", "expirationDate": LATER}]}),
        ("spec.machineImages", [{"name": "local", "updateStrategy": "patch"}]),
        ("spec.machineImages", [{"name": "own", "versions": [{"version": "1.0.0", "architectures": ["amd64"]}]}]),
        ("spec.machineTypes", [BIG]),
    ],
)
def test_what_a_project_may_add(path, value):
    assert faults(path, value) == "[]"


def test_entries_that_were_fine_before_stay_though_the_parent_or_the_time_has_changed():
    """Otherwise a project could not change anything else in its profile."""
    past = {"versions": [{"version": "1.34.0", "expirationDate": "2026-01-01T00:00:00Z"}]}
    assert faults("spec.kubernetes", past, old=changed(CHILD, "spec.kubernetes", past)) == "[]"
    parent = changed(PROFILE, "spec.machineTypes", [*PROFILE["spec"]["machineTypes"], BIG | {"usable": False}])
    assert faults("spec.machineTypes", [BIG], old=changed(CHILD, "spec.machineTypes", [BIG]), parent=parent) == "[]"
    assert "cannot change" in faults("spec.machineTypes", [BIG], old=CHILD, parent=parent)


def test_faults_of_the_parent_alone_do_not_hold_up_the_project():
    parent = changed(PROFILE, "spec.kubernetes.versions.0.expirationDate", LATER)
    assert faults("spec.machineTypes", [BIG], parent=parent) == "[]"


@pytest.mark.parametrize(
    ("path", "value", "verb"),
    [
        ("spec.kubernetes", {"versions": []}, "modify-spec-kubernetes"),
        ("spec.machineImages", [{"name": "own"}], "modify-spec-machineimages"),
        ("spec.providerConfig", {"kind": "X"}, "modify-spec-providerconfig"),
        ("spec.limits", {"maxNodesTotal": 11}, "raise-spec-limits"),
    ],
)
def test_verbs_are_needed_to_set_and_to_remove(path, value, verb):
    parent = changed(PROFILE, "spec.limits", {"maxNodesTotal": 10})
    new = changed(CHILD, path, value)
    assert [each for _, each in verbs_needed(new, None, parent)] == [verb]
    assert verbs_needed(new, new, parent) == []
    if verb != "raise-spec-limits":
        assert [each for _, each in verbs_needed(CHILD, new, parent)] == [verb]


def test_a_lower_limit_and_types_need_no_verb():
    parent = changed(PROFILE, "spec.limits", {"maxNodesTotal": 10})
    assert verbs_needed(changed(CHILD, "spec.limits", {"maxNodesTotal": 10}), None, parent) == []
    assert verbs_needed(changed(CHILD, "spec.machineTypes", [BIG]), None, parent) == []


def test_what_a_shoot_uses_cannot_be_taken_out_of_the_profile():
    shoot = complete("spec.provider.workers.0.machine.type", "big")
    old = changed(CHILD, "spec.machineTypes", [BIG])
    found = check_namespaced_profile_change(CHILD, old, PROFILE, [shoot], NOW)
    assert "big is used by Shoot garden-local/demo and cannot be removed" in str(found)
    lower = changed(old, "spec.limits", {"maxNodesTotal": 5})
    parent = changed(PROFILE, "spec.limits", {"maxNodesTotal": 10})
    assert "must not decrease from 10" in str(check_namespaced_profile_change(lower, old, parent, [shoot], NOW))
    for new in (CHILD, lower):
        assert not check_namespaced_profile_change(new, old, parent, [], NOW)


def test_a_parent_keeps_what_shoots_use_through_its_children():
    new = CloudProfile.of(changed(PROFILE, "spec.machineTypes", []))
    found = str(check_children(new, profile(), [(CHILD, [complete()])], NOW))
    assert "machineTypes: Forbidden: local is used by Shoot garden-local/demo" in found
    own = changed(CHILD, "spec.machineTypes", [BIG | {"name": "local"}])
    assert not check_children(new, profile(), [(own, [complete()])], NOW)


def test_a_parent_gets_no_image_of_a_name_that_a_child_defines():
    own = [{"name": "own", "versions": [{"version": "1.0.0", "architectures": ["amd64"]}]}]
    new = CloudProfile.of(changed(PROFILE, "spec.machineImages", [*PROFILE["spec"]["machineImages"], *own]))
    child = changed(CHILD, "spec.machineImages", own)
    assert "own is defined by NamespacedCloudProfile garden-local/mine" in str(
        check_children(new, profile(), [(child, [])], NOW)
    )
    assert not check_children(new, new, [(child, [])], NOW)


def finding(*objects):
    async def find(resource, name, namespace=None):
        for each in objects:
            place = (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace"))
            if place == (resource.kind, name, namespace):
                return each
        return None

    return find


async def test_a_shoot_gets_the_profile_of_its_own_namespace():
    mine = changed(SHOOT, "spec.cloudProfile", NAMESPACED)
    child = changed(CHILD, "spec.machineTypes", [BIG])
    found = await profile_of(mine, finding(PROFILE, child))
    assert found is not None
    assert found["spec"]["machineTypes"][-1] == BIG
    assert await profile_of(changed(mine, "metadata.namespace", "garden-other"), finding(PROFILE, child)) is None
    assert await profile_of(mine, finding(child)) is None
    assert await profile_of(SHOOT, finding(PROFILE, child)) == PROFILE


async def test_the_root_of_a_profile_is_its_cloud_profile():
    mine = changed(SHOOT, "spec.cloudProfile", NAMESPACED)
    assert await root_of(profile_reference(mine), finding(PROFILE, CHILD)) == "local"
    assert await root_of(profile_reference(SHOOT), finding()) == "local"
    assert await root_of(profile_reference(mine), finding(PROFILE)) is None


def test_the_deprecated_name_is_read_where_there_is_no_other():
    reference = profile_reference({"metadata": {}, "spec": {"cloudProfileName": "old"}})
    assert reference is not None
    assert (reference.resource, reference.namespace, reference.name) == (resources.CLOUD_PROFILE, None, "old")
    assert profile_reference({"metadata": {}, "spec": {}}) is None


def test_the_status_names_the_present_stage_of_each_version_and_the_time_of_the_next():
    stages = [{"classification": "preview"}, {"classification": "supported", "startTime": "2026-12-01T00:00:00Z"}]
    found = profile("spec.kubernetes.versions.0", {"version": "1.38.0", "lifecycle": stages})
    status = current_stages(found, NOW)
    assert {each["version"]: each["classification"] for each in status["kubernetes"]["versions"]} == {
        "1.38.0": "preview",
        "1.37.1": "supported",
        "1.37.0": "deprecated",
        "1.36.3": "supported",
        "1.35.9": "expired",
    }
    assert status["machineImages"][1]["versions"][0] == {"version": "1.2.0", "classification": "preview"}
    assert str(next_stage(found, NOW)) == "2026-12-01 00:00:00+00:00"
    assert next_stage(profile(), NOW) is None
