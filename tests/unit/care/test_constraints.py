"""Constraints, the remedy for webhooks, and what is swept up: one row per case of spec/flows.md 10."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from workers.gardenlet.care import constraints, garbage, webhooks

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


def webhook(resources: list[str], groups: list[str] | None = None, **more: Any) -> dict[str, Any]:
    rule = {"apiGroups": groups or [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": resources}
    return {"name": "hook.example.org", "rules": [rule | more.pop("rule", {})], "timeoutSeconds": 10, **more}


SYSTEM = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
NOT_SYSTEM = {"matchExpressions": [{"key": "gardener.cloud/purpose", "operator": "NotIn", "values": ["kube-system"]}]}
DEFAULT = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["default"]}]}
LEASES = ["coordination.k8s.io"]


@pytest.mark.parametrize(
    ("found", "bad"),
    [
        (webhook(["pods"]), True),
        (webhook(["pods"], failurePolicy="Fail"), True),
        (webhook(["pods"], failurePolicy="Ignore"), False),
        (webhook(["pods"], failurePolicy="Ignore", timeoutSeconds=15), False),
        (webhook(["pods"], failurePolicy="Ignore", timeoutSeconds=16), True),
        (webhook(["pods"], failurePolicy="Ignore", timeoutSeconds=None), True),
        (webhook(["leases"], LEASES, failurePolicy="Ignore", timeoutSeconds=3), False),
        (webhook(["leases"], LEASES, failurePolicy="Ignore", timeoutSeconds=4), True),
        (webhook(["*"], ["*"]), True),
        (webhook(["*/*"], ["*"]), True),
        (webhook(["nodes"], namespaceSelector=NOT_SYSTEM), True),
        (webhook(["namespaces"]), True),
        (webhook(["namespaces"], objectSelector=NOT_SYSTEM), False),
        (webhook(["namespaces"], namespaceSelector=NOT_SYSTEM), False),
        (webhook(["services"], namespaceSelector=DEFAULT), True),
        (webhook(["endpointslices"], ["discovery.k8s.io"], namespaceSelector=DEFAULT), True),
        (webhook(["pods"], namespaceSelector=DEFAULT), False),
        (webhook(["pods"], namespaceSelector=NOT_SYSTEM), False),
        (webhook(["pods"], namespaceSelector=SYSTEM), True),
        (webhook(["pods"], objectSelector={"matchLabels": {"app": "mine"}}), False),
        (webhook(["pods"], objectSelector={"matchLabels": {"origin": "gardener"}}), True),
        (webhook(["pods"], rule={"operations": ["DELETE"]}), False),
        (webhook(["nodes"], rule={"operations": ["DELETE"]}), True),
        (webhook(["nodes"], rule={"operations": ["DELETE"]}, failurePolicy="Ignore", timeoutSeconds=15), False),
        (webhook(["pods"], rule={"scope": "Cluster"}), False),
        (webhook(["pods/exec"]), False),
        (webhook(["widgets"], ["example.org"]), False),
    ],
)
def test_a_webhook_that_can_lock_the_cluster_out(found: dict[str, Any], bad: bool) -> None:
    assert bool(webhooks.fault(found)) is bad


def configuration(*found: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "mine", "resourceVersion": "7", **metadata},
        "webhooks": list(found),
    }


def test_problematic_webhooks_prevent_hibernation_and_maintenance() -> None:
    found = webhooks.constraints([configuration(webhook(["pods"]))])

    assert {(each.type, each.status, each.reason) for each in found} == {
        ("HibernationPossible", "False", "ProblematicWebhooks"),
        ("MaintenancePreconditionsSatisfied", "False", "ProblematicWebhooks"),
    }
    assert "hook.example.org of ValidatingWebhookConfiguration mine" in found[0].message
    assert {each.status for each in webhooks.constraints([])} == {"True"}


def test_our_own_webhooks_are_not_problematic() -> None:
    ours = configuration(webhook(["pods"]), labels={"resources.gardener.cloud/managed-by": "gardener"})

    assert {each.status for each in webhooks.constraints([ours])} == {"True"}
    assert webhooks.remedy(ours) is None


def test_the_remedy_is_minimal_and_is_annotated() -> None:
    bad = configuration(webhook(["widgets"], ["example.org"]), webhook(["leases"], LEASES, timeoutSeconds=30))
    patch = webhooks.remedy(bad) or []

    assert patch[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert patch[2:] == [
        {"op": "add", "path": "/webhooks/1/failurePolicy", "value": "Ignore"},
        {"op": "add", "path": "/webhooks/1/timeoutSeconds", "value": 3},
    ]
    mended = configuration(
        webhook(["leases"], LEASES, timeoutSeconds=3, failurePolicy="Ignore"), annotations=patch[1]["value"]
    )
    assert webhooks.remedy(mended) is None
    assert webhooks.constraints([mended])[0].reason == "RemediatedWebhooks"


def test_an_owner_may_exclude_a_webhook_from_remediation() -> None:
    labels = {"remediation.webhook.shoot.gardener.cloud/exclude": "true"}

    assert webhooks.remedy(configuration(webhook(["pods"]), labels=labels)) is None


def authority(name: str, days: int) -> dict[str, Any]:
    until = str(int((NOW + timedelta(days=days)).timestamp()))
    return {"metadata": {"labels": {"managed-by": "secrets-manager", "name": name, "valid-until-time": until}}}


@pytest.mark.parametrize(
    ("secrets", "status"),
    [
        ([authority("ca", 366)], "True"),
        ([authority("ca", 364), authority("ca-etcd", 900)], "False"),
        ([authority("kube-apiserver", 10)], "True"),
        ([], "True"),
    ],
)
def test_authorities_that_expire_within_a_year_are_reported(secrets: list[dict[str, Any]], status: str) -> None:
    assert constraints.certificate_authorities(secrets, NOW).status == status


@pytest.mark.parametrize(
    ("strategy", "stored", "status"),
    [("Webhook", ["v1", "v2"], "False"), ("Webhook", ["v1"], "True"), ("None", ["v1", "v2"], "True")],
)
def test_crds_that_need_their_webhook(strategy: str, stored: list[str], status: str) -> None:
    crd = {
        "metadata": {"name": "widgets.example.org"},
        "spec": {"conversion": {"strategy": strategy}},
        "status": {"storedVersions": stored},
    }
    assert constraints.crds([crd]).status == status


def test_pending_work_of_an_owner_is_shown_until_it_is_done() -> None:
    pending = {"inPlaceUpdates": {"pendingWorkerUpdates": {"manualInPlaceUpdate": ["b", "a"]}}}
    ignored = {"metadata": {"name": "x", "annotations": {"resources.gardener.cloud/ignore": "true"}}}
    preserved = {
        "metadata": {"name": "m"},
        "status": {"currentStatus": {"phase": "Failed", "preserveExpiryTime": "2026-11-22T00:00:00Z"}},
    }
    bad = [
        constraints.in_place_updates(pending),
        constraints.ignored_managed_resources([ignored]),
        constraints.preserved_machines([preserved]),
    ]
    good = [
        constraints.in_place_updates({}),
        constraints.ignored_managed_resources([]),
        constraints.preserved_machines([]),
    ]

    assert {each.status for each in bad} == {"False"}
    assert "a, b" in bad[0].message
    assert {each.status for each in good} == {"True"}
    assert constraints.shown([{"type": each.type, "status": each.status} for each in good]) == []
    kept = {"type": "HibernationPossible", "status": "True"}
    assert constraints.shown([kept]) == [kept]


def pod(reason: str = "", phase: str = "Running", owner: str = "", **metadata: Any) -> dict[str, Any]:
    owners = [{"kind": owner}] if owner else []
    return {
        "metadata": {"name": "p", "ownerReferences": owners, **metadata},
        "status": {"phase": phase, "reason": reason},
    }


def disrupted(phase: str) -> dict[str, Any]:
    found = pod(phase=phase)
    found["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    return found


def ending(seconds: int) -> dict[str, Any]:
    return pod(deletionTimestamp=(NOW - timedelta(seconds=seconds)).isoformat())


@pytest.mark.parametrize(
    ("found", "removed"),
    [
        (pod(), []),
        (pod("Evicted", "Failed"), [False]),
        (pod("OutOfcpu", "Failed"), [False]),
        (pod("NodeAffinity", "Failed"), [False]),
        (pod("NodeLost"), [False]),
        (disrupted("Failed"), [False]),
        (disrupted("Running"), []),
        (disrupted("Succeeded"), [False]),
        (pod(phase="Succeeded", owner="ReplicaSet"), [False]),
        (pod(phase="Failed", owner="ReplicaSet"), [False]),
        (pod(phase="Succeeded", owner="Job"), []),
        (ending(60), []),
        (ending(301), [True]),
    ],
)
def test_pods_that_no_controller_deletes_are_deleted(found: dict[str, Any], removed: list[bool]) -> None:
    assert [each.force for each in garbage.removals([found], NOW)] == removed
