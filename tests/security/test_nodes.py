"""Rights of node agents in a Shoot. tests/security/test_node_agents_at_an_api_server.py attacks their authorizer, and
tests/security/test_certificates_on_a_landscape.py also their admission policy."""

from datetime import UTC, datetime

import pytest

from activities.components import machine_controller_manager
from activities.components.operating_system_config import rbac
from api import constants
from workers.gardenlet.care import checks


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
def test_a_node_agent_uses_a_role_and_has_none() -> None:
    """Roles cannot say "your own". The node-agent authorizer decides, and what it denies no role can allow."""
    assert not [each for each in rbac() if "node-agent" in str(each.get("subjects"))]


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
