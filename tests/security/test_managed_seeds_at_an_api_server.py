"""A ManagedSeed at a real API server that asks our admission: what an operator gets, and what gardenlets may not do."""

import base64
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from activities.secrets.keyring import write_key_file
from api import resources
from api.decisions.managed_seeds import seed_template
from kube.client import KubeClient
from kube.errors import ApiError, Forbidden, Invalid
from tests.api_servers import ready
from tests.gardens import ApiServer, admission, asks_admission, controllers
from tests.unit.admission.test_managed_seeds import DNS_SECRET, GARDEN_PROJECT, managed_seed, seed_shoot
from tests.unit.api.shoots import PROFILE, REGISTRATION, SEED, changed
from tests.unit.kube.waiting import until
from workers.controller_manager.managed_seeds import ManagedSeedConfig, run_managed_seed_controller
from workers.lib.temporal import TemporalConnection
from workers.setup import set_up_garden

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(180)]

SEEDS = "gardener.cloud:system:seeds"
PARENT, CHILD = (f"gardener.cloud:system:seed:{each}" for each in ("seed-1", "nested"))
BINDING = {
    "apiVersion": "security.gardener.cloud/v1alpha1",
    "kind": "CredentialsBinding",
    "metadata": {"name": "local", "namespace": "garden"},
    "provider": {"type": "local"},
    "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "namespace": "garden", "name": "cloud"},
}
CLOUD = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud", "namespace": "garden"}}
MANAGED_SEED = resources.MANAGED_SEED


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("garden"), {PARENT: SEEDS, CHILD: SEEDS})
    with made.running():
        yield made


@pytest.fixture
async def operator(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """An operator of a garden with a Seed, and a Shoot of namespace garden in it."""
    write_key_file(tmp_path / "root.key")
    temporal = TemporalConnection(address="t:7233", codec_key_file=tmp_path / "root.key")

    async def run(client: KubeClient, caches: Any) -> None:
        await run_managed_seed_controller(client, caches, ManagedSeedConfig(), temporal)

    async with server.client() as client:
        await ready(client)
        await set_up_garden(client, None)
        async with admission(client, tmp_path) as webhooks:
            await set_up_garden(client, webhooks, unrestricted_gardenlets=True)
            await asks_admission(client)
            reference = SEED["spec"]["dns"]["internal"]["credentialsRef"]
            host = changed(SEED, "spec.dns.provider", {"type": "local", "credentialsRef": reference})
            shoot = seed_shoot()
            status = shoot.pop("status")
            shoot["metadata"].pop("uid")
            if reference["namespace"] != "garden":
                namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": reference["namespace"]}}
                await client.apply(namespace, manager="test")
            made: list[dict[str, Any]] = [DNS_SECRET, CLOUD, PROFILE, REGISTRATION, GARDEN_PROJECT, BINDING, host]
            for each in made:
                bare = {key: value for key, value in each.items() if key != "status"}
                metadata = {key: bare["metadata"][key] for key in ("name", "namespace") if key in bare["metadata"]}
                await client.apply({**bare, "metadata": metadata}, manager="test")
            await client.patch(resources.SEED, "seed-1", None, {"status": SEED["status"]}, subresource="status")
            await until(lambda: _applied(client, shoot), 60)
            await client.patch(resources.SHOOT, "nested", "garden", {"status": status}, subresource="status")
            async with controllers(client, run):
                yield client


async def _applied(client: KubeClient, obj: dict[str, Any]) -> bool:
    """Whether admission accepts the object: its caches learn of the other objects a moment later."""
    try:
        await client.apply(obj, manager="test")
    except ApiError:
        return False
    return True


async def identity(client: KubeClient) -> dict[str, str]:
    secret = await until(lambda: client.find(resources.SECRET, "nested.managed-seed", "garden"))
    return dict(secret["data"])


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
async def test_a_managed_seed_is_the_operators_and_its_seed_is_registered_as_its_template_says(
    operator: KubeClient, server: ApiServer
) -> None:
    await until(lambda: _applied(operator, managed_seed()), 60)
    live = await operator.get(MANAGED_SEED, "nested", "garden")
    gardenlet = live["spec"]["gardenlet"]
    assert (gardenlet["bootstrap"], gardenlet["mergeWithParent"]) == ("BootstrapToken", True)
    assert gardenlet["deployment"]["replicaCount"] == 2

    with pytest.raises(Invalid, match="field is immutable"):
        await operator.patch(MANAGED_SEED, "nested", "garden", {"spec": {"shoot": {"name": "other"}}})
    confirmed = {"metadata": {"annotations": {"confirmation.gardener.cloud/deletion": "true"}}}
    await operator.patch(resources.SHOOT, "nested", "garden", confirmed)
    with pytest.raises(Forbidden, match="it is a seed: delete ManagedSeed garden/nested first"):
        await operator.delete(resources.SHOOT, "nested", "garden")

    made = await identity(operator)
    token = base64.b64decode(made["bootstrap-token"]).decode()
    found = await operator.get(resources.SECRET, f"bootstrap-token-{token.partition('.')[0]}", "kube-system")
    groups = base64.b64decode(found["data"]["auth-extra-groups"]).decode()
    assert groups == "system:bootstrappers:gardener-seed:nested"

    async with server.client(PARENT) as parent, server.client(CHILD) as child:
        change = {"spec": {"gardenlet": {"deployment": {"image": {"ref": "example.org/mine:1"}}}}}
        with pytest.raises(Forbidden, match=r"may not set spec\.gardenlet\.deployment"):
            await parent.patch(MANAGED_SEED, "nested", "garden", change)
        status = {"status": {"conditions": [{"type": "SeedRegistered", "status": "False"}]}}
        await parent.patch(MANAGED_SEED, "nested", "garden", status, subresource="status")

        template = deepcopy(seed_template(live))
        await child.apply_blindly(template, manager="gardenlet")
        other = deepcopy(template) | {"metadata": {"name": "another"}}
        # The domain of the first one would be a second reason to refuse it.
        other["spec"]["ingress"]["domain"] = "ingress.another.test"
        with pytest.raises(Forbidden, match="registers no other Seed"):
            await child.apply_blindly(other, manager="gardenlet")

    visible = {"seedConfig": {"spec": {"settings": {"scheduling": {"visible": False}}}}}
    await operator.patch(MANAGED_SEED, "nested", "garden", {"spec": {"gardenlet": {"config": visible}}})

    async def followed() -> bool:
        seed = await operator.get(resources.SEED, "nested")
        return (seed["spec"]["settings"].get("scheduling") or {}).get("visible") is False

    await until(followed)
    await operator.delete(MANAGED_SEED, "nested", "garden")

    async def gone() -> bool:
        return await operator.find(resources.SEED, "nested") is None

    await until(gone)
    owner = await operator.get(MANAGED_SEED, "nested", "garden")
    assert owner["metadata"]["finalizers"] == ["gardener"], "the parent gardenlet removes the new one first"
