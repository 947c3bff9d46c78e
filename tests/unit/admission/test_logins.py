"""ConfigMaps and Secrets of logins, when a Shoot names them and when they change."""

import base64
import json
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from tests.unit.admission.webhooks import FakeGarden, ask
from tests.unit.api.shoots import complete
from tests.unit.api.test_logins import AUTHENTICATION, AUTHORIZATION, KUBECONFIG, with_
from workers.admission.webhooks import webhook_configurations

NAMESPACE = "garden-local"
SERVER = {
    "auditConfig": {"auditPolicy": {"configMapRef": {"name": "audit"}}},
    "structuredAuthentication": {"configMapName": "issuers"},
    "structuredAuthorization": {
        "configMapName": "webhooks",
        "kubeconfigs": [{"authorizerName": "mine", "secretName": "webhook"}],
    },
}
CONDITIONS = "authorizers/0/webhook/matchConditions"


def config_map(name: str, content: Any) -> dict[str, Any]:
    data = {"config.yaml": json.dumps(content)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}


def secret(name: str, content: Any) -> dict[str, Any]:
    data = {"kubeconfig": base64.b64encode(json.dumps(content).encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}


ISSUERS, WEBHOOKS, WEBHOOK = (
    config_map("issuers", AUTHENTICATION),
    config_map("webhooks", AUTHORIZATION),
    secret("webhook", KUBECONFIG),
)
AUDIT = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "audit", "namespace": NAMESPACE},
    "data": {"policy": json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "None"}]})},
}
PROGRAM = with_(KUBECONFIG, "users/0/user", {"exec": {"command": "id"}})


def shoot(server: Any = SERVER) -> dict[str, Any]:
    return complete("spec.kubernetes.kubeAPIServer", server, bound=True).to_wire()


def message(response: dict[str, Any]) -> str:
    assert not response["allowed"]
    assert response["status"]["code"] == 422
    return str(response["status"]["message"])


async def test_a_shoot_with_good_files_is_admitted(client: TestClient[Any, Any], garden: FakeGarden) -> None:
    garden.objects += [ISSUERS, WEBHOOKS, WEBHOOK, AUDIT]
    response = await ask(client, "/validate", "CREATE", shoot())
    assert response["allowed"], response


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (config_map("issuers", with_(AUTHENTICATION, "jwt/0/issuer/url", "")), "structuredAuthentication.configMap"),
        (config_map("issuers", AUTHORIZATION), "kind: Forbidden: Input should be"),
        (
            config_map("issuers", with_(AUTHENTICATION, "jwt/0/userValidationRules", [{"expression": "user.a == 1"}])),
            "data[config.yaml]: jwt[0].userValidationRules[0].expression: Forbidden: does not compile",
        ),
        (
            config_map("webhooks", with_(AUTHORIZATION, CONDITIONS, [{"expression": "request.verb != ''"}])),
            "authorizers[0].webhook.matchConditions[0].expression: Forbidden: does not compile",
        ),
        (config_map("webhooks", with_(AUTHORIZATION, "authorizers/0/type", "RBAC")), "only Webhook can be added"),
        (secret("webhook", PROGRAM), "structuredAuthorization.kubeconfigs[0].secretName"),
    ],
)  # fmt: skip
async def test_a_shoot_is_refused_for_a_fault_in_a_file(
    client: TestClient[Any, Any], garden: FakeGarden, wrong: dict[str, Any], fault: str
) -> None:
    files: tuple[Any, ...] = (ISSUERS, WEBHOOKS, WEBHOOK, AUDIT)
    names = {each["metadata"]["name"]: each for each in files}
    garden.objects += (names | {wrong["metadata"]["name"]: wrong}).values()
    assert fault in message(await ask(client, "/validate", "CREATE", shoot()))


async def test_a_shoot_whose_logins_do_not_change_is_not_held_by_a_fault_in_its_files(
    client: TestClient[Any, Any], garden: FakeGarden
) -> None:
    """A rule of a new version must not stop a change of a pool."""
    garden.objects += [config_map("issuers", {}), WEBHOOKS, WEBHOOK, AUDIT]
    before, after = shoot(), shoot()
    after["spec"]["provider"]["workers"][0]["maximum"] += 1
    response = await ask(client, "/validate", "UPDATE", after, before)
    assert response["allowed"], response


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        (ISSUERS, config_map("issuers", with_(AUTHENTICATION, "jwt/0/issuer/audiences", [])), "audiences: Required"),
        (ISSUERS, {**ISSUERS, "data": {}}, "file: Required value: is empty"),
        (WEBHOOKS, config_map("webhooks", with_(AUTHORIZATION, "authorizers/0/name", "b")), "names no Secret for b"),
        (WEBHOOK, secret("webhook", PROGRAM), "runs a program in the control plane"),
        (WEBHOOK, {**WEBHOOK, "data": {}}, "file: Required value: is empty"),
        (AUDIT, {**AUDIT, "data": {"policy": "kind: Policy"}}, "apiVersion: Required value"),
    ],
)  # fmt: skip
async def test_a_file_that_a_shoot_names_stays_good(
    client: TestClient[Any, Any], garden: FakeGarden, before: dict[str, Any], after: dict[str, Any], fault: str
) -> None:
    response = await ask(client, "/validate", "UPDATE", after, before)
    if before is not WEBHOOK or after["data"] == {}:
        assert response["allowed"], "no Shoot names it yet"
    garden.objects.append(shoot())

    text = message(await ask(client, "/validate", "UPDATE", after, before))
    assert fault in text
    assert "Shoot garden-local/demo names it in spec.kubernetes.kubeAPIServer." in text
    assert "SENTINEL" not in text
    assert (await ask(client, "/validate", "UPDATE", before, before))["allowed"]


async def test_any_kubeconfig_of_a_project_is_refused_if_it_runs_a_program(client: TestClient[Any, Any]) -> None:
    assert "runs a program" in message(await ask(client, "/validate", "CREATE", secret("any", PROGRAM)))
    assert (await ask(client, "/validate", "CREATE", secret("any", KUBECONFIG)))["allowed"]


def test_only_objects_of_logins_in_projects_go_through_the_webhook() -> None:
    _, validating = webhook_configurations("https://198.18.0.1:9443", "Q0E=")
    found = next(each for each in validating["webhooks"] if each["name"] == "references.admission.gardener.cloud")

    assert found["namespaceSelector"] == {"matchLabels": {"gardener.cloud/role": "project"}}
    assert found["rules"][0]["resources"] == ["configmaps", "secrets"]
    assert found["rules"][0]["operations"] == ["CREATE", "UPDATE"]
    expression = found["matchConditions"][0]["expression"]
    assert "'config.yaml' in oldObject.data" in expression
    assert "'kubeconfig' in object.data" in expression
