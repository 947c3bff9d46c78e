"""Reviews of ManagedSeedSets and SeedAutoscalers: the templates of a set must make a Shoot and a ManagedSeed."""

from typing import Any

import pytest

from tests.unit.admission.test_managed_seeds import CREDENTIALS, DNS_SECRET, GARDEN_PROJECT, seed_shoot
from tests.unit.admission.webhooks import BINDING, SECRET, FakeGarden, ask
from tests.unit.api.shoots import SEED, changed

LABELS = {"pool": "local"}


def set_of_seeds(**spec: Any) -> dict[str, Any]:
    shoot = seed_shoot()["spec"]
    shoot["dns"] = {"domain": "replica-name.garden.shoot.garden.test"}
    del shoot["seedName"]
    return {
        "apiVersion": "seedmanagement.gardener.cloud/v1alpha1",
        "kind": "ManagedSeedSet",
        "metadata": {"name": "pool", "namespace": "garden"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"gardenlet": {"config": {"seedConfig": {"metadata": {"labels": LABELS}}}}},
            },
            "shootTemplate": {"metadata": {"labels": LABELS}, "spec": shoot},
            **spec,
        },
    }


def garden_with_a_seed(garden: FakeGarden) -> FakeGarden:
    """The garden with what a Shoot of namespace garden needs."""
    host = changed(SEED, "spec.dns.provider", {"type": "local", "credentialsRef": CREDENTIALS})
    garden.objects = [each for each in garden.objects if each["kind"] != "Seed"]
    binding = changed(changed(BINDING, "metadata.namespace", "garden"), "credentialsRef.namespace", "garden")
    garden.objects += [host, GARDEN_PROJECT, DNS_SECRET, binding, changed(SECRET, "metadata.namespace", "garden")]
    return garden


@pytest.fixture(autouse=True)
def in_garden(garden: FakeGarden) -> None:
    garden_with_a_seed(garden)


async def refusal(client, obj: dict[str, Any], old: dict[str, Any] | None = None) -> str:
    answer = await ask(client, "/validate", "UPDATE" if old else "CREATE", obj, old)
    assert not answer["allowed"]
    return str(answer["status"]["message"])


async def test_a_set_whose_templates_make_valid_objects_is_stored(client):
    answer = await ask(client, "/validate", "CREATE", set_of_seeds())
    assert answer["allowed"], answer


async def test_a_template_may_leave_networks_and_domain_to_the_seed_that_will_host_the_shoot(client):
    """They are not known before the Shoot has a seed: a Seed of the garden stands for it."""
    wanted = set_of_seeds()
    del wanted["spec"]["shootTemplate"]["spec"]["dns"]
    wanted["spec"]["shootTemplate"]["spec"]["networking"] = {"type": "flannel"}
    answer = await ask(client, "/validate", "CREATE", wanted)

    assert answer["allowed"], answer


_SHOOT = "spec.shootTemplate.spec"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{_SHOOT}.kubernetes.version", "1.20.0", "spec.shootTemplate: its objects would be refused"),
        (f"{_SHOOT}.cloudProfile.name", "none", 'shoots.core.gardener.cloud "pool-0"'),
        (f"{_SHOOT}.credentialsBindingName", "none", "credentialsBindingName"),
        (f"{_SHOOT}.dns", {"providers": [{"type": "unmanaged"}]}, "seedConfig.spec.ingress.domain"),
        (
            f"{_SHOOT}.kubernetes.verticalPodAutoscaler",
            {"enabled": False},
            "verticalPodAutoscaler.enabled must",
        ),
        ("spec.template.spec.gardenlet.bootstrap", "ServiceAccount", "spec.gardenlet.bootstrap"),
        ("metadata.name", "a-name-that-is-far-too-long-for-a-shoot", "spec.shootTemplate: its objects"),
    ],
)
async def test_a_set_whose_objects_would_be_refused_is_refused(client, path: str, value: Any, message: str):
    assert message in await refusal(client, changed(set_of_seeds(), path, value))


async def test_the_selector_of_a_set_stays(client):
    """Another selector would release all replicas, and make as many new ones."""
    other = {"pool": "other"}
    new = set_of_seeds(selector={"matchLabels": other})
    new["spec"]["template"]["metadata"]["labels"] = new["spec"]["shootTemplate"]["metadata"]["labels"] = other
    new["spec"]["template"]["spec"]["gardenlet"]["config"]["seedConfig"]["metadata"]["labels"] = other

    assert "spec.selector: Invalid value" in await refusal(client, new, set_of_seeds())


async def test_the_author_of_a_set_needs_the_rights_for_its_shoots(client, garden):
    """The controller-manager creates the Shoots, and may use all credentials; the author of the set may not."""
    garden.denied.add(("get", "credentialsbindings"))

    assert "user alice may not get CredentialsBinding garden/local" in await refusal(client, set_of_seeds())


async def test_a_set_may_be_scaled_although_its_templates_have_become_invalid(client, garden):
    """A machine type that is gone from the CloudProfile must not keep a set from shrinking."""
    old = changed(set_of_seeds(), f"{_SHOOT}.kubernetes.version", "1.20.0")

    assert (await ask(client, "/validate", "UPDATE", changed(old, "spec.replicas", 0), old))["allowed"]
    assert "1.20.0" in await refusal(client, changed(old, f"{_SHOOT}.purpose", "infrastructure"), old)


def scaler(**spec: Any) -> dict[str, Any]:
    api = "seedmanagement.gardener.cloud/v1alpha1"
    target = {"type": "Utilization", "averageUtilization": 50}
    return {
        "apiVersion": api,
        "kind": "SeedAutoscaler",
        "metadata": {"name": "pool", "namespace": "garden"},
        "spec": {
            "scaleTargetRef": {"apiVersion": api, "kind": "ManagedSeedSet", "name": "pool"},
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": {"name": "shoots", "target": target}}],
            **spec,
        },
    }


async def test_an_autoscaler_whose_fields_contradict_each_other_is_refused(client):
    assert (await ask(client, "/validate", "CREATE", scaler()))["allowed"]
    assert "spec.maxReplicas" in await refusal(client, scaler(minReplicas=4))
    assert "must be garden" in await refusal(client, changed(scaler(), "metadata.namespace", "garden-local"))
