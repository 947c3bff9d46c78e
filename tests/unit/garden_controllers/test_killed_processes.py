"""Processes are killed by SIGKILL between their writes, again and again, at real API servers: nothing is doubled.

Other tests of this kind: a Seed's deletion (``tests/unit/seed/test_teardown.py``), each write of a ManagedSeedSet
(``test_managed_seed_sets.py``), and the chaos tests of a landscape.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from api import resources
from kube.client import KubeClient
from tests.gardens import ADMIN, ApiServer
from tests.killed_controllers import Life, Lives
from tests.unit.admission.test_managed_seed_sets import scaler
from tests.unit.api.shoots import SEED, SHOOT, changed
from tests.unit.api.test_installations import registration
from tests.unit.charts import archive
from tests.unit.garden_controllers.seed_sets import GARDEN, World, managed_seed_set
from tests.unit.garden_controllers.test_installations_at_an_api_server import (
    _served,
    deployments_without_conversion,
)
from tests.unit.kube.waiting import until

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.slow,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(300, func_only=True),
]
Object = dict[str, Any]
_SECONDS = 200.0
"""Limit for a part whose processes live for one or two writes: each process needs seconds to start."""
CHART = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\n"


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None
) -> Iterator[tuple[ApiServer, ApiServer]]:
    garden, seed = (ApiServer(tmp_path_factory.mktemp(each), {}) for each in ("garden", "seed"))
    with garden.running(), seed.running():
        yield garden, seed


@pytest.fixture
async def garden(servers: tuple[ApiServer, ApiServer]) -> AsyncIterator[KubeClient]:
    server = servers[0]
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}} for each in (GARDEN, PROJECT)]
    await server.prepare(*namespaces, *deployments_without_conversion())
    async with server.client(ADMIN) as client:

        async def served() -> bool:
            return await _served(client)

        await until(served, 60)
        yield client


PROJECT = SHOOT["metadata"]["namespace"]


def extension(name: str) -> list[Object]:
    """Registration and chart of an extension."""
    return [
        {
            "apiVersion": resources.CONTROLLER_DEPLOYMENT.api_version,
            "kind": "ControllerDeployment",
            "metadata": {"name": name},
            "helm": {"rawChart": base64.b64encode(archive({"templates/a.yaml": CHART})).decode()},
        },
        {
            **registration("Extension", name, name, deploymentRefs=[{"name": name}]),
            "apiVersion": resources.CONTROLLER_REGISTRATION.api_version,
            "kind": "ControllerRegistration",
            "metadata": {"name": name},
        },
    ]


def bare(obj: Object, name: str, **spec: Any) -> Object:
    made = changed(obj, "metadata", {**obj["metadata"], "name": name})
    made.pop("status", None)
    for each in ("uid", "resourceVersion"):
        made["metadata"].pop(each, None)
    made["spec"] |= spec
    return made


async def test_the_controller_manager_makes_each_installation_once_and_deletes_it(
    garden: KubeClient, servers: tuple[ApiServer, ApiServer]
) -> None:
    """The name of an installation is generated: a second creation would be a second extension in the seed."""
    names = {f"ext-{number}" for number in range(3)}
    for each in names:
        for obj in extension(each):
            await garden.create(obj)
    for seed in ("seed-1", "seed-2"):
        await garden.create(bare(SEED, seed))
        shoot = bare(SHOOT, f"on-{seed}", seedName=seed, extensions=[{"type": each} for each in sorted(names)])
        await garden.create(shoot)
    seen: dict[tuple[str, str], set[str]] = {}

    async def installed() -> set[tuple[str, str]]:
        found = await garden.list(resources.CONTROLLER_INSTALLATION)
        for each in found:
            pair = (each["spec"]["seedRef"]["name"], each["spec"]["registrationRef"]["name"])
            seen.setdefault(pair, set()).add(each["metadata"]["uid"])
        return {
            (each["spec"]["seedRef"]["name"], each["spec"]["registrationRef"]["name"])
            for each in found
            if "deletionTimestamp" not in each["metadata"]
        }

    wanted = {(seed, each) for seed in ("seed-1", "seed-2") for each in names}
    lives = Lives(Life("installations of seeds", servers[0].kubeconfig(ADMIN)))
    async with lives.going_on():
        await until(lambda: _is(installed, wanted), _SECONDS)
        rest = {"spec": {"extensions": [{"type": "ext-0"}]}}
        await garden.patch(resources.SHOOT, "on-seed-1", PROJECT, rest)
        left = wanted - {("seed-1", "ext-1"), ("seed-1", "ext-2")}
        await until(lambda: _is(installed, left), _SECONDS)
    print(f"{len(wanted)} installations, {lives.killed} processes of the controller-manager killed")
    assert lives.killed >= 3, "workers write side by side, so a process may send a few writes before it is killed"
    assert {len(uids) for uids in seen.values()} == {1}, "an installation was made twice"


async def _is(found: Any, wanted: object) -> bool:
    return bool(await found() == wanted)


async def test_the_gardenlet_installs_an_extension_once_and_removes_all_of_it(
    garden: KubeClient, servers: tuple[ApiServer, ApiServer]
) -> None:
    for obj in extension("notes"):
        await garden.apply(obj, manager="test")
    for each in await garden.list(resources.CONTROLLER_INSTALLATION):
        await garden.delete(resources.CONTROLLER_INSTALLATION, each["metadata"]["name"])
    await garden.apply(bare(SEED, "seed-1"), manager="test")
    await garden.create(
        {
            "apiVersion": resources.CONTROLLER_INSTALLATION.api_version,
            "kind": "ControllerInstallation",
            "metadata": {"name": "notes-x"},
            "spec": {
                "registrationRef": {"name": "notes"},
                "deploymentRef": {"name": "notes"},
                "seedRef": {"name": "seed-1"},
            },
        }
    )
    _, server = servers
    await server.prepare_seed({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "garden"}})
    async with server.client(ADMIN) as seed:

        async def live() -> Object | None:
            return await garden.find(resources.CONTROLLER_INSTALLATION, "notes-x")

        async def told() -> bool:
            status = ((await live()) or {}).get("status") or {}
            return {"Valid", "Installed"} <= {each["type"] for each in status.get("conditions") or ()}

        async def names(kind: Any, namespace: str | None = None) -> list[str]:
            return [each["metadata"]["name"] for each in await seed.list(kind, namespace)]

        life = Life("installations in the seed", servers[0].kubeconfig(ADMIN), server.kubeconfig(ADMIN))
        lives = Lives(life)
        async with lives.going_on():
            await until(told, _SECONDS)
            assert await names(resources.MANAGED_RESOURCE) == ["notes-x"]
            secrets = await names(resources.SECRET, "garden")
            assert len(secrets) == 1, f"one Secret of the ManagedResource: {secrets}"
            assert "extension-notes-x" in await names(resources.NAMESPACE)
            found = await live()
            assert found is not None
            assert len(found["metadata"]["finalizers"]) == 1

            await garden.delete(resources.CONTROLLER_INSTALLATION, "notes-x")

            async def gone() -> bool:
                await _finalize(seed, "extension-notes-x")
                return await live() is None

            await until(gone, _SECONDS)
        print(f"installed and removed, {lives.killed} processes of the gardenlet killed")
        assert lives.killed >= 6
        assert await names(resources.MANAGED_RESOURCE) == await names(resources.SECRET, "garden") == []
        assert "extension-notes-x" not in await names(resources.NAMESPACE)


async def _finalize(seed: KubeClient, name: str) -> None:
    """Play the namespace controller: it removes the namespace's finalizer once the namespace is empty."""
    found = await seed.find(resources.NAMESPACE, name)
    if found is None or "deletionTimestamp" not in found["metadata"]:
        await asyncio.sleep(0.1)  # the clock of a poll
        return
    await seed.replace({**found, "spec": {"finalizers": []}}, subresource="finalize")


async def test_the_controller_manager_scales_and_rolls_a_set_with_a_partition(
    garden: KubeClient, servers: tuple[ApiServer, ApiServer]
) -> None:
    """A SeedAutoscaler adds a seed to the set, and a new template rolls down to the partition, then to all replicas.

    A process that is killed before it creates a replica leaves an ordinal that no replica gets.
    """
    world = World(garden)
    await world.clear()
    lives = Lives(Life("sets", servers[0].kubeconfig(ADMIN), writes=2))

    async def status(**wanted: Any) -> bool:
        await world.turn()
        found = await world.status()
        return {key: found.get(key) for key in wanted} == wanted

    try:
        await garden.create(managed_seed_set())
        async with lives.going_on():
            await until(lambda: status(readyReplicas=1), _SECONDS)
            capacity = {"status": {"allocatable": {"shoots": "2"}}}
            [first] = await world.managed_seeds()
            await garden.patch(resources.SEED, first, None, capacity, subresource="status")
            await garden.create(scaler())
            for name in ("guest", "guest2"):
                guest = changed(SHOOT, "metadata", {"name": name, "namespace": GARDEN})
                await garden.create(changed(guest, "spec.seedName", first))
            await until(lambda: status(readyReplicas=2, replicas=2), _SECONDS)
            first, second = await world.managed_seeds()
            print(f"the SeedAutoscaler has added seed {second} to {first}; {lives.killed} processes killed so far")

            rolling = {"updateStrategy": {"rollingUpdate": {"partition": int(second.rpartition("-")[2])}}}
            template = {"shootTemplate": {"spec": {"purpose": "infrastructure"}}}
            await world.change({"spec": {**rolling, **template}})
            await until(lambda: status(updatedReplicas=1, currentReplicas=1, readyReplicas=2), _SECONDS)
            purposes = {name: each["spec"].get("purpose") for name, each in (await world.shoots()).items()}
            print(f"rolled down to the partition: {purposes}; {lives.killed} processes killed so far")
            assert (purposes[first], purposes[second]) == ("evaluation", "infrastructure")

            await world.change({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
            await until(lambda: status(updatedReplicas=2, readyReplicas=2), _SECONDS)
        print(f"{lives.killed} processes of the controller-manager killed")
        assert lives.killed >= 5
        replicas = {name for name in await world.shoots() if name.startswith("pool-")}
        assert replicas == set(await world.managed_seeds()) == set(await world.seeds()) == {first, second}
        assert all(len(uids) == 1 for uids in world.uids.values()), "a replica was made twice"
        revisions = await garden.list(resources.CONTROLLER_REVISION, GARDEN)
        assert len({str(each["data"]) for each in revisions}) == len(revisions) == 2
    finally:
        await world.clear()
        await world.caches.close()
