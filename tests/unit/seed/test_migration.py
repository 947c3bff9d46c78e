"""Effects of a move on a seed's objects, against API servers in memory."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.clusters import ClusterView
from activities.secrets.sealing import Sealing
from activities.seed import sidecar
from activities.seed.extensions import ExtensionActivities
from activities.seed.migration import MigrationActivities
from api.contracts.operations import OperationType, ShootRef, ShootTask
from kube.cache import Caches
from tests.object_stores import encoded, versitygw
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from tests.unit.seed.test_extension_access import CLUSTER_ROLES, REGISTRATIONS, ROLES, cluster_role, registration

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
INTERNAL_SECRETS = f"{CORE}/internalsecrets"


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with GardenServer().running() as server:
        entry = {"metadata": {"name": ENTRY}, "spec": {"bucketName": "uid-of-seed-1", "seedName": "seed-2"}}
        server.put(f"{CORE}/backupentries", entry, "garden-local")
        bucket = {"provider": {"type": "local", "region": "local"},
                  "credentialsRef": {"name": "backup", "namespace": "garden"}}  # fmt: skip
        server.put(f"{CORE}/backupbuckets", {"metadata": {"name": "uid-of-seed-1"}, "spec": bucket})
        server.put(INTERNAL_SECRETS, key_of("uid-of-seed-1", "first"), "garden-local")
        yield server


def key_of(bucket: str, key: str) -> dict[str, Any]:
    """InternalSecret that a source publishes."""
    data = encoded({"bucketName": bucket, "accessKeyID": key})
    return {"kind": "InternalSecret", "metadata": {"name": "demo.etcd-backup"}, "data": data}


def revoke(garden: ApiServer) -> None:
    """The source removes its finalizer."""
    garden.change(f"{CORE}/backupentries", f"source-{ENTRY}", "garden-local", {"metadata": {"finalizers": None}})


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
        caches, garden_caches = Caches(client), Caches(garden_client)
        clusters: Any = SimpleNamespace(
            garden=garden_client,
            garden_caches=garden_caches,
            seed=client,
            seed_caches=caches,
            seed_name="seed-2",
            cluster=cluster,
            sealing=Sealing(),
        )
        yield clusters
        await asyncio.gather(caches.close(), garden_caches.close())


async def test_machine_objects_are_deleted_without_stopping_machines(
    activities: MigrationActivities, seed: ApiServer
) -> None:
    metadata = {"name": "one", "finalizers": ["machine.sapcloud.io/machine-controller-manager"]}
    seed.put(MACHINES, {"metadata": metadata, "spec": {}}, NAMESPACE)
    assert (
        await activities.shallow_delete_machine_objects(TASK)
    ).note == "1 machines keep running; their objects are deleted here"
    assert seed.find(MACHINES, "one", NAMESPACE) is None
    assert (
        await activities.shallow_delete_machine_objects(TASK)
    ).note == "0 machines keep running; their objects are deleted here"


async def test_machine_objects_stay_while_the_machine_controller_manager_runs(
    activities: MigrationActivities, seed: ApiServer
) -> None:
    seed.put(MACHINES, {"metadata": {"name": "one"}, "spec": {}}, NAMESPACE)
    manager = {"metadata": {"name": "machine-controller-manager"}, "spec": {}}
    seed.put("/apis/apps/v1/deployments", manager, NAMESPACE)
    with pytest.raises(ApplicationError, match="would delete the machines"):
        await activities.shallow_delete_machine_objects(TASK)
    assert seed.find(MACHINES, "one", NAMESPACE)


async def test_objects_in_the_shoot_stay_there(activities: MigrationActivities, seed: ApiServer) -> None:
    seed.put(MANAGED, {"metadata": {"name": "shoot"}, "spec": {}}, NAMESPACE)
    seed.put(MANAGED, {"metadata": {"name": "seed"}, "spec": {"class": "seed"}}, NAMESPACE)
    await activities.keep_managed_objects(TASK)
    kept = {name: (seed.find(MANAGED, name, NAMESPACE) or {})["spec"].get("keepObjects") for name in ("shoot", "seed")}
    assert kept == {"shoot": True, "seed": None}


async def test_the_source_bucket_is_found_again_when_the_entry_names_a_new_one(
    activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    await activities.deploy_source_backup_entry(TASK)
    garden.change(f"{CORE}/backupentries", ENTRY, "garden-local", {"spec": {"bucketName": "uid-of-seed-2"}})
    await activities.deploy_source_backup_entry(TASK.model_copy(update={"trigger": "2026-11-21T11:00:00.000000Z"}))

    ordered = seed.find(f"{EXTENSIONS}/backupentries", f"source-{ENTRY}")
    assert ordered is not None
    assert ordered["spec"]["bucketName"] == "uid-of-seed-1"
    assert (seed.find(SECRETS, f"source-{ENTRY}", "garden") or {})["data"] == key_of("uid-of-seed-1", "first")["data"]


async def test_a_destination_keeps_the_source_key_that_its_own_key_replaces_in_the_garden(
    activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    for bucket, key, held in (
        ("uid-of-seed-1", "first", "first"),
        ("uid-of-seed-1", "renewed", "renewed"),
        ("uid-of-seed-2", "own", "renewed"),
    ):
        garden.put(INTERNAL_SECRETS, key_of(bucket, key), "garden-local")
        await activities.deploy_source_backup_entry(TASK)
        copied = seed.find(SECRETS, f"source-{ENTRY}", "garden")
        assert copied is not None
        assert copied["data"] == key_of("uid-of-seed-1", held)["data"]


async def test_a_move_waits_for_the_key_of_the_source(
    activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    """It works with no other key: that of the whole bucket would open the backups of other Shoots."""
    garden.put(INTERNAL_SECRETS, key_of("uid-of-seed-3", "other"), "garden-local")
    with pytest.raises(ApplicationError, match=r"demo\.etcd-backup holds no key for bucket uid-of-seed-1") as refused:
        await activities.deploy_source_backup_entry(TASK)
    assert not refused.value.non_retryable
    assert seed.find(SECRETS, f"source-{ENTRY}", "garden") is None
    assert garden.find(f"{CORE}/backupentries", f"source-{ENTRY}", "garden-local") is None


async def test_a_destination_waits_until_the_source_has_revoked_its_key(
    clusters: Any, activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    await activities.deploy_source_backup_entry(TASK)
    seed.remove(f"{EXTENSIONS}/backupentries", f"source-{ENTRY}")
    waiting = asyncio.create_task(ExtensionActivities(clusters).wait_source_backup_entry_deleted(TASK))
    await until(lambda: "deletionTimestamp" in (known(garden) or {"metadata": {}})["metadata"])
    assert not waiting.done()
    revoke(garden)
    assert (await asyncio.wait_for(waiting, 10)).note == ""
    assert known(garden) is None


def known(garden: ApiServer) -> dict[str, Any] | None:
    return garden.find(f"{CORE}/backupentries", f"source-{ENTRY}", "garden-local")


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
async def test_a_lost_seed_finds_the_takeover_marker_until_it_is_clean(
    clusters: Any, activities: MigrationActivities, garden: ApiServer, seed: ApiServer, lost: bool
) -> None:
    """A source that comes back and finds an empty bucket would consider itself active, and fill it."""
    there = {"spec": {"seedName": "seed-1" if lost else "seed-2"}}
    garden.change(f"{CORE}/backupentries", ENTRY, "garden-local", there)
    await activities.deploy_source_backup_entry(TASK)
    revoke(garden)
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
async def test_the_source_backup_entry_stays_while_the_next_seed_prepares(
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


async def test_an_extension_may_read_the_source_bucket_secret_while_it_exists(
    clusters: Any, activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    """The bucket and its type are those that the garden knows."""
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
    revoke(garden)
    extensions = ExtensionActivities(clusters)
    await extensions.delete_source_backup_entry(task)
    await asyncio.wait_for(extensions.wait_source_backup_entry_deleted(task), 10)
    assert seed.find(*shared) is None


async def test_a_deletion_keeps_the_takeover_marker_of_a_lost_seed(
    clusters: Any, activities: MigrationActivities, garden: ApiServer, seed: ApiServer
) -> None:
    """A source that finds no takeover marker would continue with its data, and create machines again."""
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


@pytest.mark.parametrize(("prefix", "waits"), [("", True), ("s2-", False)])
async def test_the_copy_waits_for_no_final_snapshot_if_the_members_joined_those_of_the_source(
    activities: MigrationActivities, seed: ApiServer, prefix: str, waits: bool
) -> None:
    await activities.deploy_source_backup_entry(TASK)
    spec = {"type": "local", "bucketName": "uid-of-seed-2"}
    seed.put(f"{EXTENSIONS}/backupentries", {"metadata": {"name": ENTRY}, "spec": spec})
    seed.put(ETCDS, {"metadata": {"name": "etcd-main"}, "spec": {"memberNamePrefix": prefix}}, NAMESPACE)
    await activities.copy_etcd_backups(TASK)
    copy = seed.find(COPIES, "demo", NAMESPACE) or {}
    assert copy["spec"]["waitForFinalSnapshot"]["enabled"] == waits


async def test_the_sidecars_flush_the_source_and_report_the_destination(
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


@pytest.mark.binaries
@pytest.mark.usefixtures("object_store_is_built")
async def test_an_etcd_that_is_not_there_does_not_start_without_a_snapshot(
    activities: MigrationActivities, garden: ApiServer, seed: ApiServer, tmp_path: Path
) -> None:
    spec = {"type": "local", "bucketName": "uid-of-seed-2"}
    seed.put(f"{EXTENSIONS}/backupentries", {"metadata": {"name": ENTRY}, "spec": spec})
    with versitygw(tmp_path) as server:
        server.make_bucket("uid-of-seed-2")
        secret = {"kind": "Secret", "metadata": {"name": "etcd-backup"}, "data": encoded(server.credentials)}
        seed.put(SECRETS, secret, NAMESPACE)
        with pytest.raises(ApplicationError, match="would start empty"):
            await activities.wait_etcd_backups_copied(TASK)
