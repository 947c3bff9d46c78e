"""Extensions stop working on a control plane that another seed has (GEP-17), at the API servers of two seeds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.clusters import Clusters
from activities.extension import Actuator, Extension
from api import resources
from api.constants import OWNERSHIP_LEASE
from api.crds import crds
from api.decisions.ownership import new_home
from api.resources import INFRASTRUCTURE
from api.times import micro_timestamp
from kube.cache import Caches
from kube.client import KubeClient
from tests import api_servers
from tests.api_servers import free_port, process
from tests.unit.charts import rights_of_provider_local
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.extension.controller import ExtensionController
from workers.extension.ownership import Ownership
from workers.gardenlet.ownership import OwnershipController
from workers.provider_local.access import NAME

SOURCE, DESTINATION = "seed-1", "seed-2"
CONTROL_PLANE, OWN = "shoot--local--demo", "extension-provider-local"
ACCOUNT = f"system:serviceaccount:{OWN}:{NAME}"
CORE = "/apis/core.gardener.cloud/v1beta1"
ENTRY = f"{CONTROL_PLANE}--uid-demo"
OPERATION = "gardener.cloud/operation"
TOLERANCE = timedelta(seconds=60)


def shoot(home: str, goal: str, *, lost: bool = False) -> dict[str, Any]:
    annotations = {"shoot.gardener.cloud/control-plane-migration": "bad-case"} if lost else {}
    return {
        "kind": "Shoot",
        "metadata": {"name": "demo", "namespace": "garden-local", "uid": "uid-demo", "annotations": annotations},
        "spec": {"seedName": goal},
        "status": {"seedName": home, "technicalID": CONTROL_PLANE},
    }


@pytest.mark.parametrize(
    ("of", "backups_at", "home"),
    [
        (shoot(SOURCE, SOURCE), SOURCE, ""),
        (shoot(SOURCE, DESTINATION), SOURCE, ""),
        (shoot(SOURCE, DESTINATION), DESTINATION, DESTINATION),
        (shoot(SOURCE, DESTINATION, lost=True), SOURCE, DESTINATION),
        (shoot(DESTINATION, DESTINATION), DESTINATION, DESTINATION),
        (shoot(DESTINATION, SOURCE), DESTINATION, ""),
        (shoot(SOURCE, DESTINATION), None, ""),
        (shoot(DESTINATION, DESTINATION), None, DESTINATION),
    ],
    ids=[
        "stays",
        "moves",
        "has handed its backups over",
        "is lost",
        "has moved",
        "comes back",
        "has no backups",
        "has moved without backups",
    ],
)
def test_the_garden_says_which_seed_has_a_control_plane(of: dict[str, Any], backups_at: str | None, home: str) -> None:
    assert new_home(of, SOURCE, backups_at) == home


def cluster(seed: str, of: dict[str, Any]) -> dict[str, Any]:
    spec = {"shoot": of, "seed": {"metadata": {"name": seed}}, "cloudProfile": {}}
    return {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": CONTROL_PLANE},
        "spec": spec,
    }


class Machines(Actuator):
    """Records its calls; a reconciliation ends when the test lets it."""

    resource = INFRASTRUCTURE
    type = "local"

    def __init__(self, seed: KubeClient) -> None:
        super().__init__(seed)
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def _call(self, name: str) -> dict[str, Any]:
        self.begun.append(name)
        await self.may_end.wait()
        self.ended.append(name)
        return {}

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        return await self._call("reconcile")

    async def delete(self, extension: Extension) -> None:
        await self._call("delete")

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        return await self._call("migrate")


class Seed:
    """A seed with its gardenlet and an extension."""

    def __init__(self, name: str, admin: KubeClient, extension: KubeClient) -> None:
        self.name, self.admin, self.extension = name, admin, extension
        self.machines = Machines(extension)

    async def prepare(self) -> None:
        for each in crds("seed"):
            await self.admin.apply(each, manager="test")
        for name in (OWN, "garden", CONTROL_PLANE):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await self.admin.apply(namespace, manager="test")
        for each in rights_of_provider_local(OWN):
            await self.admin.apply(each, manager="test")

    @asynccontextmanager
    async def running(self, garden: KubeClient, tolerance: timedelta = TOLERANCE) -> AsyncIterator[None]:
        clusters, caches = Clusters(garden, self.admin, self.name), Caches(self.extension)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(OwnershipController(clusters, tolerance).run()),
                group.create_task(ExtensionController(self.extension, caches, self.machines).run()),
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
        await clusters.close()
        await caches.close()

    async def deploy(self, of: dict[str, Any]) -> None:
        await self.admin.apply(cluster(self.name, of), manager="test")
        made = {
            "apiVersion": INFRASTRUCTURE.api_version,
            "kind": INFRASTRUCTURE.kind,
            "metadata": {"name": "demo", "namespace": CONTROL_PLANE, "annotations": {OPERATION: "reconcile"}},
            "spec": {"type": "local", "region": "local", "secretRef": {"name": "c", "namespace": CONTROL_PLANE}},
        }
        await self.admin.apply_blindly(made, manager="test")

    async def ask(self, operation: str) -> None:
        patch = {"metadata": {"annotations": {OPERATION: operation}}}
        await self.admin.patch(INFRASTRUCTURE, "demo", CONTROL_PLANE, patch)

    async def state(self) -> str:
        live = await self.admin.find(INFRASTRUCTURE, "demo", CONTROL_PLANE)
        return str((((live or {}).get("status") or {}).get("lastOperation") or {}).get("state", ""))

    async def succeeded(self) -> bool:
        return await self.state() == "Succeeded"

    async def says(self, home: str) -> bool:
        live = await self.admin.get(resources.CLUSTER, CONTROL_PLANE)
        return bool(live["spec"]["shoot"]["status"]["seedName"] == home)

    async def has_lease(self) -> bool:
        return await self.admin.find(resources.LEASE, OWNERSHIP_LEASE, "garden") is not None


@asynccontextmanager
async def seed_at(directory: Path, name: str) -> AsyncIterator[Seed]:
    port, tokens = free_port(), f"a,admin,1,system:masters\ne,{ACCOUNT},2\n"
    commands = api_servers.commands(directory, port, tokens, "--authorization-mode", "RBAC")
    started = [process(directory, *command) for command in commands]
    admin, extension = (api_servers.client(port, token) for token in "ae")
    async with started[0], started[1], admin, extension:
        await api_servers.ready(admin)
        seed = Seed(name, admin, extension)
        await seed.prepare()
        yield seed


@pytest.fixture
async def seeds(kubernetes_is_built: None, tmp_path: Path) -> AsyncIterator[list[Seed]]:
    async with AsyncExitStack() as stack:
        for each in (SOURCE, DESTINATION):
            (tmp_path / each).mkdir()
        yield list(
            await asyncio.gather(
                *(stack.enter_async_context(seed_at(tmp_path / each, each)) for each in (SOURCE, DESTINATION))
            )
        )


def tell(garden: ApiServer, of: dict[str, Any], backups_at: str) -> None:
    """Write the Shoot and its BackupEntry into the garden."""
    for path, obj in (
        (f"{CORE}/shoots", of),
        (f"{CORE}/backupentries", {"metadata": {"name": ENTRY}, "spec": {"bucketName": "b", "seedName": backups_at}}),
    ):
        garden.put(path, obj, "garden-local")


@pytest.mark.binaries
@pytest.mark.timeout(180)
async def test_an_extension_stops_when_another_seed_takes_the_control_plane_over(seeds: list[Seed]) -> None:
    """The lost source still reaches the cloud: two seeds would change the same machines."""
    source, destination = seeds
    async with GardenServer().running() as garden, garden.client() as client:
        garden.put(f"{CORE}/seeds", {"metadata": {"name": SOURCE}, "spec": {}})
        tell(garden, shoot(SOURCE, SOURCE), SOURCE)
        async with source.running(client), destination.running(client):
            await source.deploy(shoot(SOURCE, SOURCE))
            await until(source.succeeded)

            source.machines.may_end.clear()
            await source.ask("reconcile")
            await until(lambda: source.machines.begun == ["reconcile", "reconcile"])
            moved = shoot(SOURCE, DESTINATION, lost=True)
            tell(garden, moved, SOURCE)
            await until(lambda: source.says(DESTINATION))
            await destination.deploy(moved)
            await until(destination.succeeded)
            assert destination.machines.ended == ["reconcile"]

            # The run in the source has ended without a result, and the source begins no other one.
            source.machines.may_end.set()
            await source.ask("reconcile")
            live = await source.admin.get(INFRASTRUCTURE, "demo", CONTROL_PLANE)
            await source.admin.delete(INFRASTRUCTURE, "demo", CONTROL_PLANE, uid=live["metadata"]["uid"])
            await source.ask("migrate")
            await until(lambda: "migrate" in source.machines.ended)
            assert source.machines.begun == ["reconcile", "reconcile", "migrate"]
            assert source.machines.ended == ["reconcile", "migrate"]


@pytest.mark.binaries
@pytest.mark.timeout(180)
async def test_an_extension_stops_when_its_gardenlet_does_not_reach_the_garden(seeds: list[Seed]) -> None:
    """A seed that is cut off cannot know that another seed has taken over."""
    source, _ = seeds
    async with GardenServer().running() as garden, garden.client() as client:
        garden.put(f"{CORE}/seeds", {"metadata": {"name": SOURCE}, "spec": {}})
        tell(garden, shoot(SOURCE, SOURCE), SOURCE)
        reaches = Gate(client)
        async with source.running(reaches, timedelta(seconds=2)):  # type: ignore[arg-type]
            await source.deploy(shoot(SOURCE, SOURCE))
            await until(source.succeeded)
            source.machines.may_end.clear()
            await source.ask("reconcile")
            await until(lambda: len(source.machines.begun) == 2)
            reaches.open = False
            ownership = Ownership(Caches(source.extension))
            assert "has not reached the garden" in await asyncio.wait_for(ownership.until_lost(CONTROL_PLANE), 20)
            source.machines.may_end.set()
            assert source.machines.ended == ["reconcile"]

            # A run that has stopped goes on by itself when the garden is back.
            reaches.open = True
            await until(lambda: source.machines.ended == ["reconcile", "reconcile"])
            await until(source.succeeded)


class Gate:
    """The garden's client, unless the seed is cut off."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.open = True

    async def find(self, *place: Any, **options: Any) -> Any:
        if not self.open:
            raise TimeoutError("the garden does not answer")
        return await self._client.find(*place, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def lease(renewed: datetime) -> dict[str, Any]:
    spec = {"leaseDurationSeconds": 120, "renewTime": renewed.isoformat()}
    metadata = {"name": OWNERSHIP_LEASE, "namespace": "garden"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


async def owned(*objects: dict[str, Any], passed: float = 0.0) -> str:
    """Reason that an extension knows that starts with these objects in its seed, some seconds after its start."""
    now = 1000.0
    async with synced(*objects) as (_, caches):
        ownership = Ownership(caches, lambda: now)
        now += passed
        return ownership.loss(CONTROL_PLANE)


@asynccontextmanager
async def synced(*objects: dict[str, Any]) -> AsyncIterator[tuple[FakeCluster, Caches]]:
    """A seed with these objects, and its caches, as an extension has them."""
    seed = FakeCluster()
    for each in objects:
        await seed.create(each)
    caches = Caches(seed)
    for kind, namespace, fields in (
        (resources.CLUSTER, None, ""),
        (resources.LEASE, "garden", f"metadata.name={OWNERSHIP_LEASE}"),
    ):
        await caches.of(kind, namespace, fields=fields).synced()
    try:
        yield seed, caches
    finally:
        await caches.close()


@pytest.mark.parametrize("rounds", range(5))
async def test_a_wait_ends_when_it_is_cancelled_beside_an_event(rounds: int) -> None:
    """``asyncio.wait_for`` of Python 3.11 loses a cancellation in the round in which the event comes."""
    async with synced(HERE, lease(datetime.now(UTC))) as (seed, caches):
        waiting = asyncio.create_task(Ownership(caches).until_lost(CONTROL_PLANE))
        await asyncio.sleep(0)
        cancelled = asyncio.Event()
        other = "shoot--local--other"

        def cancel(left: int) -> None:
            if left:
                asyncio.get_running_loop().call_soon(cancel, left - 1)
            else:
                waiting.cancel()
                cancelled.set()

        caches.of(resources.CLUSTER).subscribe(
            lambda event: cancel(rounds) if event.object["metadata"]["name"] == other else None
        )
        await seed.create({**HERE, "metadata": {"name": other}})
        await cancelled.wait()
        ended, _ = await asyncio.wait({waiting}, timeout=5)
        waiting.cancel()
        assert ended, "the wait goes on, and holds the run that was cancelled"


HERE = cluster(SOURCE, shoot(SOURCE, SOURCE))


async def test_a_restarted_extension_does_not_extend_an_old_lease() -> None:
    old = datetime.now(UTC) - timedelta(minutes=3)
    assert "60 s too long" in await owned(HERE, lease(old))


async def test_a_renewal_counts_for_its_duration_by_the_clock_of_the_extension() -> None:
    now = datetime.now(UTC)
    assert await owned(HERE, lease(now), passed=110) == ""
    assert "has not reached the garden" in await owned(HERE, lease(now), passed=125)
    ahead = now + timedelta(hours=1)
    assert "has not reached the garden" in await owned(HERE, lease(ahead), passed=125), "a clock that is ahead"


async def test_an_earlier_gardenlet_and_objects_of_a_seed_stop_nothing() -> None:
    assert await owned(HERE) == ""
    assert await owned(lease(datetime.now(UTC) - timedelta(hours=1))) == ""


async def test_a_shoot_that_moves_is_worked_on_in_both_seeds() -> None:
    now = lease(datetime.fromisoformat(micro_timestamp()))
    assert await owned(cluster(SOURCE, shoot(SOURCE, DESTINATION)), now) == ""
    assert await owned(cluster(DESTINATION, shoot(SOURCE, DESTINATION)), now) == ""
    assert (
        await owned(cluster(SOURCE, shoot(DESTINATION, DESTINATION)), now)
        == f"seed {DESTINATION} has the control plane"
    )
