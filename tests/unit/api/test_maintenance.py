"""What maintenance changes in a Shoot, for what its cloud profile offers."""

from datetime import UTC, datetime
from typing import Any

import pytest

from api.core.v1beta1.cloud_profile import CloudProfile
from api.decisions.maintenance import Plan, plan_maintenance
from tests.unit.api.shoots import PROFILE, changed, complete

NOW = datetime(2026, 11, 21, tzinfo=UTC)
PAST, FUTURE = "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"
IMAGES = "spec.machineImages.1"
POOL = "spec.provider.workers.0"


def version(text: str) -> dict[str, Any]:
    """``1.37.2``, ``1.38.0 preview`` or ``1.37.1 expired``; ``expiring`` has a date that is still to come."""
    number, _, classification = text.partition(" ")
    if classification == "expired":
        return {"version": number, "classification": "deprecated", "expirationDate": PAST}
    if classification == "expiring":
        return {"version": number, "classification": "deprecated", "expirationDate": FUTURE}
    return {"version": number, **({"classification": classification} if classification else {})}


def plan(*changes: tuple[str, Any], kubernetes: str = "", images: str = "", strategy: str = "major") -> Plan:
    profile = PROFILE
    if kubernetes:
        profile = changed(profile, "spec.kubernetes.versions", [version(each) for each in kubernetes.split(", ")])
    if images:
        offered = {"name": "local", "updateStrategy": strategy}
        offered["versions"] = [version(each) for each in images.split(", ")]
        profile = changed(profile, IMAGES, offered)
    obj = complete().to_wire()
    for path, value in changes:
        obj = changed(obj, path, value)
    return plan_maintenance(obj, CloudProfile.of(profile), NOW)


def image(current: str) -> tuple[str, Any]:
    return f"{POOL}.machine.image", {"name": "local", "version": current}


def automatic(**fields: bool) -> tuple[str, Any]:
    return "spec.maintenance.autoUpdate", fields


OFF = automatic(kubernetesVersion=False, machineImageVersion=False)


def image_after(made: Plan) -> str | None:
    workers = made.spec.get("provider", {}).get("workers")
    return workers[0]["machine"]["image"]["version"] if workers else None


@pytest.mark.parametrize(
    ("current", "offered", "auto", "after"),
    [
        # A patch, never a minor, as long as the version may stay.
        ("1.37.1", "1.37.1, 1.37.4, 1.37.2, 1.38.0", True, "1.37.4"),
        ("1.37.1", "1.37.1, 1.38.0", True, None),
        ("1.37.1", "1.37.1, 1.37.4", False, None),
        # Supported before deprecated, never preview, never expired.
        ("1.37.1", "1.37.1, 1.37.2 supported, 1.37.3 deprecated, 1.37.4 preview, 1.37.5 expired", True, "1.37.2"),
        ("1.37.1", "1.37.1, 1.37.3 deprecated", True, "1.37.3"),
        ("1.37.1", "1.37.1 expiring, 1.37.3 expiring", True, "1.37.3"),
        # What has expired cannot stay, whatever its owner wants: a patch if there is one, else the next minor.
        ("1.37.1", "1.37.1 expired, 1.37.4, 1.38.0", False, "1.37.4"),
        ("1.37.1", "1.37.1 expired, 1.38.0, 1.38.2, 1.39.1", False, "1.38.2"),
        ("1.37.1", "1.37.1 expired, 1.38.0 expired, 1.39.0", False, "1.38.0"),
        ("1.37.1", "1.37.1 expired, 1.38.1 preview, 1.38.0 deprecated", True, "1.38.0"),
        # Nor can what is not offered any more.
        ("1.37.1", "1.37.3, 1.38.0", False, "1.37.3"),
        ("1.37.1", "1.38.0", False, "1.38.0"),
    ],
)
def test_kubernetes(current: str, offered: str, auto: bool, after: str | None) -> None:
    made = plan(("spec.kubernetes.version", current), automatic(kubernetesVersion=auto), kubernetes=offered)
    assert made.spec.get("kubernetes", {}).get("version") == after
    assert not made.failures


def test_a_version_without_a_way_out_is_a_failure_that_says_what_is_missing() -> None:
    made = plan(OFF, kubernetes="1.37.1 expired, 1.39.0")
    assert made.spec == {}
    assert str(made.failures[0]) == (
        "Control Plane: Could not update Kubernetes version from 1.37.1: "
        "the cloud profile offers no version of 1.38. Reason: Kubernetes version expired - force update required"
    )


@pytest.mark.parametrize(
    ("strategy", "current", "offered", "auto", "after"),
    [
        # patch
        ("patch", "1.0.0", "1.0.0, 1.0.2, 1.1.0, 2.0.0", True, "1.0.2"),
        ("patch", "1.0.0", "1.0.0, 1.1.0", True, None),
        ("patch", "1.0.0", "1.0.0 expired, 1.1.0, 1.1.3, 1.2.0, 2.0.0", False, "1.1.3"),
        # minor: the newest patch first
        ("minor", "1.0.0", "1.0.0, 1.0.2, 1.3.0, 2.0.0", True, "1.0.2"),
        ("minor", "1.0.2", "1.0.2, 1.1.0, 1.3.0, 2.0.0", True, "1.3.0"),
        ("minor", "1.0.2", "1.0.2, 2.0.0", True, None),
        ("minor", "1.0.2", "1.0.2 expired, 2.0.0, 2.4.1, 3.0.0", False, "2.4.1"),
        # major
        ("major", "1.0.0", "1.0.0, 1.0.2, 3.0.0", True, "1.0.2"),
        ("major", "1.0.2", "1.0.2, 1.1.0, 3.0.0, 2.0.0", True, "3.0.0"),
        ("major", "1.0.2", "1.0.2, 1.1.0, 3.0.0 preview", True, "1.1.0"),
        ("major", "1.0.0", "1.0.0, 2.0.0", False, None),
        # forced
        ("major", "1.0.0", "1.0.0 expired, 2.0.0", False, "2.0.0"),
        ("major", "1.0.0", "2.0.0", False, "2.0.0"),
        ("patch", "1.0.0", "1.0.0 expired, 1.1.0 expired, 1.2.0", False, "1.1.0"),
        ("patch", "1.0.0", "1.0.0 expired, 1.0.1 expired", False, "1.0.1"),
        ("major", "1.0.0", "1.0.0 expired, 1.0.1 deprecated, 1.0.2 expired", False, "1.0.1"),
    ],
)
def test_machine_images(strategy: str, current: str, offered: str, auto: bool, after: str | None) -> None:
    switch = automatic(kubernetesVersion=False, machineImageVersion=auto)
    made = plan(image(current), switch, images=offered, strategy=strategy)
    assert image_after(made) == after
    assert not made.failures


@pytest.mark.parametrize(
    ("offered", "strategy", "name", "complaint"),
    [
        ("1.0.0 expired", "major", "local", "no newer version that fits the pool, by strategy major"),
        ("1.0.0 expired, 2.0.0", "patch", "local", "no newer version that fits the pool, by strategy patch"),
        ("1.0.0", "major", "vanished", "does not offer this image any more"),
    ],
)
def test_an_image_without_a_way_out_is_a_failure(offered: str, strategy: str, name: str, complaint: str) -> None:
    made = plan((f"{POOL}.machine.image", {"name": name, "version": "1.0.0"}), images=offered, strategy=strategy)
    assert made.spec == {}
    assert complaint in str(made.failures[0])
    assert str(made.failures[0]).startswith("Worker pool 'pool': Could not update machine image")


@pytest.mark.parametrize(
    ("misfit", "pool"),
    [
        ({"architectures": ["arm64"]}, {}),
        ({"cri": [{"name": "other"}]}, {}),
        ({"kubeletVersionConstraint": "< 1.37"}, {}),
        ({}, {"cri": {"name": "containerd", "containerRuntimes": [{"type": "gvisor"}]}}),
        ({}, {"updateStrategy": "AutoInPlaceUpdate"}),
        (
            {"inPlaceUpdates": {"supported": True, "minVersionForUpdate": "1.0.5"}},
            {"updateStrategy": "AutoInPlaceUpdate"},
        ),
    ],
    ids=["architecture", "runtime", "kubelet", "container runtime", "not in place", "not in place from here"],
)
def test_an_image_that_does_not_fit_the_pool_is_none(misfit: dict[str, Any], pool: dict[str, Any]) -> None:
    offered = {"name": "local", "versions": [{"version": "1.0.0"}, {"version": "1.1.0", **misfit}]}
    profile = CloudProfile.of(changed(PROFILE, IMAGES, offered))
    obj = changed(complete().to_wire(), *image("1.0.0"))
    obj["spec"]["provider"]["workers"][0].update(pool)
    assert plan_maintenance(obj, profile, NOW).spec == {}


@pytest.mark.parametrize(
    ("pool_version", "offered", "after"),
    [
        ("1.37.1", "1.37.1, 1.37.4", "1.37.4"),
        ("1.36.3", "1.36.3, 1.36.9, 1.37.1, 1.37.4", "1.36.9"),
        ("1.36.3", "1.36.3 expired, 1.37.1, 1.37.4", "1.37.4"),
    ],
)
def test_a_pool_of_a_version_of_its_own_follows_the_control_plane(pool_version: str, offered: str, after: str) -> None:
    made = plan((f"{POOL}.kubernetes", {"version": pool_version}), kubernetes=offered)
    assert made.spec["provider"]["workers"][0]["kubernetes"]["version"] == after


def test_a_pool_never_overtakes_the_control_plane() -> None:
    switched_off = automatic(kubernetesVersion=False)
    own = (f"{POOL}.kubernetes", {"version": "1.37.1"})
    assert plan(own, switched_off, kubernetes="1.37.1, 1.37.4").spec == {}
    made = plan(own, switched_off, ("spec.kubernetes.version", "1.37.2"), kubernetes="1.37.2, 1.37.4")
    assert made.spec["provider"]["workers"][0]["kubernetes"]["version"] == "1.37.2"


def test_all_else_of_a_pool_stays_as_its_owner_wrote_it() -> None:
    obj = changed(complete().to_wire(), *image("1.0.0"))
    (pool,) = plan(image("1.0.0"), images="1.0.0, 1.0.1").spec["provider"]["workers"]
    assert pool == {**obj["spec"]["provider"]["workers"][0], "machine": {**pool["machine"]}}


def test_a_new_minor_leaves_behind_what_it_does_not_know() -> None:
    """Otherwise admission would refuse it, and an expired cluster stay for ever."""
    setting = ("spec.kubernetes.kubeAPIServer.enableAnonymousAuthentication", False)
    made = plan(OFF, setting, ("spec.kubernetes.version", "1.34.9"), kubernetes="1.34.9 expired, 1.35.1")
    assert made.spec["kubernetes"] == {"version": "1.35.1", "kubeAPIServer": {"enableAnonymousAuthentication": None}}
    assert "Removed spec.kubernetes.kubeAPIServer.enableAnonymousAuthentication" in str(made.updates[1])


# Credentials

WEEK = {"rotationPeriod": "168h"}
OLD, YOUNG = "2026-11-13T00:00:00Z", "2026-11-15T00:00:00Z"
ENCRYPTION, SSH = "rotate-etcd-encryption-key", "rotate-ssh-keypair"


def rotations(
    configured: dict[str, Any], asked: tuple[str, ...] = (), spec: tuple[str, Any] | None = None, **status: Any
) -> Plan:
    obj = changed(complete().to_wire(), "spec.maintenance.autoRotation", {"credentials": configured})
    obj["metadata"]["creationTimestamp"] = OLD
    obj["status"] = {"lastOperation": {"type": "Reconcile", "state": "Succeeded"}, **status}
    if spec:
        obj = changed(obj, *spec)
    return plan_maintenance(obj, CloudProfile.of(PROFILE), NOW, asked)


def completed(kind: str, at: str, phase: str = "Completed") -> dict[str, Any]:
    return {"credentials": {"rotation": {kind: {"phase": phase, "lastInitiationTime": at, "lastCompletionTime": at}}}}


@pytest.mark.parametrize(
    ("configured", "around", "due"),
    [
        pytest.param({}, {}, [], id="nothing is configured"),
        pytest.param({"etcdEncryptionKey": WEEK}, {}, [ENCRYPTION], id="older than its period since its creation"),
        pytest.param({"etcdEncryptionKey": {"rotationPeriod": "672h"}}, {}, [], id="younger"),
        pytest.param({"etcdEncryptionKey": {"rotationPeriod": "0s"}}, {}, [], id="switched off"),
        pytest.param({"sshKeypair": WEEK}, {}, [SSH], id="ssh"),
        pytest.param({"sshKeypair": WEEK, "etcdEncryptionKey": WEEK}, {}, [ENCRYPTION, SSH], id="both"),
        pytest.param({"etcdEncryptionKey": WEEK}, completed("etcdEncryptionKey", YOUNG), [], id="rotated since"),
        pytest.param({"etcdEncryptionKey": WEEK}, completed("etcdEncryptionKey", OLD), [ENCRYPTION], id="again"),
        pytest.param({"etcdEncryptionKey": WEEK}, completed("etcdEncryptionKey", OLD, "Prepared"), [], id="under way"),
        pytest.param(
            {"sshKeypair": WEEK},
            {"credentials": {"rotation": {"sshKeypair": {"lastInitiationTime": YOUNG, "lastCompletionTime": OLD}}}},
            [],
            id="ssh, begun and not done",
        ),
        pytest.param({"etcdEncryptionKey": WEEK, "sshKeypair": WEEK}, {"hibernated": True}, [SSH], id="waking up"),
        pytest.param(
            {"etcdEncryptionKey": WEEK},
            {"lastOperation": {"type": "Create", "state": "Error"}},
            [],
            id="not created yet",
        ),
        pytest.param({"etcdEncryptionKey": WEEK}, {"asked": ("rotate-credentials-start",)}, [], id="asked for"),
        pytest.param({"etcdEncryptionKey": WEEK}, {"asked": ("rotate-ca-start",)}, [ENCRYPTION], id="beside others"),
        pytest.param(
            {"sshKeypair": WEEK},
            {"spec": ("spec.provider.workersSettings", {"sshAccess": {"enabled": False}})},
            [],
            id="no ssh",
        ),
        pytest.param(
            {"etcdEncryptionKey": WEEK},
            {"credentials": {"encryptionAtRest": {"resources": ["events"]}}},
            [],
            id="its provider or kinds are changing",
        ),
    ],
)
def test_credentials_that_are_too_old_are_rotated(
    configured: dict[str, Any], around: dict[str, Any], due: list[str]
) -> None:
    assert rotations(configured, **around).operations == due


def test_a_rotation_that_is_due_says_why() -> None:
    (update,) = rotations({"sshKeypair": WEEK}).updates
    assert str(update) == (
        "Credentials: Started rotation of the SSH key pair. Reason: Automatic rotation every 168h configured"
    )


def test_the_updates_say_what_and_why() -> None:
    made = plan(image("1.0.0"), kubernetes="1.37.1 expired, 1.37.2", images="1.0.0, 1.1.0")
    assert list(map(str, made.updates)) == [
        "Control Plane: Updated Kubernetes version from 1.37.1 to 1.37.2."
        " Reason: Kubernetes version expired - force update required",
        "Worker pool 'pool': Updated machine image 'local' from 1.0.0 to 1.1.0."
        " Reason: Automatic update of the machine image version is configured",
    ]
