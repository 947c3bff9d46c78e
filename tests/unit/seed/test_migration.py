"""What a move does with a seed's objects, against API servers in memory."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from temporalio.exceptions import ApplicationError

from activities.clusters import ClusterView
from activities.etcd.store import LocalStoreAdmin
from activities.secrets.sealing import Sealing
from activities.seed import sidecar
from activities.seed.extensions import ExtensionActivities
from activities.seed.migration import MigrationActivities
from api.contracts.operations import OperationType, ShootRef, ShootTask
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from tests.unit.seed.test_extension_access import CLUSTER_ROLES, REGISTRATIONS, ROLES, cluster_role, registration
from workers.object_store import application

NAMESPACE = "shoot--local--demo"
ENTRY = f"{NAMESPACE}--uid"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-2",
    generation=2,
    operation=OperationType.RESTORE,
    trigger="2026-11-21T10:00:00.000000Z",
)
CORE, EXTENSIONS = "/apis/core.gardener.cloud/v1beta1", "/apis/extensions.gardener.cloud/v1alpha1"
MACHINES = "/apis/machine.sapcloud.io/v1alpha1/machines"
MANAGED = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
COPIES = "/apis/druid.gardener.cloud/v1alpha1/etcdcopybackupstasks"
ETCDS = "/apis/druid.gardener.cloud/v1alpha1/etcds"
SECRETS = "/api/v1/secrets"


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with GardenServer().running() as server:
        entry = {"metadata": {"name": ENTRY}, "spec": {"bucketName": "uid-of-seed-1", "seedName": "seed-2"}}
        server.put(f"{CORE}/backupentries", entry, "garden-local")
        bucket = {"provider": {"type": "local", "region": "local"},
                  "credentialsRef": {"name": "backup", "namespace": "garden"}}  # fmt: skip
        server.put(f"{CORE}/backupbuckets", {"metadata": {"name": "uid-of-seed-1"}, "spec": bucket})
        server.put(SECRETS, {"kind": "Secret", "metadata": {"name": "backup"}, "data": {"token": "dA=="}}, "garden")
        yield server


@pytest.fixture
async def seed() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        yield server


@pytest.fixture
async def activities(clusters: Any) -> MigrationActivities:
    return MigrationActivities(clusters)


@pytest.fixture
async def clusters(garden: ApiServer, seed: ApiServer) -> AsyncIterator[Any]:
    async def cluster(_: str) -> ClusterView:
        return ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"seed": {"metadata": {"uid": "uid-of-seed-2"}}}})

    async with garden.client() as garden_client, seed.client() as client:
        caches = Caches(client)
        clusters: Any = SimpleNamespace(
            garden=garden_client, seed=client, seed_caches=caches, cluster=cluster, sealing=Sealing()
        )
        yield clusters
        await caches.close()


async def test_machines_are_forgotten_and_not_stopped(activities: MigrationActivities, seed: ApiServer) -> None:
    metadata = {"name": "one", "finalizers": ["machine.sapcloud.io/machine-controller-manager"]}
    seed.put(MACHINES, {"metadata": metadata, "spec": {}}, NAMESPACE)
    assert (await activities.shallow_delete_machine_objects(TASK)).note == "1 machines go on without us"
    assert seed.find(MACHINES, "one", NAMESPACE) is None
    assert (await activities.shallow_delete_machine_objects(TASK)).note == "0 machines go on without us"


async def test_machines_are_not_forgotten_while_somebody_would_stop_them(
    activities: MigrationActivities, seed: ApiServer
) -> None:
    seed.put(MACHINES, {"metadata": {"name": "one"}, "spec": {}}, NAMESPACE)
    manager = {"metadata": {"name": "machine-controller-manager"}, "spec": {}}
    seed.put("/apis/apps/v1/deployments", manager, NAMESPACE)
    with pytest.raises(ApplicationError, match="would stop the machines"):
        await activities.shallow_delete_machine_objects(TASK)
    assert seed.find(MACHINES, "one", NAMESPACE)


async def test_what_is_in_the_shoot_stays_there(activities: MigrationActivities, seed: ApiServer) -> None:
    seed.put(MANAGED, {"metadata": {"name": "shoot"}, "spec": {}}, NAMESPACE)
    seed.put(MANAGED, {"metadata": {"name": "seed"}, "spec": {"class": "seed"}}, NAMESPACE)
    await activities.keep_managed_objects(TASK)
    kept = {name: (seed.find(MANAGED, name, NAMESPACE) or {})["spec"].get("keepObjects") for name in ("shoot", "seed")}
    assert kept == {"shoot": True, "seed": None}


async def test_the_way_to_the_old_bucket_is_found_again_when_the_entry_has_a_new_one(
    activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    await activities.deploy_source_backup_entry(TASK)
    garden.change(f"{CORE}/backupentries", ENTRY, "garden-local", {"spec": {"bucketName": "uid-of-seed-2"}})
    await activities.deploy_source_backup_entry(TASK.model_copy(update={"trigger": "2026-11-21T11:00:00.000000Z"}))

    ordered = seed.find(f"{EXTENSIONS}/backupentries", f"source-{ENTRY}")
    assert ordered is not None
    assert ordered["spec"]["bucketName"] == "uid-of-seed-1"
    assert (seed.find(SECRETS, f"source-{ENTRY}", "garden") or {})["data"] == {"token": "dA=="}


@pytest.mark.parametrize(("home", "written"), [("seed-2", True), ("seed-1", False)], ids=["ours", "taken over"])
async def test_backups_are_handed_over_by_the_seed_that_they_belong_to(
    clusters: Any, garden: ApiServer, home: str, written: bool
) -> None:
    """One that lost them may not write to what another seed has, and has nothing to say there."""
    garden.change(f"{CORE}/backupentries", ENTRY, "garden-local", {"spec": {"seedName": home}})

    await ExtensionActivities(clusters).migrate_backup_entry(TASK.model_copy(update={"destination": "seed-1"}))

    entry = garden.find(f"{CORE}/backupentries", ENTRY, "garden-local")
    assert entry is not None
    assert entry["spec"]["seedName"] == "seed-1"
    path = f"{CORE}/namespaces/garden-local/backupentries/{ENTRY}"
    assert garden.count("PATCH", path) == (1 if written else 0)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "handed over"])
async def test_a_lost_seed_finds_the_mark_in_its_bucket_until_it_is_clean(
    clusters: Any, activities: MigrationActivities, garden: ApiServer, seed: ApiServer, lost: bool
) -> None:
    """One that comes back and finds an empty bucket takes itself for the one, and fills it."""
    there = {"spec": {"seedName": "seed-1" if lost else "seed-2"}}
    garden.change(f"{CORE}/backupentries", ENTRY, "garden-local", there)
    await activities.deploy_source_backup_entry(TASK)
    extensions = ExtensionActivities(clusters)

    def entries() -> list[bool]:
        ordered = seed.find(f"{EXTENSIONS}/backupentries", f"source-{ENTRY}")
        known = garden.find(f"{CORE}/backupentries", f"source-{ENTRY}", "garden-local")
        return [ordered is not None, known is not None]

    for operation in (OperationType.RESTORE, OperationType.RECONCILE):
        task = TASK.model_copy(update={"operation": operation})
        await extensions.delete_source_backup_entry(task)
        await asyncio.wait_for(extensions.wait_source_backup_entry_deleted(task), 10)
        kept = lost and operation is OperationType.RESTORE
        assert entries() == [kept, kept]


@pytest.mark.parametrize(
    ("goal", "operation", "kept"),
    [
        ("seed-3", OperationType.RECONCILE, True),
        ("seed-3", OperationType.DELETE, False),
        ("seed-2", OperationType.RECONCILE, False),
    ],
    ids=["moving on", "deleted meanwhile", "turned round"],
)
async def test_the_way_of_a_seed_that_has_begun_to_prepare_is_not_forgotten_by_the_seed_before_it(
    clusters: Any, garden: ApiServer, goal: str, operation: OperationType, kept: bool
) -> None:
    """seed-2 ends a cleaning for a seed before it, while seed-3 prepares to take over. Without its way to the bucket of
    seed-2, seed-3 would have nothing to copy. A gardenlet that is not home any more may not delete it either.
    """
    shoot = {"metadata": {"name": "demo", "uid": "uid"}, "spec": {"seedName": goal}, "status": {"seedName": "seed-2"}}
    garden.put(f"{CORE}/shoots", {"kind": "Shoot", **shoot}, "garden-local")
    entry = {"metadata": {"name": f"source-{ENTRY}"}, "spec": {"bucketName": "uid-of-seed-2", "seedName": "seed-3"}}
    garden.put(f"{CORE}/backupentries", entry, "garden-local")
    extensions, task = ExtensionActivities(clusters), TASK.model_copy(update={"operation": operation})

    await extensions.delete_source_backup_entry(task)
    await asyncio.wait_for(extensions.wait_source_backup_entry_deleted(task), 10)

    assert (garden.find(f"{CORE}/backupentries", f"source-{ENTRY}", "garden-local") is not None) == kept


async def test_an_extension_may_read_the_way_to_the_old_bucket_for_as_long_as_there_is_one(
    clusters: Any, activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    """The bucket is the one that the garden knows, of the type that the garden says."""
    seed.put(CLUSTER_ROLES, cluster_role())
    garden.put(REGISTRATIONS, registration("provider-x", ("BackupEntry", "local")))
    shared = ROLES, f"extension-secret:source-{ENTRY}", "garden"

    await activities.deploy_source_backup_entry(TASK)
    role = seed.find(*shared)
    assert role is not None
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": [f"source-{ENTRY}"]}
    ]

    task = TASK.model_copy(update={"operation": OperationType.RECONCILE})
    extensions = ExtensionActivities(clusters)
    await extensions.delete_source_backup_entry(task)
    await asyncio.wait_for(extensions.wait_source_backup_entry_deleted(task), 10)
    assert seed.find(*shared) is None


async def test_who_deletes_a_shoot_leaves_the_mark_to_a_seed_that_is_still_lost(
    clusters: Any, activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    """One that finds none would go on with what it has, and make machines anew."""
    garden.change(f"{CORE}/backupentries", ENTRY, "garden-local", {"spec": {"seedName": "seed-1"}})
    await activities.deploy_source_backup_entry(TASK)
    extensions = ExtensionActivities(clusters)
    task = TASK.model_copy(update={"operation": OperationType.DELETE, "trigger": "2026-11-21T11:00:00.000000Z"})
    deleting = asyncio.create_task(extensions.delete_source_backup_entry(task))
    ordered = f"{EXTENSIONS}/backupentries", f"source-{ENTRY}"

    def asked() -> str:
        return str((seed.find(*ordered) or {})["metadata"]["annotations"].get("gardener.cloud/operation"))

    await until(lambda: asked() == "migrate")
    assert not deleting.done()
    answered = {"metadata": {"annotations": {"gardener.cloud/operation": None}}}
    done = {"status": {"lastOperation": {"type": "Migrate", "state": "Succeeded"}}}
    seed.change(*ordered, None, {**answered, **done})
    await asyncio.wait_for(deleting, 10)
    await asyncio.wait_for(extensions.wait_source_backup_entry_deleted(task), 10)
    assert seed.find(f"{EXTENSIONS}/backupentries", f"source-{ENTRY}") is None
    assert garden.find(f"{CORE}/backupentries", f"source-{ENTRY}", "garden-local") is None


async def test_a_seed_that_is_lost_in_the_middle_of_a_move_is_known_to_be(
    activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    """Our etcd follows it already, and the move was one in good order until then."""
    there = {"spec": {"seedName": "seed-1"}}
    garden.change(f"{CORE}/backupentries", ENTRY, "garden-local", there)

    def lost() -> bool:
        entry = garden.find(f"{CORE}/backupentries", f"source-{ENTRY}", "garden-local") or {}
        return "backupentry.core.gardener.cloud/taken-over" in (entry["metadata"].get("annotations") or {})

    await activities.deploy_source_backup_entry(TASK.model_copy(update={"destination": "seed-2"}))
    assert not lost()
    seed.put(ETCDS, {"metadata": {"name": "etcd-main"}, "spec": {}}, NAMESPACE)
    await activities.deploy_source_backup_entry(TASK)
    assert lost()
    garden.change(f"{CORE}/backupentries", ENTRY, "garden-local", {"spec": {"seedName": "seed-2"}})
    await activities.deploy_source_backup_entry(TASK)
    assert lost(), "when the garden's entry is ours, it is told by this one"


async def test_backups_in_our_own_bucket_need_no_copy(
    activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    garden.change(f"{CORE}/backupentries", ENTRY, "garden-local", {"spec": {"bucketName": "uid-of-seed-2"}})
    await activities.deploy_source_backup_entry(TASK)
    await activities.copy_etcd_backups(TASK)
    seed.put(ETCDS, {"metadata": {"name": "etcd-main"}, "spec": {}}, NAMESPACE)
    assert (await activities.wait_etcd_backups_copied(TASK)).note == "nothing to copy"
    assert seed.find(f"{EXTENSIONS}/backupentries", f"source-{ENTRY}") is None


async def test_the_copy_is_ordered_once_for_each_attempt_until_it_is_done(
    activities: MigrationActivities, seed: ApiServer
) -> None:
    await activities.deploy_source_backup_entry(TASK)
    spec = {"type": "local", "bucketName": "uid-of-seed-2"}
    seed.put(f"{EXTENSIONS}/backupentries", {"metadata": {"name": ENTRY}, "spec": spec})
    await activities.copy_etcd_backups(TASK)
    first = seed.find(COPIES, "demo", NAMESPACE)
    await activities.copy_etcd_backups(TASK)
    assert first is not None
    assert seed.find(COPIES, "demo", NAMESPACE) == first
    assert [first["spec"][side]["container"] for side in ("sourceStore", "targetStore")] == [
        "uid-of-seed-1",
        "uid-of-seed-2",
    ]
    assert first["spec"]["sourceStore"]["prefix"] == f"{ENTRY}/etcd-main"

    again = TASK.model_copy(update={"trigger": "2026-11-21T11:00:00.000000Z"})
    await activities.copy_etcd_backups(again)
    second = seed.find(COPIES, "demo", NAMESPACE)
    assert second != first
    seed.change(COPIES, "demo", NAMESPACE, {"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}})
    done = seed.find(COPIES, "demo", NAMESPACE)
    await activities.copy_etcd_backups(TASK)
    assert seed.find(COPIES, "demo", NAMESPACE) == done


async def test_the_old_etcd_is_flushed_and_the_new_one_waited_for_by_their_sidecars(
    activities: MigrationActivities, seed: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[dict[str, Any]] = [
        {"snapName": "Incr-1"},
        {},
        {"status": "Progress", "revision": 0},
        {"status": "Progress", "revision": 7},
        {"status": "Successful", "revision": 7},
        {"status": "Progress", "revision": 7},
        {"status": "Successful", "revision": 8},
    ]
    asked = []

    async def get(url: str, *_: Any) -> dict[str, Any]:
        asked.append(url)
        return answers.pop(0)

    async def tls_of(*_: Any) -> None: ...

    monkeypatch.setattr(sidecar, "_get", get)
    monkeypatch.setattr(sidecar, "tls_of", tls_of)
    seed.put(ETCDS, {"metadata": {"name": "etcd-main"}, "spec": {"backup": {"port": 8080}}}, NAMESPACE)
    service = {"metadata": {"name": "etcd-main-client"}, "spec": {"clusterIP": "100.64.0.9"}}
    seed.put("/api/v1/services", service, NAMESPACE)
    notes = [(await activities.flush_etcd(TASK)).note for _ in range(2)]
    notes += [(await activities.wait_etcd_following(TASK)).note for _ in range(2)]
    notes.append((await activities.wait_etcd_taken_over(TASK)).note)
    assert notes == ["Incr-1", "nothing new", "revision 7", "it has taken over", "it has taken over"]
    assert not answers
    assert set(asked) == {f"https://100.64.0.9:8080/{path}" for path in ("snapshot/delta", "initialization/revision")}


async def test_an_etcd_that_is_not_there_does_not_start_without_a_snapshot(
    activities: MigrationActivities, garden: ApiServer, seed: ApiServer, tmp_path: Path
) -> None:
    server = TestServer(application(tmp_path / "buckets", "admin"))
    await server.start_server()
    endpoint = str(server.make_url("")).rstrip("/")
    async with LocalStoreAdmin(endpoint, "admin") as admin:
        token = await admin.make_bucket("uid-of-seed-2")
    credentials = {"endpoint": endpoint, "token": token}
    data = {key: base64.b64encode(value.encode()).decode() for key, value in credentials.items()}
    seed.put(SECRETS, {"kind": "Secret", "metadata": {"name": "etcd-backup"}, "data": data}, NAMESPACE)
    spec = {"type": "local", "bucketName": "uid-of-seed-2"}
    seed.put(f"{EXTENSIONS}/backupentries", {"metadata": {"name": ENTRY}, "spec": spec})
    with pytest.raises(ApplicationError, match="would start empty"):
        await activities.wait_etcd_backups_copied(TASK)
    await server.close()
