"""A seed writes into a ShootState what would give it power over the seed that restores the Shoot."""

import base64
import gzip
import secrets
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import brotli
import pytest
from temporalio.exceptions import ApplicationError

from activities.clusters import ClusterView
from activities.secrets.sealing import Sealing
from activities.seed import extension_kinds as kinds
from activities.seed.extension_objects import ExtensionObject
from activities.seed.extension_operations import Extensions
from activities.seed.secrets import SecretActivities
from activities.seed.shoot_state import ShootStateActivities
from api import compression
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.decisions import shoot_state
from etcd import delta
from etcd.snapshots import parse
from tests.security.memory import less_memory_than
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from workers.etcd import restore as etcd_restore
from workers.resource_manager import manifests

NAMESPACE = "shoot--local--demo"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-2",
    generation=2,
    operation=OperationType.RESTORE,
    trigger="2026-11-21T10:00:00.000000Z",
)
STATES = "/apis/core.gardener.cloud/v1beta1/shootstates"
SECRETS = "/api/v1/secrets"
CONFIG_MAPS = "/api/v1/configmaps"
ROLE_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
INFRASTRUCTURES = "/apis/extensions.gardener.cloud/v1alpha1/infrastructures"
BOMB_BYTES = 256 << 20
ROOM_BYTES = 200 << 20
"""Memory that the refusal of a bomb may take."""

ADMIN = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "infrastructure-demo-admin"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "gardener.cloud:system:seed:evil"}],
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "infrastructure-demo-pod"},
    "spec": {"containers": [{"name": "root", "image": "x", "securityContext": {"privileged": True}}]},
}


def secret(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "data": {"key": base64.b64encode(b"value").decode()},
        **fields,
    }


@pytest.fixture
async def seed() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        yield server


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with GardenServer().running() as server:
        yield server


@pytest.fixture
async def clusters(seed: ApiServer, garden: ApiServer) -> AsyncIterator[Any]:
    async with seed.client() as client, garden.client() as garden_client:

        async def cluster(_: str) -> ClusterView:
            shoot = {"metadata": {"name": "demo", "namespace": "garden-local"}, "spec": {}}
            return ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": shoot}})

        sealing = Sealing(TASK.seed, {"one": secrets.token_bytes(32)})
        yield SimpleNamespace(garden=garden_client, seed=client, sealing=sealing, cluster=cluster)


def write(clusters: Any, garden: ApiServer, **spec: list[dict[str, Any]]) -> None:
    """The ShootState as a seed writes it that has the key."""
    sealed = shoot_state.converted(spec, lambda value, item: clusters.sealing.seal(value, TASK.shoot, item))
    garden.put(STATES, {"kind": "ShootState", "metadata": {"name": "demo"}, "spec": sealed}, "garden-local")


def referring(item: Mapping[str, Any], **changed: str) -> dict[str, list[dict[str, Any]]]:
    """An Infrastructure's state that refers to an object, and the object."""
    reference = {"apiVersion": item["apiVersion"], "kind": item["kind"], "name": item["metadata"]["name"]} | changed
    extension = {"kind": "Infrastructure", "name": "demo", "state": {}}
    return {
        "extensions": [{**extension, "resources": [{"name": "it", "resourceRef": reference}]}],
        "resources": [{**reference, "data": item}],
    }


async def restore(clusters: Any) -> None:
    wanted = ExtensionObject(kinds.INFRASTRUCTURE.resource, "demo", NAMESPACE, {"type": "local"})
    await Extensions(clusters).deploy(kinds.INFRASTRUCTURE, TASK, [wanted])


async def refused(clusters: Any) -> str:
    with pytest.raises(ApplicationError) as caught:
        await restore(clusters)
    assert caught.value.non_retryable
    assert caught.value.type == "ERR_CONFIGURATION_PROBLEM"
    return str(caught.value)


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
@pytest.mark.parametrize("item", [ADMIN, POD], ids=lambda item: item["kind"])
async def test_a_shoot_state_with_an_object_of_another_kind_creates_nothing(
    clusters: Any, garden: ApiServer, seed: ApiServer, item: dict[str, Any]
) -> None:
    """The gardenlet may bind any role, so an object of the ShootState's choice is the whole seed."""
    write(clusters, garden, **referring(item))

    message = await refused(clusters)

    assert item["metadata"]["name"] in message
    assert "ShootState garden-local/demo" in message
    assert not seed.objects


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_an_object_of_another_kind_under_the_name_of_a_secret_creates_nothing(
    clusters: Any, garden: ApiServer, seed: ApiServer
) -> None:
    """The reference names a Secret; the object behind it is a ClusterRoleBinding."""
    name = ADMIN["metadata"]["name"]  # type: ignore[index]
    write(clusters, garden, **referring(ADMIN, apiVersion="v1", kind="Secret", name=name))

    assert name in await refused(clusters)
    assert not seed.objects


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
@pytest.mark.parametrize("name", ["cloudprovider", "gardener-internal", "ca", "worker-demo-keys", "infrastructure"])
async def test_a_shoot_state_with_a_secret_of_a_foreign_name_creates_nothing(
    clusters: Any, garden: ApiServer, seed: ApiServer, name: str
) -> None:
    """A name of the gardenlet or of another extension."""
    write(clusters, garden, **referring(secret(name)))

    assert f"Secret {name}" in await refused(clusters)
    assert not seed.objects


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_a_shoot_state_does_not_order_a_token_of_a_service_account(
    clusters: Any, garden: ApiServer, seed: ApiServer
) -> None:
    """The seed's API server fills a Secret of this type with a token."""
    write(clusters, garden, **referring(secret("infrastructure-demo", type="kubernetes.io/service-account-token")))

    assert "kubernetes.io/service-account-token" in await refused(clusters)
    assert not seed.objects


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_a_restored_secret_has_neither_labels_nor_owners_of_the_shoot_states_choice(
    clusters: Any, garden: ApiServer, seed: ApiServer
) -> None:
    """Labels and annotations order things of controllers: a token for an account, garbage collection."""
    item = secret("infrastructure-demo-state", type="Opaque", spec={"any": "thing"})
    item["metadata"] |= {
        "namespace": "kube-system",
        "labels": {"resources.gardener.cloud/purpose": "token-requestor"},
        "annotations": {"kubernetes.io/service-account.name": "vpa"},
        "finalizers": ["example.org/stay"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": "x", "uid": "y"}],
    }
    write(clusters, garden, **referring(item))

    await restore(clusters)

    restored = seed.find(SECRETS, "infrastructure-demo-state", NAMESPACE)
    assert restored is not None
    assert not {"labels", "annotations", "finalizers", "ownerReferences"} & set(restored["metadata"])
    assert "spec" not in restored
    assert restored["data"] == item["data"]


async def test_an_object_that_an_extension_refers_to_by_its_own_name_is_persisted_and_restored(
    clusters: Any, garden: ApiServer, seed: ApiServer
) -> None:
    """Copies of objects that the Shoot refers to come from the garden, and are not persisted."""
    garden.put("/apis/core.gardener.cloud/v1beta1/shoots", {"metadata": {"name": "demo", "uid": "uid"}}, "garden-local")
    names = {"Secret": ("infrastructure-demo-key", "ref-of-the-owner"), "ConfigMap": ("infrastructure-demo",)}
    references = [
        {"name": name, "resourceRef": {"apiVersion": "v1", "kind": kind, "name": name}}
        for kind, each in names.items()
        for name in each
    ]
    infrastructure = {"metadata": {"name": "demo"}, "spec": {"type": "local"}, "status": {"resources": references}}
    seed.put(INFRASTRUCTURES, infrastructure, NAMESPACE)
    for name in names["Secret"]:
        seed.put(SECRETS, secret(name), NAMESPACE)
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "infrastructure-demo"}, "data": {"a": "b"}}
    seed.put(CONFIG_MAPS, config, NAMESPACE)
    await ShootStateActivities(clusters).persist_shootstate(
        TASK.model_copy(update={"operation": OperationType.MIGRATE, "destination": "seed-2"})
    )
    seed.objects.clear()

    await restore(clusters)

    restored = {(path, name): each for (path, _, name), each in seed.objects.items() if path != INFRASTRUCTURES}
    assert set(restored) == {(SECRETS, "infrastructure-demo-key"), (CONFIG_MAPS, "infrastructure-demo")}
    assert restored[CONFIG_MAPS, "infrastructure-demo"]["data"] == {"a": "b"}
    state = seed.find(INFRASTRUCTURES, "demo", NAMESPACE)
    assert state is not None
    assert state["status"]["resources"] == references


async def test_an_extension_state_that_cannot_be_restored_is_reported_before_the_move(
    clusters: Any, garden: ApiServer, seed: ApiServer
) -> None:
    """Otherwise the control plane would have left its seed, and could not start on the other one."""
    garden.put("/apis/core.gardener.cloud/v1beta1/shoots", {"metadata": {"name": "demo", "uid": "uid"}}, "garden-local")
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "infrastructure-demo"}
    status = {"resources": [{"name": "it", "resourceRef": reference}]}
    seed.put(INFRASTRUCTURES, {"metadata": {"name": "demo"}, "spec": {}, "status": status}, NAMESPACE)

    with pytest.raises(ApplicationError, match="Infrastructure demo refers to Deployment infrastructure-demo"):
        await ShootStateActivities(clusters).persist_shootstate(
            TASK.model_copy(update={"operation": OperationType.MIGRATE})
        )


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
@pytest.mark.parametrize(
    ("fault", "item"),
    [
        ("kubernetes.io/service-account-token", {"data": {"type": "kubernetes.io/service-account-token", "data": {}}}),
        ("label", {"labels": {"managed-by": "someone"}}),
        ("name", {"name": "gardener-internal"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_shoot_state_restores_only_secrets_that_the_secrets_manager_persists(
    clusters: Any, garden: ApiServer, seed: ApiServer, fault: str, item: dict[str, Any]
) -> None:
    """Everything else in their place is refused, and named."""
    labels = {"managed-by": "secrets-manager", "manager-identity": "gardenlet", "persist": "true", "name": "ca"}
    persisted = {"name": "ca", "type": "secret", "labels": labels, "data": {"type": "Opaque", "data": {}}}
    write(clusters, garden, gardener=[{**persisted, **item}])

    with pytest.raises(ApplicationError, match=fault) as caught:
        await SecretActivities(clusters)._restore(TASK)

    assert caught.value.non_retryable
    assert "ShootState garden-local/demo" in str(caught.value)
    assert not seed.objects


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_labels_of_other_controllers_do_not_come_back_with_a_persisted_secret(
    clusters: Any, garden: ApiServer, seed: ApiServer
) -> None:
    """The secrets manager's own labels are needed to distinguish generations."""
    labels = {"managed-by": "secrets-manager", "manager-identity": "gardenlet", "persist": "true", "name": "ca"}
    other = {"resources.gardener.cloud/purpose": "token-requestor"}
    item = {"name": "ca", "type": "secret", "labels": labels | other, "data": {"type": "Opaque", "data": {}}}
    write(clusters, garden, gardener=[item])

    await SecretActivities(clusters)._restore(TASK)

    restored = seed.find(SECRETS, "ca", NAMESPACE)
    assert restored is not None
    assert restored["metadata"]["labels"] == labels


def packed() -> bytes:
    """A JSON string of 256 MiB, in some 256 KiB."""
    return gzip.compress(b'"' + b" " * BOMB_BYTES + b'"')


def write_bomb(clusters: Any, garden: ApiServer) -> None:
    """A ShootState with a sealed value that unpacks to 256 MiB."""
    with pytest.MonkeyPatch.context() as patch:
        bomb = packed()
        patch.setattr(gzip, "compress", lambda *_, **__: bomb)
        write(clusters, garden, extensions=[{"kind": "Infrastructure", "name": "demo", "state": {}}])


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_a_sealed_value_that_unpacks_to_much_is_refused_by_name(
    clusters: Any, garden: ApiServer, seed: ApiServer
) -> None:
    """The gardenlet that restores serves all tenants of its seed."""
    write_bomb(clusters, garden)

    with less_memory_than(ROOM_BYTES):
        message = await refused(clusters)

    assert "ShootState garden-local/demo" in message
    assert "unpacks to more than" in message
    assert not seed.objects


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_many_sealed_values_that_unpack_to_much_together_are_refused(
    clusters: Any, garden: ApiServer, seed: ApiServer
) -> None:
    """Each is small enough."""
    value = "a" * (6 << 20)
    write(
        clusters,
        garden,
        extensions=[{"kind": "Infrastructure", "name": f"demo-{number}", "state": value} for number in range(64)],
    )

    with less_memory_than(ROOM_BYTES):
        assert "unpacks to more than" in await refused(clusters)


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_machines_that_unpack_to_much_are_refused(clusters: Any) -> None:
    """They are packed once more within what is sealed."""
    machines = {"state": base64.b64encode(packed()).decode()}
    with less_memory_than(ROOM_BYTES), pytest.raises(compression.TooLarge, match="unpacks to more than"):
        shoot_state.unpacked_machine_state(machines)


@pytest.mark.attack(actor="T3", asset="A3", finding=5)
async def test_manifests_that_unpack_to_much_are_a_fault_of_their_secret() -> None:
    """The resource manager of a control plane reads what extensions write."""
    bomb = brotli.compress(b" " * BOMB_BYTES, quality=1)
    with less_memory_than(ROOM_BYTES):
        objects, faults = manifests.decode(
            {"metadata": {"name": "bomb"}, "data": {"x.yaml.br": base64.b64encode(bomb).decode()}}
        )

    assert not objects
    assert faults == ["key x.yaml.br of Secret bomb unpacks to more than 32 MiB"]


@pytest.mark.attack(actor="T3", asset="A4", finding=5)
def test_changes_in_a_backup_that_unpack_to_much_are_damaged() -> None:
    """A control plane's backups come from the bucket of the seed that it left."""
    bomb = gzip.compress(b"a" * BOMB_BYTES)
    with less_memory_than(ROOM_BYTES), pytest.raises(delta.DamagedDelta, match="a line has more than"):
        list(delta.read([bomb]))


@pytest.mark.attack(actor="T3", asset="A4", finding=5)
def test_a_full_snapshot_that_unpacks_to_more_than_an_etcd_holds_is_refused() -> None:
    """It would fill the disk of the machine that restores it."""
    snapshot = parse("Full-00000000-00000010-1700000000.gz")
    assert snapshot is not None
    pieces = etcd_restore._unzipped([gzip.compress(b"a" * BOMB_BYTES)], snapshot, limit=BOMB_BYTES // 2)
    with less_memory_than(ROOM_BYTES), pytest.raises(etcd_restore._Blocked, match="unpacks to more than 128 MiB"):
        for _ in pieces:
            pass
