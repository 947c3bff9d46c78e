"""Rights of node agents in a Shoot. tests/security/test_certificates_on_a_landscape.py attacks the policy itself."""

from datetime import UTC, datetime
from typing import Any

import pytest

from activities.components import machine_controller_manager, node_agent_policy
from activities.components.operating_system_config import rbac
from api import constants
from workers.gardenlet.care import checks


def rights() -> set[tuple[str, str]]:
    """Verbs and kinds of the roles that are bound to the group of node agents."""
    objects = rbac(["gardener-node-agent-pool"])
    bound = {
        each["roleRef"]["name"]
        for each in objects
        if any(subject["name"] == "gardener.cloud:node-agents" for subject in each.get("subjects") or ())
    }
    rules = [rule for each in objects if each["metadata"]["name"] in bound for rule in each.get("rules") or ()]
    return {(verb, kind) for rule in rules for verb in rule["verbs"] for kind in rule["resources"]}


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
@pytest.mark.parametrize(
    "right",
    [
        ("get", "nodes"),
        ("list", "nodes"),
        ("watch", "nodes"),
        ("update", "nodes"),
        ("patch", "nodes/status"),
        ("update", "nodes/status"),
        ("create", "nodes"),
        ("delete", "nodes"),
        ("delete", "leases"),
        ("get", "leases"),
        ("list", "leases"),
        ("watch", "leases"),
        ("update", "leases"),
        ("patch", "secrets"),
        ("approve", "signers"),
    ],
)
def test_a_node_agent_uses_a_right_that_its_work_does_not_need_and_has_none(right: tuple[str, str]) -> None:
    """A node's addresses are in its status: set on another Node, they redirect its traffic."""
    assert right not in rights()


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
@pytest.mark.parametrize("right", [("patch", "nodes"), ("create", "leases"), ("patch", "leases")])
def test_a_node_agent_uses_a_right_of_its_group_on_an_object_of_another_and_the_policy_is_asked(
    right: tuple[str, str],
) -> None:
    """Each right to write that the group has is one that the policy sees, and a policy that fails denies."""
    verb, kind = right
    assert right in rights()
    policy, binding = node_agent_policy.objects()
    operation = {"create": "CREATE", "patch": "UPDATE"}[verb]
    matched = [rule for rule in rules_of(policy) if kind in rule["resources"] and operation in rule["operations"]]
    assert matched
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
def test_a_node_agent_reads_the_configuration_of_another_pool_by_its_group_and_has_no_right() -> None:
    """A pool's configuration holds what its machines need to reach registries, for example."""
    assert not {kind for _, kind in rights()} & {"secrets"}
    readers = [
        each for each in rbac(["pool-a", "pool-b"]) if any(reads_secrets(rule) for rule in each.get("rules") or ())
    ]
    assert {each["metadata"]["name"]: each["rules"][0]["resourceNames"] for each in readers} == {
        "pool-a": ["pool-a"],
        "pool-b": ["pool-b"],
    }


def reads_secrets(rule: dict[str, Any]) -> bool:
    return "secrets" in rule["resources"]


def rules_of(policy: dict[str, Any]) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = policy["spec"]["matchConstraints"]["resourceRules"]
    return rules


@pytest.mark.attack(actor="T2", asset="A2", finding=10)
def test_a_machine_says_very_much_in_place_of_its_kubelets_error_and_is_quoted_in_part() -> None:
    """A machine without Node writes the text; the gardenlet copies it into a condition of the Shoot."""
    now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    lease = {
        "metadata": {"name": "gardener-node-agent-m", "annotations": {constants.KUBELET_ERROR: "x" * 200_000}},
        "spec": {"renewTime": now.isoformat(), "leaseDurationSeconds": 40},
    }
    kept = checks.outline_of_agent_lease(lease)
    assert kept is not None

    finding = checks.nodes(checks.Nodes([{"name": "pool", "minimum": 1}], "1.37.1", [], agent_leases=[kept]), now)

    assert finding.reason == "MissingNodes"
    assert finding.message.count("x") <= 300


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
@pytest.mark.parametrize("verb", ["list", "watch", "create", "patch", "update"])
def test_the_token_of_the_machine_controller_manager_writes_or_lists_leases_and_has_no_right(verb: str) -> None:
    """It reads and deletes the Lease of a machine that has not joined."""
    rules = [rule for each in machine_controller_manager.shoot_objects() for rule in each.get("rules") or ()]
    assert not [rule for rule in rules if "leases" in rule["resources"] and {verb, "*"} & set(rule["verbs"])]
    assert all(
        each["metadata"]["namespace"] == "kube-system"
        for each in machine_controller_manager.shoot_objects()
        if any("leases" in rule["resources"] for rule in each.get("rules") or ())
    )
