"""Two seeds with a bucket each, and one control plane: our code, in a world that is played.

Ours are etcd's wrapper with its witness, restoring and following; the sidecar that backs up; the copy of backups; the
order of the flows. Played are etcd, the object store, the API server, processes, clocks and the network between them.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from etcd import snapshots
from etcd.client import EtcdError, MemberStatus
from etcd.delta import Change
from etcd.store import StoredObject, StoreError
from kube.cache import Key
from tests.simulation.machinery import Container, CutOff, Loop, Machine, blocking, here
from tests.wrapper_files import NAME, mount
from workers.etcd import copy_backups, data_directory, restore, store_reader, wrapper
from workers.etcd.copy_backups import CopyBackupsController
from workers.etcd.snapshotter import Schedule, SnapshotError, Snapshotter
from workers.etcd.store_reader import Unreadable

PREFIX = "entry/etcd-main"
TASK = Key("shoot--local--demo", "demo")
TOLERANCE = 6.0
DELTA_PERIOD = 5.0
DRIFT = 0.6 / TOLERANCE
"""Drift of a clock: as much as the tolerance and the time to stop leave room for. At 2 min it is 0.5 %."""
SCHEDULE = Schedule(
    full="0 0 1 1 *",
    delta_period=timedelta(seconds=DELTA_PERIOD),
    delta_bytes=1 << 20,
    full_after_changes=25,
    garbage_collection_period=timedelta(seconds=20),
)
_RESTART_SECONDS = 1.0


class Bucket:
    """Objects by name, whole or not there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[str, bytes] = {}


class Store:
    """The part of ``etcd.store`` that tested code calls."""

    def __init__(self, world: "World", bucket: Bucket) -> None:
        self._world = world
        self._bucket = bucket

    async def _ask(self, doing: str, answer: Callable[[], Any]) -> Any:
        try:
            return await here.get().ask(self._bucket.name, answer)
        except CutOff:
            raise StoreError(f"{doing}: no answer") from None

    async def list(self, prefix: str) -> list[StoredObject]:
        def names() -> list[StoredObject]:
            if here.get() is self._world.gardenlet:
                self._world.listed_at = self._world.loop.now
            return [StoredObject(name, 1, 0) for name in sorted(self._bucket.objects) if name.startswith(prefix)]

        found: list[StoredObject] = await self._ask("listing", names)
        return found

    async def put(self, name: str, content: AsyncIterator[bytes]) -> int:
        return await self._store(name, b"".join([chunk async for chunk in content]), replace=True)

    async def create(self, name: str) -> None:
        await self._store(name, b"", replace=False)

    async def _store(self, name: str, whole: bytes, *, replace: bool) -> int:
        def store() -> int:
            if self._world.variant.keeps(name) and (replace or name not in self._bucket.objects):
                self._bucket.objects[name] = whole
                if snapshots.fence([name]) is not None:
                    self._world.fence(self._world.listed_at)
                self._world.note(f"{here.get().name} writes {self._bucket.name} {name.rsplit('/', 1)[-1]}")
            return len(whole)

        for do in self._world.when_uploading:
            do(name)
        stored: int = await self._ask("uploading", store)
        return stored

    async def get(self, name: str) -> AsyncIterator[bytes]:
        content = await self._ask("downloading", lambda: self._bucket.objects.get(name))
        if content is None:
            raise StoreError("downloading: store answered 404", 404)
        yield content

    async def delete(self, name: str) -> None:
        await self._ask("deleting", lambda: self._bucket.objects.pop(name, None))


class Reader:
    """The part of ``workers.etcd.store_reader`` that tested code calls."""

    def __init__(self, world: "World", store: dict[str, Any], timeout: float = 10.0) -> None:
        try:
            name = store.get("bucket") or Path(store["credentialsDirectory"], "bucketName").read_text()
        except OSError:
            raise Unreadable("credentials can't be read") from None
        self._bucket = world.buckets[name]
        self._directory = snapshots.directory(store["prefix"])
        self._timeout = min(timeout, 10.0)

    def _ask(self, answer: Callable[[], Any]) -> Any:
        try:
            return blocking(here.get().ask(self._bucket.name, answer, self._timeout))
        except CutOff:
            raise Unreadable("no answer from the store") from None

    def names(self) -> list[str]:
        return self._ask(lambda: [name.rsplit("/", 1)[-1] for name in sorted(self._bucket.objects)])

    def read(self, name: str) -> Iterator[bytes]:
        content = self._ask(lambda: self._bucket.objects.get(self._directory + name))
        if content is None:
            raise Unreadable("store answered 404")
        yield content


@dataclass(eq=False)
class Data:
    """An etcd's data: each revision is one key put."""

    log: list[Change] = field(default_factory=list)
    sealed: bool = False

    @property
    def revision(self) -> int:
        return 1 + len(self.log)

    def put(self, key: str, value: str) -> Change:
        change = Change(self.revision + 1, key, value)
        self.log.append(change)
        return change

    def to_bytes(self) -> bytes:
        return json.dumps([[each.key, each.value] for each in self.log]).encode()


class Etcd:
    """A process that serves data."""

    def __init__(self, world: "World", container: Container, pid: int, data: Data) -> None:
        self._world = world
        self.container = container
        self.pid = pid
        self.data = data
        self.watchers: list[asyncio.Queue[Change | None]] = []
        self._up = True

    @property
    def serves(self) -> bool:
        return self._up and not self.container.dead

    def stop(self, sig: int) -> None:
        if sig == signal.SIGKILL:
            self.end()
        else:  # it answers the clients that it has
            delay = self._world.random.uniform(0.0, 0.4)
            self._world.loop.call_later(delay, self.end)

    def end(self) -> None:
        if self._up:
            self._up = False
            self._world.note(f"etcd of {self.container.machine.name} has ended")
            for each in self.watchers:
                each.put_nowait(None)

    def put(self, key: str, value: str) -> int | None:
        """The revision that it has; None if it is not taken."""
        if not self.serves or self.data.sealed:
            return None
        change = self.data.put(key, value)
        for each in self.watchers:
            each.put_nowait(change)
        return change.revision


class Client:
    """The part of ``etcd.client`` that the sidecar in the pod of an etcd calls."""

    def __init__(self, pod: "EtcdPod") -> None:
        self._pod = pod

    async def _ask(self, answer: Callable[[Etcd], Any]) -> Any:
        await here.get().pass_to("pod")
        await self._pod.etcd_container.gate()
        etcd = self._pod.etcd
        if etcd is None or not etcd.serves:
            raise EtcdError("etcd does not answer")
        found = answer(etcd)
        await here.get().pass_to("pod")
        return found

    async def status(self) -> MemberStatus:
        return await self._ask(lambda etcd: MemberStatus("1", True, etcd.data.revision, 1))

    async def revision(self) -> int:
        def revision(etcd: Etcd) -> int:
            if etcd.data.sealed:
                raise EtcdError("etcd is corrupt")
            return etcd.data.revision

        return await self._ask(revision)

    async def seal(self) -> None:
        def seal(etcd: Etcd) -> None:
            etcd.data.sealed = True

        await self._ask(seal)

    async def snapshot(self) -> AsyncIterator[bytes]:
        yield await self._ask(lambda etcd: etcd.data.to_bytes())

    async def watch(self, from_revision: int) -> AsyncIterator[list[Change]]:
        queue: asyncio.Queue[Change | None] = asyncio.Queue()

        def begin(etcd: Etcd) -> None:
            for change in etcd.data.log[from_revision - 2 :]:
                queue.put_nowait(change)
            etcd.watchers.append(queue)

        await self._ask(begin)
        yield []
        while (change := await queue.get()) is not None:
            await here.get().gate()
            yield [change]
        raise EtcdError("watching etcd: the connection ended")


class Connection:
    """Etcd's API for the restore."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def revision(self) -> int:
        return self._data.revision

    def apply(self, changes: Any) -> int:
        for change in changes:
            self._data.put(change.key, change.value)
        return self._data.revision

    def seal(self) -> None:
        """The file next to the data makes clients read only; no client reads here."""

    def unseal(self) -> None:
        """Likewise."""

    def save(self, file: Path) -> None:
        """Revisions stay unchanged here: no client watches for lost ones."""

    def holds(self, changes: Iterable[Change]) -> bool:
        return all(self._data.log[each.revision - 2] == each for each in changes)


class EtcdPod:
    """Etcd with its wrapper in one container, its sidecar in another; a container that ends is started again."""

    def __init__(self, machine: Machine, world: "World", directory: Path) -> None:
        self.machine = machine
        self._world = world
        self._directory = directory
        self.etcd: Etcd | None = None
        self.snapshotter: Snapshotter | None = None
        self.wanted = False
        own = {"provider": "local", "bucket": machine.name, "prefix": PREFIX, "credentialsDirectory": str(directory)}
        self._source = directory / "source"
        self._source.mkdir(parents=True)
        self._config = mount(
            directory,
            store=own,
            takeoverTolerance=TOLERANCE,
            source={"provider": "local", "prefix": PREFIX, "credentialsDirectory": str(self._source)},
        )

    @property
    def serving(self) -> bool:
        return self.etcd is not None and self.etcd.serves

    @property
    def initialization(self) -> dict[str, Any]:
        file = self._directory / wrapper.INITIALIZATION_FILE
        return json.loads(file.read_text()) if file.exists() else {}

    def know_source(self, bucket: str | None) -> None:
        """Mount the way to the other seed's bucket, or take it away."""
        file = self._source / "bucketName"
        if bucket:
            file.write_text(bucket)
        else:
            file.unlink(missing_ok=True)

    def start(self) -> None:
        if self.wanted or self.machine.off:
            return
        self.wanted = True
        self._start_etcd()
        self._start_sidecar()

    def delete(self) -> None:
        if self.wanted:
            self.wanted = False
            self.kill_etcd()
            self.kill_sidecar()

    def lose_data(self) -> None:
        shutil.rmtree(self._directory / "data", ignore_errors=True)
        self.kill_etcd()

    def kill_etcd(self) -> None:
        if self.etcd is not None:
            self.etcd.end()
        if not self.etcd_container.dead:
            self.etcd_container.kill()

    def kill_sidecar(self) -> None:
        if not self.sidecar.dead:
            self.sidecar.kill()

    def spawn_etcd(self, container: Container) -> int:
        """Start etcd as the wrapper's child; returns its process id."""
        [file] = (
            (self._directory / "data" / "member" / "wal").glob("*.wal")
            if (self._directory / "data").exists()
            else [self._world.new_data(self._directory / "data")]
        )
        self.etcd = Etcd(self._world, container, next(self._world.pids), self._world.disks[file.stem])
        self._world.processes[self.etcd.pid] = self.etcd
        self._world.note(f"etcd of {self.machine.name} serves from revision {self.etcd.data.revision}")
        self.machine.change()
        return self.etcd.pid

    def _start_etcd(self) -> None:
        self.etcd_container = container = Container(self.machine, f"{self.machine.name}/etcd")
        container.pod = self  # type: ignore[attr-defined]
        fiber = container.run(lambda: wrapper.main(str(self._config)))
        fiber.ended.add_done_callback(lambda _: self._again(container, self._start_etcd))

    def _start_sidecar(self) -> None:
        self.sidecar = container = Container(self.machine, f"{self.machine.name}/sidecar")
        store = self._world.buckets[self.machine.name]
        self.snapshotter = Snapshotter(
            Client(self),  # type: ignore[arg-type]
            lambda: Store(self._world, store),  # type: ignore[arg-type,return-value]
            PREFIX,
            self._world.schedules[self.machine.name],
            clock=self.machine.wall,
        )
        task = container.spawn(self.snapshotter.run())
        task.add_done_callback(lambda _: self._again(container, self._start_sidecar))

    def _again(self, container: Container, start: Callable[[], None]) -> None:
        if not container.dead:
            container.kill()
        if self.wanted and not self._world.over:
            self._world.loop.call_later(_RESTART_SECONDS, self._restart, start)

    def _restart(self, start: Callable[[], None]) -> None:
        if self.wanted and not self.machine.off:
            start()

    async def ask_sidecar(self, what: str) -> None:
        """As a flow's activity does, again and again."""
        while self.wanted:
            sidecar = self.snapshotter
            if sidecar is not None and not self.sidecar.dead and not self.machine.off:
                call = self.sidecar.spawn(sidecar.full(final=True) if what == "final" else sidecar.delta())
                with contextlib.suppress(SnapshotError, asyncio.CancelledError):
                    await asyncio.shield(call)
                    return
                if (task := asyncio.current_task()) and task.cancelling():
                    raise asyncio.CancelledError
            await asyncio.sleep(1)


class Variant:
    """Ours; others are built in another way, and the checker is to notice it."""

    name = "ours"
    noticed_as = ""

    def keeps(self, name: str) -> bool:
        """Whether a bucket takes this object."""
        return True

    def clock(self, container: Container) -> float:
        """The clock by which the witness measures its time without an answer."""
        return container.machine.clock()

    def apply(self, stack: contextlib.ExitStack) -> None:
        """Build it, until the stack is closed."""

    def trial(self, run: Any) -> None:
        """Faults that a run has besides the random ones."""


@dataclass(frozen=True)
class Write:
    """One that was acknowledged."""

    at: float
    seed: str
    key: str
    revision: int
    stood_still: bool
    """Its etcd had run on for less than the wrapper takes to notice."""


class World:
    """Everything of one run."""

    def __init__(self, seed: int, directory: Path, variant: Variant) -> None:
        self.random = Random(seed)
        self.loop = Loop()
        self.variant = variant
        self.trace: list[str] = []
        self.over = False
        self.failure: BaseException | None = None
        self.pids = count(100)
        self._numbers = count(1)
        self.disks: dict[str, Data] = {}
        self.processes: dict[int, Etcd] = {}
        self.writes: list[Write] = []
        self.api: dict[str, bool] = {"source": True, "destination": False}
        self.schedules = {"source": SCHEDULE, "destination": SCHEDULE}
        self.pause_between_writes = 0.5
        self.when_uploading: list[Callable[[str], None]] = []
        self.when_fenced: list[Callable[[], None]] = []
        self.copy_task: dict[str, Any] | None = None
        self.listed_at = 0.0
        self.fenced_at: float | None = None
        """When that was read from the source's bucket which its fence stands behind."""
        rates = [1 + self.random.uniform(-DRIFT, DRIFT) for _ in range(2)]
        self.source, self.destination = (
            Machine(name, self.loop, self.random, rate, self._fail)
            for name, rate in zip(("source", "destination"), rates, strict=True)
        )
        self.buckets = {each.name: Bucket(each.name) for each in (self.source, self.destination)}
        self.pods = {each.name: EtcdPod(each, self, directory / each.name) for each in (self.source, self.destination)}
        self.gardenlet: Container | None = None

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error

    def note(self, text: str) -> None:
        self.trace.append(f"{self.loop.now:8.2f}  {text}")

    def new_data(self, directory: Path) -> Path:
        """An empty data directory."""
        name = f"{next(self._numbers)}"
        self.disks[name] = Data()
        file = directory / "member" / "wal" / f"{name}.wal"
        file.parent.mkdir(parents=True)
        file.touch()
        return file

    def fence(self, listed_at: float) -> None:
        if self.fenced_at is None:
            self.fenced_at = listed_at
            for do in self.when_fenced:
                do()

    # Clients

    async def write(self, machine: Machine) -> None:
        """A client of one seed's API server, whatever the cluster's name resolves to: names are cached for long."""
        pod = self.pods[machine.name]
        for number in count(1):
            await asyncio.sleep(self.random.uniform(0.03, self.pause_between_writes))
            if not self.api[machine.name] or not pod.serving:
                continue
            etcd, key = pod.etcd, f"{machine.name}-{number}"
            assert etcd is not None
            await etcd.container.gate()
            if (revision := etcd.put(key, machine.name)) is not None:
                since = (self.loop.now - etcd.container.woken) * machine.rate
                noticed = wrapper._LOOK_SECONDS + 0.05
                self.writes.append(Write(self.loop.now, machine.name, key, revision, since <= noticed))

    # The gardenlet's copy of backups

    def start_gardenlet(self) -> None:
        self.gardenlet = container = Container(self.destination, "destination/gardenlet")
        kube = SimpleNamespace(get=self._secret, patch=self._patch_task)
        cache = SimpleNamespace(get=lambda *_: self.copy_task)
        caches = SimpleNamespace(of=lambda *_: cache)
        controller = CopyBackupsController(kube, caches, timedelta(seconds=TOLERANCE))  # type: ignore[arg-type]

        async def run() -> None:
            while True:
                requeue = await controller._reconcile(TASK)
                await container.sleep(requeue.after if requeue else 0.5)

        container.spawn(run())

    def restart_gardenlet(self) -> None:
        if self.gardenlet is not None and not self.gardenlet.dead:
            self.gardenlet.kill()
        self.loop.call_later(_RESTART_SECONDS, self._start_gardenlet_again)

    def _start_gardenlet_again(self) -> None:
        if not self.over:
            self.start_gardenlet()

    def order_copy(self, patience: float) -> None:
        if self.copy_task is not None and copy_backups._succeeded(self.copy_task):
            return
        store = {"provider": "local", "prefix": PREFIX, "secretRef": {"name": ""}}
        self.copy_task = {
            "metadata": {
                "name": TASK.name,
                "namespace": TASK.namespace,
                "creationTimestamp": datetime.fromtimestamp(self.destination.wall(), UTC).isoformat(),
            },
            "spec": {
                "sourceStore": {**store, "container": "source"},
                "targetStore": {**store, "container": "destination"},
                "waitForFinalSnapshot": {"enabled": True, "timeout": f"{patience:.0f}s"},
            },
        }

    async def _secret(self, *_: Any) -> dict[str, Any]:
        return {}

    async def _patch_task(self, _: Any, __: str, ___: str, change: dict[str, Any], *, subresource: str) -> None:
        if self.copy_task is not None:
            before = (self.copy_task.get("status") or {}).get("lastError")
            self.copy_task = {**self.copy_task, "status": {**(self.copy_task.get("status") or {}), **change["status"]}}
            now = self.copy_task["status"].get("lastError")
            if now != before:
                self.note(f"copy: {now or 'done'}")

    @property
    def copied(self) -> bool:
        return self.copy_task is not None and copy_backups._succeeded(self.copy_task)

    # What our code finds in place of the operating system

    @contextlib.contextmanager
    def played(self) -> Iterator[None]:
        world = self

        class Time:
            CLOCK_BOOTTIME = "boottime"

            def sleep(self, seconds: float) -> None:
                blocking(here.get().sleep(seconds))

            def monotonic(self) -> float:
                return here.get().machine.clock()

            def clock_gettime(self, _: str) -> float:
                return world.variant.clock(here.get())

            def time(self) -> float:
                return here.get().machine.wall()

        class System:
            def __init__(self) -> None:
                self.environ = {"POD_NAME": NAME}

            def __getattr__(self, name: str) -> Any:
                return getattr(os, name)

            def posix_spawnp(self, *_: Any) -> int:
                return here.get().pod.spawn_etcd(here.get())  # type: ignore[attr-defined]

            def waitpid(self, pid: int, _: int) -> tuple[int, int]:
                return (0, 0) if world.processes[pid]._up else (pid, 9)

            def kill(self, pid: int, sig: int) -> None:
                world.processes[pid].stop(sig)

        class Wall(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> "Wall":
                return cls.fromtimestamp(here.get().machine.wall(), tz)

        signals = SimpleNamespace(SIGTERM=signal.SIGTERM, SIGKILL=signal.SIGKILL, signal=lambda *_: None)
        time = Time()
        with contextlib.ExitStack() as stack:
            replaced: dict[ModuleType, dict[str, Any]] = {
                wrapper: {"time": time, "os": System(), "signal": signals, "log": self._log},
                data_directory: {"database_fault": lambda _: None},
                restore: {"time": time, "log": self._log, "_sync": lambda _: None, "_etcd": self._restoring,
                          "_restore_full": self._restore_full, "_leap": lambda *_: None},
                copy_backups: {"time": time, "datetime": Wall,
                               "open_store": lambda _, __, name: Store(world, world.buckets[name])},
                store_reader: {"StoreReader": lambda *each: Reader(world, *each)},
            }  # fmt: skip
            for module, changes in replaced.items():
                stack.enter_context(patch.multiple(module, **changes))
            stack.enter_context(patch.object(restore, "StoreReader", lambda *each: Reader(world, *each)))
            stack.enter_context(patch.object(wrapper.Witness, "watch", lambda each: here.get().run(each._watch)))
            self.variant.apply(stack)
            yield

    def _log(self, level: str, text: str) -> None:
        self.note(f"{here.get().name} {level}: {text}")

    def _restore_full(self, _: Any, __: str, reader: Reader, full: snapshots.Snapshot, part: Path) -> None:
        content = b"".join(restore._unzipped(reader.read(full.name), full, limit=restore._LARGEST_BACKEND))
        data = self.disks[self.new_data(part).stem]
        for key, value in json.loads(content):
            data.put(key, value)

    @contextlib.contextmanager
    def _restoring(self, _: Any, __: str, part: Path, *, read: bool = False) -> Iterator[Connection]:
        [file] = (part / "member" / "wal").glob("*.wal")
        yield Connection(self.disks[file.stem])
