"""The garden makes the identity of a managed seed's gardenlet, and deletes its Seed before the gardenlet goes."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from activities.secrets.keyring import write_key_file
from api import resources
from api.decisions.conditions import find_condition
from tests.gardens import new_authority
from tests.unit.api.shoots import SEED, SHOOT
from tests.unit.garden_controllers.conftest import CORE
from tests.unit.kube.waiting import until
from workers.controller_manager.managed_seeds import ManagedSeedConfig, run_managed_seed_controller
from workers.lib.codec import derived_keys
from workers.lib.temporal import TemporalConnection, TemporalTLS

MANAGED_SEEDS = "/apis/seedmanagement.gardener.cloud/v1alpha1/managedseeds"
SECRETS = "/api/v1/secrets"
CREDENTIALS = SEED["spec"]["dns"]["internal"]["credentialsRef"]
MANAGED_SEED: dict[str, Any] = {
    "apiVersion": "seedmanagement.gardener.cloud/v1alpha1",
    "kind": "ManagedSeed",
    "metadata": {"name": "child", "namespace": "garden"},
    "spec": {"shoot": {"name": "nested"}, "gardenlet": {"config": {"seedConfig": {"spec": SEED["spec"]}}}},
}


class Files:
    def __init__(self, directory: Path) -> None:
        self.root = directory / "root.key"
        write_key_file(self.root)
        authority = new_authority("clients")
        (directory / "ca.crt").write_bytes(authority.certificate)
        (directory / "ca.key").write_bytes(authority.key)
        (directory / "servers.crt").write_text("authorities of servers")
        self.config = ManagedSeedConfig(
            temporal_authority_certificate_file=directory / "ca.crt", temporal_authority_key_file=directory / "ca.key"
        )
        files = dict.fromkeys(("ca_file", "certificate_file", "private_key_file"), directory / "servers.crt")
        self.temporal = TemporalConnection(
            address="t:7233", codec_key_file=self.root, tls=TemporalTLS.model_validate(files)
        )


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def world(garden):
    """A garden with a ManagedSeed and its Shoot."""
    garden.api.put(f"{CORE}/shoots", {**SHOOT, "metadata": {"name": "nested", "namespace": "garden"}, "status": {}})
    garden.api.put(SECRETS, {"metadata": {"name": CREDENTIALS["name"], "namespace": CREDENTIALS["namespace"]}})
    garden.api.put(MANAGED_SEEDS, MANAGED_SEED)
    return garden


def running(garden, files, config: ManagedSeedConfig | None = None):
    return garden.running(
        run_managed_seed_controller(garden.client, garden.caches, config or files.config, files.temporal)
    )


def register(garden, until_: timedelta | None = timedelta(days=30), **metadata: Any) -> None:
    status: dict[str, Any] = {
        "conditions": [{"type": "GardenletReady", "status": "True", "reason": "a", "message": "b"}]
    }
    if until_ is not None:
        status["clientCertificateExpirationTimestamp"] = (datetime.now(UTC) + until_).isoformat()
    garden.api.put(f"{CORE}/seeds", {**SEED, "metadata": {"name": "child", **metadata}, "status": status})


def identity(garden) -> dict[str, bytes]:
    found = garden.api.find(SECRETS, "child.managed-seed", "garden")
    return {key: base64.b64decode(value) for key, value in ((found or {}).get("data") or {}).items()}


def tokens(garden) -> list[dict[str, Any]]:
    return [
        obj
        for (path, namespace, _), obj in garden.api.objects.items()
        if path == SECRETS and namespace == "kube-system"
    ]


def field(secret: dict[str, Any], name: str) -> str:
    return base64.b64decode(secret["data"][name]).decode()


async def test_the_gardenlet_gets_an_identity_for_its_seed_alone(world, files):
    async with running(world, files):
        await until(lambda: identity(world))

    made = identity(world)
    assert made["codec-key"].decode() == derived_keys(files.root, gardenlet="child")
    assert made["ca.crt"] == b"authorities of servers"
    subject = x509.load_pem_x509_certificate(made["tls.crt"]).subject.rfc4514_string()
    assert subject == "CN=gardener.cloud:system:seed:child,O=gardener.cloud:system:seeds"
    [token] = tokens(world)
    assert field(token, "auth-extra-groups") == "system:bootstrappers:gardener-seed:child"
    assert made["bootstrap-token"].decode() == f"{field(token, 'token-id')}.{field(token, 'token-secret')}"
    assert datetime.fromisoformat(field(token, "expiration")) < datetime.now(UTC) + timedelta(hours=25)
    secret = world.api.find(SECRETS, "child.managed-seed", "garden")
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "ManagedSeed"
    named = world.api.find(SECRETS, CREDENTIALS["name"], CREDENTIALS["namespace"])
    assert named["metadata"]["labels"] == {"name.seed.gardener.cloud/child": "true"}


async def test_a_second_run_changes_nothing(world, files):
    async with running(world, files):
        await until(lambda: identity(world))
    before = identity(world)
    world.api.change(
        MANAGED_SEEDS, "child", "garden", {"metadata": {"annotations": {"gardener.cloud/operation": None}}}
    )
    async with running(world, files):
        world.api.put(MANAGED_SEEDS, {**MANAGED_SEED, "metadata": {**MANAGED_SEED["metadata"], "name": "later"}})
        await until(lambda: world.api.find(SECRETS, "later.managed-seed", "garden"))
    assert identity(world) == before


async def test_a_token_goes_with_the_first_certificate_and_comes_back_when_that_has_expired(world, files):
    async with running(world, files):
        await until(lambda: "bootstrap-token" in identity(world))
        register(world)
        await until(lambda: "bootstrap-token" not in identity(world))
        assert tokens(world) == []
        register(world, timedelta(seconds=-1))
        await until(lambda: "bootstrap-token" in identity(world))
        owner = world.api.find(MANAGED_SEEDS, "child", "garden")
        assert owner["metadata"]["annotations"] == {"gardener.cloud/operation": "reconcile"}
    [token] = tokens(world)
    assert field(token, "token-secret") in identity(world)["bootstrap-token"].decode()


async def test_without_an_authority_an_operator_provides_the_certificate(world, files):
    async with running(world, files, ManagedSeedConfig()):
        await until(lambda: identity(world))
    assert set(identity(world)) == {"codec-key", "bootstrap-token"}


async def test_a_registered_seed_follows_its_template(world, files):
    register(world)
    async with running(world, files):
        change = {
            "spec": {
                "gardenlet": {"config": {"seedConfig": {"spec": {"settings": {"scheduling": {"visible": False}}}}}}
            }
        }
        world.api.change(MANAGED_SEEDS, "child", "garden", change)
        await until(lambda: world.api.find(f"{CORE}/seeds", "child")["spec"].get("settings"))
    assert world.api.find(f"{CORE}/seeds", "child")["spec"]["networks"] == SEED["spec"]["networks"]


async def test_the_shoot_shows_the_conditions_of_its_seed(world, files):
    shoots = f"{CORE}/shoots"
    own = {"type": "EveryNodeReady", "status": "True", "reason": "c", "message": "d"}
    world.api.change(shoots, "nested", "garden", {"status": {"conditions": [own]}})
    register(world)

    def shown() -> list[str]:
        return [each["type"] for each in world.api.find(shoots, "nested", "garden")["status"]["conditions"]]

    async with running(world, files):
        await until(lambda: shown() == ["EveryNodeReady", "GardenletReady"])
        world.api.remove(f"{CORE}/seeds", "child")
        world.api.change(MANAGED_SEEDS, "child", "garden", {"metadata": {"deletionTimestamp": "2026-11-26T00:00:00Z"}})
        await until(lambda: shown() == ["EveryNodeReady"])


async def test_the_seed_is_deleted_first(world, files):
    register(world, finalizers=["gardener"])
    async with running(world, files):
        await until(lambda: identity(world))
        await world.client.delete(resources.MANAGED_SEED, "child", "garden")
        await until(lambda: "deletionTimestamp" in world.api.find(f"{CORE}/seeds", "child")["metadata"])
    owner = world.api.find(MANAGED_SEEDS, "child", "garden")
    assert owner["metadata"]["finalizers"] == ["gardener"], "the gardenlet is still there"
    assert tokens(world) == []


async def test_a_managed_seed_without_its_shoot_can_be_deleted(world, files):
    """Its Shoot was deleted by force: no gardenlet is responsible any more."""
    async with running(world, files):
        await until(lambda: identity(world))
        world.api.remove(f"{CORE}/shoots", "nested", "garden")

        def told() -> bool:
            status = world.api.find(MANAGED_SEEDS, "child", "garden").get("status") or {}
            found = find_condition({"status": status}, "ShootReconciled")
            return found.get("reason") == "ShootMissing" and "delete the ManagedSeed" in found["message"]

        await until(told)
        await world.client.delete(resources.MANAGED_SEED, "child", "garden")
        await until(lambda: world.api.find(MANAGED_SEEDS, "child", "garden") is None)


async def test_a_renewal_is_requested_of_the_seed(world, files):
    register(world)
    asked = {"metadata": {"annotations": {"gardener.cloud/operation": "renew-kubeconfig"}}}
    world.api.change(MANAGED_SEEDS, "child", "garden", asked)
    async with running(world, files):
        await until(lambda: world.api.find(f"{CORE}/seeds", "child")["metadata"].get("annotations"))
    annotations = world.api.find(f"{CORE}/seeds", "child")["metadata"]["annotations"]
    assert annotations == {"gardener.cloud/operation": "renew-kubeconfig"}


async def test_an_unreadable_authority_is_told_without_its_content(world, files):
    key = files.config.temporal_authority_key_file
    assert key is not None
    key.write_text("SENTINEL-KEY")
    async with running(world, files):
        [(reason, message)] = await world.events(1)
    assert reason == "IdentityFailed"
    assert "see managedSeeds of the controller-manager" in message
    assert "SENTINEL" not in message
