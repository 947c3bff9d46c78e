"""A garden's API server whose watches are disturbed, and the controllers that watch it: ours, as they run.

Watches repeat, drop, reorder, delay and end; requests are answered 410, 429 and 500, or not at all; the list with
which a cache begins may be older than the present state. Users create, change and delete objects meanwhile. In the end
the objects must be the same as without disturbance, and no controller may have deleted or released an object that was
still needed: ``Judge``.
"""

import asyncio
import copy
import logging
import random as global_random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, cast
from unittest.mock import patch

from temporalio.client import Client

from api import resources
from api.constants import FINALIZER
from api.contracts.operations import ShootRef, lifecycle_id
from api.decisions.profiles import profile_reference
from api.resources import Resource
from kube import events
from kube.cache import Caches
from kube.client import Keep, KubeClient, Object, Objects, WatchEvent
from kube.errors import ApiError, Gone, NotFound, Unreachable
from tests.simulation.machinery import Loop
from tests.unit.api.shoots import SEED, SHOOT, changed
from tests.unit.api.test_installations import registration
from tests.unit.kube.fake_cluster import FakeCluster, _selected
from workers.controller_manager.bastions import BastionConfig, run_bastion_controller
from workers.controller_manager.installations import run_installation_controller
from workers.controller_manager.protection import _HELD, _run_held
from workers.controller_manager.references import run_reference_controllers
from workers.controller_manager.watchers.shoots import ShootWatcher

NAMESPACE = "garden-local"
_NAMES = ("a", "b", "c")
_SEEDS = ("seed-1", "seed-2")
_TYPES = ("ext-0", "ext-1")
_ROUNDS = 2
"""Lives of each Shoot before the end of a run."""
_LIMIT_SECONDS = 3600.0
"""Virtual time after which a run that has not ended stands still."""
_TICK = 1e-6
"""Timers end up to a nanosecond early."""
_QUIET_SECONDS = 90.0
"""Virtual time without disturbance at the end: longer than all backoffs of caches and controllers."""


@dataclass(frozen=True)
class Faults:
    """Probabilities of disturbances."""

    refused: float = 0.06
    """A request is answered 429 or 500, or gets no answer."""
    lost_answer: float = 0.03
    """A write has effect, and its answer is lost."""
    stale_list: float = 0.4
    """A cache begins with an older state."""
    ended: float = 0.06
    """A watch ends after an event."""
    too_old: float = 0.04
    """A watch is answered 410."""
    repeated: float = 0.1
    dropped: float = 0.04
    """An event is missing; the watch is answered 410 soon afterwards."""
    reordered: float = 0.05
    """An event comes before the one ahead of it; the watch is answered 410 soon afterwards."""
    slow: float = 0.1
    """An event, or an answer, takes seconds."""


CALM = Faults(**dict.fromkeys(Faults.__dataclass_fields__, 0.0))


class Garden(FakeCluster):
    """The present state, and all events since the beginning."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self.loop = loop
        self.log: list[tuple[int, float, Resource, WatchEvent]] = []
        """Version, time, kind and event."""
        self.changed = asyncio.Event()

    @property
    def version(self) -> int:
        return self.log[-1][0] if self.log else 0

    def _tell(self, res: Resource, event: WatchEvent) -> None:
        version = int(event.object["metadata"]["resourceVersion"])
        self.log.append((version, self.loop.now, res, event))
        self.changed.set()
        self.changed = asyncio.Event()
        super()._tell(res, event)

    def at(self, version: int, res: Resource) -> Objects:
        """Objects of a kind as they were."""
        found: dict[tuple[str, str], Object] = {}
        for each, _, kind, event in self.log:
            if each > version:
                break
            if kind == res:
                metadata = event.object["metadata"]
                place = metadata.get("namespace", ""), metadata["name"]
                if event.type == "DELETED":
                    found.pop(place, None)
                else:
                    found[place] = event.object
        return copy.deepcopy(list(found.values()))

    async def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.changed.wait()


class Network(KubeClient):
    """The way of the controllers to the garden."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._garden = run.garden
        self._limits = None

    @property
    def _faults(self) -> Faults:
        return self._run.faults

    def _happens(self, probability: float) -> bool:
        return self._run.random.random() < probability

    async def _travel(self, doing: str) -> None:
        random = self._run.random
        await asyncio.sleep(random.uniform(1, 8) if self._happens(self._faults.slow) else random.uniform(0.001, 0.02))
        if self._happens(self._faults.refused):
            self._run.counts["refused"] += 1
            raise random.choice(
                (
                    ApiError(429, "TooManyRequests", doing),
                    ApiError(500, "InternalError", doing),
                    Unreachable(0, "no answer", doing),
                )
            )

    async def _write(self, doing: str, write: Callable[[], Awaitable[Any]]) -> Any:
        await self._travel(doing)
        answer = await write()
        if self._happens(self._faults.lost_answer):
            self._run.counts["lost answer"] += 1
            raise Unreachable(0, "the answer is lost", doing)
        return answer

    async def close(self) -> None:
        return

    # Reading

    async def get(self, res: Resource, name: str, namespace: str | None = None, *, subresource: str = "") -> Object:
        await self._travel(f"getting {res.kind} {name}")
        return await self._garden.get(res, name, namespace)

    async def list(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        keep: Keep | None = None,
    ) -> Objects:
        await self._travel(f"listing {res.plural}")
        return await self._garden.list(res, namespace, labels=labels, fields=fields)

    async def list_with_version(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Objects, str]:
        """The list of a cache: it may be as old as half a minute."""
        await self._travel(f"listing {res.plural}")
        if self._happens(self._faults.too_old):
            raise Gone(410, "Expired", f"listing {res.plural}")
        version = self._garden.version
        if self._happens(self._faults.stale_list):
            since = self._garden.loop.now - self._run.random.uniform(0, 30)
            version = max((each for each, time, *_ in self._garden.log if time <= since), default=version)
            self._run.counts["stale list"] += version != self._garden.version
        found = self._garden.at(version, res)
        return [each for each in found if namespace in (None, each["metadata"].get("namespace"))], str(version)

    async def watch(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        on_open: Callable[[], None] | None = None,
    ) -> AsyncIterator[WatchEvent]:
        doing = f"watching {res.plural}"
        await self._travel(doing)
        if self._happens(self._faults.too_old):
            self._run.counts["410"] += 1
            raise Gone(410, "Expired", doing)
        if on_open is not None:
            on_open()
        version, doomed = int(resource_version), float("inf")
        position = 0
        ahead: list[WatchEvent] = []
        while True:
            if self._garden.loop.now > doomed - _TICK:
                raise Gone(410, "Expired", doing)
            if position == len(self._garden.log):
                if ahead:
                    yield ahead.pop()
                changed = self._garden.changed
                if doomed == float("inf"):
                    await changed.wait()
                else:
                    try:
                        async with asyncio.timeout_at(doomed):
                            await changed.wait()
                    except TimeoutError:
                        continue
            entry, position = self._garden.log[position], position + 1
            event = entry[3]
            if entry[0] <= version or entry[2] != res or not _selected(event.object, labels, fields):
                continue
            await asyncio.sleep(
                self._run.random.uniform(0.5, 6) if self._happens(self._faults.slow) else self._run.random.random() / 50
            )
            event = WatchEvent(event.type, copy.deepcopy(event.object))
            if self._happens(self._faults.dropped):
                self._run.counts["dropped"] += 1
                doomed = min(doomed, self._garden.loop.now + self._run.random.uniform(0.1, 5))
                continue
            if not ahead and self._happens(self._faults.reordered):
                self._run.counts["reordered"] += 1
                doomed = min(doomed, self._garden.loop.now + self._run.random.uniform(0.1, 5))
                ahead.append(event)
                continue
            yield event
            if ahead:
                yield ahead.pop()
            if self._happens(self._faults.repeated):
                self._run.counts["repeated"] += 1
                yield WatchEvent(event.type, copy.deepcopy(event.object))
            if self._happens(self._faults.ended):
                self._run.counts["ended"] += 1
                if doomed != float("inf"):
                    raise Gone(410, "Expired", doing)
                return

    # Writing

    async def create(self, obj: Mapping[str, Any], *, subresource: str = "", manager: str = "") -> Object:
        return cast(Object, await self._write(f"creating {obj['kind']}", lambda: self._garden.create(obj)))

    async def patch(
        self,
        res: Resource,
        name: str,
        namespace: str | None,
        patch: Mapping[str, Any] | Objects,
        *,
        subresource: str = "",
    ) -> Object:
        async def write() -> Object:
            self._run.judge.patched(res, name, namespace, cast(Mapping[str, Any], patch))
            return await self._garden.patch(res, name, namespace, patch, subresource=subresource)

        return cast(Object, await self._write(f"patching {res.kind} {name}", write))

    async def delete(self, res: Resource, name: str, namespace: str | None = None, **options: Any) -> bool:
        async def write() -> bool:
            self._run.judge.deleted(res, name, namespace, options.get("uid"))
            return await self._garden.delete(res, name, namespace, **options)

        return bool(await self._write(f"deleting {res.kind} {name}", write))


class Judge:
    """Compares each destructive request with the present state of the garden."""

    def __init__(self, garden: Garden) -> None:
        self._garden = garden
        self.violations: list[str] = []

    def patched(self, res: Resource, name: str, namespace: str | None, patch: Mapping[str, Any]) -> None:
        finalizers = (patch.get("metadata") or {}).get("finalizers")
        live = self._garden.objects.get((res, namespace or "", name))
        if finalizers is None or live is None or "deletionTimestamp" not in live["metadata"]:
            return
        version = patch["metadata"].get("resourceVersion")
        if version != live["metadata"]["resourceVersion"]:
            if version is None:
                self._accuse(f"finalizers of {res.kind} {name} are written for any version of it")
            return
        if set(live["metadata"].get("finalizers") or ()) - set(finalizers) and (users := self._users(res, name)):
            self._accuse(f"{res.kind} {name} is released although it is used by {users}")

    def deleted(self, res: Resource, name: str, namespace: str | None, uid: str | None) -> None:
        live = self._garden.objects.get((res, namespace or "", name))
        if uid is None:
            self._accuse(f"{res.kind} {name} is deleted whichever uid it has")
        if live is None or live["metadata"]["uid"] != uid:
            return
        if res == resources.OPERATIONS_BASTION:
            shoot = self._garden.objects.get((resources.SHOOT, NAMESPACE, live["spec"]["shootRef"]["name"]))
            if shoot is not None and "deletionTimestamp" not in shoot["metadata"] and _is_older(shoot, live):
                self._accuse(f"Bastion {name} is deleted although its Shoot {shoot['metadata']['name']} is there")
        elif res == resources.CONTROLLER_INSTALLATION:
            seed = live["spec"]["seedRef"]["name"]
            type_ = live["spec"]["registrationRef"]["name"]
            needing = [
                each["metadata"]["name"]
                for each in self._garden.of(resources.SHOOT)
                if each["spec"]["seedName"] == seed and {"type": type_} in each["spec"]["extensions"]
            ]
            if needing and (resources.SEED, "", seed) in self._garden.objects:
                self._accuse(f"installation of {type_} in {seed} is deleted although Shoots {needing} need it")

    def _users(self, res: Resource, name: str) -> list[str]:
        users = []
        for shoot in self._garden.of(resources.SHOOT):
            profile = profile_reference(shoot)
            if (res == resources.CLOUD_PROFILE and profile is not None and profile.name == name) or (
                res == resources.EXPOSURE_CLASS and shoot["spec"].get("exposureClassName") == name
            ):
                users.append(str(shoot["metadata"]["name"]))
        if res == resources.SEED:
            found = self._garden.of(resources.CONTROLLER_INSTALLATION)
            users += [each["metadata"]["name"] for each in found if each["spec"]["seedRef"]["name"] == name]
        return users

    def _accuse(self, what: str) -> None:
        self.violations.append(f"{self._garden.loop.now:.2f} s: {what}")


class Lifecycles:
    """Temporal: a signal makes the lifecycle of a Shoot read it; once it is deleted, the lifecycle releases it."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self.seen: dict[str, int] = {}
        """Last generation that a lifecycle has read, by workflow id."""
        self.tasks: set[asyncio.Task[None]] = set()

    async def start_workflow(self, _: object, request: Any, *, id: str, **__: object) -> None:
        await asyncio.sleep(self._run.random.uniform(0.001, 0.5))
        task = asyncio.get_running_loop().create_task(self._wake(request.shoot, id))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _wake(self, ref: ShootRef, workflow_id: str) -> None:
        garden, place = self._run.garden, (resources.SHOOT, ref.namespace, ref.name)
        shoot = garden.objects.get(place)
        if shoot is None or shoot["metadata"]["uid"] != ref.uid:
            return
        self.seen[workflow_id] = shoot["metadata"]["generation"]
        if "deletionTimestamp" in shoot["metadata"]:
            await asyncio.sleep(self._run.random.uniform(0.1, 5))
            live = garden.objects.get(place)
            if live is not None and live["metadata"]["uid"] == ref.uid:
                await garden.patch(resources.SHOOT, ref.name, ref.namespace, {"metadata": {"finalizers": []}})


@dataclass
class Report:
    """Result of one run."""

    seed: int
    violations: list[str]
    state: dict[str, Any] = field(default_factory=dict)
    """Objects at the end, without uids and versions."""
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: python -m tests.simulation.watches {self.seed}", *self.trace]
        return "\n".join([*lines, *(f"VIOLATION {each}" for each in self.violations)])


class Trusting(Network):
    """A planted fault: controllers read the state before a destructive act from a list that may be old."""

    async def get(self, res: Resource, name: str, namespace: str | None = None, *, subresource: str = "") -> Object:
        for each in (await self.list_with_version(res, namespace))[0]:
            if each["metadata"]["name"] == name:
                return each
        raise NotFound(404, "NotFound", f"getting {res.kind} {name}")

    async def list(self, res: Resource, namespace: str | None = None, **selectors: Any) -> Objects:
        return (await self.list_with_version(res, namespace))[0]


Variant = Callable[["Run"], Network]


class Run:
    """One run: users, controllers, and the network between controllers and garden."""

    def __init__(self, seed: int, faults: Faults, variant: Variant = Network) -> None:
        self.seed = seed
        self.loop = Loop()
        self.random = Random(f"{seed} network")
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self.garden = Garden(self.loop)
        self.judge = Judge(self.garden)
        self.lifecycles = Lifecycles(self)
        self._variant = variant
        self._uids = count()

    def play(self) -> Report:
        state = global_random.getstate()
        global_random.seed(f"{self.seed} caches")
        try:
            with _quiet():
                self.loop.run_until_complete(self._play())
        finally:
            global_random.setstate(state)
            self.loop.close()
        trace = [
            f"{time:8.2f} {event.type:8} {kind.kind} {event.object['metadata']['name']} "
            f"{event.object['metadata']['uid']}"
            f"{' deleting' if 'deletionTimestamp' in event.object['metadata'] else ''} "
            f"{event.object['metadata'].get('finalizers') or ''}"
            for _, time, kind, event in self.garden.log
        ]
        return Report(self.seed, self.judge.violations, self._state(), self.counts, trace)

    async def _play(self) -> None:
        await self._furnish()
        caches = Caches(network := self._variant(self))
        temporal = cast(Client, self.lifecycles)
        controllers = [
            run_reference_controllers(network, caches),
            run_bastion_controller(network, caches, BastionConfig()),
            run_installation_controller(network, caches),
            *(_run_held(each, network, caches) for each in _HELD if each.resource in _PROTECTED),
            ShootWatcher(caches, temporal).run(),
        ]
        running = [self.loop.create_task(each) for each in controllers]
        try:
            async with asyncio.timeout(_LIMIT_SECONDS):
                await self._use()
            self.faults = CALM
            await asyncio.sleep(_QUIET_SECONDS)
            self._look_for_lost_signals()
        except TimeoutError:
            self.judge.violations.append("the run stands still: an event was lost")
        finally:
            for task in [*running, *self.lifecycles.tasks]:
                task.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
            await caches.close()
        for error in ended:
            if not isinstance(error, asyncio.CancelledError):
                self.judge.violations.append(f"a controller has ended: {error!r}")

    def _state(self) -> dict[str, Any]:
        found = {}
        for (kind, namespace, name), obj in self.garden.objects.items():
            if kind in (resources.EVENT, resources.CONTROLLER_INSTALLATION):
                continue  # the name of an installation is generated
            metadata = obj["metadata"]
            found[f"{kind.kind} {namespace}/{name}"] = {
                "deleting": "deletionTimestamp" in metadata,
                "finalizers": sorted(metadata.get("finalizers") or ()),
                "spec": obj.get("spec"),
            }
        for obj in self.garden.of(resources.CONTROLLER_INSTALLATION):
            spec = obj["spec"]
            found[f"installation of {spec['registrationRef']['name']} in {spec['seedRef']['name']}"] = {}
        return dict(sorted(found.items()))

    def _look_for_lost_signals(self) -> None:
        for shoot in self.garden.of(resources.SHOOT):
            known = self.lifecycles.seen.get(lifecycle_id(ShootRef.of(shoot)))
            if known != shoot["metadata"]["generation"]:
                self.judge.violations.append(
                    f"Shoot {shoot['metadata']['name']} has generation {shoot['metadata']['generation']}, "
                    f"and its lifecycle was signalled for {known}"
                )

    # Users

    async def _furnish(self) -> None:
        garden = self.garden
        await garden.create({**_of(resources.CONTROLLER_DEPLOYMENT, "chart"), "helm": {"rawChart": "aGk="}})
        for type_ in _TYPES:
            made = registration("Extension", type_, type_)
            await garden.create({**made, **_of(resources.CONTROLLER_REGISTRATION, type_)})
        for name in _SEEDS:
            await garden.create(changed(SEED, "metadata", {"name": name}))
        for name in _NAMES:
            await self._provide(resources.CLOUD_PROFILE, name)
            await self._provide(resources.EXPOSURE_CLASS, name)

    async def _use(self) -> None:
        others = [
            self.loop.create_task(self._come_and_go(kind, name, Random(f"{self.seed} {kind} {name}")))
            for kind in (resources.CLOUD_PROFILE, resources.EXPOSURE_CLASS)
            for name in _NAMES
        ]
        try:
            await asyncio.gather(*(self._live(name, Random(f"{self.seed} shoot {name}")) for name in _NAMES))
        finally:
            for each in others:
                each.cancel()
        # The end is the same in each run: all that is being deleted is gone, then the last objects are made.
        await self.garden.wait(lambda: not self.garden.of(resources.SHOOT))
        random = Random(f"{self.seed} end")
        for kind in (resources.CLOUD_PROFILE, resources.EXPOSURE_CLASS):
            for name in _NAMES:
                await self._absent_or_staying(kind, name)
                await self._provide(kind, name)
        made: list[str] = []
        for name in _NAMES[: random.randint(1, 3)]:
            # The Bastion of the last Shoot of this name must be gone.
            await self.garden.wait(lambda: not self.garden.of(resources.OPERATIONS_BASTION))
            await self._create_shoot(name, random)
            made.append(name)
        for name in made:
            if random.random() < 0.5:
                await asyncio.sleep(random.uniform(0, 10))
                await self._bastion(name)
        for kind in (resources.CLOUD_PROFILE, resources.EXPOSURE_CLASS):
            for name in _NAMES:
                if random.random() < 0.6:
                    await asyncio.sleep(random.uniform(0, 3))
                    await self.garden.delete(kind, name)

    async def _provide(self, kind: Resource, name: str) -> None:
        if (kind, "", name) not in self.garden.objects:
            await self.garden.create({**_of(kind, name, finalizers=[FINALIZER]), "spec": {}})

    async def _absent_or_staying(self, kind: Resource, name: str) -> None:
        def settled() -> bool:
            live = self.garden.objects.get((kind, "", name))
            return live is None or "deletionTimestamp" not in live["metadata"]

        await self.garden.wait(settled)

    async def _come_and_go(self, kind: Resource, name: str, random: Random) -> None:
        """A cloud profile, or an exposure class: deleted, and made again as soon as it is gone, or a little later."""
        while True:
            await asyncio.sleep(random.uniform(0, 40))
            await self.garden.delete(kind, name)
            await self.garden.wait(lambda: (kind, "", name) not in self.garden.objects)
            await asyncio.sleep(random.choice((0.0, random.uniform(0, 10))))
            await self._provide(kind, name)

    async def _live(self, name: str, random: Random) -> None:
        """A Shoot: created, changed, deleted, and made again at once or later."""
        for _ in range(_ROUNDS):
            await asyncio.sleep(random.choice((0.0, random.uniform(0, 15))))
            await self._create_shoot(name, random)
            if random.random() < 0.6:
                await asyncio.sleep(random.uniform(0, 10))
                await self._bastion(name)
            if random.random() < 0.6:
                await asyncio.sleep(random.uniform(0, 10))
                extensions = [{"type": each} for each in _TYPES if random.random() < 0.5]
                await self.garden.patch(resources.SHOOT, name, NAMESPACE, {"spec": {"extensions": extensions}})
            await asyncio.sleep(random.uniform(0, 30))
            await self.garden.delete(resources.SHOOT, name, NAMESPACE)
            await self.garden.wait(lambda: (resources.SHOOT, NAMESPACE, name) not in self.garden.objects)

    async def _create_shoot(self, name: str, random: Random) -> None:
        """Admission refuses objects that are being deleted: the user waits for one that is not."""

        def there(kind: Resource) -> list[str]:
            found = self.garden.of(kind)
            return sorted(each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"])

        draws = [random.random() for _ in range(3)]
        extensions = [{"type": each} for each in _TYPES if random.random() < 0.6]
        await self.garden.wait(lambda: bool(there(resources.CLOUD_PROFILE) and there(resources.EXPOSURE_CLASS)))
        profiles, classes = there(resources.CLOUD_PROFILE), there(resources.EXPOSURE_CLASS)
        shoot = changed(SHOOT, "metadata", {"name": name, "namespace": NAMESPACE, "finalizers": [FINALIZER]})
        shoot["spec"] = {
            **shoot["spec"],
            "cloudProfile": {"kind": "CloudProfile", "name": profiles[int(draws[0] * len(profiles))]},
            "exposureClassName": classes[int(draws[1] * len(classes))],
            "seedName": _SEEDS[int(draws[2] * len(_SEEDS))],
            "extensions": extensions,
        }
        shoot["spec"].pop("cloudProfileName", None)
        await self.garden.create(shoot)

    async def _bastion(self, shoot: str) -> None:
        live = self.garden.objects.get((resources.SHOOT, NAMESPACE, shoot))
        if live is None or "deletionTimestamp" in live["metadata"]:
            return
        if (resources.OPERATIONS_BASTION, NAMESPACE, shoot) not in self.garden.objects:
            spec = {"shootRef": {"name": shoot}, "seedName": live["spec"]["seedName"]}
            await self.garden.create({**_of(resources.OPERATIONS_BASTION, shoot, namespace=NAMESPACE), "spec": spec})


def _is_older(one: Object, other: Object) -> bool:
    """Whether an object was created before another one: uids are counted."""
    return int(one["metadata"]["uid"].removeprefix("uid-")) < int(other["metadata"]["uid"].removeprefix("uid-"))


_PROTECTED = (resources.EXPOSURE_CLASS, resources.SEED)


def _of(kind: Resource, name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **metadata}}


@contextmanager
def _quiet() -> Any:
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with patch.object(events, "_counts", {}):
            yield
    finally:
        logging.disable(disabled)


def simulate(seed: int, variant: Variant = Network) -> Report:
    """Play a run with and without disturbance; a difference at the end is a violation."""
    calm = Run(seed, CALM).play()
    report = Run(seed, Faults(), variant).play()
    report.violations += [f"without disturbance: {each}" for each in calm.violations]
    for name in sorted({*calm.state, *report.state}):
        if (expected := calm.state.get(name)) != (found := report.state.get(name)):
            report.violations.append(f"{name}: in the end {found}; without disturbance {expected}")
    return report


if __name__ == "__main__":
    print(simulate(int(sys.argv[1])))
