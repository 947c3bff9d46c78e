"""Which operation a Seed needs, what hinders its deletion, and which Secrets every seed gets."""

from typing import Any

import pytest

from api.decisions.seeds import hindrances, is_copied, needed_operation

READY = {"observedGeneration": 1, "lastOperation": {"type": "Create", "state": "Succeeded"}}
ASKED = {"annotations": {"gardener.cloud/operation": "reconcile"}}
RETRY = {"annotations": {"gardener.cloud/operation": "retry"}}
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("metadata", "status", "expected"),
    [
        ({}, {}, "Create"),
        ({}, {"lastOperation": {"type": "Create", "state": "Error"}}, "Create"),
        ({}, READY, None),
        (ASKED, READY, "Reconcile"),
        (RETRY, READY, "Reconcile"),
        ({"annotations": {"gardener.cloud/operation": "renew-kubeconfig"}}, READY, None),
        ({}, {**READY, "observedGeneration": 0}, "Reconcile"),
        ({}, {**READY, "lastOperation": {"type": "Reconcile", "state": "Processing"}}, "Reconcile"),
        ({**DELETED, "finalizers": ["gardener"]}, READY, "Delete"),
        ({**DELETED, "finalizers": ["of-another"]}, READY, None),
        (DELETED, {}, None),
    ],
)
def test_the_operation_of_a_seed(metadata: dict[str, Any], status: dict[str, Any], expected: str | None) -> None:
    assert needed_operation({"metadata": {"generation": 1, **metadata}, "status": status}) == expected


def obj(name: str, spec: dict[str, Any], status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "garden-dev", **metadata}, "spec": spec, "status": status or {}}


HOSTED = obj("a", {"seedName": "seed-1"}, {"seedName": "seed-1"})
LEAVING = obj("b", {"seedName": "seed-2"}, {"seedName": "seed-1"})
COMING = obj("c", {"seedName": "seed-1"}, {"seedName": "seed-2"})
ELSEWHERE = obj("d", {"seedName": "seed-2"}, {"seedName": "seed-2"})


@pytest.mark.parametrize("shoot", [HOSTED, LEAVING, COMING])
def test_a_seed_with_a_shoot_cannot_be_deleted_and_the_message_says_what_to_do(shoot: dict[str, Any]) -> None:
    [told] = hindrances("seed-1", "5eed", [shoot, ELSEWHERE], [], [])
    assert f"it hosts Shoots: garden-dev/{shoot['metadata']['name']}; move them" in told
    assert "`gardener seed evacuate seed-1`" in told


def test_a_message_names_a_few_shoots_and_the_number_of_the_others() -> None:
    shoots = [obj(f"s{number}", {"seedName": "seed-1"}) for number in range(7)]
    [told] = hindrances("seed-1", "5eed", shoots, [], [])
    assert "garden-dev/s4 and 2 more;" in told


@pytest.mark.parametrize(
    "spec", [{"seedName": "seed-1", "bucketName": "other"}, {"seedName": "x", "bucketName": "5eed"}]
)
def test_a_seed_that_keeps_backups_cannot_be_deleted(spec: dict[str, Any]) -> None:
    """An entry in the seed's bucket counts, too, also if another seed reads it."""
    [told] = hindrances("seed-1", "5eed", [], [obj("shoot--dev--a--1", spec)], [])
    assert "keeps backups of deleted Shoots: garden-dev/shoot--dev--a--1" in told
    assert "backupentry.core.gardener.cloud/force-deletion=true" in told


def test_a_seed_of_a_managed_seed_is_deleted_by_that() -> None:
    owner = obj("seed-1", {}, namespace="garden")
    assert "delete the ManagedSeed instead" in hindrances("seed-1", "5eed", [], [], [owner])[0]
    owner["metadata"] |= DELETED
    assert hindrances("seed-1", "5eed", [], [], [owner]) == []


def test_an_unused_seed_can_be_deleted() -> None:
    other = obj("e", {"seedName": "seed-2", "bucketName": "other"})
    managed = obj("seed-2", {}, namespace="garden")
    assert hindrances("seed-1", "5eed", [ELSEWHERE], [other], [managed]) == []


@pytest.mark.parametrize(
    ("role", "copied"),
    [
        ("alerting", True),
        ("helm-pull-secret", True),
        ("default-domain", False),
        ("internal-domain", False),
        ("garden-cert", False),
        ("something-new", False),
        (None, False),
    ],
)
def test_no_credentials_of_domains_are_copied_to_every_seed(role: str | None, copied: bool) -> None:
    labels = {"gardener.cloud/role": role} if role else {}
    assert is_copied({"metadata": {"labels": labels}}, "ingress.example.org") is copied
