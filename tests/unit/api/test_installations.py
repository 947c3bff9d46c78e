"""Which ControllerInstallations a seed has: a row per rule of spec/extensions.md 1.8."""

from typing import Any

import pytest

from api.decisions.installations import Facts, deploys, needed_pairs, plan, required
from tests.unit.api.shoots import changed
from tests.unit.api.test_registrations import shoot

SEED: dict[str, Any] = {
    "metadata": {"name": "seed-1", "resourceVersion": "7", "labels": {"region": "north"}},
    "spec": {
        "provider": {"type": "local", "region": "local"},
        "dns": {"internal": {"type": "internal-dns", "domain": "internal.example.org"}},
    },
}
NOW = "2026-11-26T05:00:00Z"
DELETING = {"deletionTimestamp": NOW}
DEPLOYMENT: dict[str, Any] = {"metadata": {"name": "chart", "resourceVersion": "3"}, "helm": {"rawChart": "aGk="}}


def registration(kind: str = "Network", type_: str = "net", name: str = "ext", **deployment: Any) -> dict[str, Any]:
    deployment = {"deploymentRefs": [{"name": "chart"}], **deployment}
    spec = {"resources": [{"kind": kind, "type": type_}], "deployment": deployment}
    return {"metadata": {"name": name, "resourceVersion": "5"}, "spec": spec}


def installation(name: str = "ext-1", conditions: Any = (), of: str = "ext", **metadata: Any) -> dict[str, Any]:
    known = [{"type": type_, "status": status} for type_, status in conditions]
    metadata = {"name": name, "creationTimestamp": "2026-11-26T04:00:00Z", "resourceVersion": "9", **metadata}
    return {
        "metadata": metadata,
        "spec": {"registrationRef": {"name": of}, "seedRef": {"name": "seed-1"}},
        **({"status": {"conditions": known}} if known else {}),
    }


def garden(*registrations: dict[str, Any], **rest: Any) -> Facts:
    settings = {"seed": SEED, "deployments": {"chart": DEPLOYMENT}, "registrations": registrations} | rest
    return Facts(**settings)


NEEDED = {"shoots": [shoot(networking={"type": "net"})]}
BUCKET = {"metadata": {"name": "bucket"}, "spec": {"provider": {"type": "disk", "region": "local"}}}


@pytest.mark.parametrize(
    ("offered", "found", "created"),
    [
        pytest.param(registration(), NEEDED, True, id="a Shoot uses it"),
        pytest.param(registration(), {}, False, id="nothing uses it"),
        pytest.param(registration("ControlPlane", "local"), {}, True, id="the Seed's provider"),
        pytest.param(registration("DNSRecord", "internal-dns"), {}, True, id="the Seed's internal domain"),
        pytest.param(registration("BackupBucket", "disk"), {"buckets": [BUCKET]}, True, id="a BackupBucket"),
        pytest.param(registration("BackupEntry", "disk"), {"entry_buckets": [BUCKET]}, True, id="a BackupEntry"),
        pytest.param(registration(policy="OnDemand"), {}, False, id="OnDemand, unused"),
        pytest.param(registration(policy="Always"), {}, True, id="Always"),
        pytest.param(registration("Bastion", policy="AlwaysExceptNoShoots"), {}, False, id="no Shoots"),
        pytest.param(registration("Bastion", policy="AlwaysExceptNoShoots"), NEEDED, True, id="some Shoot"),
        pytest.param(registration(seedSelector={"matchLabels": {"region": "north"}}), NEEDED, True, id="selected"),
        pytest.param(registration(seedSelector={"matchLabels": {"region": "south"}}), NEEDED, False, id="not selected"),
        pytest.param(
            registration(policy="Always", seedSelector={"matchLabels": {"region": "south"}}),
            NEEDED,
            False,
            id="Always, not selected",
        ),
        pytest.param(registration(deploymentRefs=None), NEEDED, False, id="no deployment"),
        pytest.param(registration(deploymentRefs=[{"name": "gone"}]), NEEDED, False, id="the deployment is gone"),
        pytest.param(changed(registration(), "metadata.deletionTimestamp", NOW), NEEDED, False, id="in deletion"),
        pytest.param(
            registration(policy="Always"), {"seed": changed(SEED, "metadata.deletionTimestamp", NOW)}, False, id="ends"
        ),
        pytest.param(
            registration("ControlPlane", "local"),
            {"seed": changed(SEED, "metadata.deletionTimestamp", NOW)},
            False,
            id="the provider of a Seed in deletion",
        ),
        pytest.param(
            registration(), NEEDED | {"seed": changed(SEED, "metadata.deletionTimestamp", NOW)}, True, id="still used"
        ),
    ],
)
def test_a_seed_gets_the_installations_that_it_needs(offered: Any, found: Any, created: bool) -> None:
    assert bool(plan(garden(offered, **found)).create) == created


def test_an_extension_that_enables_itself_in_seeds_is_needed() -> None:
    offered = registration("Extension", "seed-ext")
    offered["spec"]["resources"][0] |= {"autoEnable": ["seed"], "clusterCompatibility": ["seed"]}
    assert ("Extension", "seed-ext") in needed_pairs(garden(), [offered])
    off = changed(SEED, "spec.extensions", [{"type": "seed-ext", "disabled": True}])
    assert ("Extension", "seed-ext") not in needed_pairs(garden(seed=off), [offered])
    asked = changed(SEED, "spec.extensions", [{"type": "other"}])
    assert ("Extension", "other") in needed_pairs(garden(seed=asked), [])


def test_an_installation_names_what_it_installs_and_where() -> None:
    offered = registration()
    offered["metadata"]["annotations"] = {"security.gardener.cloud/pod-security-enforce": "baseline"}
    [made] = plan(garden(offered, **NEEDED)).create
    assert made["spec"] == {
        "registrationRef": {"name": "ext", "resourceVersion": "5"},
        "seedRef": {"name": "seed-1", "resourceVersion": "7"},
        "deploymentRef": {"name": "chart", "resourceVersion": "3"},
    }
    metadata = made["metadata"]
    assert metadata["generateName"] == "ext-"
    assert metadata["annotations"] == {"security.gardener.cloud/pod-security-enforce": "baseline"}
    hashes = {"seed-spec-hash", "registration-spec-hash", "deployment-hash"}
    assert metadata["labels"].keys() == hashes | {"name.seed.gardener.cloud/seed-1"}
    assert {len(metadata["labels"][each]) for each in hashes} == {16}


def installed(**rest: Any) -> dict[str, Any]:
    """The installation as the controller has created it."""
    [made] = plan(garden(registration(), **NEEDED)).create
    metadata = installation(**rest)["metadata"]
    return {**made, "metadata": {**made["metadata"], **metadata}}


@pytest.mark.parametrize(
    ("field", "value", "of"),
    [
        ("spec.provider.region", "other", "seed"),
        ("spec.deployment.policy", "Always", "registration"),
        ("metadata.annotations", {"security.gardener.cloud/pod-security-enforce": "baseline"}, "registration"),
        ("helm.values", {"replicas": 2}, "deployment"),
        ("injectGardenKubeconfig", True, "deployment"),
    ],
)
def test_an_installation_follows_what_it_refers_to(field: str, value: Any, of: str) -> None:
    objects = {"seed": SEED, "registration": registration(), "deployment": DEPLOYMENT}
    objects[of] = changed(changed(objects[of], field, value), "metadata.resourceVersion", "99")
    subject = garden(
        objects["registration"],
        seed=objects["seed"],
        deployments={"chart": objects["deployment"]},
        installations=[installed()],
        **NEEDED,
    )
    [(found, patch)] = plan(subject).change
    assert found["metadata"]["name"] == "ext-1"
    assert patch["spec"][f"{of}Ref"]["resourceVersion"] == "99"


@pytest.mark.parametrize(
    "seed", [changed(SEED, "metadata.resourceVersion", "99"), changed(SEED, "status", {"conditions": []})]
)
def test_a_status_changes_no_installation(seed: Any) -> None:
    """A Seed's status changes every minute, and each change of an installation's spec installs the chart again."""
    assert not plan(garden(registration(), seed=seed, installations=[installed()], **NEEDED)).change


INSTALLED = (("Installed", "True"),)


@pytest.mark.parametrize(
    ("found", "rest", "deleted"),
    [
        pytest.param(installation(), {}, True, id="not needed, and not begun"),
        pytest.param(installation(), NEEDED, False, id="needed"),
        pytest.param(installation(conditions=[("Required", "True")]), {}, False, id="objects exist"),
        pytest.param(installation(conditions=[*INSTALLED, ("Required", "False")]), {}, True, id="no objects"),
        pytest.param(installation(conditions=INSTALLED), {}, False, id="the gardenlet has not said yet"),
        pytest.param(installation(of="unknown"), {}, True, id="no registration"),
        pytest.param(installation(conditions=[("Required", "True")], **DELETING), {}, False, id="in deletion"),
        pytest.param(
            installation(conditions=[("Required", "True")]),
            {"seed": changed(SEED, "metadata.deletionTimestamp", NOW)},
            False,
            id="the Seed's deletion needs it",
        ),
    ],
)
def test_an_installation_goes_when_the_seed_does_not_need_it(found: Any, rest: Any, deleted: bool) -> None:
    decided = plan(garden(registration(), installations=[found], **rest))
    assert [each["metadata"]["name"] for each in decided.delete] == (["ext-1"] if deleted else [])


@pytest.mark.parametrize(
    "offered",
    [
        changed(registration(), "metadata.deletionTimestamp", NOW),
        registration(seedSelector={"matchLabels": {"region": "south"}}),
        registration(deploymentRefs=None),
    ],
    ids=["registration in deletion", "not selected any more", "without deployment"],
)
def test_no_registration_takes_an_installation_away_that_the_seed_requires(offered: Any) -> None:
    """Without its controller, an extension object could never be deleted."""
    found = installation(conditions=[("Required", "True")])
    decided = plan(garden(offered, installations=[found], **NEEDED))
    assert (decided.create, decided.change, decided.delete) == ((), (), ())


def test_an_installation_in_deletion_is_replaced_once_it_is_gone() -> None:
    going = plan(garden(registration(), installations=[installation(**DELETING)], **NEEDED))
    assert (going.create, going.change, going.delete) == ((), (), ())
    assert len(plan(garden(registration(), **NEEDED)).create) == 1


def test_of_two_installations_of_a_registration_the_older_one_stays() -> None:
    younger = installation("ext-0", conditions=[("Required", "True")], creationTimestamp="2026-11-26T04:00:01Z")
    decided = plan(garden(registration(), installations=[younger, installed()], **NEEDED))
    assert [each["metadata"]["name"] for each in decided.delete] == ["ext-0"]
    assert not decided.create


def test_faults_say_what_to_do() -> None:
    subject = garden(registration(deploymentRefs=[{"name": "gone"}]), **NEEDED)
    faults = plan(subject).faults
    assert (
        "ControllerRegistration ext names ControllerDeployment gone, which does not exist: create it, or change "
        "spec.deployment.deploymentRefs"
    ) in faults
    assert "no ControllerRegistration offers Worker of type local: register an extension that does" in faults
    assert not [each for each in faults if "Network" in each]


def test_condition_required_names_the_kinds_that_exist() -> None:
    yes, no = required([("Worker", "b"), ("Network", "a")]), required([])
    assert (yes.status, yes.reason, "Network/a, Worker/b" in yes.message) == ("True", "ExtensionObjectsExist", True)
    assert (no.status, no.reason) == ("False", "NoExtensionObjects")


def test_registrations_with_a_deployment_are_installed() -> None:
    assert deploys(registration())
    assert not deploys(registration(deploymentRefs=[]))
    assert not deploys({"spec": {}})


def test_of_two_primary_registrations_the_older_one_is_installed() -> None:
    """Admission may accept two that are written at the same moment."""

    def born(name: str, second: int) -> dict[str, Any]:
        made = registration(name=name)
        return changed(made, "metadata.creationTimestamp", f"2026-11-26T05:00:0{second}Z")

    for registrations in ([born("b", 1), born("a", 2)], [born("a", 2), born("b", 1)], [born("b", 1), born("c", 1)]):
        made = plan(garden(*registrations, **NEEDED))

        assert [each["spec"]["registrationRef"]["name"] for each in made.create] == ["b"]
        [fault] = [each for each in made.faults if "the older ControllerRegistration b is, too" in each]
        assert "Delete one of them" in fault


def test_a_second_primary_registration_is_installed_when_the_first_one_is_deleted() -> None:
    first, second = registration(name="a"), registration(name="b")

    made = plan(garden({**first, "metadata": {**first["metadata"], **DELETING}}, second, **NEEDED))

    assert [each["spec"]["registrationRef"]["name"] for each in made.create] == ["b"]
    assert not [each for each in made.faults if "the older ControllerRegistration" in each]
