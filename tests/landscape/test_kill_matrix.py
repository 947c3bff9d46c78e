"""A gardenlet is killed again and again while a Shoot is created and deleted: its effects are those of a calm life.

Each task of both flows is killed before its first write, after its first write, or after its end that Temporal does not
know; every second point of all of these. The effects are the creations and deletions in the audit logs of garden and
seed. ``make chaos`` prints the figures of this test, too.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.contracts.operations import OperationType
from tests.chaos.ledger import Place, masked
from tests.chaos.matrix import percentile
from tests.chaos.points import Entry, Moment, Point, Record, points_of, resumed, struck_by_others, writes_of
from tests.landscape.conftest import Landscape
from tests.landscape.gardenlets import replaced
from tests.landscape.mortal_gardenlet import SHOOT
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(3000, func_only=True)]

SEED = "seed-1"
_GARDENLETS = {"garden": f"gardener.cloud:system:seed:{SEED}", SEED: "landscape-admin"}
"""Users of the gardenlet, by cluster."""
_BUDGET = 1500
"""Seconds for a creation or a deletion with all its kills."""
_EACH = 2
_LEAST = 60
"""Kills, at least."""
_GENERATED = re.compile(r"-[0-9a-z]{5}(?=[ /]|$)|-[0-9a-f]{5,16}(?=-|[ /]|$)")
"""Parts of names that differ between two Shoots."""


@dataclass(frozen=True)
class Run:
    """One operation."""

    entries: list[Entry]
    missed: frozenset[Point]
    """Points that were not met, other than those of tasks that another kill has struck."""
    seconds: float


@dataclass(frozen=True)
class Life:
    """A Shoot that was created and deleted again."""

    runs: dict[OperationType, Run]
    objects: Counter[str]
    """Objects after the creation."""
    effects: Counter[str]
    left: dict[str, list[str]]
    """Objects after the deletion, by the place that has them."""


@dataclass(frozen=True)
class Stage:
    """Gardenlets that are killed at the points of a record."""

    landscape: Landscape
    directory: Path

    def live(self, name: str, points: Callable[[OperationType], Iterable[Point]]) -> Life:
        shoot = Shoot(self.landscape, name, self.directory)
        (self.directory / SHOOT).write_text(name)
        runs = {}

        def create() -> None:
            shoot.apply(shoot.manifest(seedName=SEED))
            shoot.wait_for_state("Succeeded", _BUDGET)

        def delete() -> None:
            shoot.delete(wait=False)
            shoot.garden("wait", "--for=delete", f"shoot/{name}", f"--timeout={_BUDGET}s", timeout=_BUDGET + 10)

        try:
            runs[OperationType.CREATE] = self._run(create, points(OperationType.CREATE))
            objects = Counter(_same(each, shoot) for found in shoot.traces().values() for each in found)
            traces = shoot.traces  # its names are known while it exists
            runs[OperationType.DELETE] = self._run(delete, points(OperationType.DELETE))
        finally:
            shoot.remove()
        return Life(runs, objects, self._effects(shoot), traces())

    def _run(self, operate: Callable[[], None], points: Iterable[Point]) -> Run:
        record, chosen = Record(self.directory), frozenset(points)
        record.choose(chosen)
        operate()
        entries = record.entries()
        met, excused = record.met(), struck_by_others(entries)
        missed = frozenset(each for each in chosen - met if each.activity not in excused)
        return Run(entries, missed, entries[-1].at - entries[0].at)

    def _effects(self, shoot: Shoot) -> Counter[str]:
        """Creations and deletions by the gardenlet, once the log has the last of them.

        A deletion counts once for each object: to ask again for it has no effect.
        """

        def complete() -> Counter[str]:
            created, deleted = [], set()
            for cluster in _GARDENLETS:
                for verb, place in _effects(self.landscape, cluster, shoot):
                    if verb == "delete":
                        deleted.add(place)
                    else:
                        created.append(place)
            if Place(SEED, "namespaces", f"{shoot.technical_id}/{shoot.technical_id}") not in deleted:
                return Counter()
            effects = [f"create {each}" for each in created] + [f"delete {each}" for each in deleted]
            return Counter(_same(each, shoot) for each in effects)

        return eventually(complete, f"the audit log of {SEED} has the deletion of the namespace", 60)


def _effects(landscape: Landscape, cluster: str, shoot: Shoot) -> Iterator[tuple[str, Place]]:
    """Accepted creations and deletions by the gardenlet of objects with the Shoot's name, from an audit log.

    Yields the verb, ``create`` or ``delete``, and the object.
    """
    for line in (landscape.directory / f"logs/{cluster}-audit.log").read_text().splitlines():
        event = json.loads(line)
        of, code = event.get("objectRef") or {}, event["responseStatus"].get("code", 0)
        verb = "delete" if event["verb"] == "delete" and code < 300 else "create" if code == 201 else ""
        name = "/".join(filter(None, (of.get("namespace"), of.get("name"))))
        own = event["user"]["username"] == _GARDENLETS[cluster] and re.search(rf"(\b|--){shoot.name}\b", name)
        if verb and own and not of.get("subresource"):
            yield verb, Place(cluster, of["resource"], name)


def _same(text: str, shoot: Shoot) -> str:
    """A text with a name that is the same for each Shoot."""
    return _GENERATED.sub("-*", masked(text, {shoot.name: "NAME"}))


@pytest.fixture
def stage(landscape: Landscape, tmp_path: Path) -> Iterator[Stage]:
    with replaced(landscape, "tests.landscape.mortal_gardenlet", tmp_path):
        yield Stage(landscape, tmp_path)


def test_kills_in_each_task_double_nothing_and_leave_nothing_out(stage: Stage) -> None:
    calm = stage.live("calm", lambda _: ())

    def points(operation: OperationType) -> list[Point]:
        entries = calm.runs[operation].entries
        tasks = list(dict.fromkeys(each.subject for each in entries if each.what == "started"))
        done = {each.subject for each in entries if each.what == "done"}
        found = [each for each in points_of(tasks, writes_of(entries), done) if each.moment is not Moment.BETWEEN]
        return found[::_EACH]

    struck = stage.live("struck", points)

    chosen = {each: points(each) for each in struck.runs}
    for operation, run in struck.runs.items():
        seconds = sorted(resumed(run.entries).values())
        tasks = {point.activity for point in chosen[operation]}
        print(f"{operation}: {len(tasks)} tasks, {len(chosen[operation])} points, {len(seconds)} kills; resume p50"
              f" {percentile(seconds, 50)} s, p95 {percentile(seconds, 95)} s; {run.seconds:.0f} s (undisturbed"
              f" {calm.runs[operation].seconds:.0f} s)")  # fmt: skip
        assert not run.missed
    print(f"{calm.effects.total()} effects, {calm.objects.total()} objects")
    assert sum(len(resumed(run.entries)) for run in struck.runs.values()) >= _LEAST
    assert struck.effects - calm.effects == Counter(), "doubled"
    # An API server does not log the success of a request whose client was killed: what is left out, objects show.
    assert struck.objects - calm.objects == Counter(), "left over"
    assert calm.objects - struck.objects == Counter(), "left out"
    assert not any(struck.left.values())
