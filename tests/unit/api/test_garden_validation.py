"""Cloud profiles, seeds and projects that the garden API refuses."""

import pytest

from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.project import Project
from api.core.v1beta1.seed import Seed
from api.decisions.project import desired_namespace, namespace_name
from api.defaulting.project import default_project
from api.validation.garden import (
    check_cloud_profile,
    check_cloud_profile_change,
    check_project,
    check_seed,
    check_seed_change,
    check_seed_unused,
)
from tests.unit.api.shoots import NOW, PROFILE, PROJECT, SEED, changed, complete, profile, seed


def test_the_examples_are_fine():
    assert not check_cloud_profile(profile(), NOW)
    assert not check_seed(seed())
    assert not check_project(Project.of(PROJECT), [Project.of(PROJECT)])


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec.regions", [], "spec.regions: Required value"),
        ("spec.kubernetes.versions", [], "spec.kubernetes.versions: Required value"),
        ("spec.kubernetes.versions.0.version", "1.38", "versions[0].version: Invalid value"),
        ("spec.kubernetes.versions.0.expirationDate", "2030-01-01T00:00:00Z", "the newest version must not expire"),
        ("spec.kubernetes.versions.2.classification", "supported", "only one version of 1.37 can be supported"),
        (
            "spec.kubernetes.versions.1.lifecycle",
            [{"classification": "supported"}],
            "must not be set together with classification",
        ),
        ("spec.machineImages.0.versions", [], "an image needs at least one version"),
        ("spec.machineTypes.0.storage", {"class": "x", "type": "y"}, "must have either size or minSize"),
        ("spec.machineCapabilities", [{"name": "fast", "values": []}], "must define architecture"),
    ],
)
def test_a_bad_cloud_profile(path, value, complaint):
    assert complaint in str(check_cloud_profile(CloudProfile.of(changed(PROFILE, path, value)), NOW))


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec.kubernetes.versions", [{"version": "1.38.0"}], "1.37.1 is used by Shoot garden-local/demo"),
        ("spec.machineTypes", [], "machineTypes: Forbidden: local is used by"),
        ("spec.machineImages", [], "local 1.1.0 is used by"),
        ("spec.type", "aws", "spec.type: Invalid value"),
    ],
)
def test_entries_that_shoots_use_cannot_be_removed_from_a_cloud_profile(path, value, complaint):
    new = CloudProfile.of(changed(PROFILE, path, value))
    assert complaint in str(check_cloud_profile_change(new, profile(), [complete()], NOW))


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec.networks.pods", "100.64.0.0/10", "overlaps with services 100.64.1.0/24"),
        ("spec.networks.pods", "10.0.0.5/8", "spec.networks.pods: Invalid value"),
        ("spec.networks.shootDefaults.pods", "100.96.0.0/16", "overlaps with shootDefaults.pods"),
        ("spec.ingress", {"domain": "i.test", "controller": {"kind": "nginx"}}, "spec.dns.provider: Required value"),
        ("spec.backup", {"provider": "aws", "credentialsRef": {}}, "spec.backup.region: Required value"),
        (
            "spec.settings",
            {"loadBalancerServices": {"externalTrafficPolicy": "Global"}},
            "loadBalancerServices.externalTrafficPolicy: Unsupported value",
        ),
        ("spec.settings", {"topologyAwareRouting": {"enabled": True}}, "needs a seed with at least two zones"),
        *(
            ("spec.settings", {"excessCapacityReservation": {"configs": [{"resources": {"cpu": "1"}, **config}]}}, said)
            for config, said in (
                ({"resources": {}}, "configs[0].resources: Required value"),
                ({"resources": {"cpu": "-1"}}, "must not be negative"),
                ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "tolerations[0].value: Invalid"),
                ({"tolerations": [{"operator": "Equal"}]}, "tolerations[0].operator: Invalid value"),
                ({"tolerations": [{"key": "a", "tolerationSeconds": 5}]}, "needs effect NoExecute"),
            )
        ),
        (
            "spec.settings",
            {"loadBalancerServices": {"zonalIngress": {"enabled": True}}},
            "one address for all zones: set it to false",
        ),
    ],
)
def test_a_bad_seed(path, value, complaint):
    assert complaint in str(check_seed(Seed.of(changed(SEED, path, value))))


@pytest.mark.parametrize(
    "settings",
    [
        {"excessCapacityReservation": {"enabled": True, "configs": [{"resources": {"cpu": "1"}, "tolerations": [
            {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5},
            {"operator": "Exists"},
        ]}]}},
        {"excessCapacityReservation": {"enabled": False}},
        {"loadBalancerServices": {"zonalIngress": {"enabled": False}}},
        {"dependencyWatchdog": {"weeder": {"enabled": True}, "prober": {"enabled": False}}},
    ],
)  # fmt: skip
def test_settings_that_a_seed_offers(settings):
    assert not check_seed(Seed.of(changed(SEED, "spec.settings", settings)))


def test_the_class_of_the_gateway_s_service_is_fixed():
    before = seed("spec.settings", {"loadBalancerServices": {"class": "slow"}})
    after = seed("spec.settings", {"loadBalancerServices": {"class": "fast"}})
    assert "loadBalancerServices.class: Invalid value" in str(check_seed_change(after, before, []))
    assert not check_seed_change(before, before, [])


def test_a_seed_in_use_keeps_its_domain_and_itself():
    moved = seed("spec.dns.internal.domain", "other.test")
    assert "internal.domain: Forbidden: is used by 1 Shoots" in str(check_seed_change(moved, seed(), ["a/b"]))
    assert not check_seed_change(moved, seed(), [])
    assert "Forbidden: Seed seed-1 cannot be deleted: it hosts a/b" in str(
        check_seed_unused("seed-1", ["it hosts a/b"])
    )
    assert not check_seed_unused("seed-1", [])


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("metadata.name", "much-too-long", "metadata.name: Invalid value"),
        ("metadata.name", "a.b", "metadata.name: Invalid value"),
        ("spec.namespace", "kube-system", "must start with garden-"),
        ("spec.namespace", "garden-a.b", "spec.namespace: Invalid value"),
        ("spec.namespace", "garden-", "spec.namespace: Invalid value"),
        ("spec.namespace", "garden-A", "spec.namespace: Invalid value"),
        ("spec.namespace", "garden-a/../kube-system", "spec.namespace: Invalid value"),
        ("spec.members", [{"kind": "User", "name": "a", "role": "king"}], "members[0].roles: Unsupported value"),
        ("spec.members", [{"kind": "User", "name": "a"}] * 2, "spec.members[1]: Duplicate value"),
        ("spec.tolerations", {"defaults": [{"key": "x"}]}, "must be in the whitelist"),
        ("spec.description", "tab\there", "must be printable"),
    ],
)
def test_a_bad_project(path, value, complaint):
    assert complaint in str(check_project(Project.of(changed(PROJECT, path, value)), []))


def test_a_namespace_belongs_to_one_project():
    other = Project.of(changed(PROJECT, "metadata.name", "other"))
    assert "spec.namespace: Duplicate value" in str(check_project(other, [Project.of(PROJECT)]))


def test_the_creator_owns_a_project_unless_it_says_otherwise():
    project = Project.of(PROJECT)
    default_project(project, None, "alice")
    assert project.spec.created_by
    assert project.spec.owner
    assert project.spec.created_by.name == project.spec.owner.name == "alice"
    members = project.spec.members or []
    assert [(each.name, each.role, each.roles) for each in members] == [("alice", "admin", ["owner"])]

    given = [{"kind": "User", "name": "bob", "role": "owner"}, {"kind": "User", "name": "eve"}]
    project = Project.of(changed(PROJECT, "spec.members", given))
    default_project(project, None, "alice")
    assert project.spec.owner
    assert project.spec.owner.name == "bob"
    assert [(each.name, each.role, each.roles) for each in project.spec.members or []] == [
        ("bob", "owner", ["admin"]),
        ("eve", "viewer", None),
    ]


def test_the_creator_stays_the_creator():
    old = Project.of(PROJECT)
    default_project(old, None, "alice")
    new = Project.of(old.to_wire())
    default_project(new, old, "bob")
    assert new.to_wire() == old.to_wire()


def test_a_namespace_is_made_or_adopted_but_never_taken():
    """A Project is a way to a namespace's secrets; only a marked namespace can be had."""
    project = Project.of(PROJECT)
    made = desired_namespace(project, None)
    assert made["metadata"]["annotations"]["namespace.gardener.cloud/created-by-project-controller"] == "true"

    marked = {"metadata": {"name": "garden-local", "labels": made["metadata"]["labels"]}}
    adopted = desired_namespace(project, marked)
    assert adopted["metadata"]["annotations"]["namespace.gardener.cloud/keep-after-project-deletion"] == "true"

    with pytest.raises(PermissionError, match="is not marked for project local"):
        desired_namespace(project, {"metadata": {"name": "garden-local"}})
    foreign = {"metadata": marked["metadata"] | {"annotations": {"namespace.gardener.cloud/project": "p-2"}}}
    with pytest.raises(PermissionError, match="belongs to another project"):
        desired_namespace(project, foreign)


def test_a_namespace_name_is_computed_once_and_for_all():
    project = Project.of(changed(PROJECT, "spec.namespace"))
    assert namespace_name(project) == "garden-local-1dee6"  # 5 hex digits of sha256("p-1")
