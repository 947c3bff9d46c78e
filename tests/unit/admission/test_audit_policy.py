"""Audit policies that owners write into ConfigMaps: a faulty one would keep the API server from starting."""

import json
from typing import Any

import pytest

from api.validation.audit import check_policy
from tests.unit.admission.webhooks import ask
from tests.unit.api.shoots import changed, complete

FIELD = "spec.kubernetes.kubeAPIServer.auditConfig.auditPolicy.configMapRef"
POLICY: dict[str, Any] = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}


def config_map(text: str | None) -> dict[str, Any]:
    data = {} if text is None else {"policy": text}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "audit", "namespace": "garden-local"},
        "data": data,
    }


def ruled(**fields: Any) -> str:
    return json.dumps({**POLICY, "rules": [{"level": "Metadata", **fields}]})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (json.dumps(POLICY), ""),
        (ruled(nonResourceURLs=["/healthz*", "*"]), ""),
        (ruled(resources=[{"group": "", "resources": ["pods"], "resourceNames": ["a"]}]), ""),
        ("foo: bar", "foo: Forbidden: an audit policy has no such field"),
        ("a: b: c", "data[policy]: policy: Forbidden: is not YAML"),
        ("", "data[policy]: policy: Required value"),
        (None, "data[policy]: policy: Required value"),
        ("rules: []\nrules: []\n", "policy: Forbidden: is not YAML, or has a key twice"),
        ("a: &a [1]\nb: *a\n", "policy: Forbidden: YAML aliases are not supported"),
        ("x" * 300_000, "policy: Forbidden: is longer than 262144 bytes"),
        (
            json.dumps(POLICY | {"apiVersion": "audit.k8s.io/v1beta1"}),
            'apiVersion: Invalid value: "audit.k8s.io/v1beta1"',
        ),
        (json.dumps(POLICY | {"rules": []}), "rules: Invalid value"),
        (json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}), "rules: Required value"),
        (ruled(level="Loud"), 'rules.0.level: Invalid value: "Loud"'),
        (ruled(userss=["a"]), "rules.0.userss: Forbidden"),
        (ruled(omitStages=["Never"]), "rules.0.omitStages.0: Invalid value"),
        (ruled(nonResourceURLs=["healthz"]), "rules[0].nonResourceURLs[0]: Invalid value"),
        (ruled(nonResourceURLs=["/a*b"]), "'*' must be the last character"),
        (ruled(nonResourceURLs=["/a"], namespaces=["b"]), "cannot have both resources and nonResourceURLs"),
        (ruled(resources=[{"group": "apps/v1"}]), "rules[0].resources[0].group: Invalid value"),
        (ruled(resources=[{"resourceNames": ["a"]}]), "resources[0].resourceNames: Invalid value"),
    ],
)
async def test_a_shoot_with_a_faulty_audit_policy_is_refused(client, garden, text, complaint):
    garden.objects.append(config_map(text))
    shoot = changed(complete(bound=True).to_wire(), FIELD, {"name": "audit"})
    response = await ask(client, "/validate", "CREATE", shoot)
    assert response["allowed"] == (not complaint)
    if complaint:
        assert response["status"]["code"] == 422
        assert f'{FIELD}.name: Invalid value: "audit": ConfigMap garden-local/audit: ' in response["status"]["message"]
        assert complaint in response["status"]["message"]


async def test_a_stored_shoot_with_a_faulty_audit_policy_can_be_changed(client, garden):
    garden.objects.append(config_map("foo: bar"))
    old = changed(complete(bound=True).to_wire(), FIELD, {"name": "audit"})
    new = changed(old, "spec.provider.workers.0.maximum", 3)
    assert (await ask(client, "/validate", "UPDATE", new, old))["allowed"]


def test_a_policy_that_nests_too_deep_is_refused():
    assert "is not YAML" in str(check_policy("[" * 10_000))


async def test_a_policy_that_a_shoot_names_keeps_what_the_api_server_needs(client, garden):
    """The API server reads the new content at its next start."""
    garden.objects.append(changed(complete(bound=True).to_wire(), FIELD, {"name": "audit"}))
    good, bad = config_map(json.dumps(POLICY)), config_map("foo: bar")
    response = await ask(client, "/validate", "UPDATE", bad, good)
    assert not response["allowed"]
    assert (
        "Shoot garden-local/demo names it in spec.kubernetes.kubeAPIServer.auditConfig" in response["status"]["message"]
    )
    assert (await ask(client, "/validate", "UPDATE", config_map(ruled(users=["a"])), good))["allowed"]
