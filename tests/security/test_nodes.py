"""Rights of node agents in a Shoot. tests/security/test_certificates_on_a_landscape.py attacks the policy itself."""

from typing import Any

import pytest

from activities.components import node_agent_policy
from activities.components.operating_system_config import rbac


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
        ("list", "leases"),
        ("patch", "secrets"),
        ("approve", "signers"),
    ],
)
def test_a_node_agent_uses_a_right_that_its_work_does_not_need_and_has_none(right: tuple[str, str]) -> None:
    """A node's addresses are in its status: set on another Node, they redirect its traffic."""
    assert right not in rights()


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
@pytest.mark.parametrize("right", [("patch", "nodes"), ("create", "leases"), ("patch", "leases"), ("update", "leases")])
def test_a_node_agent_uses_a_right_of_its_group_on_an_object_of_another_and_the_policy_is_asked(
    right: tuple[str, str],
) -> None:
    """Each right to write that the group has is one that the policy sees, and a policy that fails denies."""
    verb, kind = right
    assert right in rights()
    policy, binding = node_agent_policy.objects()
    operation = {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE"}[verb]
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
