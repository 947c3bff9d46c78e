"""Changes of the binding of a Shoot."""

from typing import Any

from tests.unit.admission.test_quotas import bind, refusal, shoot
from tests.unit.api.shoots import changed

SECRET_BINDING = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "SecretBinding",
    "metadata": {"name": "old", "namespace": "garden-local"},
    "provider": {"type": "local"},
    "secretRef": {"namespace": "garden-local", "name": "local"},
}


def with_secret_binding(name: str = "old") -> dict[str, Any]:
    """A Shoot of a Kubernetes version that allows SecretBindings."""
    obj = changed(shoot(), "spec.credentialsBindingName")
    obj["spec"] |= {"secretBindingName": name, "kubernetes": {"version": "1.33.1"}}
    return obj


def with_credentials_binding(name: str) -> dict[str, Any]:
    obj = changed(with_secret_binding(), "spec.secretBindingName")
    obj["spec"]["credentialsBindingName"] = name
    return obj


async def test_a_secret_binding_may_become_a_credentials_binding_of_the_same_secret(client, garden):
    garden.objects.append(SECRET_BINDING)
    assert await refusal(client, with_credentials_binding("local"), with_secret_binding()) == ""


async def test_a_credentials_binding_of_another_secret_is_refused(client, garden):
    garden.objects.append(SECRET_BINDING)
    bind(garden, "theirs", secret="secret-name-of-others")
    text = await refusal(client, with_credentials_binding("theirs"), with_secret_binding())
    assert "spec.credentialsBindingName: theirs is for other credentials than SecretBinding old" in text
    assert "secret-name-of-others" not in text, "the author may have no right to read the Secret"


async def test_a_secret_binding_cannot_become_another_one(client, garden):
    garden.objects += [SECRET_BINDING, changed(SECRET_BINDING, "metadata.name", "other")]
    text = await refusal(client, with_secret_binding("other"), with_secret_binding())
    assert "spec.secretBindingName: must stay old, or move to spec.credentialsBindingName" in text


async def test_a_credentials_binding_stays_one(client, garden):
    garden.objects.append(SECRET_BINDING)
    text = await refusal(client, with_secret_binding(), with_credentials_binding("local"))
    assert "credentialsBindingName: Forbidden: cannot be unset" in text


async def test_a_credentials_binding_may_become_another_one(client, garden):
    bind(garden, "other")
    assert await refusal(client, with_credentials_binding("other"), with_credentials_binding("local")) == ""


async def test_another_provider_type_is_refused(client, garden):
    bind(garden, "other")
    binding = next(each for each in garden.objects if each["metadata"]["name"] == "other" and "provider" in each)
    garden.objects[garden.objects.index(binding)] = changed(binding, "provider.type", "aws")
    text = await refusal(client, with_credentials_binding("other"), with_credentials_binding("local"))
    assert "the binding is for provider type aws, the Shoot for local" in text
