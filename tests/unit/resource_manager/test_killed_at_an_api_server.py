"""A resource manager that is killed after each of its writes to a real API server, and started again."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from activities.managed_resources import secrets_checksum
from api.resources import CONFIG_MAP, MANAGED_RESOURCE, ROLE, SECRET
from kube.client import KubeClient, Object
from tests.gardens import ADMIN, ApiServer
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.at_api_server import ORIGIN, Manager
from tests.unit.resource_manager.killing_proxy import KillingProxy, Processes, is_alive, processes

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.slow,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(600, func_only=True),
]
KINDS = (CONFIG_MAP, SECRET, ROLE)
MANAGED = {"resources.gardener.cloud/managed-by": "gardener"}


def of(kind: str, name: str, labels: Object | None = None, **fields: object) -> Object:
    version = "rbac.authorization.k8s.io/v1" if kind == "Role" else "v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels or {}}, **fields}


FIRST = (
    of("Secret", "credentials", data={"key": "dg=="}),
    of("ConfigMap", "stays", {"own": "1"}, data={"a": "1"}),
    of("ConfigMap", "changes", {"own": "1", "old": "1"}, data={"a": "1"}),
    of("ConfigMap", "goes", data={"a": "1"}),
    of("Role", "goes", rules=[]),
)
SECOND = (
    of("Secret", "credentials", data={"key": "dg=="}),
    of("ConfigMap", "stays", {"own": "1"}, data={"a": "1"}),
    of("ConfigMap", "changes", {"own": "1", "new": "2"}, data={"b": "2"}),
    of("ConfigMap", "comes", {"own": "2"}, data={"b": "2"}),
    of("Role", "comes", rules=[]),
)
THIRD = (
    of("ConfigMap", "stays", {"late": "3"}, data={"c": "3"}),
    of("ConfigMap", "comes", {"late": "3"}, data={"c": "3"}),
    of("ConfigMap", "late", {"late": "3"}, data={"c": "3"}),
    of("Role", "goes", rules=[]),
)
"""It has a part of each revision before, but no label of theirs."""
STEPS = {"created": ((), FIRST, 8), "updated": (FIRST, SECOND, 7), "deleted": (SECOND, (), 6)}
"""Objects before and after the step in which processes are killed, and the least number of its writes."""


class World:
    """One namespace with a ManagedResource, and the process that serves it."""

    def __init__(
        self, admin: KubeClient, proxy: KillingProxy, started: Processes, directory: Path, namespace: str
    ) -> None:
        self.admin, self.proxy, self.namespace = admin, proxy, namespace
        self._processes = started
        self.manager = Manager(admin, namespace)
        self._config = directory / f"{namespace}.json"

    async def prepare(self, kubeconfig: Object) -> None:
        kubeconfig_file = self._config.with_suffix(".kubeconfig")
        kubeconfig_file.write_text(json.dumps(kubeconfig))
        config = {
            "sourceClientConnection": {"kubeconfig": str(kubeconfig_file), "namespaces": [self.namespace]},
            "server": {"health": {"address": "127.0.0.1", "port": 0}},
            "controllers": {"managedResource": {"syncPeriod": "1h"}},
        }
        self._config.write_text(json.dumps(config))
        await self.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        for each in (of("ConfigMap", "foreign", data={"a": "1"}), of("ConfigMap", "unserved", data={"a": "1"})):
            # Another component made these. One has the origin of a ManagedResource that does not exist.
            each["metadata"]["namespace"] = self.namespace
            if each["metadata"]["name"] == "unserved":
                each["metadata"] |= {"labels": MANAGED, "annotations": {ORIGIN: "elsewhere/one"}}
            await self.admin.create(each)

    async def start(self) -> int:
        return await self._processes.start(self._config)

    async def write(self, objects: tuple[Object, ...]) -> None:
        """Write a revision of the ManagedResource, or delete it."""
        if objects:
            placed = [{**each, "metadata": {**each["metadata"], "namespace": self.namespace}} for each in objects]
            await self.manager.write(*placed)
        else:
            await self.admin.delete(MANAGED_RESOURCE, "one", self.namespace)

    async def has(self, objects: tuple[Object, ...]) -> bool:
        """Whether the process has applied a revision as its status says, or whether the ManagedResource is gone."""
        found = await self.admin.find(MANAGED_RESOURCE, "one", self.namespace)
        if found is None or not objects:
            return found is None and not objects
        status = found.get("status") or {}
        checksum = secrets_checksum([await self.admin.get(SECRET, "one", self.namespace)])
        applied = await self.manager.condition("Applied")
        return status.get("secretsDataChecksum") == checksum and applied.get("status") == "True"

    async def live(self) -> dict[tuple[str, str], Object]:
        """Labels and content of the objects that the ManagedResource has in the cluster."""
        return {
            (kind.kind, each["metadata"]["name"]): _content(kind.kind, each)
            for kind in KINDS
            for each in await self.admin.list(kind, self.namespace)
            if (each["metadata"].get("annotations") or {}).get(ORIGIN) == f"{self.namespace}/one"
        }

    async def converged(self, objects: tuple[Object, ...]) -> None:
        """Wait for a revision, then compare the cluster and the status with it."""
        try:
            await until(lambda: self.has(objects), 40)
        except TimeoutError:
            found = await self.admin.find(MANAGED_RESOURCE, "one", self.namespace)
            raise AssertionError(f"ManagedResource is {json.dumps(found)}") from None
        wanted = {(each["kind"], each["metadata"]["name"]): _content(each["kind"], each) for each in objects}
        for each in wanted.values():
            each["labels"] = {**each["labels"], **MANAGED}
        assert await self.live() == wanted
        if objects:
            status = (await self.manager.get())["status"]
            assert {(each["kind"], each["name"]) for each in status["resources"]} == set(wanted)
            assert all(ORIGIN in each["annotations"] for each in status["resources"])
        for name in ("foreign", "unserved"):
            assert (await self.admin.get(CONFIG_MAP, name, self.namespace))["data"] == {"a": "1"}


def _content(kind: str, obj: Object) -> Object:
    labels = obj["metadata"].get("labels") or {}
    return {"labels": labels, "data": obj.get("data") if kind == "ConfigMap" else None}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("seed"), {})
    with made.running():
        yield made


@contextlib.asynccontextmanager
async def world(
    admin: KubeClient, proxy: KillingProxy, started: Processes, directory: Path, namespace: str
) -> AsyncIterator[World]:
    made = World(admin, proxy, started, directory, namespace)
    cluster = {"server": f"http://127.0.0.1:{proxy.port}"}
    kubeconfig = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": {"token": ADMIN}}],
    }
    await made.prepare(kubeconfig)
    try:
        yield made
    finally:
        started.kill_all()
        proxy.spare()


async def is_killed_after(world: World, step: str, writes: int, then: tuple[Object, ...] | None) -> bool:
    """Kill the process after this number of writes of a step, and let the next process end it.

    ``then``: the revision that the next process finds, () if the ManagedResource is being deleted; None: no other one.
    False: the step has fewer writes.
    """
    before, after, _ = STEPS[step]
    process = await world.start()
    if before:
        await world.write(before)
        await world.converged(before)
    world.proxy.kill(process, after=writes)
    await world.write(after)
    await until(lambda: _ended(world, after), 40)
    if not world.proxy.killed.is_set():
        return False
    await until(lambda: not is_alive(process))
    await world.proxy.settled()
    if then is not None and (then or after) and await world.admin.find(MANAGED_RESOURCE, "one", world.namespace):
        await world.write(then)
    world.proxy.spare()
    await world.start()
    await world.converged(() if not after else after if then is None else then)
    return True


async def _ended(world: World, after: tuple[Object, ...]) -> bool:
    return world.proxy.killed.is_set() or await world.has(after)


@pytest.mark.row("ManagedResource", "a process that is killed after any write leaves nothing behind")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "then", [None, THIRD, ()], ids=["nothing changes", "the ManagedResource changes", "it is being deleted"]
)
async def test_the_next_process_ends_what_a_killed_one_began(
    server: ApiServer, tmp_path: Path, step: str, then: tuple[Object, ...] | None
) -> None:
    """A kill between an object's creation and the write of the status once left the object behind for ever."""
    await server.prepare_seed()
    proxy, writes = KillingProxy(server.url), 0
    prefix = f"{step}-{'same' if then is None else 'changed' if then else 'gone'}"
    async with server.client() as admin, proxy.running(), processes() as started:
        killed = True
        while killed:
            writes += 1
            async with world(admin, proxy, started, tmp_path, f"{prefix}-{writes}") as made:
                killed = await is_killed_after(made, step, writes, then)
    assert writes >= STEPS[step][2], "a process is killed after each of these writes"
