"""Admission finds the objects that a decision depends on by indexes, so the size of the garden does not matter."""

from typing import Any

import pytest

from api import resources
from api.core.v1beta1.shoot import Shoot
from api.names import overlap
from api.resources import Resource
from api.validation.references import references, references_in
from tests.unit.admission.webhooks import BINDING, FakeGarden, ask, patched
from tests.unit.api.shoots import PROJECT, SEED, SHOOT, changed, complete
from workers.admission.indexes import INDEXES

OWN = "mine.example.org"


def other(domain: str) -> dict[str, Any]:
    made = changed(changed(SHOOT, "metadata.name", "other"), "metadata.uid", "u-2")
    return changed(made, "spec.dns", {"domain": domain})


@pytest.mark.parametrize(
    "domain",
    ["mine.example.org", "Mine.Example.ORG.", "a.b.mine.example.org", "*.mine.example.org", "example.org", "org"],
)
async def test_a_domain_that_overlaps_that_of_another_shoot_is_refused(client, garden, domain):
    garden.objects.append(other(domain))

    response = await ask(client, "/validate", "CREATE", complete("spec.dns", {"domain": OWN}).to_wire())

    assert f"{OWN} is the same as, above or below {domain} of Shoot garden-local/other" in response["status"]["message"]


@pytest.mark.parametrize("domain", ["other.example.org", "notmine.example.org", "mine.example.com"])
async def test_a_domain_beside_that_of_another_shoot_is_allowed(client, garden, domain):
    assert not overlap(OWN, domain)
    garden.objects.append(other(domain))

    assert (await ask(client, "/validate", "CREATE", complete("spec.dns", {"domain": OWN}).to_wire()))["allowed"]


@pytest.mark.parametrize("domain", ["mine.example.org", "a.mine.example.org", "example.org"])
@pytest.mark.parametrize("field", ["spec.dns.internal.domain", "spec.ingress.domain"])
async def test_a_domain_that_overlaps_that_of_a_seed_is_refused(client, garden, field, domain):
    garden.objects[garden.objects.index(SEED)] = changed(SEED, field, domain)

    response = await ask(client, "/validate", "CREATE", complete("spec.dns", {"domain": OWN}).to_wire())

    assert f"{OWN} is the same as, above or below {domain}, which Seeds use" in response["status"]["message"]


async def test_a_domain_below_a_default_domain_is_that_of_the_shoot(client, garden):
    defaults = [
        {"domain": "example.org", "type": "local", "credentialsRef": SEED["spec"]["dns"]["internal"]["credentialsRef"]}
    ]
    garden.objects[garden.objects.index(SEED)] = changed(SEED, "spec.dns.defaults", defaults)

    response = await ask(client, "/validate", "CREATE", complete("spec.dns", {"domain": OWN}).to_wire())

    assert "must be demo.local.example.org" in response["status"]["message"]


async def test_a_default_domain_has_no_primary_provider(client, garden):
    """The seed manages the default domain: a provider of the project would write other records of the same name."""
    domain = "demo.local.shoot.garden.test"
    own = {"type": "local", "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "name": "local"}}
    made = complete("spec.dns", {"domain": domain, "providers": [own | {"primary": True}]}).to_wire()

    response = await ask(client, "/validate", "CREATE", made)

    assert "spec.dns.providers[0].primary: Forbidden: the seed manages domains below" in response["status"]["message"]
    assert (await ask(client, "/validate", "UPDATE", made, made))["allowed"], "an earlier version has stored it"
    defaulted = changed(SHOOT, "spec.dns", {"domain": domain, "providers": [own]})
    stored = patched(defaulted, await ask(client, "/mutate", "CREATE", defaulted))
    assert stored["spec"]["dns"] == {"domain": domain, "providers": [own]}
    assert (await ask(client, "/validate", "CREATE", stored))["allowed"]


async def test_a_provider_does_not_keep_a_shoot_from_getting_a_default_domain(client):
    """Otherwise the scheduler could never bind the Shoot: admission would refuse each binding."""
    own = {"type": "local", "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "name": "local"}}
    made = changed(SHOOT, "spec.dns", {"providers": [own]})
    unbound = patched(changed(made), await ask(client, "/mutate", "CREATE", made))
    assert (await ask(client, "/validate", "CREATE", unbound))["allowed"]

    wanted = changed(unbound, "spec.seedName", "seed-1")
    bound = patched(changed(wanted), await ask(client, "/mutate", "UPDATE", wanted, unbound))

    assert bound["spec"]["dns"]["domain"] == "demo.local.shoot.garden.test"
    assert (await ask(client, "/validate", "UPDATE", bound, unbound))["allowed"]


async def test_a_namespace_of_another_project_is_refused(client, garden):
    response = await ask(client, "/validate", "CREATE", changed(PROJECT, "metadata.name", "second"))

    assert "spec.namespace: Duplicate value" in response["status"]["message"]


@pytest.mark.parametrize("obj", [complete(bound=True).to_wire(), SEED, PROJECT, BINDING], ids=lambda each: each["kind"])
async def test_admission_of_an_object_lists_no_kind_that_grows_with_the_garden(client, garden, monkeypatch, obj):
    listed: list[Resource] = []
    list_all = FakeGarden.list

    async def recorded(self, resource, namespace=None, labels=""):
        listed.append(resource)
        return await list_all(self, resource, namespace, labels)

    async def by_index(self, index, value):
        return [each for each in await list_all(self, index.resource) if value in index.values(each)]

    async def find(self, resource, name, namespace=None):
        found = [each for each in await list_all(self, resource, namespace) if each["metadata"]["name"] == name]
        return found[0] if found else None

    monkeypatch.setattr(FakeGarden, "list", recorded)
    monkeypatch.setattr(FakeGarden, "by_index", by_index)
    monkeypatch.setattr(FakeGarden, "find", find)
    garden.objects.append({"kind": "Secret", "metadata": {"name": "dns", "namespace": "garden"}})
    if obj["kind"] != "CredentialsBinding":
        await ask(client, "/mutate", "CREATE", obj)
    assert (await ask(client, "/validate", "CREATE", obj))["allowed"]

    assert set(listed) <= {resources.SECRET}, "Secrets are listed by a label of the garden's namespace"


def test_indexes_of_a_kind_have_different_names():
    names = [(each.resource, each.name) for each in INDEXES]
    assert len(names) == len(set(names))


def test_references_of_a_model_and_of_json_are_the_same():
    server = {
        "auditConfig": {"auditPolicy": {"configMapRef": {"name": "audit"}}},
        "structuredAuthentication": {"configMapName": "authentication"},
        "structuredAuthorization": {
            "configMapName": "authorization",
            "kubeconfigs": [{"authorizerName": "a", "secretName": "kubeconfig"}],
        },
        "admissionPlugins": [{"name": "PodSecurity", "kubeconfigSecretName": "plugin"}],
    }
    providers = [
        {"type": "local", "secretName": "old"},
        {"type": "local", "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "name": "new"}},
    ]
    wire = changed(SHOOT, "spec.kubernetes.kubeAPIServer", server)
    wire["spec"]["dns"] = {"domain": OWN, "providers": providers}
    wire["spec"]["resources"] = [
        {"name": each, "resourceRef": {"apiVersion": "v1", "kind": each, "name": each.lower()}}
        for each in ("Secret", "ConfigMap", "WorkloadIdentity", "Deployment")
    ]

    found = {each.name for each in references_in(wire)}

    assert found == {
        *("local", "secret", "configmap", "workloadidentity", "old", "new"),
        *("audit", "authentication", "authorization", "kubeconfig", "plugin"),
    }
    assert references(Shoot.of(wire)) == references_in(wire)
