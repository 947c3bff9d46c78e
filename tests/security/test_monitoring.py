"""Credentials of a Shoot's monitoring. The real ones are attacked in test_monitoring_on_a_landscape.py."""

import json
from typing import Any

import pytest

from activities.components import exporters, prometheus

WITH_CREDENTIALS = {"bearer_token", "bearer_token_file", "authorization", "basic_auth", "oauth2", "http_headers"}


@pytest.mark.attack(actor="T1", asset="A3", finding=20)
@pytest.mark.parametrize(
    "objects",
    [exporters.blackbox_exporter(), exporters.control_plane_blackbox_exporter("shoot--dev--a", "ca")],
    ids=["shoot", "control-plane"],
)
def test_a_blackbox_exporter_has_no_credentials_to_send_to_the_target_of_a_probe(objects: list[dict[str, Any]]) -> None:
    """A client of the exporter chooses the target, and so the server that would receive them."""
    [config] = [each for each in objects if each["kind"] == "ConfigMap"]
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    modules = json.loads(config["data"]["blackbox.yaml"])["modules"]
    pod = deployment["spec"]["template"]["spec"]

    assert modules
    assert not [name for name, module in modules.items() if module["http"].keys() & WITH_CREDENTIALS]
    assert pod["automountServiceAccountToken"] is False
    assert not [volume for volume in pod["volumes"] if "projected" in volume]


@pytest.mark.attack(actor="T1", asset="A3", finding=20)
def test_prometheus_has_the_right_to_proxy_to_nodes_under_a_policy_only() -> None:
    """A kubelet shows logs and specs of pods for `get nodes/proxy`."""
    role, _ = [each for each in prometheus.shoot_objects() if each["kind"].startswith("ClusterRole")]
    [policy] = [each for each in prometheus.shoot_objects() if each["kind"] == "ValidatingAdmissionPolicy"]
    [binding] = [each for each in prometheus.shoot_objects() if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    [bound] = [each for each in prometheus.shoot_objects() if each["kind"] == "ClusterRoleBinding"]

    proxied = {kind for rule in role["rules"] for kind in rule.get("resources") or () if "/" in kind}
    assert proxied == {"nodes/proxy", "services/proxy"}
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["nodes/proxy"], ["CONNECT"])
    [subject] = bound["subjects"]
    [condition] = policy["spec"]["matchConditions"]
    assert f"'system:serviceaccount:{subject['namespace']}:{subject['name']}'" in condition["expression"]
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
