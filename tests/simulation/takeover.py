"""One run: a control plane moves while things break, and what has become of each acknowledged write."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from api.contracts.flows import FlowInput, ShootFacts
from api.contracts.operations import OperationType, ShootRef, ShootTask
from etcd import snapshots
from tests.simulation.machinery import Container, Machine
from tests.simulation.world import DELTA_PERIOD, PREFIX, Variant, World, Write
from workflows.flow import Flow
from workflows.shoot.flows import ALL_EXISTS
from workflows.shoot.migrate import migrate_flow
from workflows.shoot.reconcile import reconcile_flow

_FAULTS_END = 60.0
_SETTLE_SECONDS = 60.0
"""In which all that is healed comes to its end."""
_SLACK_SECONDS = 2.5
"""For requests that take their time."""
_LONGEST_DELAY = 10.0
"""Between two sessions of the sidecar."""
_HARMS = (
    "kill",
    "pause",
    "pause, and then cut off",
    "cut",
    "cut off from the garden",
    "cut off from its bucket",
    "nothing",
)
Do = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Report:
    """Result of a run."""

    seed: int
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    kind: str
    moved: bool

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed} ({self.kind}):", *self.violations, "", *self.trace])


@cache
def _order(operation: OperationType) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Tasks of the flow that a move runs, with their predecessors."""
    task = ShootTask(
        shoot=ShootRef(namespace="garden-local", name="demo", uid="0f3c"),
        technical_id="shoot--local--demo",
        seed="source" if operation is OperationType.MIGRATE else "destination",
        destination="destination" if operation is OperationType.MIGRATE else "",
        generation=1,
        operation=operation,
    )
    request = FlowInput(task=task, facts=ShootFacts(backup=True))
    flow: Flow = migrate_flow(request, ALL_EXISTS) if operation is OperationType.MIGRATE else reconcile_flow(request)
    return tuple((name, flow.after(name)) for name in flow.names)


class Run:
    def __init__(self, seed: int, directory: Path, variant: Variant) -> None:
        self.world = world = World(seed, directory, variant)
        self.random = world.random
        self.seed = seed
        self.kind = self.random.choices(["planned", "planned, then lost", "lost"], [3, 4, 3])[0]
        self.restored = False
        self.taken_over = False
        self.home = "source"
        """Seed that the backups belong to, by the garden."""
        self.disturbed: dict[str, list[tuple[float, float]]] = {"source": [], "destination": []}
        self.lost_data_at: float | None = None
        self.harm: str | None = None
        """To the source; chance chooses if there is none."""
        self.harm_seconds = self.random.choice([self.random.uniform(1.0, 12.0), self.random.uniform(20.0, 60.0)])
        self.harmed_late = self.random.random() < 0.3
        """Whether it serves when it is said to be lost."""
        self.takes_over_killed = self.random.random() < 0.3
        self.moves_at = self.random.uniform(6.0, 20.0)
        self.fault_count = self.random.randint(0, 10)
        self.cut_off_when_flushed = self.random.random() < 0.1
        """Cut off from the garden: its API server continues."""
        self.loses_data = self.random.random() < 0.4
        self._zombies: set[asyncio.Task[None]] = set()
        variant.trial(self)

    def execute(self) -> Report:
        world = self.world
        with world.played():
            try:
                world.loop.run_until_complete(self._live())
                violations = self._violations()
            except BaseException as error:
                world.note(f"broken off: {type(error).__name__}: {error}")
                print(self._report([]))
                raise
            finally:
                world.over = True
                for machine in (world.source, world.destination):
                    for container in list(machine.containers):
                        container.kill()
                for task in asyncio.all_tasks(world.loop):
                    task.cancel()
                world.loop.run_until_complete(asyncio.sleep(0.1))
        world.loop.close()
        if world.failure is not None:
            print(self._report([]))
            raise world.failure
        return self._report(violations)

    def _report(self, violations: list[str]) -> Report:
        return Report(self.seed, tuple(violations), tuple(self.world.trace), self.kind, self.restored)

    # What happens

    async def _live(self) -> None:
        world, random = self.world, self.random
        world.start_gardenlet()
        world.pods["source"].start()
        for machine in (world.source, world.destination):
            world.loop.create_task(world.write(machine))
        for _ in range(self.fault_count):
            world.loop.call_later(random.uniform(0.0, _FAULTS_END), self._break_something)
        if self.takes_over_killed:
            world.when_fenced.append(lambda: self.later(random.uniform(0.1, 12.0), self.kill_the_destination))
        await asyncio.sleep(self.moves_at)
        world.note(f"the control plane is to move: {self.kind}")
        moving = world.loop.create_task(self._move())
        await asyncio.wait({moving}, timeout=_FAULTS_END)
        self._heal(world.source)
        self._heal(world.destination)
        done, _ = await asyncio.wait({moving}, timeout=_SETTLE_SECONDS)
        if not done:
            moving.cancel()
            return
        moving.result()
        if self.loses_data:
            await asyncio.sleep(random.uniform(5.0, 20.0))
            world.note("the destination's etcd loses its data")
            self.lost_data_at = world.loop.now
            world.pods["destination"].lose_data()
        await asyncio.sleep(random.uniform(8.0, 14.0))
        while not world.pods["destination"].serving:  # noqa: ASYNC110 -- a process that is started is no event
            await asyncio.sleep(0.2)

    async def _move(self) -> None:
        world, random = self.world, self.random
        if self.kind == "planned":
            await self._flow(OperationType.MIGRATE)
        else:
            leaving = None
            if self.kind != "lost":
                leaving = world.loop.create_task(self._flow(OperationType.MIGRATE))
                await asyncio.wait({leaving}, timeout=random.uniform(0.0, 9.0))
            if self.harmed_late:
                self.later(random.uniform(0.0, 12.0), self._harm_source)
            else:
                self._harm_source()
            await asyncio.sleep(random.uniform(0.0, 8.0))
            if leaving is not None and not leaving.done():
                leaving.cancel()
                await asyncio.wait({leaving})
            world.note("the source is said to be lost")
        await self._flow(OperationType.RESTORE)
        world.note("the control plane is restored")
        self.restored = True

    async def _flow(self, operation: OperationType) -> None:
        """Run a flow's tasks in its order; what is not played here takes no time."""
        order = _order(operation)
        ended = {name: asyncio.Event() for name, _ in order}

        async def run(name: str, after: tuple[str, ...]) -> None:
            for each in after:
                await ended[each].wait()
            await self._task(name, operation)
            ended[name].set()

        await asyncio.gather(*(run(name, after) for name, after in order))

    async def _task(self, name: str, operation: OperationType) -> None:
        world = self.world
        there = operation is OperationType.RESTORE or name.endswith("_there")
        do = self._played(name.removesuffix("_there"), there, operation)
        if do is None:
            return
        machine = world.destination if there else world.source
        await machine.until(lambda: not machine.off and "garden" not in machine.cut)
        await asyncio.sleep(self.random.uniform(0.01, 0.3))
        world.note(f"{operation}: {name}")
        # A canceled process that is cut off from the cancellation continues.
        running = world.loop.create_task(do())
        self._zombies.add(running)
        await asyncio.shield(running)

    def _played(self, name: str, there: bool, operation: OperationType) -> Do | None:
        world, restoring = self.world, operation is OperationType.RESTORE
        source, destination = world.pods["source"], world.pods["destination"]

        async def now(do: Callable[[], object]) -> None:
            do()

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():  # noqa: ASYNC110 -- processes are no events
                await asyncio.sleep(0.3)

        async def stop_api(seed: str) -> None:
            await asyncio.sleep(self.random.uniform(0.1, 1.0))
            world.api[seed] = False

        def know_source() -> None:
            self.taken_over |= restoring and self.home != "destination"
            if not destination.wanted or not restoring:
                destination.know_source("source")

        def forget_source() -> None:
            if not self.taken_over:
                world.buckets["source"].objects.clear()
                destination.know_source(None)

        here = {
            "deploy_source_backup_entry": lambda: now(know_source),
            "deploy_etcds": lambda: now(destination.start),
            "wait_etcd_following": lambda: until(lambda: bool(destination.initialization)),
            "wait_etcd_taken_over": lambda: until(lambda: destination.initialization.get("status") == "Successful"),
            "deploy_apiserver": lambda: now(lambda: world.api.update(destination=True)),
            "wait_etcds": lambda: until(lambda: destination.serving),
            "copy_etcd_backups": lambda: now(lambda: world.order_copy(5.0 if self.taken_over else 300.0)),
            "wait_etcd_backups_copied": lambda: until(lambda: world.copied),
            "delete_source_backup_entry": lambda: now(forget_source),
        }
        at_source = {
            "flush_etcd": lambda: self._flush(),
            "delete_apiserver": lambda: stop_api("source"),
            "wait_apiserver_deleted": lambda: until(lambda: not world.api["source"]),
            "snapshot_etcd": lambda: source.ask_sidecar("final"),
            "migrate_backup_entry": lambda: now(lambda: setattr(self, "home", "destination")),
            "delete_etcds": lambda: now(source.delete),
        }
        return (here if there else at_source).get(name)

    async def _flush(self) -> None:
        await self.world.pods["source"].ask_sidecar("delta")
        if self.cut_off_when_flushed:
            self.cut(self.world.source, {"garden"}, 60.0)

    # What breaks

    def disturb(self, machine: Machine, seconds: float) -> None:
        now = self.world.loop.now
        self.disturbed[machine.name].append((now, now + seconds))

    def _break_something(self) -> None:
        world, random = self.world, self.random
        machine = random.choice([world.source, world.destination])
        what = random.choice(["cut", "cut", "kill", "kill", "pause", "pause", "wall clock", "gardenlet"])
        seconds = random.choice([random.uniform(0.2, 3.0), random.uniform(3.0, 12.0)])
        if what == "wall clock":
            machine.skew = random.choice([-3600.0, 3600.0, 0.0, random.uniform(-60.0, 60.0)])
            world.note(f"{machine.name}: the wall clock is set {machine.skew:+.0f} s off")
        elif what == "cut":
            self.cut(machine, {"source", "destination"}, seconds)
        elif what == "gardenlet":
            world.note("the destination's gardenlet is killed")
            world.restart_gardenlet()
        elif machine.containers:
            container = random.choice(machine.containers)
            if what == "pause":
                self._pause([container], seconds)
            elif container is world.gardenlet:
                world.restart_gardenlet()
            else:
                self.disturb(machine, 3.0)
                world.note(f"{container.name} is killed")
                pod = world.pods[machine.name]
                (pod.kill_etcd if container.name.endswith("etcd") else pod.kill_sidecar)()

    def _harm_source(self) -> None:
        """Kill it, have it stand still, or cut it off; it comes back, or does not before the end."""
        machine, random, seconds = self.world.source, self.random, self.harm_seconds
        match self.harm or random.choice(_HARMS):
            case "kill":
                self.disturb(machine, seconds + 3.0)
                self.power(machine, off=True)
                self.later(seconds, self.power, machine, False)
            case "pause":
                self._pause(list(machine.containers), seconds)
            case "pause, and then cut off":
                self._pause(list(machine.containers), seconds)
                self.cut(machine, {"source"}, seconds + 20.0)
            case "cut":
                self.cut(machine, {"source", "garden"}, seconds)
            case "cut off from the garden":
                self.cut(machine, {"garden"}, seconds)
            case "cut off from its bucket":
                self.cut(machine, {"source"}, seconds)
            case _:
                self.world.note("nothing is wrong with the source")

    def later(self, seconds: float, do: Callable[..., None], *args: Any) -> None:
        self.world.loop.call_later(seconds, do, *args)

    def kill_the_destination(self) -> None:
        pod = self.world.pods["destination"]
        if pod.wanted:
            self.world.note("the destination's etcd is killed")
            self.disturb(self.world.destination, 3.0)
            pod.kill_etcd()

    def _pause(self, containers: list[Container], seconds: float) -> None:
        for container in containers:
            self.disturb(container.machine, seconds)
            self.world.note(f"{container.name} stands still for {seconds:.1f} s")
            container.pause()
            self.later(seconds, container.resume)

    def cut(self, machine: Machine, places: set[str], seconds: float) -> None:
        self.world.note(f"{machine.name} is cut off from {', '.join(sorted(places))} for {seconds:.1f} s")
        if machine.name in places:
            self.disturb(machine, seconds)
        machine.cut |= places
        machine.refused = self.random.random() < 0.5

        def mend() -> None:
            machine.cut -= places
            machine.change()

        self.later(seconds, mend)

    def power(self, machine: Machine, off: bool) -> None:
        if machine.off == off or self.world.over:
            return
        pod = self.world.pods[machine.name]
        self.world.note(f"{machine.name} is {'killed' if off else 'back'}")
        machine.off = off
        if off:
            self.api_before = self.world.api[machine.name]
            self.world.api[machine.name] = False
            if pod.wanted:
                pod.kill_etcd()
                pod.kill_sidecar()
        else:
            # What was to stop while it was away is not there to be started.
            self.world.api[machine.name] = self.api_before
            if pod.wanted:
                pod._start_etcd()
                pod._start_sidecar()
        machine.change()

    def _heal(self, machine: Machine) -> None:
        machine.cut.clear()
        for container in list(machine.containers):
            container.resume()
        self.power(machine, off=False)
        machine.change()

    # What has become of it

    def _violations(self) -> list[str]:
        world = self.world
        found: list[str] = []
        there = world.pods["destination"]
        if not self.restored or there.etcd is None:
            return ["the control plane is not restored, though all is healed"]
        ours = [each for each in world.writes if each.seed == "destination"]
        theirs = [each for each in world.writes if each.seed == "source"]
        served = min((each.at for each in ours), default=float("inf"))
        held = {change.key: change.revision for change in there.etcd.data.log}
        for write in theirs:
            if write.at > served and not write.stood_still:
                found.append(
                    f"split brain: the source takes {write.key} at {write.at:.2f}, "
                    f"the destination serves since {served:.2f}"
                )
        fence = world.fenced_at if self._superseded() else None
        for write in theirs:
            if write.key not in held and (fence is None or self._is_promised(write, fence)):
                found.append(f"lost: {write.key} of the source, {write.at:.2f}")
        for write in ours:
            if write.key not in held and (self.lost_data_at is None or self._is_promised(write, self.lost_data_at)):
                found.append(f"lost: {write.key} of the destination, {write.at:.2f}")
        for write in (*theirs, *ours):
            if write.key in held and held[write.key] != write.revision:
                found.append(f"another revision: {write.key} has {held[write.key]}, it was {write.revision}")
        return found

    def _superseded(self) -> bool:
        names = [name for name in self.world.buckets["source"].objects if name.startswith(PREFIX)]
        return snapshots.taken_over(names) is not None

    def _is_promised(self, write: Write, end: float) -> bool:
        """Whether it was in the bucket for certain: after the delta's period, or once the sidecar could start again."""
        due = write.at + DELTA_PERIOD
        first, last = -1e9, -1e9
        for start, stop in sorted(self.disturbed[write.seed]):
            # One that comes soon after another finds the sidecar waiting longer before it tries again.
            first = start if start > last + 2 * _LONGEST_DELAY else first
            last = max(last, stop)
            if start < due + _SLACK_SECONDS:
                due = max(due, stop + min(_LONGEST_DELAY, last - first + 0.5))
        return due + _SLACK_SECONDS < end


def simulate(seed: int, directory: Path, variant: Variant | None = None) -> Report:
    """The same for the same seed, whenever and wherever."""
    variant = variant or Variant()
    return Run(seed, directory / f"{variant.name}-{seed}", variant).execute()
