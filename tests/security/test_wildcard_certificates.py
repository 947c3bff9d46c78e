"""A seed, or a tenant, gets the certificate by which clients trust the control planes of another seed."""

import base64
from typing import Any

import pytest

from activities.garden.seed_namespaces import copy_secrets
from tests.certificates import pair, secret
from tests.unit.components.test_control_plane import NAMESPACE, SECRETS, SEED, SHOOT, TASK, World, world  # noqa: F401
from tests.unit.kube.api_server import ApiServer

DOMAIN = "ingress.seed-1.example.org"
HOST = f"api-dev--a.{DOMAIN}"
EXPOSURE = "apiserver-exposure"


def seed(name: str, domain: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"ingress": {"domain": domain}}}


@pytest.mark.attack(actor="T3", asset="A6", finding=7)
async def test_a_seed_gets_no_certificate_for_the_names_of_another_seed() -> None:
    """With its key, a gardenlet that is taken over would pretend to be the control planes of the other seed."""
    mine, theirs = secret(pair(f"*.{DOMAIN}"), "mine"), secret(pair("*.ingress.seed-2.example.org"), "theirs")
    async with ApiServer().running() as api, api.client() as garden:
        await copy_secrets(garden, seed("seed-1", DOMAIN), [mine, theirs])
        await copy_secrets(garden, seed("seed-3", "ingress.seed-3.example.org"), [mine, theirs])

        assert api.find(SECRETS, "mine", "seed-seed-1")
        for name, place in (("theirs", "seed-seed-1"), ("mine", "seed-seed-3"), ("theirs", "seed-seed-3")):
            assert api.find(SECRETS, name, place) is None


@pytest.mark.attack(actor="T6", asset="A6", finding=7)
async def test_a_shoot_of_another_network_gets_no_name_at_the_seeds_own_gateway(world: World) -> None:  # noqa: F811
    """Its handler's gateway alone serves it; names in the ingress domain lead to the seed's own gateway."""
    world.garden.put(SECRETS, secret(pair(f"*.{DOMAIN}"), namespace="seed-seed-1"), "seed-seed-1")
    pin(world, exposureClassName="company")

    await world.control_plane.deploy_apiserver(TASK)
    assert world.seed.find(SECRETS, "kube-apiserver-wildcard", NAMESPACE) is None
    await world.control_plane.update_advertised_addresses(TASK)
    assert HOST not in str(world.garden.find("/apis/core.gardener.cloud/v1beta1/shoots", "a", "garden-dev"))


@pytest.mark.attack(actor="T3", asset="A6", finding=7)
async def test_a_certificate_with_the_key_of_another_one_stops_no_api_server(world: World) -> None:  # noqa: F811
    good, other = pair(f"*.{DOMAIN}"), pair(f"*.{DOMAIN}")
    mixed = secret(type(good)(good.certificate, other.key), namespace="seed-seed-1")
    world.garden.put(SECRETS, mixed, "seed-seed-1")
    pin(world)

    await world.control_plane.deploy_apiserver(TASK)
    assert world.seed.find(SECRETS, "kube-apiserver-wildcard", NAMESPACE) is None
    said = await world.control_plane.update_advertised_addresses(TASK)
    assert "Secret wildcard is not used: its key is not that of its certificate" in said.note
    assert base64.b64decode(mixed["data"]["tls.key"]).decode()[30:60] not in said.note


def pin(world: World, **spec: Any) -> None:  # noqa: F811
    """Cluster of a Shoot in a seed with an ingress domain."""
    cluster = {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": NAMESPACE},
        "spec": {
            "shoot": {**SHOOT, "spec": {**SHOOT["spec"], **spec}},
            "seed": {**SEED, "spec": {**SEED["spec"], "ingress": {"domain": DOMAIN}}},
            "cloudProfile": {"kind": "CloudProfile", "spec": {}},
        },
    }
    world.seed.put("/apis/extensions.gardener.cloud/v1alpha1/clusters", cluster)
