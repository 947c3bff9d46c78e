"""``init_secrets``: what a control plane starts from, also when its worker dies in the middle."""

import base64
import json
from types import SimpleNamespace
from typing import cast

import pytest
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters, ClusterView
from activities.secrets.manager import SecretsManager
from activities.secrets.sealing import Sealing
from activities.seed.secrets import METRICS_SERVER, VPN_CLIENT, CleanupSecrets, SecretActivities
from api.contracts.operations import OperationType, ShootRef, ShootTask
from tests.unit.secrets.conftest import Killed, MemoryCluster

NAMESPACE = "shoot--local--one"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="one", uid="c0ffee"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.CREATE,
)
AUTHORITIES = {"ca", "ca-etcd", "ca-etcd-peer", "ca-front-proxy", "ca-kubelet", "ca-metrics-server", "ca-vpn"}


class World:
    """Garden and seed of one Shoot."""

    def __init__(self) -> None:
        self.garden = MemoryCluster()
        self.seed = MemoryCluster()
        self.shoot = {"spec": {"provider": {"workers": [{"name": "pool"}]}, "kubernetes": {}}}
        self.seed.objects["Cluster", None, NAMESPACE] = {"metadata": {"name": NAMESPACE}, "spec": {"shoot": self.shoot}}
        clusters = SimpleNamespace(seed=self.seed, garden=self.garden, cluster=self._cluster, sealing=Sealing())
        self.activities = SecretActivities(cast(Clusters, clusters))

    async def _cluster(self, technical_id: str) -> ClusterView:
        return ClusterView(self.seed.objects["Cluster", None, technical_id])


@pytest.fixture
def world() -> World:
    return World()


async def test_all_shared_secrets_are_made(world):
    result = await world.activities.init_secrets(TASK)
    names = world.seed.names()

    assert names >= AUTHORITIES
    stable = {world.seed.objects["Secret", NAMESPACE, name]["metadata"]["labels"]["name"] for name in names}
    assert stable >= {
        "ca-client",
        "ca-bundle",
        "service-account-key",
        "service-account-key-bundle",
        "kube-apiserver-static-token",
        "kube-apiserver-etcd-encryption-key",
        "kube-apiserver-etcd-encryption-configuration",
        "generic-token-kubeconfig",
        "vpn-seed-server-tlsauth",
        "ssh-keypair",
    }
    assert set(result.secrets) == names


async def test_components_on_machines_find_their_certificates_again_after_a_hibernation(world):
    """With new ones, their pods would be replaced as soon as they run again."""

    async def certificates():
        manager = await SecretsManager.of_shoot(world.seed, NAMESPACE, world.shoot)
        return [(await manager.generate(each)).data["tls.crt"] for each in (METRICS_SERVER, VPN_CLIENT)]

    await world.activities.init_secrets(TASK)
    before = await certificates()
    world.shoot["spec"]["hibernation"] = {"enabled": True}
    used = (await world.activities.init_secrets(TASK)).secrets
    await world.activities.cleanup_secrets(CleanupSecrets(task=TASK, names=used))
    world.shoot["spec"]["hibernation"] = {"enabled": False}
    assert await certificates() == before


async def test_the_garden_gets_public_bundles_and_the_client_authority(world):
    await world.activities.init_secrets(TASK)
    bundle = world.garden.objects["ConfigMap", "garden-local", "one.ca-cluster"]
    client = world.garden.objects["InternalSecret", "garden-local", "one.ca-client"]

    assert bundle["data"]["ca.crt"].encode() == world.seed.secret(NAMESPACE, "ca")["ca.crt"]
    assert bundle["metadata"]["labels"]["discovery.gardener.cloud/public"] == "shoot-ca"
    assert bundle["metadata"]["ownerReferences"][0]["uid"] == "c0ffee"
    assert base64.b64decode(client["data"]["ca.key"]).startswith(b"-----BEGIN EC PRIVATE KEY")
    assert "one.ca-kubelet" in world.garden.names("ConfigMap")
    assert world.garden.names("Secret") == {"one.ssh-keypair"}


@pytest.mark.parametrize("phase", ["Preparing", "PreparingWithoutWorkersRollout"])
async def test_the_garden_signs_with_the_old_client_authority_until_the_api_server_trusts_the_new(world, phase):
    """The new one is published at the end of the flow that has deployed the API server with both."""

    def published():
        client = world.garden.objects["InternalSecret", "garden-local", "one.ca-client"]
        return base64.b64decode(client["data"]["ca.crt"])

    await world.activities.init_secrets(TASK)
    old = published()
    state = {"phase": phase, "lastInitiationTime": "2030-01-01T00:00:00Z"}
    world.shoot["status"] = {"credentials": {"rotation": {"certificateAuthorities": state}}}
    for _ in range(2):  # a worker may die and run it again
        made = await world.activities.init_secrets(TASK)
        assert published() == old
    for _ in range(2):
        await world.activities.cleanup_secrets(CleanupSecrets(task=TASK, names=made.secrets))
        new = published()
        assert new != old

    state["phase"] = "Prepared"
    await world.activities.init_secrets(TASK)
    assert published() == new


async def test_the_garden_publishes_the_old_cluster_authority_until_the_api_server_has_a_new_certificate(world):
    """A kubeconfig that is asked for during the completion works before and after the API server is replaced."""

    def published():
        bundle = world.garden.objects["ConfigMap", "garden-local", "one.ca-cluster"]
        return bundle["data"]["ca.crt"].count("BEGIN CERTIFICATE")

    await world.activities.init_secrets(TASK)
    state = {"phase": "Preparing", "lastInitiationTime": "2030-01-01T00:00:00Z"}
    world.shoot["status"] = {"credentials": {"rotation": {"certificateAuthorities": state}}}
    await world.activities.init_secrets(TASK)
    assert published() == 2

    state["phase"] = "Completing"
    for _ in range(2):  # a worker may die and run it again
        made = await world.activities.init_secrets(TASK)
        assert published() == 2
    for _ in range(2):
        await world.activities.cleanup_secrets(CleanupSecrets(task=TASK, names=made.secrets))
        assert published() == 1

    state["phase"] = "Completed"
    await world.activities.init_secrets(TASK)
    assert published() == 1


async def test_extensions_find_the_generic_kubeconfig_by_the_clusters_annotation(world):
    await world.activities.init_secrets(TASK)
    annotations = world.seed.objects["Cluster", None, NAMESPACE]["metadata"]["annotations"]
    name = annotations["generic-token-kubeconfig.secret.gardener.cloud/name"]
    kubeconfig = json.loads(world.seed.secret(NAMESPACE, name)["kubeconfig"])

    assert kubeconfig["clusters"][0]["cluster"]["server"] == "https://kube-apiserver"
    assert "tokenFile" in kubeconfig["users"][0]["user"]


async def test_the_encryption_configuration_holds_the_key(world):
    await world.activities.init_secrets(TASK)
    by_name = {name.rsplit("-", 1)[0]: name for name in world.seed.names()}
    key = world.seed.secret(NAMESPACE, by_name["kube-apiserver-etcd-encryption-key"])
    document = json.loads(
        world.seed.secret(NAMESPACE, by_name["kube-apiserver-etcd-encryption-configuration"])[
            "encryption-configuration.yaml"
        ]
    )
    (rule,) = document["resources"]

    assert rule["resources"] == ["secrets"]
    assert rule["providers"][0]["aescbc"]["keys"] == [
        {"name": key["key"].decode(), "secret": base64.b64encode(key["secret"]).decode()}
    ]
    assert rule["providers"][-1] == {"identity": {}}


async def test_a_new_encryption_key_reads_before_it_writes(world):
    """A replica that does not know the key yet could not read what another one wrote with it."""
    await world.activities.init_secrets(TASK)
    world.shoot["status"] = {
        "credentials": {
            "rotation": {"etcdEncryptionKey": {"phase": "Preparing", "lastInitiationTime": "2030-01-01T00:00:00Z"}}
        }
    }

    async def first_key() -> str:
        result = await world.activities.init_secrets(TASK)
        (config,) = [name for name in result.secrets if name.startswith("kube-apiserver-etcd-encryption-configuration")]
        document = json.loads(world.seed.secret(NAMESPACE, config)["encryption-configuration.yaml"])
        return document["resources"][0]["providers"][0]["aescbc"]["keys"][0]["secret"]

    before = await first_key()
    world.seed.objects["Deployment", NAMESPACE, "kube-apiserver"] = {
        "metadata": {"annotations": {"credentials.gardener.cloud/new-encryption-key-populated": "true"}}
    }
    assert await first_key() != before


@pytest.mark.parametrize(
    ("phase", "populated", "rules"),
    [
        (
            "Preparing",
            False,
            [
                ("secrets events", "aescbc/old secretbox/new identity"),
                ("configmaps", "identity aescbc/old secretbox/new"),
            ],
        ),
        (
            "Preparing",
            True,
            [
                ("secrets events", "secretbox/new aescbc/old identity"),
                ("configmaps", "identity secretbox/new aescbc/old"),
            ],
        ),
        ("Completing", True, [("secrets events", "secretbox/new identity"), ("configmaps", "identity secretbox/new")]),
        ("Completed", False, [("secrets events", "secretbox/new identity")]),
    ],
)
async def test_another_provider_reads_before_it_writes_and_the_old_one_reads_until_all_is_written(
    world, phase, populated, rules
):
    """Kinds that are no longer encrypted are written plain, and read in both forms."""
    config = world.shoot["spec"]["kubernetes"].setdefault("kubeAPIServer", {})
    config["encryptionConfig"] = {"resources": ["configmaps"]}
    await world.activities.init_secrets(TASK)
    before = world.seed.names()
    config["encryptionConfig"] = {"provider": {"type": "secretbox"}, "resources": ["events"]}
    state = {"phase": "Preparing", "lastInitiationTime": "2030-01-01T00:00:00Z"}
    at_rest = {"provider": {"type": "aescbc"}, "resources": ["configmaps"]}
    world.shoot["status"] = {"credentials": {"rotation": {"etcdEncryptionKey": state}, "encryptionAtRest": at_rest}}
    await world.activities.init_secrets(TASK)
    state["phase"] = phase
    if phase == "Completed":
        world.shoot["status"]["credentials"]["encryptionAtRest"] = {
            "provider": {"type": "secretbox"},
            "resources": ["events"],
        }
        for name in before:
            if name.startswith("kube-apiserver-etcd-encryption-key"):
                del world.seed.objects["Secret", NAMESPACE, name]
    if populated:
        world.seed.objects["Deployment", NAMESPACE, "kube-apiserver"] = {
            "metadata": {"annotations": {"credentials.gardener.cloud/new-encryption-key-populated": "true"}}
        }
    result = await world.activities.init_secrets(TASK)

    (name,) = [each for each in result.secrets if each.startswith("kube-apiserver-etcd-encryption-configuration")]
    keys = {
        base64.b64encode(world.seed.secret(NAMESPACE, each)["secret"]).decode(): "old" if each in before else "new"
        for each in world.seed.names()
        if each.startswith("kube-apiserver-etcd-encryption-key")
    }
    assert {len(base64.b64decode(each)) for each in keys} == {32}
    document = json.loads(world.seed.secret(NAMESPACE, name)["encryption-configuration.yaml"])
    found = [
        (
            " ".join(rule["resources"]),
            " ".join(
                f"{provider}/{keys[key['secret']]}" if provider != "identity" else provider
                for entry in rule["providers"]
                for provider, settings in entry.items()
                for key in settings.get("keys", [{"secret": ""}])
            ),
        )
        for rule in document["resources"]
    ]
    assert found == rules


async def test_a_key_keeps_its_provider_until_it_is_rotated(world):
    """Another key would be there before anything is written with it, and be taken for the old one later."""
    before = set((await world.activities.init_secrets(TASK)).secrets)
    world.shoot["spec"]["kubernetes"]["kubeAPIServer"] = {"encryptionConfig": {"provider": {"type": "aesgcm"}}}
    assert set((await world.activities.init_secrets(TASK)).secrets) == before


async def test_a_workerless_shoot_has_no_secrets_for_nodes(world):
    world.shoot["spec"]["provider"]["workers"] = []
    await world.activities.init_secrets(TASK)
    assert not {"ca-kubelet", "ca-metrics-server", "ca-vpn"} & world.seed.names()
    assert world.garden.names("ConfigMap") == {"one.ca-cluster"}
    assert world.garden.names("Secret") == set()


@pytest.mark.parametrize("dies_after", [1, 2, 5, 9, 13, 17, 21, 24])
async def test_killed_in_between_a_second_run_completes_the_first(world, dies_after):
    """Secrets of the first attempt stay: a component may already have mounted them."""
    world.seed.dies_after = dies_after
    with pytest.raises(Killed):
        await world.activities.init_secrets(TASK)
    made = {key: dict(obj["data"]) for key, obj in world.seed.objects.items() if key[0] == "Secret"}
    world.seed.dies_after = None
    result = await world.activities.init_secrets(TASK)

    for key, data in made.items():
        assert world.seed.objects[key]["data"] == data
    assert set(result.secrets) == world.seed.names()
    bundle = world.garden.objects["ConfigMap", "garden-local", "one.ca-cluster"]["data"]["ca.crt"]
    assert bundle.encode() == world.seed.secret(NAMESPACE, "ca")["ca.crt"]


async def test_a_second_run_changes_nothing_in_the_seed(world):
    await world.activities.init_secrets(TASK)
    before = {key: obj for key, obj in world.seed.objects.items() if key[0] == "Secret"}
    again = await world.activities.init_secrets(TASK)
    assert {key: obj for key, obj in world.seed.objects.items() if key[0] == "Secret"} == before
    assert set(again.secrets) == world.seed.names()


async def test_cleanup_removes_what_no_activity_used_and_only_own_secrets(world):
    result = await world.activities.init_secrets(TASK)
    world.seed.objects["Secret", NAMESPACE, "cloudprovider"] = {"metadata": {"name": "cloudprovider"}, "data": {}}
    kept = tuple(name for name in result.secrets if name != "ca-vpn")
    for _ in range(2):
        await world.activities.cleanup_secrets(CleanupSecrets(task=TASK, names=kept))
        assert world.seed.names() == {*kept, "cloudprovider"}


def test_cleanup_refuses_an_empty_list():
    """An empty union means that a flow lost its outcome, not that no secret is in use."""
    with pytest.raises(ValueError, match="at least 1 item"):
        CleanupSecrets(task=TASK, names=())


async def test_a_restore_puts_the_persisted_secrets_back_before_it_makes_new_ones(world):
    await world.activities.init_secrets(TASK)
    persisted = {
        name: world.seed.objects["Secret", NAMESPACE, name]
        for name in world.seed.names()
        if world.seed.objects["Secret", NAMESPACE, name]["metadata"]["labels"].get("persist") == "true"
    }
    destination = World()
    destination.garden.objects["ShootState", "garden-local", "one"] = {
        "metadata": {"name": "one", "namespace": "garden-local"},
        "spec": {
            "gardener": [
                {
                    "name": name,
                    "type": "secret",
                    "labels": secret["metadata"]["labels"],
                    "data": {"data": secret["data"], "immutable": True, "type": "Opaque"},
                }
                for name, secret in persisted.items()
            ]
        },
    }
    await destination.activities.init_secrets(TASK.model_copy(update={"operation": OperationType.RESTORE}))

    assert {"ca", "service-account-key"} <= {name.rsplit("-", 1)[0] for name in persisted} | set(persisted)
    for name, secret in persisted.items():
        assert destination.seed.objects["Secret", NAMESPACE, name]["data"] == secret["data"]


async def test_a_restore_without_persisted_keys_creates_no_new_ones(world):
    """Etcd's content is encrypted with them, and nodes trust no others. A restore in place finds them and continues."""
    restore = TASK.model_copy(update={"operation": OperationType.RESTORE})
    with pytest.raises(ApplicationError, match="ShootState garden-local/one does not exist") as caught:
        await world.activities.init_secrets(restore)
    assert caught.value.non_retryable
    assert not world.seed.names()

    made = await world.activities.init_secrets(TASK)
    assert (await world.activities.init_secrets(restore)).secrets == made.secrets
