"""A garden and a seed of real etcds and API servers, a Temporal server on a disk, workers, and players of the rest.

Each of these processes can be killed and is started again. Nothing runs pods: a player writes the statuses of
Deployments, load balancers and extensions, as the controllers would do.
"""

import asyncio
import contextlib
import functools
import json
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from activities.seed.system import garden_namespace
from api import resources
from api.constants import CONFIRMATION_DELETION, GARDEN_NAMESPACE, TIMESTAMP
from api.contracts.flows import SeedFlowInput
from api.contracts.operations import OperationType, SeedTask
from api.resources import Resource
from kube.client import KubeClient, Object
from kube.errors import ApiError
from tests import api_servers, temporal_dev_server
from tests.api_servers import API_SERVER, free_port
from tests.chaos import worker
from tests.chaos.ledger import LOG, Auditor, Ledger, audit_flags, snapshot
from tests.chaos.plants import LABEL, NAMESPACE
from tests.chaos.points import Entry, Point, Record
from tests.chaos.worker import Setting
from tests.unit.api.shoots import SEED
from tests.unit.kube.waiting import until
from workers.setup import set_up_garden
from workflows.flow import Flow
from workflows.seed import bootstrap_seed_flow, delete_seed_flow

ADMIN, PLAYER, WORKERS = "admin", "player", ("controller-manager", "gardenlet")
SEED_NAME = "seed-1"
_KUBE_CONTROLLER_MANAGER = API_SERVER.with_name("kube-controller-manager")
_CREDENTIALS = {"name": "credentials", "namespace": GARDEN_NAMESPACE}
_START_SECONDS = 600.0
_SET_UP_SECONDS = 900.0
_PLAYED = (resources.DNS_RECORD, resources.BACKUP_BUCKET, resources.EXTENSION)
"""Kinds of extensions whose controllers are played."""


class Killable:
    """A process that is killed by SIGKILL and started again with the same command line."""

    def __init__(self, directory: Path, *command: object) -> None:
        self._directory = directory
        self._command = [str(each) for each in command]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._directory / f"{Path(self._command[0]).name}.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._directory)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.kill()


class Cluster:
    """etcd, API server and namespace controller; ``name`` is ``garden`` or ``seed``."""

    def __init__(self, name: str, directory: Path) -> None:
        directory.mkdir()
        self.name = name
        self.audit = directory / LOG
        self.audit.touch()
        self._port = free_port()
        tokens = "".join(f'{each},{each},{each},"system:masters"\n' for each in (ADMIN, PLAYER, *WORKERS))
        etcd, server = api_servers.commands(
            directory, self._port, tokens, "--authorization-mode", "RBAC", *audit_flags(directory)
        )
        self.etcd, self.api_server = Killable(directory, *etcd), Killable(directory, *server)
        (directory / "admin.kubeconfig").write_text(json.dumps(self.kubeconfig(ADMIN)))
        self._controllers = Killable(
            directory, _KUBE_CONTROLLER_MANAGER, "--kubeconfig", "admin.kubeconfig", "--leader-elect=false",
            "--authentication-kubeconfig", "admin.kubeconfig", "--authorization-kubeconfig", "admin.kubeconfig",
            "--controllers", "namespace-controller", "--bind-address", "127.0.0.1", "--secure-port", free_port(),
            "--cert-dir", "certs")  # fmt: skip

    def kubeconfig(self, user: str) -> dict[str, Any]:
        return api_servers.kubeconfig(self._port, user)

    def client(self, user: str = ADMIN) -> KubeClient:
        return api_servers.client(self._port, user)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with self.etcd.running(), self.api_server.running():
            async with self.client() as admin:
                await api_servers.ready(admin, _START_SECONDS)
            with self._controllers.running():
                yield


class Player:
    """Plays the controllers of a seed that are not there: it does at once what they are asked for."""

    def __init__(self, seed: KubeClient) -> None:
        self._seed = seed

    async def run(self) -> None:
        """Run until cancelled. It reads lists and not watches, since kinds come and go with the Seed."""
        while True:
            for kind in (resources.DEPLOYMENT, resources.SERVICE, *_PLAYED):
                with contextlib.suppress(ApiError):
                    for obj in await self._seed.list(kind):
                        with contextlib.suppress(ApiError):
                            await self._play(kind, obj)
            await asyncio.sleep(0.2)  # the clock of a poll

    async def _play(self, kind: Resource, obj: Object) -> None:
        metadata, status = obj["metadata"], obj.get("status") or {}
        if kind == resources.DEPLOYMENT and status.get("observedGeneration") != metadata["generation"]:
            counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas", "readyReplicas"),
                                   obj["spec"]["replicas"])  # fmt: skip
            await self._write(kind, obj, {"observedGeneration": metadata["generation"], **counts})
        elif kind == resources.SERVICE and obj["spec"].get("type") == "LoadBalancer" and not status.get("loadBalancer"):
            await self._write(kind, obj, {"loadBalancer": {"ingress": [{"ip": "198.18.2.2"}]}})
        elif kind in _PLAYED:
            await self._play_extension(kind, obj)

    async def _play_extension(self, kind: Resource, obj: Object) -> None:
        metadata = obj["metadata"]
        annotations = metadata.get("annotations") or {}
        place = kind, metadata["name"], metadata.get("namespace")
        if "deletionTimestamp" in metadata:
            assert annotations[CONFIRMATION_DELETION] == "true"
            await self._seed.patch(*place, {"metadata": {"finalizers": None}})
        elif "gardener.cloud/operation" in annotations:
            if not metadata.get("finalizers"):
                await self._seed.patch(*place, {"metadata": {"finalizers": ["test.cloud/its-controller"]}})
            operation = {"type": "Reconcile", "state": "Succeeded", "progress": 100, "description": "done",
                         "lastUpdateTime": annotations[TIMESTAMP]}  # fmt: skip
            await self._write(kind, obj, {"observedGeneration": metadata["generation"], "lastOperation": operation})
            await self._seed.patch(*place, {"metadata": {"annotations": {"gardener.cloud/operation": None}}})

    async def _write(self, kind: Resource, obj: Object, status: Object) -> None:
        metadata = obj["metadata"]
        await self._seed.patch(
            kind, metadata["name"], metadata.get("namespace"), {"status": status}, subresource="status"
        )


SERVERS = ("Temporal", "API server of the seed", "etcd of the seed")


@dataclass
class Fall:
    """The death of a server in the middle of an operation."""

    server: str
    task: str
    """Activity that had just begun."""
    at: float
    """Unix seconds."""
    answers: float
    """Seconds until the server answered again."""
    resumed: float = 0.0
    """Seconds from that answer to the next write, start or end of an activity."""


@dataclass
class Run:
    """Effects and record of one operation."""

    ledger: Ledger
    entries: list[Entry]
    met: frozenset[Point]
    seconds: float


@dataclass
class Stage:
    """Everything but the workers."""

    directory: Path
    temporal: Killable
    address: str
    garden: Cluster
    seed: Cluster
    admins: dict[str, KubeClient]
    record: Record
    auditor: Auditor = field(init=False)

    def __post_init__(self) -> None:
        logs = {each.name: each.audit for each in (self.garden, self.seed)}
        self.auditor = Auditor(logs, frozenset(WORKERS))

    @contextlib.asynccontextmanager
    async def workers(self, *, planted: bool = False, heartbeat: float = 0.0) -> AsyncIterator[None]:
        """Both workers, whose processes are started again after each kill.

        ``planted``: whether they have planted faults. ``heartbeat``: heartbeat timeout in seconds; 0: the product's.
        """
        controller_manager, gardenlet = WORKERS
        for role in (worker.GARDEN, worker.SEED):
            self.record.pid_file(role).unlink(missing_ok=True)
        settings = {
            role: Setting(
                temporal=self.address,
                garden=self.garden.kubeconfig(user),
                seed=self.seed.kubeconfig(user),
                seed_name=SEED_NAME,
                directory=str(self.record.directory),
                planted=planted,
                heartbeat=heartbeat,
            )
            for role, user in ((worker.GARDEN, controller_manager), (worker.SEED, gardenlet))
        }
        async with contextlib.AsyncExitStack() as stack:
            for role, setting in settings.items():
                await stack.enter_async_context(worker.lives(role, setting, self.directory / f"{role}.log"))
            yield

    async def operate(self, operation: OperationType, points: Iterable[Point] = (), seconds: float = 300) -> Run:
        """Create or delete the Seed; the workers are killed at these points."""
        return await (self.delete if operation is OperationType.DELETE else self.create)(points, seconds)

    async def fell(self, server: str, task: str) -> "Fall":
        """Kill a server of ``SERVERS`` and start it again; returns once it answers."""
        begun = time.time()
        process, answers = self._servers()[server]
        process.kill()
        process.start()
        await answers()
        return Fall(server, task, begun, time.time() - begun)

    def _servers(self) -> dict[str, tuple[Killable, Callable[[], Any]]]:
        async def seed() -> None:
            await api_servers.ready(self.admins["seed"], _START_SECONDS)

        return {
            "Temporal": (self.temporal, functools.partial(_listens, int(self.address.rpartition(":")[2]))),
            "API server of the seed": (self.seed.api_server, seed),
            "etcd of the seed": (self.seed.etcd, seed),
        }

    async def clean(self) -> None:
        """Delete what planted faults have left."""
        for each in await self.admins["seed"].list(resources.CONFIG_MAP, NAMESPACE, labels=LABEL):
            await self.admins["seed"].delete(resources.CONFIG_MAP, each["metadata"]["name"], NAMESPACE)

    async def create(self, points: Iterable[Point] = (), seconds: float = 300) -> Run:
        """Create the Seed, and wait until it is ready."""

        async def ready() -> bool:
            with contextlib.suppress(ApiError):
                live = await self.admins["garden"].get(resources.SEED, SEED_NAME)
                last = (live.get("status") or {}).get("lastOperation") or {}
                return last.get("state") == "Succeeded" and last["progress"] == 100
            return False

        self.record.choose(points)
        self.auditor.skip()
        await self.admins["garden"].create(seed_object())
        return await self._ended(ready, seconds)

    async def delete(self, points: Iterable[Point] = (), seconds: float = 300) -> Run:
        """Delete the Seed, and wait until it is gone."""

        async def gone() -> bool:
            with contextlib.suppress(ApiError):
                return await self.admins["garden"].find(resources.SEED, SEED_NAME) is None
            return False

        live = await self.admins["garden"].get(resources.SEED, SEED_NAME)
        self._uid = live["metadata"]["uid"]
        self.record.choose(points)
        self.auditor.skip()
        await self.admins["garden"].patch(
            resources.SEED, SEED_NAME, None, {"metadata": {"annotations": {CONFIRMATION_DELETION: "true"}}}
        )
        await self.admins["garden"].delete(resources.SEED, SEED_NAME)
        return await self._ended(gone, seconds)

    async def _ended(self, condition: Callable[[], Any], seconds: float) -> Run:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        live = await self.admins["garden"].find(resources.SEED, SEED_NAME)
        if live is not None:
            self._uid = live["metadata"]["uid"]

        async def slowly() -> bool:
            if await condition() and await self._workflow_has_ended():
                return True
            await asyncio.sleep(0.2)  # the clock of a poll
            return False

        try:
            await until(slowly, seconds)
        except TimeoutError:
            raise AssertionError(await self._why()) from None
        took = loop.time() - begun
        names = {self._uid: "<seed>"}
        ledger = self.auditor.ledger(names)
        for cluster, admin in self.admins.items():
            ledger.objects |= await snapshot(cluster, admin, names)
        return Run(ledger, self.record.entries(), self.record.met(), took)

    async def _workflow_has_ended(self) -> bool:
        """Whether the workflow has ended: the effects of its last task are there before that."""
        with contextlib.suppress(RPCError):
            temporal = await Client.connect(self.address, lazy=True)
            description = await temporal.get_workflow_handle(f"seed/{SEED_NAME}/{self._uid}").describe()
            return description.status is WorkflowExecutionStatus.COMPLETED
        return False

    async def _why(self) -> str:
        live = None
        with contextlib.suppress(ApiError):
            live = await self.admins["garden"].find(resources.SEED, SEED_NAME)
        last = [f"{each.what} {each.subject} {each.attempt}" for each in self.record.entries()[-12:]]
        return f"the operation does not end: {((live or {}).get('status') or {}).get('lastOperation')}; {last}"


def seed_object() -> Object:
    dns = {"type": "local", "credentialsRef": {"apiVersion": "v1", "kind": "Secret", **_CREDENTIALS}}
    return {
        "apiVersion": SEED["apiVersion"],
        "kind": "Seed",
        "metadata": {"name": SEED_NAME},
        "spec": {
            **SEED["spec"],
            "dns": {"provider": dns, "internal": {**dns, "domain": "internal.test"}},
            "ingress": {"domain": "ingress.seed-1.test", "controller": {"kind": "nginx"}},
            "backup": {"provider": "local", "credentialsRef": dns["credentialsRef"]},
            "extensions": [{"type": "system"}],
        },
    }


def flow_of(operation: OperationType) -> Flow[SeedTask]:
    """The graph of an operation of a Seed."""
    task = SeedTask(name=SEED_NAME, uid="", generation=1, trigger="", operation=operation)
    build = delete_seed_flow if operation is OperationType.DELETE else bootstrap_seed_flow
    return build(SeedFlowInput(task=task))


@contextlib.asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    """Everything runs and is set up; there is no Seed."""
    garden, seed = Cluster("garden", directory / "garden"), Cluster("seed", directory / "seed")
    port, record = free_port(), directory / "record"
    record.mkdir()
    # Nothing waits for the disk: no test ends the machine.
    stored = ("--db-filename=temporal.db", "--sqlite-pragma=synchronous=off", "--sqlite-pragma=journal_mode=wal")
    temporal = Killable(directory, *temporal_dev_server.command(port, *stored))
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(temporal.running())
        await asyncio.gather(*(stack.enter_async_context(each.running()) for each in (garden, seed)))
        admins = {}
        for each in (garden, seed):
            admins[each.name] = await stack.enter_async_context(each.client())
        await _set_up(admins["garden"])
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": _CREDENTIALS, "data": {"key": "dGVzdA=="}}
        await admins["garden"].apply(secret, manager="test")
        # The gardenlet runs in this namespace.
        await admins["seed"].apply(garden_namespace(), manager="test")
        player = Player(await stack.enter_async_context(seed.client(PLAYER)))
        await _listens(port)
        playing = asyncio.create_task(player.run())
        stack.callback(playing.cancel)
        yield Stage(directory, temporal, f"127.0.0.1:{port}", garden, seed, admins, Record(record))


async def _set_up(garden: KubeClient) -> None:
    """Apply all definitions at once, again if a busy API server does not answer in time."""

    async def done() -> bool:
        try:
            await set_up_garden(garden, None)
        except TimeoutError:
            return False
        except ApiError as error:
            if error.status and error.status < 500:
                raise
            return False
        return True

    await until(done, _SET_UP_SECONDS)


async def _listens(port: int) -> None:
    async def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        await asyncio.sleep(0.1)  # the clock of a poll
        return False

    await until(answers, _START_SECONDS)
