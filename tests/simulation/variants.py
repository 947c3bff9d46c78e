"""The protocol without one of its parts each: what that part is for, and what the checker has to notice without it."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.simulation.machinery import Container
from tests.simulation.takeover import Run
from tests.simulation.world import SCHEDULE, Connection, Variant
from workers.etcd import restore, wrapper
from workers.etcd.copy_backups import CopyBackupsController
from workers.etcd.snapshotter import Snapshotter


class Tried(Variant):
    """Ours, with what another one was tried by."""

    def __init__(self, other: Variant) -> None:
        self._other = other
        self.name = f"ours, as {other.name}"

    def trial(self, run: Run) -> None:
        self._other.trial(run)


class NoWitness(Variant):
    """An etcd serves on that is cut off from its bucket."""

    name = "no witness"
    noticed_as = "split brain"

    def trial(self, run: Run) -> None:
        run.kind, run.harm, run.harm_seconds = "lost", "cut off from its bucket", 60.0

    def apply(self, stack: contextlib.ExitStack) -> None:
        stack.enter_context(patch.object(wrapper.Witness, "of", classmethod(lambda *_: None)))


class NoFence(Variant):
    """The source is not informed."""

    name = "no fence"
    noticed_as = "split brain"

    def keeps(self, name: str) -> bool:
        return "Fence-" not in name

    def apply(self, stack: contextlib.ExitStack) -> None:
        stack.enter_context(patch.object(wrapper, "found_elsewhere", lambda *_: False))

    def trial(self, run: Run) -> None:
        run.kind, run.harm = "lost", "nothing"


class ToleranceIgnored(Variant):
    """The destination serves at once."""

    name = "tolerance ignored"
    noticed_as = "split brain"

    def apply(self, stack: contextlib.ExitStack) -> None:
        stack.enter_context(patch.object(CopyBackupsController, "_may_serve", lambda *_: ""))
        stack.enter_context(patch.object(wrapper, "_may_serve", lambda _: False))

    def trial(self, run: Run) -> None:
        run.kind, run.harm, run.harm_seconds, run.harmed_late = "lost", "cut off from its bucket", 60.0, True


class ClockTrusted(Variant):
    """The witness goes by a clock that stands still with its machine."""

    name = "clock trusted"
    noticed_as = "split brain"

    def clock(self, container: Container) -> float:
        return (container.machine.loop.now - container.idle) * container.machine.rate

    def trial(self, run: Run) -> None:
        run.kind, run.harm, run.harm_seconds = "lost", "pause, and then cut off", 40.0


class KeptBeforeWaiting(Variant):
    """A destination that is killed while it waits finds data at its next start, and serves."""

    name = "kept before waiting"
    noticed_as = "split brain"

    def apply(self, stack: contextlib.ExitStack) -> None:
        follow = restore.follow

        def keeping_first(config: Any, name: str, tell: Any, await_silence: Any, readers: Any) -> int:
            revision = follow(config, name, tell, lambda: None, readers)
            await_silence()
            return revision

        stack.enter_context(patch.object(restore, "follow", keeping_first))

    def trial(self, run: Run) -> None:
        run.kind, run.harm, run.cut_off_when_flushed = "planned, then lost", "nothing", True
        run.takes_over_killed = False
        run.world.when_fenced += [
            lambda: run.cut(run.world.source, {"source"}, 60.0),
            lambda: run.later(run.random.uniform(0.5, 2.5), run.kill_the_destination),
        ]


class GapWrittenOver(Variant):
    """A delta is written though the store has not accepted the previous one."""

    name = "gap written over"
    noticed_as = "not restored"

    def apply(self, stack: contextlib.ExitStack) -> None:
        class Unseen(asyncio.Event):
            def is_set(self) -> bool:
                return False

        begin = Snapshotter.__init__

        def beginning(self: Snapshotter, *args: Any, **named: Any) -> None:
            begin(self, *args, **named)
            self._lost = Unseen()

        stack.enter_context(patch.object(Snapshotter, "__init__", beginning))

    def trial(self, run: Run) -> None:
        run.kind, run.harm = "planned, then lost", "nothing"
        begins = run.moves_at - run.random.uniform(2.0, 4.0)
        run.later(begins, run.cut, run.world.source, {"source"}, run.random.uniform(6.2, 9.0))


class WaitsAnew(Variant):
    """Changes that a session could not write wait for the whole period of the next session."""

    name = "waits again"
    noticed_as = "of the source"

    def apply(self, stack: contextlib.ExitStack) -> None:
        write = Snapshotter._write_deltas
        stack.enter_context(patch.object(Snapshotter, "_write_deltas", lambda self, _: write(self, 0)))

    def trial(self, run: Run) -> None:
        run.kind, run.harm, run.harm_seconds, run.harmed_late, run.fault_count = "lost", "kill", 60.0, False, 0
        run.world.schedules["source"] = replace(SCHEDULE, full_after_changes=100_000)

        def interrupt(_: str) -> None:
            if run.world.loop.now > run.moves_at - 5.0 and not run.disturbed["source"]:
                run.cut(run.world.source, {"source"}, 0.2)
                run.world.source.refused = True

        run.world.when_uploading.append(interrupt)


class NothingCompared(Variant):
    """Later revisions in a full snapshot are taken for revisions of the destination."""

    name = "nothing compared"
    noticed_as = "of the destination"

    def apply(self, stack: contextlib.ExitStack) -> None:
        stack.enter_context(patch.object(Connection, "holds", lambda *_: True))

    def trial(self, run: Run) -> None:
        run.kind, run.harm, run.fault_count, run.loses_data = "planned, then lost", "nothing", 0, True
        run.takes_over_killed = False
        run.world.pause_between_writes = 0.1
        run.later(run.moves_at + 0.01, run.cut, run.world.source, {"garden"}, 60.0)

        def kill(name: str) -> None:
            if "/Full-" in name and run.world.loop.now > run.moves_at + 3.0 and not run.world.source.off:
                run.disturb(run.world.source, 90.0)
                run.later(0.1, run.power, run.world.source, True)

        run.world.when_uploading.append(kill)
        run.world.schedules["destination"] = replace(SCHEDULE, full_after_changes=100_000)


VARIANTS = (NoWitness(), NoFence(), ToleranceIgnored(), ClockTrusted(), KeptBeforeWaiting(), GapWrittenOver(),
            WaitsAnew(), NothingCompared())  # fmt: skip
