"""Reviews of ManagedSeeds: a Shoot must be able to be a seed, and its Seed must say what is so in the Shoot."""

from copy import deepcopy
from typing import Any

import pytest

from tests.unit.admission.webhooks import ask, patched
from tests.unit.api.shoots import PROFILE, SEED, changed, complete

GARDEN_PROJECT = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "Project",
    "metadata": {"name": "garden", "uid": "p-2"},
    "spec": {"namespace": "garden"},
}
CREDENTIALS = SEED["spec"]["dns"]["internal"]["credentialsRef"]
DNS_SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": CREDENTIALS["name"], "namespace": CREDENTIALS["namespace"]},
}
ADDED = "spec.gardenlet.config.seedConfig.spec"


def seed_shoot() -> dict[str, Any]:
    shoot = complete("spec.seedName", "seed-1", bound=True).to_wire()
    shoot["metadata"] |= {"name": "nested", "namespace": "garden", "uid": "u-nested"}
    shoot["spec"]["dns"] = {"domain": "nested.garden.shoot.garden.test"}
    shoot["spec"]["networking"] |= {"nodes": "10.250.0.0/16", "pods": "100.112.0.0/16", "services": "100.68.0.0/16"}
    shoot["spec"]["kubernetes"]["verticalPodAutoscaler"] = {"enabled": True}
    shoot["spec"]["provider"]["workers"][0]["zones"] = ["0"]
    shoot["status"] = {"seedName": "seed-1"}
    return dict(shoot)


def managed_seed(name: str = "nested", **gardenlet: Any) -> dict[str, Any]:
    return {
        "apiVersion": "seedmanagement.gardener.cloud/v1alpha1",
        "kind": "ManagedSeed",
        "metadata": {"name": name, "namespace": "garden"},
        "spec": {"shoot": {"name": "nested"}, "gardenlet": gardenlet},
    }


@pytest.fixture
def shoot(garden) -> dict[str, Any]:
    found = seed_shoot()
    host = changed(SEED, "spec.dns.provider", {"type": "local", "credentialsRef": CREDENTIALS})
    garden.objects = [each for each in garden.objects if each["kind"] != "Seed"]
    garden.objects += [found, host, GARDEN_PROJECT, DNS_SECRET]
    return found


async def completed(client, obj: dict[str, Any]) -> dict[str, Any]:
    stored = deepcopy(obj)
    return patched(stored, await ask(client, "/mutate", "CREATE", obj))


async def refusal(client, obj: dict[str, Any], old: dict[str, Any] | None = None) -> str:
    answer = await ask(client, "/validate", "UPDATE" if old else "CREATE", obj, old)
    assert not answer["allowed"]
    return str(answer["status"]["message"])


async def test_the_seed_gets_what_the_shoot_has(client, shoot):
    stored = await completed(client, managed_seed())

    config = stored["spec"]["gardenlet"]["config"]
    spec = config["seedConfig"]["spec"]
    assert config["resources"] == {"capacity": {"shoots": 250}}
    assert spec["provider"] == {"type": "local", "region": "local", "zones": ["0"]}
    assert spec["networks"] == {"nodes": "10.250.0.0/16", "pods": "100.112.0.0/16", "services": "100.68.0.0/16"}
    assert spec["ingress"] == {"domain": "ingress.nested.garden.shoot.garden.test", "controller": {"kind": "nginx"}}
    assert spec["dns"]["internal"] == SEED["spec"]["dns"]["internal"], "the DNS of the Seed that hosts the Shoot"
    assert spec["settings"]["verticalPodAutoscaler"] == {"enabled": False}, "the Shoot has one"
    assert stored["spec"]["gardenlet"]["deployment"] == {}
    assert (await ask(client, "/validate", "CREATE", stored))["allowed"]


async def test_what_the_author_says_is_kept(client, shoot):
    wanted = {
        "seedConfig": {"spec": {"settings": {"scheduling": {"visible": False}}}},
        "resources": {"capacity": {"shoots": 3}},
    }
    config = (await completed(client, managed_seed(config=wanted)))["spec"]["gardenlet"]["config"]
    assert config["resources"] == {"capacity": {"shoots": 3}}
    assert config["seedConfig"]["spec"]["settings"]["scheduling"] == {"visible": False}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("provider.type", "aws", "must be local, as in Shoot nested"),
        ("provider.region", "elsewhere", "must be local, as in Shoot nested"),
        ("provider.zones", ["0", "9"], "workers of the Shoot are in zones 0 alone"),
        ("networks.pods", "100.113.0.0/16", "must be 100.112.0.0/16"),
        ("networks.services", "100.112.1.0/24", "overlaps with"),
        ("ingress.domain", "ingress.other.test", "must be ingress.nested.garden.shoot.garden.test"),
        ("dns.internal.credentialsRef.name", "missing", "there is no such Secret"),
        ("provider", "local", "config.seedConfig.spec.provider"),
    ],
)
async def test_a_seed_that_contradicts_its_shoot_is_refused(client, shoot, path: str, value: Any, message: str):
    stored = changed(await completed(client, managed_seed()), f"{ADDED}.{path}", value)
    assert message in await refusal(client, stored)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("metadata.deletionTimestamp", "2026-11-21T12:00:00Z", "Shoot nested is being deleted"),
        ("spec.provider.workers", [], "has no workers"),
        ("spec.provider.workers.0.minimum", 0, "at least one machine at all times"),
        ("spec.kubernetes.verticalPodAutoscaler.enabled", False, "verticalPodAutoscaler.enabled must be true"),
        ("spec.addons", {"nginxIngress": {"enabled": True}}, "nginxIngress.enabled must be false"),
        ("spec.networking.ipFamilies", ["IPv6"], "spec.networking.ipFamilies must have IPv4, a seed uses it"),
        ("spec.dns", {}, "has no spec.dns.domain"),
    ],
)
async def test_a_shoot_that_cannot_be_a_seed_is_refused(client, garden, shoot, path: str, value: Any, message: str):
    stored = await completed(client, managed_seed())
    garden.objects.remove(shoot)
    garden.objects.append(changed(shoot, path, value))
    assert message in await refusal(client, stored)


async def test_the_shoot_must_exist(client, garden, shoot):
    stored = await completed(client, managed_seed())
    garden.objects.remove(shoot)
    assert 'spec.shoot.name: Not found: "nested"' in await refusal(client, stored)


async def test_the_ingress_of_a_seed_is_below_the_domain_of_its_own_shoot_alone(client, garden, shoot):
    template = (await completed(client, managed_seed()))["spec"]["gardenlet"]["config"]["seedConfig"]
    seed = {**SEED, "metadata": {"name": "nested"}, "spec": template["spec"]}
    assert "ingress.nested.garden.shoot.garden.test is the same as, above or below" in await refusal(client, seed)
    garden.objects.append(managed_seed())
    assert (await ask(client, "/validate", "CREATE", seed))["allowed"]


async def test_a_shoot_becomes_one_seed_alone(client, garden, shoot):
    garden.objects.append(managed_seed("first"))
    assert "registered as a seed by ManagedSeed first already" in await refusal(
        client, await completed(client, managed_seed())
    )


async def test_the_name_of_another_seed_is_taken(client, garden, shoot):
    stored = await completed(client, managed_seed("seed-1"))
    assert "there is a Seed seed-1 already" in await refusal(client, stored)


async def test_a_managed_seed_is_in_namespace_garden(client, shoot):
    stored = changed(await completed(client, managed_seed()), "metadata.namespace", "garden-local")
    assert "must be garden" in await refusal(client, stored)


@pytest.mark.parametrize(
    ("gardenlet", "message"),
    [
        ({"bootstrap": "ServiceAccount"}, "use BootstrapToken"),
        ({"bootstrap": "None"}, "use BootstrapToken"),
        ({"deployment": {"image": {"tag": "v1"}}}, "a tag alone names no image"),
        ({"deployment": {"image": {"ref": "a:1", "repository": "a"}}}, "excludes repository and tag"),
        ({"config": {"seedConfig": {"metadata": {"name": "x"}}}}, "has the name of the ManagedSeed"),
        ({"config": {"kind": "Other"}}, "config.kind: Unsupported value"),
        ({"config": {"temporal": {"address": "x"}}}, "config.temporal: Forbidden"),
        ({"config": {"gardenClientConnection": {"kubeconfig": "/x"}}}, "the parent gardenlet makes the kubeconfig"),
    ],
)
async def test_a_gardenlet_that_cannot_be_deployed_is_refused(client, shoot, gardenlet: dict[str, Any], message: str):
    assert message in await refusal(client, await completed(client, managed_seed(**gardenlet)))


@pytest.mark.parametrize("field", ["provider.region", "networks.pods", "networks.services", "ingress.domain"])
async def test_what_a_seed_cannot_change_stays(client, shoot, field: str):
    old = await completed(client, managed_seed())
    message = await refusal(client, changed(old, f"{ADDED}.{field}", "100.99.0.0/16"), old)
    assert f"seedConfig.spec.{field}: Invalid value" in message
    assert "field is immutable" in message


async def test_a_managed_seed_that_hosts_shoots_is_not_deleted(client, garden, shoot):
    stored = await completed(client, managed_seed())
    assert (await ask(client, "/validate", "DELETE", None, stored))["allowed"]
    guest = complete("spec.seedName", "nested", bound=True).to_wire()
    garden.objects.append(guest)
    answer = await ask(client, "/validate", "DELETE", None, stored)
    assert "Seed nested cannot be deleted: it hosts Shoots: garden-local/demo" in answer["status"]["message"]


async def test_the_shoot_of_a_managed_seed_is_not_deleted(client, garden, shoot):
    doomed = changed(shoot, "metadata.annotations", {"confirmation.gardener.cloud/deletion": "true"})
    assert (await ask(client, "/validate", "DELETE", None, doomed))["allowed"]
    garden.objects.append(managed_seed())
    answer = await ask(client, "/validate", "DELETE", None, doomed)
    assert "it is a seed: delete ManagedSeed garden/nested first" in answer["status"]["message"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.kubernetes.verticalPodAutoscaler.enabled", False, "must be true, a seed uses it: ManagedSeed nested"),
        ("spec.networking.nodes", "10.251.0.0/16", "spec.networking.nodes: Invalid value"),
        ("spec.provider.workers", "the second", "no worker would be left in zones 0"),
    ],
)
async def test_a_shoot_keeps_what_its_control_planes_need(client, garden, shoot, path: str, value: Any, message: str):
    profile = changed(PROFILE, "spec.regions.0.zones", [{"name": "0"}, {"name": "1"}])
    garden.objects = [each for each in garden.objects if each["kind"] != "CloudProfile"]
    garden.objects += [profile, await completed(client, managed_seed())]
    first = shoot["spec"]["provider"]["workers"][0]
    second = {**first, "name": "second", "zones": ["1"]}
    old = changed(shoot, "spec.provider.workers", [first, second])
    assert message in await refusal(client, changed(old, path, [second] if value == "the second" else value), old)


def gardenlet(name: str = "seed-1", namespace: str = "garden", **deployment: Any) -> dict[str, Any]:
    config = deployment.pop("config", {})
    helm = deployment.pop("helm", {"ociRepository": {"ref": "registry.example.org/charts/gardenlet:v2"}})
    return {
        "apiVersion": "seedmanagement.gardener.cloud/v1alpha1",
        "kind": "Gardenlet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"deployment": {"helm": helm, **deployment}, "config": config},
    }


async def test_a_gardenlet_names_the_chart_of_its_upgrade(client, shoot):
    answer = await ask(client, "/validate", "CREATE", gardenlet(config={"featureGates": {}}))
    assert answer["allowed"], answer


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (gardenlet(namespace="garden-local"), "metadata.namespace: must be garden"),
        (gardenlet(helm={"ociRepository": {}}), "must have either ref or repository"),
        (gardenlet(helm={"ociRepository": {"ref": "a.example.org/b"}}), "must name a tag or a digest"),
        (gardenlet(image={"ref": "a:1", "tag": "2"}), "spec.deployment.image.ref: Forbidden: excludes"),
        (gardenlet(imageVectorOverwrite="images: []"), "this version has no image vector"),
        (gardenlet(componentImageVectorOverwrite="components: []"), "this version has no image vector"),
        (gardenlet(config={"kind": "Other"}), "spec.config.kind: Unsupported value"),
        (gardenlet(config={"temporal": {}}), "spec.config.temporal: Forbidden: the values of the installation"),
        (gardenlet(config={"gardenClientConnection": {}}), "spec.config.gardenClientConnection: Forbidden"),
        (gardenlet(config={"seedConfig": {}}), "change the Seed itself"),
        (changed(gardenlet(), "spec.kubeconfigSecretRef", {"name": "a"}), "install the first one by Helm"),
        (changed(gardenlet(), "metadata.annotations", {"gardener.cloud/operation": "retry"}), "force-redeploy"),
    ],
)
async def test_a_gardenlet_that_cannot_be_upgraded_so_is_refused(client, shoot, obj, message):
    assert message in await refusal(client, obj)


async def test_the_gardenlet_of_a_managed_seed_is_upgraded_by_its_parent(client, garden, shoot):
    garden.objects.append(managed_seed("nested"))
    assert "ManagedSeed garden/nested deploys the gardenlet" in await refusal(client, gardenlet("nested"))


SET = {
    "apiVersion": "seedmanagement.gardener.cloud/v1alpha1",
    "kind": "ManagedSeedSet",
    "metadata": {"name": "many", "namespace": "garden"},
    "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"gardenlet": {"config": {"seedConfig": {"metadata": {"labels": {"a": "b"}}}}}},
        },
        "shootTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": seed_shoot()["spec"]},
    },
}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.selector", {}, "needs matchLabels"),
        ("spec.template.metadata", {}, "spec.template.metadata.labels: Invalid value"),
        ("spec.shootTemplate.metadata", {}, "spec.shootTemplate.metadata.labels: Invalid value"),
        ("spec.template.spec", {}, "seedConfig.metadata.labels: Invalid value"),
        ("spec.shootTemplate.spec.provider.workers", [], "a seed needs machines"),
        ("metadata.namespace", "garden-local", "must be garden"),
    ],
)
async def test_a_set_makes_only_what_its_selector_selects(client, path: str, value: Any, message: str):
    assert message in await refusal(client, changed(SET, path, value))
