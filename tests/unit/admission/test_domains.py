"""The Secret of the internal domain."""

from typing import Any

import pytest

from tests.unit.admission.webhooks import ask
from tests.unit.api.shoots import changed, complete
from workers.admission.webhooks import webhook_configurations

DOMAIN = "dns.gardener.cloud/domain"
INTERNAL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {
        "name": "internal",
        "namespace": "garden",
        "labels": {"gardener.cloud/role": "internal-domain"},
        "annotations": {"dns.gardener.cloud/provider": "local", DOMAIN: "internal.example.org"},
    },
}
UNLABELLED = changed(INTERNAL, "metadata.labels", {})
OTHER_DOMAIN = changed(
    INTERNAL, "metadata.annotations", {**INTERNAL["metadata"]["annotations"], DOMAIN: "other.example.org"}
)
SHOOT = complete("spec.seedName", "seed-1", bound=True).to_wire()


async def refusal(client: Any, operation: str, obj: dict[str, Any] | None, old: dict[str, Any] | None = None) -> str:
    """Message of the refusal; empty if the write is allowed."""
    response = await ask(client, "/validate-internal-domain", operation, obj, old)
    return "" if response["allowed"] else str(response["status"]["message"])


def placed(secret: dict[str, Any], namespace: str) -> dict[str, Any]:
    return changed(secret, "metadata.namespace", namespace)


@pytest.mark.parametrize("namespace", ["garden", "seed-seed-1"])
async def test_a_namespace_has_one_internal_domain(client, garden, namespace: str):
    """Two would leave open which domain the API servers get."""
    garden.objects.append(placed(INTERNAL, namespace))
    second = placed(changed(INTERNAL, "metadata.name", "second"), namespace)
    told = f"only one Secret of role internal-domain: namespace {namespace} has one already, internal"
    assert told in await refusal(client, "CREATE", second)
    assert told in await refusal(client, "UPDATE", second, changed(second, "metadata.labels", {}))
    assert await refusal(client, "CREATE", placed(second, "seed-other")) == ""
    assert await refusal(client, "UPDATE", INTERNAL, INTERNAL) == ""


@pytest.mark.parametrize(
    ("operation", "obj", "what"),
    [
        ("UPDATE", OTHER_DOMAIN, f"metadata.annotations[{DOMAIN}]: cannot change"),
        ("UPDATE", UNLABELLED, "it cannot be deleted"),
        ("DELETE", None, "it cannot be deleted"),
    ],
)
async def test_the_internal_domain_stays_while_shoots_exist(client, garden, operation: str, obj: Any, what: str):
    """Nodes would not find their API servers any more."""
    assert await refusal(client, operation, obj, INTERNAL) == "", "there is no Shoot"
    garden.objects.append(SHOOT)
    told = await refusal(client, operation, obj, INTERNAL)
    assert f"{what}: 1 Shoots have an API server below internal.example.org: delete the Shoots first" in told
    credentials = INTERNAL | {"data": {"tsigSecret": "bmV3"}}
    assert await refusal(client, "UPDATE", credentials, INTERNAL) == "", "the domain is the same"


@pytest.mark.parametrize(
    ("namespace", "held"), [("seed-seed-1", True), ("seed-seed-2", False), ("garden-local", False)]
)
async def test_the_domain_of_a_seed_serves_its_own_shoots(client, garden, namespace: str, held: bool):
    garden.objects.append(SHOOT)
    assert bool(await refusal(client, "DELETE", None, placed(INTERNAL, namespace))) is held


@pytest.mark.parametrize("annotation", ["provider", "domain"])
async def test_an_internal_domain_names_its_domain_and_provider(client, annotation: str):
    annotations = {name: text for name, text in INTERNAL["metadata"]["annotations"].items() if annotation not in name}
    told = await refusal(client, "CREATE", changed(INTERNAL, "metadata.annotations", annotations))
    assert f"metadata.annotations[dns.gardener.cloud/{annotation}]: Required value" in told


def test_the_webhook_gets_the_secrets_of_this_role_alone():
    _, validating = webhook_configurations("https://198.18.0.1:9443", "Q0E=")
    [webhook] = [each for each in validating["webhooks"] if "internal-domain" in each["name"]]
    assert webhook["objectSelector"] == {"matchLabels": {"gardener.cloud/role": "internal-domain"}}
    assert webhook["rules"][0]["operations"] == ["CREATE", "UPDATE", "DELETE"]
