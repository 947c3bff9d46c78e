"""The state machines of spec/credentials.md 3, row by row, and when each operation is refused."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from api.contracts.rotation import Kind, Phase
from api.core.v1beta1.shoot import EncryptionProvider, Shoot
from api.decisions.rotation import (
    COMBINED,
    ROLLING,
    SINGLE,
    RotationFacts,
    active,
    begin,
    constraint_of,
    needs_request,
    normalized,
    patch_of,
    succeed,
    view_of,
)
from api.names import node_agent_secret_name
from api.validation.operations import check_operations
from api.validation.rotation import hibernation_faults
from tests.pages import check_table
from tests.unit.api.shoots import SHOOT

CA, KEY, ENCRYPTION, SSH = "certificateAuthorities", "serviceAccountKey", "etcdEncryptionKey", "sshKeypair"
PASSWORDS = "observability"
FACTS = RotationFacts(pools=("a", "b"))
BEFORE, NOW, LATER = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"
PENDING = [{"name": "a", "lastInitiationTime": BEFORE}, {"name": "b", "lastInitiationTime": BEFORE}]


def state(phase: str, **rest: Any) -> dict[str, Any]:
    return {"phase": phase, "lastInitiationTime": BEFORE, **rest}


# Rows of the state machine

STARTS = [
    pytest.param({}, "rotate-ca-start", {"phase": "Preparing", "lastInitiationTime": NOW}, id="first start"),
    pytest.param(
        state("Completed", lastCompletionTime=BEFORE),
        "rotate-ca-start",
        {"phase": "Preparing", "lastInitiationTime": NOW, "lastCompletionTime": BEFORE},
        id="start again",
    ),
    pytest.param(
        state("Completed"),
        "rotate-ca-start-without-workers-rollout",
        {
            "phase": "PreparingWithoutWorkersRollout",
            "lastInitiationTime": NOW,
            "pendingWorkersRollouts": PENDING,
        },
        id="without rollout: pools keep the time before",
    ),
    pytest.param(
        {},
        "rotate-ca-start-without-workers-rollout",
        {
            "phase": "PreparingWithoutWorkersRollout",
            "lastInitiationTime": NOW,
            "pendingWorkersRollouts": [{"name": "a"}, {"name": "b"}],
        },
        id="without rollout for the first time",
    ),
    pytest.param(
        state("WaitingForWorkersRollout", pendingWorkersRollouts=PENDING),
        "rotate-rollout-workers=b",
        state("WaitingForWorkersRollout", pendingWorkersRollouts=PENDING[:1]),
        id="a pool is rolled",
    ),
    pytest.param(
        state("WaitingForWorkersRollout", pendingWorkersRollouts=PENDING),
        "rotate-rollout-workers=a,b",
        state("WaitingForWorkersRollout"),
        id="all pools are rolled",
    ),
    pytest.param(
        state("WaitingForWorkersRollout", pendingWorkersRollouts=[{"name": "gone"}]),
        "reconcile",
        state("WaitingForWorkersRollout"),
        id="a vanished pool leaves the list",
    ),
    pytest.param(
        state("Prepared", lastInitiationFinishedTime=BEFORE),
        "rotate-ca-complete",
        state("Completing", lastInitiationFinishedTime=BEFORE, lastCompletionTriggeredTime=NOW),
        id="complete",
    ),
    pytest.param(state("Preparing"), "rotate-ca-start", state("Preparing"), id="a start that is read twice"),
    pytest.param(state("Preparing"), "rotate-ca-complete", state("Preparing"), id="complete out of order"),
    pytest.param(state("Prepared"), "reconcile", state("Prepared"), id="a reconcile in between"),
]


@pytest.mark.parametrize(("before", "operation", "after"), STARTS)
def test_the_start_of_an_operation_advances_a_rotation(before: Any, operation: str, after: Any) -> None:
    assert begin({CA: before}, [operation], FACTS, NOW).get(CA) == after


SUCCESSES = [
    pytest.param(state("Preparing"), {}, state("Prepared", lastInitiationFinishedTime=NOW), id="prepared"),
    pytest.param(
        state("Preparing"),
        {"manual_in_place_pending": True},
        state("Preparing"),
        id="a manual in-place update holds it",
    ),
    pytest.param(
        state("PreparingWithoutWorkersRollout", pendingWorkersRollouts=PENDING),
        {},
        state("WaitingForWorkersRollout", pendingWorkersRollouts=PENDING),
        id="waits for pools",
    ),
    pytest.param(
        state("WaitingForWorkersRollout", pendingWorkersRollouts=PENDING),
        {},
        state("WaitingForWorkersRollout", pendingWorkersRollouts=PENDING),
        id="still waits",
    ),
    pytest.param(
        state("WaitingForWorkersRollout"), {}, state("Prepared", lastInitiationFinishedTime=NOW), id="all pools rolled"
    ),
    pytest.param(
        state("WaitingForWorkersRollout", pendingWorkersRollouts=PENDING),
        {"asleep": True},
        state("Prepared", lastInitiationFinishedTime=NOW),
        id="asleep: no machine is left to be rolled",
    ),
    pytest.param(state("Prepared"), {}, state("Prepared"), id="waits for the owner"),
    pytest.param(
        state("Completing", lastInitiationFinishedTime=BEFORE, lastCompletionTriggeredTime=BEFORE),
        {},
        state("Completed", lastCompletionTime=NOW),
        id="completed",
    ),
]


@pytest.mark.parametrize(("before", "facts", "after"), SUCCESSES)
def test_a_successful_reconcile_advances_a_rotation(before: Any, facts: Any, after: Any) -> None:
    assert succeed({KEY: before}, RotationFacts(pools=("a", "b"), **facts), NOW)[KEY] == after


def test_the_documents_list_the_transitions_of_each_phase() -> None:
    starts = [(str(row.id), *row.values) for row in STARTS]
    successes = [(str(row.id), before, "success", after) for row in SUCCESSES for before, _, after in [row.values]]
    changes: list[Any] = [*starts, *successes]
    rows = [
        (rule, before.get("phase", "–"), event if event == "success" else f"`{event}`", after["phase"])
        for rule, before, event, after in changes
    ]
    check_table("credentials.md", "phases", rows)


def test_the_rotation_of_the_encryption_key_completes_automatically() -> None:
    facts = RotationFacts(automatic_encryption=False)
    status = begin({}, ["rotate-etcd-encryption-key"], facts, BEFORE)
    assert status[ENCRYPTION]["autoCompleteAfterPrepared"] is True
    status = succeed(status, facts, NOW)
    (rotation,) = active(status)
    assert (rotation.phase, needs_request(rotation, facts)) == (Phase.PREPARED, False)
    status = begin(status, (), facts, NOW)
    assert status[ENCRYPTION]["phase"] == "Completing"
    assert succeed(status, facts, LATER)[ENCRYPTION] == {
        "phase": "Completed",
        "lastInitiationTime": BEFORE,
        "lastCompletionTime": LATER,
    }


@pytest.mark.parametrize("automatic", [True, False])
def test_a_changed_encryption_provider_rotates_the_key_automatically(automatic: bool) -> None:
    facts = RotationFacts(automatic_encryption=automatic, encryption_changes=True)
    status = begin({ENCRYPTION: state("Completed", lastCompletionTime=BEFORE)}, (), facts, NOW)
    assert status[ENCRYPTION] == {
        "phase": "Preparing",
        "lastInitiationTime": NOW,
        "lastCompletionTime": BEFORE,
        "autoCompleteAfterPrepared": True,
    }
    assert begin(status, (), facts, LATER) == status
    prepared = succeed(status, facts, LATER)
    assert begin(prepared, (), facts, LATER)[ENCRYPTION]["phase"] == "Completing"
    assert begin({}, (), replace(facts, asleep=True), NOW) == {}


@pytest.mark.parametrize(
    ("config", "at_rest", "changes"),
    [
        (None, None, False),
        ({"resources": ["configmaps"]}, None, False),
        ({"provider": {"type": "aescbc"}}, {"provider": {"type": "aescbc"}, "resources": []}, False),
        ({"provider": {"type": "aesgcm"}}, None, True),
        ({"provider": {"type": "aesgcm"}}, {"provider": {"type": "secretbox"}}, True),
        (None, {"provider": {"type": "secretbox"}}, True),
        ({"resources": ["a", "b"]}, {"resources": ["b", "a"]}, False),
        ({"resources": ["a", "b"]}, {"resources": ["a"]}, True),
        ({"resources": ["a"]}, {"resources": ["a", "b"]}, True),
    ],
)
def test_a_change_of_the_encryption_provider_is_detected(config: Any, at_rest: Any, changes: bool) -> None:
    wire: dict[str, Any] = {"spec": {"kubernetes": {"version": "1.37.1"}, "provider": {}}, "status": {}}
    if config is not None:
        wire["spec"]["kubernetes"]["kubeAPIServer"] = {"encryptionConfig": config}
    if at_rest is not None:
        wire["status"] = {"credentials": {"encryptionAtRest": at_rest}}
    assert RotationFacts.of_shoot(wire).encryption_changes is changes


def test_before_1_34_the_encryption_key_waits_for_its_owner() -> None:
    facts = RotationFacts(automatic_encryption=False)
    status = succeed(begin({}, ["rotate-etcd-encryption-key-start"], facts, BEFORE), facts, NOW)
    assert begin(status, (), facts, NOW)[ENCRYPTION]["phase"] == "Prepared"
    (rotation,) = active(status)
    assert needs_request(rotation, facts)
    assert begin(status, ["rotate-etcd-encryption-key-complete"], facts, NOW)[ENCRYPTION]["phase"] == "Completing"


def held(phase: str, last: str, *, pending: bool, kind: str = CA, **rest: Any) -> dict[str, Any]:
    """A Shoot in a rotation; ``pending``: nodes of a pool wait for their owner."""
    status: dict[str, Any] = {
        "lastOperation": {"type": "Reconcile", "state": last},
        "credentials": {"rotation": {kind: state(phase, **rest)}},
    }
    if pending:
        status["inPlaceUpdates"] = {"pendingWorkerUpdates": {"manualInPlaceUpdate": ["a"]}}
    return {"spec": {"kubernetes": {"version": "1.37.1"}, "provider": {"workers": [{"name": "a"}]}}, "status": status}


@pytest.mark.parametrize(
    ("shoot", "waits"),
    [
        pytest.param(held("Preparing", "Processing", pending=False), True, id="a reconcile runs"),
        pytest.param(held("Preparing", "Error", pending=False), True, id="the lifecycle repeats a failed reconcile"),
        pytest.param(held("Preparing", "Succeeded", pending=True), True, id="nodes wait for their owner"),
        pytest.param(held("Preparing", "Succeeded", pending=False), False, id="the owner has updated the last node"),
        pytest.param(held("WaitingForWorkersRollout", "Succeeded", pending=True), True, id="rolled, nodes wait"),
        pytest.param(held("WaitingForWorkersRollout", "Succeeded", pending=False), False, id="rolled, all are updated"),
        pytest.param(held("WaitingForWorkersRollout", "Processing", pending=False), True, id="the last pool is rolled"),
        pytest.param(
            held("WaitingForWorkersRollout", "Succeeded", pending=False, pendingWorkersRollouts=PENDING[:1]),
            True,
            id="a pool waits for its rollout",
        ),
        pytest.param(held("Prepared", "Succeeded", pending=False), True, id="the owner completes it"),
        pytest.param(held("Completing", "Succeeded", pending=False), True, id="completing"),
        pytest.param(held("Prepared", "Succeeded", pending=True, kind=ENCRYPTION), False, id="another kind"),
    ],
)
def test_a_rotation_requests_the_reconcile_that_nothing_else_starts(shoot: dict[str, Any], waits: bool) -> None:
    (kind,) = shoot["status"]["credentials"]["rotation"]
    view = view_of(shoot, Kind(kind), BEFORE)
    assert view.rotation is not None
    assert view.owners_turn is waits


def test_all_credentials_start_and_complete_at_once() -> None:
    started = begin({}, ["rotate-credentials-start"], FACTS, BEFORE)
    assert {kind: each.get("phase") for kind, each in started.items()} == {
        CA: "Preparing",
        KEY: "Preparing",
        ENCRYPTION: "Preparing",
        SSH: None,
        PASSWORDS: None,
    }
    prepared = succeed(started, FACTS, NOW)
    for kind in (SSH, PASSWORDS):
        assert prepared[kind] == {"lastInitiationTime": BEFORE, "lastCompletionTime": NOW}
    completing = begin(prepared, ["rotate-credentials-complete"], FACTS, NOW)
    assert {completing[kind]["phase"] for kind in (CA, KEY, ENCRYPTION)} == {"Completing"}


@pytest.mark.parametrize(
    ("kind", "operation", "off"),
    [
        (SSH, "rotate-ssh-keypair", RotationFacts(pools=("a",), ssh_access=False)),
        (PASSWORDS, "rotate-observability-credentials", RotationFacts(pools=("a",), observability=False)),
    ],
)
def test_the_rotation_status_of_a_disabled_feature_is_removed(kind: str, operation: str, off: RotationFacts) -> None:
    status = begin({kind: {"lastInitiationTime": BEFORE}}, [operation], off, NOW)
    assert status == {}
    assert patch_of({kind: {"lastInitiationTime": BEFORE}}, status) == {kind: None}
    assert normalized([operation], off) == []


def test_a_testing_shoot_has_no_observability_passwords() -> None:
    wire = {"spec": {"kubernetes": {"version": "1.37.1"}, "provider": {}, "purpose": "testing"}}
    assert not RotationFacts.of_shoot(wire).observability
    assert RotationFacts.of_shoot({"spec": {**wire["spec"], "purpose": "production"}}).observability


def test_a_patch_removes_status_fields_that_no_longer_apply() -> None:
    old = {CA: state("Completing", lastCompletionTriggeredTime=NOW), KEY: state("Prepared")}
    new = succeed(old, FACTS, NOW)
    assert patch_of(old, new) == {
        CA: {"phase": "Completed", "lastInitiationTime": BEFORE, "lastCompletionTriggeredTime": None}
        | {"lastCompletionTime": NOW}
    }


def test_a_pool_rolls_when_it_leaves_the_list() -> None:
    pool = {"name": "a", "machine": {"type": "local"}}
    shoot = {"spec": {"kubernetes": {"version": "1.37.1"}}, "status": {}}

    def key(rotation: dict[str, Any]) -> str:
        return node_agent_secret_name({**shoot, "status": {"credentials": {"rotation": rotation}}}, pool)

    without = begin({}, ["rotate-ca-start-without-workers-rollout"], FACTS, NOW)
    assert key(without) == key({})
    rolled = begin(succeed(without, FACTS, NOW), ["rotate-rollout-workers=a"], FACTS, NOW)
    assert key(rolled) == key(begin({}, ["rotate-ca-start"], FACTS, NOW)) != key({})


# What is refused


def shoot(
    asked: str = "",
    *,
    maintenance: str = "",
    rotation: Any = None,
    last: tuple[str, str] = ("Reconcile", "Failed"),
    version: str = "1.37.1",
    metadata: Any = None,
    **status: Any,
) -> Shoot:
    live = deepcopy(SHOOT)
    live["spec"]["kubernetes"]["version"] = version
    annotations = {"gardener.cloud/operation": asked, "maintenance.gardener.cloud/operation": maintenance}
    live["metadata"] |= {"annotations": {k: v for k, v in annotations.items() if v}, **(metadata or {})}
    live["status"] = {
        "lastOperation": {"type": last[0], "state": last[1], "lastUpdateTime": BEFORE, "progress": 1}
        | {"description": ""},
        "credentials": {"rotation": rotation or {}},
        **status,
    }
    return Shoot.of(live)


def faults(shoot: Shoot) -> str:
    return "; ".join(map(str, check_operations(shoot, None).found))


OLD = {"rotate-etcd-encryption-key-start", "rotate-etcd-encryption-key-complete"}
EVERY_START = [
    "rotate-ca-start",
    "rotate-ca-start-without-workers-rollout",
    "rotate-serviceaccount-key-start",
    "rotate-serviceaccount-key-start-without-workers-rollout",
    "rotate-etcd-encryption-key",
    "rotate-etcd-encryption-key-start",
    "rotate-credentials-start",
    "rotate-credentials-start-without-workers-rollout",
    "rotate-ssh-keypair",
    "rotate-observability-credentials",
]


@pytest.mark.parametrize("operation", EVERY_START)
def test_every_start_is_accepted_of_an_idle_shoot(operation: str) -> None:
    version = "1.33.1" if operation in OLD else "1.37.1"
    assert faults(shoot(operation, version=version)) == ""
    assert faults(shoot(operation, version=version, last=("Create", "Succeeded"))) == ""


@pytest.mark.parametrize("operation", EVERY_START)
@pytest.mark.parametrize("last", [("Create", "Processing"), ("Migrate", "Succeeded"), ("Restore", "Error")])
def test_a_rotation_is_refused_before_the_shoot_is_created(operation: str, last: tuple[str, str]) -> None:
    version = "1.33.1" if operation in OLD else "1.37.1"
    assert "must have been created or restored" in faults(shoot(operation, last=last, version=version))


@pytest.mark.parametrize("operation", EVERY_START)
def test_a_rotation_is_refused_while_the_shoot_is_being_deleted(operation: str) -> None:
    going = shoot(operation, metadata={"deletionTimestamp": NOW})
    assert "is being deleted" in faults(going)


KINDS = [("ca", CA), ("serviceaccount-key", KEY)]
REFUSED = [
    *(
        pytest.param(
            f"rotate-{name}-start",
            {"rotation": {kind: state(phase)}},
            f"under way (phase {phase})",
            id=f"{name} start in {phase}",
        )
        for name, kind in KINDS
        for phase in (
            "Preparing",
            "PreparingWithoutWorkersRollout",
            "WaitingForWorkersRollout",
            "Prepared",
            "Completing",
        )
    ),
    *(
        pytest.param(
            f"rotate-{name}-complete",
            {"rotation": {kind: state(phase)}},
            "must be Prepared",
            id=f"{name} complete in {phase}",
        )
        for name, kind in KINDS
        for phase in ("Preparing", "WaitingForWorkersRollout", "Completing", "Completed")
    ),
    pytest.param("rotate-ca-complete", {}, "is not started, must be Prepared", id="complete of nothing"),
    pytest.param(
        "rotate-credentials-start",
        {"rotation": {KEY: state("Prepared")}},
        "service account key is under way",
        id="combined start, one is under way",
    ),
    pytest.param(
        "rotate-credentials-complete",
        {"rotation": {CA: state("Prepared")}},
        "service account key is not started",
        id="combined complete, one is not prepared",
    ),
    pytest.param(
        "rotate-credentials-complete",
        {"version": "1.33.1", "rotation": {CA: state("Prepared"), KEY: state("Prepared")}},
        "etcd encryption key is not started",
        id="combined complete before 1.34",
    ),
    pytest.param(
        "rotate-etcd-encryption-key",
        {"rotation": {ENCRYPTION: state("Prepared")}},
        "etcd encryption key is under way",
        id="encryption key start",
    ),
    pytest.param("rotate-etcd-encryption-key-start", {}, "does both steps", id="encryption key start from 1.34 on"),
    pytest.param(
        "rotate-etcd-encryption-key-complete",
        {"rotation": {ENCRYPTION: state("Prepared")}},
        "does both steps",
        id="encryption key complete from 1.34 on",
    ),
    pytest.param(
        "rotate-etcd-encryption-key-complete",
        {"version": "1.33.1", "rotation": {ENCRYPTION: state("Preparing")}},
        "must be Prepared",
        id="encryption key complete too early",
    ),
    pytest.param(
        "rotate-ca-start",
        {"inPlaceUpdates": {"pendingWorkerUpdates": {"autoInPlaceUpdate": ["a"]}}},
        "in-place updates",
        id="in-place updates pending",
    ),
    pytest.param("rotate-serviceaccount-key-start", {"hibernated": True}, "waking up", id="asleep: key"),
    pytest.param("rotate-etcd-encryption-key", {"hibernated": True}, "waking up", id="asleep: encryption key"),
    pytest.param("rotate-credentials-start", {"hibernated": True}, "waking up", id="asleep: all"),
    pytest.param(
        "rotate-rollout-workers=pool",
        {"hibernated": True, "rotation": {CA: state("WaitingForWorkersRollout")}},
        "waking up",
        id="asleep: rollout",
    ),
    pytest.param(
        "rotate-etcd-encryption-key",
        {"credentials": {"encryptionAtRest": {"resources": ["configmaps"]}}},
        "resources are being re-encrypted",
        id="change of encrypted resources",
    ),
    pytest.param("rotate-rollout-workers=pool", {}, "no rotation is in phase", id="rollout of nothing"),
    pytest.param(
        "rotate-rollout-workers=",
        {"rotation": {CA: state("WaitingForWorkersRollout")}},
        "must name worker pools",
        id="rollout without pools",
    ),
    pytest.param(
        "rotate-rollout-workers=pool,pool",
        {"rotation": {CA: state("WaitingForWorkersRollout")}},
        "named twice",
        id="rollout of a pool twice",
    ),
    pytest.param(
        "rotate-rollout-workers=x",
        {"rotation": {CA: state("WaitingForWorkersRollout")}},
        "worker pool x does not exist; the Shoot has pool",
        id="rollout of an unknown pool",
    ),
    pytest.param("rotate-ca-start;rotate-ca-start-without-workers-rollout", {}, "contradict", id="start and its twin"),
    pytest.param(
        "rotate-credentials-start;rotate-ca-start-without-workers-rollout",
        {},
        "contradict",
        id="combined start and single twin",
    ),
    pytest.param(
        "rotate-credentials-start;rotate-credentials-start-without-workers-rollout",
        {},
        "contradict",
        id="combined start and its twin",
    ),
    pytest.param(
        "rotate-etcd-encryption-key;rotate-etcd-encryption-key-start",
        {"version": "1.33.1"},
        "contradict",
        id="encryption key both ways",
    ),
    pytest.param("rotate-ca-start", {"maintenance": "rotate-ca-start"}, "by both annotations", id="both annotations"),
    pytest.param(
        "rotate-ca-start",
        {"maintenance": "rotate-credentials-start"},
        "is part of",
        id="a part in the other annotation",
    ),
    pytest.param("rotate-kubeconfig-credentials", {}, "supported values", id="unknown"),
]


@pytest.mark.parametrize(("operation", "around", "why"), REFUSED)
def test_an_operation_in_the_wrong_phase_is_refused(operation: str, around: Any, why: str) -> None:
    assert why in faults(shoot(operation, **around))


def test_the_documents_list_the_refused_operations() -> None:
    rows = [(str(row.id), f"`{operation}`", str(why)) for row in REFUSED for operation, _, why in [row.values]]
    check_table("credentials.md", "refusals", rows)


@pytest.mark.parametrize("operation", ["rotate-ca-start", "rotate-ssh-keypair"])
def test_rotations_without_machines_are_allowed_while_hibernated(operation: str) -> None:
    assert faults(shoot(operation, hibernated=True)) == ""


def test_two_rotations_at_once_are_allowed() -> None:
    assert faults(shoot("rotate-ca-start;rotate-serviceaccount-key-start")) == ""
    assert faults(shoot("rotate-serviceaccount-key-start", rotation={CA: state("Prepared")})) == ""


def test_completion_is_refused_while_a_client_uses_the_old_credentials() -> None:
    seen = {
        "type": "OldCertificateAuthoritiesUnused",
        "status": "False",
        "reason": "InUse",
        "message": "node n-1 needs them",
    }
    times = {"lastTransitionTime": NOW, "lastUpdateTime": NOW}
    around: dict[str, Any] = {"rotation": {CA: state("Prepared")}, "constraints": [seen | times]}
    assert "node n-1 needs them" in faults(shoot("rotate-ca-complete", **around))
    reason = {"credentials.gardener.cloud/forced-completion": "the node is burnt"}
    forced = shoot("rotate-ca-complete", **around)
    forced.metadata.annotations |= reason
    assert faults(forced) == ""


def test_a_combined_operation_covers_its_parts() -> None:
    asked = ["rotate-ca-start", "rotate-credentials-start", "reconcile", "rotate-ca-start", "rotate-ssh-keypair"]
    assert normalized(asked, FACTS) == ["rotate-credentials-start", "reconcile"]


def test_ssh_rotation_without_ssh_is_dropped() -> None:
    assert normalized(["rotate-ssh-keypair"], RotationFacts(ssh_access=False)) == []


@pytest.mark.parametrize(
    ("kind", "phase"),
    [(ENCRYPTION, "Preparing"), (ENCRYPTION, "Completing"), (KEY, "Preparing"), (KEY, "Completing")],
)
def test_hibernation_is_refused_during_a_rotation(kind: str, phase: str) -> None:
    assert hibernation_faults(shoot(rotation={kind: state(phase)}).to_wire())
    assert hibernation_faults(shoot(rotation={CA: state(phase)}).to_wire()) == []


def test_the_kinds_are_those_of_the_status() -> None:
    assert {str(kind) for kind in Kind} == {CA, KEY, ENCRYPTION, SSH, PASSWORDS}


def test_the_documents_name_every_operation_and_phase() -> None:
    page = (Path(__file__).parents[3] / "docs/credentials.md").read_text()
    providers = get_args(EncryptionProvider.model_fields["type"].annotation)
    assert set(providers) == {"aescbc", "aesgcm", "secretbox"}
    names = [*SINGLE, *COMBINED, *(phase for phase in Phase if phase), *map(constraint_of, ROLLING), *providers]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize("version", ["latest", "", "1"])
def test_an_invalid_version_is_left_to_the_version_check(version):
    facts = RotationFacts.of_shoot({"spec": {"kubernetes": {"version": version}, "provider": {}}})
    assert not facts.automatic_encryption
