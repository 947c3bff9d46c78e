"""How many replicas a ManagedSeedSet should have: a table, and a fleet that is simulated for days."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.decisions.seed_autoscaler import Decision, SeedUse, decide
from api.seedmanagement.v1alpha1.seed_autoscaler import SeedAutoscaler
from api.times import timestamp
from api.validation.seed_autoscaler import check_seed_autoscaler

Object = dict[str, Any]
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CAPACITY = 100


def scaler_of(status: Object | None = None, target: Object | None = None, **spec: Any) -> SeedAutoscaler:
    metric = target or {"type": "Utilization", "averageUtilization": 50}
    return SeedAutoscaler.of(
        {
            "apiVersion": "seedmanagement.gardener.cloud/v1alpha1",
            "kind": "SeedAutoscaler",
            "metadata": {"name": "pool", "namespace": "garden"},
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "seedmanagement.gardener.cloud/v1alpha1",
                    "kind": "ManagedSeedSet",
                    "name": "pool",
                },
                "minReplicas": 1,
                "maxReplicas": 5,
                "metrics": [{"type": "Resource", "resource": {"name": "shoots", "target": metric}}],
                **spec,
            },
            **({"status": status} if status else {}),
        }
    )


def uses(
    *used: int, allocatable: int | None = CAPACITY, ready: bool = True, removable: bool | None = None
) -> list[SeedUse]:
    return [
        SeedUse(f"pool-{number}", each, allocatable, ready, not each if removable is None else removable)
        for number, each in enumerate(used)
    ]


LONG_LOW = {"scaleDownSince": timestamp(NOW - timedelta(hours=1))}


@pytest.mark.parametrize(
    ("replicas", "seeds", "wanted", "reason"),
    [
        (1, uses(50), 1, "DesiredWithinRange"),
        (1, uses(51), 2, "SucceededRescale"),
        (1, uses(100), 2, "SucceededRescale"),
        (2, uses(100, 100), 4, "SucceededRescale"),
        (3, uses(100, 100, 100), 5, "SucceededRescale"),
        (2, [*uses(51), *uses(0, ready=False, allocatable=None)], 2, "DesiredWithinRange"),
        # Fewer are enough, and one goes at a time.
        (3, uses(20, 0, 0), 2, "SucceededRescale"),
        # 46 of 100 is below the target of 50, but not by the tolerance.
        (2, uses(46, 0), 2, "DesiredWithinRange"),
        (2, uses(45, 0), 1, "SucceededRescale"),
        # A seed in use stays, and so does a protected one.
        (2, uses(1, 1), 2, "DesiredWithinRange"),
        (2, [*uses(1), *uses(0, removable=False)], 2, "DesiredWithinRange"),
        (0, [], 1, "OutOfBounds"),
        (7, uses(*[0] * 7), 5, "OutOfBounds"),
        (7, uses(*[1] * 6, 0), 6, "OutOfBounds"),
        (1, uses(0, allocatable=None), 1, "FailedGetResourceMetric"),
        (1, uses(0, allocatable=0), 1, "FailedGetResourceMetric"),
        (1, uses(90, ready=False), 1, "FailedGetResourceMetric"),
    ],
)
def test_the_number_of_replicas_follows_the_use(replicas: int, seeds: list[SeedUse], wanted: int, reason: str) -> None:
    decision = decide(scaler_of(LONG_LOW), replicas, seeds, NOW)

    assert (decision.replicas, decision.reason, decision.scaled) == (wanted, reason, wanted != replicas)


def test_a_target_of_all_capacity_still_leaves_room_for_one_shoot() -> None:
    full = scaler_of(target={"type": "Utilization", "averageUtilization": 100})

    assert decide(full, 1, uses(99), NOW).replicas == 1
    assert decide(full, 1, uses(100), NOW).replicas == 2


def test_an_average_value_counts_shoots_and_needs_no_capacity() -> None:
    ten = scaler_of(target={"type": "AverageValue", "averageValue": "10"})

    assert decide(ten, 2, uses(15, 15, allocatable=None), NOW).replicas == 3


def test_a_limit_is_told() -> None:
    decision = decide(scaler_of(), 5, uses(*[100] * 5), NOW)

    assert (decision.replicas, decision.limited) == (5, "10 replicas are needed, maxReplicas allows 5")


def test_a_change_waits_for_the_cooldown_of_the_last_one() -> None:
    just = scaler_of({"lastScaleTime": timestamp(NOW - timedelta(seconds=30)), **LONG_LOW})

    assert decide(just, 1, uses(100), NOW).reason == "BackoffBoth"
    assert decide(just, 1, uses(100), NOW + timedelta(seconds=31)).replicas == 2
    assert decide(just, 2, uses(0, 0), NOW + timedelta(seconds=500)).replicas == 2
    assert decide(just, 2, uses(0, 0), NOW + timedelta(seconds=571)).replicas == 1


def test_the_window_of_a_removal_begins_when_fewer_replicas_are_enough_and_ends_when_not() -> None:
    first = decide(scaler_of(), 2, uses(0, 0), NOW)
    again = decide(scaler_of({"scaleDownSince": timestamp(NOW)}), 2, uses(80, 0), NOW + timedelta(minutes=5))

    assert (first.replicas, first.down_since) == (2, NOW)
    assert (again.replicas, again.down_since) == (2, None)


@pytest.mark.parametrize(
    ("target", "spec", "text"),
    [
        ({"type": "Utilization"}, {}, "averageUtilization: Required value"),
        ({"type": "Utilization", "averageUtilization": 5, "averageValue": "1"}, {}, "averageValue: Forbidden"),
        ({"type": "AverageValue", "averageValue": "0"}, {}, "must be at least 1"),
        ({"type": "AverageValue", "averageValue": 3}, {"maxReplicas": 1, "minReplicas": 2}, "at least minReplicas, 2"),
    ],
)
def test_a_contradiction_is_refused(target: Object, spec: Object, text: str) -> None:
    assert text in str(check_seed_autoscaler(scaler_of(target=target, **spec)))


# The simulation


@dataclass
class Fleet:
    """A set whose seeds take 20 minutes to come and 10 to go, and a scheduler that fills the fullest seed with room."""

    scaler: SeedAutoscaler = field(default_factory=scaler_of)
    replicas: int = 1
    load: dict[str, int] = field(default_factory=lambda: {"pool-0": 0})
    coming: dict[str, datetime] = field(default_factory=dict)
    going: dict[str, datetime] = field(default_factory=dict)
    number: int = 1
    changes: list[tuple[datetime, int]] = field(default_factory=list)
    homeless: int = 0
    """Shoots that found no seed, ever."""

    def uses(self) -> list[SeedUse]:
        here = [SeedUse(each, used, CAPACITY, True, not used) for each, used in self.load.items()]
        return here + [SeedUse(each, 0, None, False, True) for each in self.coming]

    def turn(self, now: datetime, wanted: int, chance: random.Random) -> None:
        """One evaluation: seeds come and go, Shoots come and go, the autoscaler decides."""
        for name in [each for each, ready in self.coming.items() if ready <= now]:
            del self.coming[name]
            self.load[name] = 0
        self.going = {name: until for name, until in self.going.items() if until > now}
        self._place(wanted, chance)
        decision = decide(self.scaler, self.replicas, self.uses(), now)
        self._keep(decision, now)
        if len(self.load) + len(self.coming) < self.replicas:
            self.coming[f"pool-{self.number}"] = now + timedelta(minutes=20)
            self.number += 1
        elif len(self.load) + len(self.coming) > self.replicas:
            self._remove(now)

    def _place(self, wanted: int, chance: random.Random) -> None:
        while sum(self.load.values()) > wanted:
            name = chance.choice([each for each, used in self.load.items() if used])
            self.load[name] -= 1
        while sum(self.load.values()) < wanted:
            room = [each for each, used in self.load.items() if used < CAPACITY]
            if not room:
                self.homeless += 1
                return
            self.load[max(room, key=lambda each: self.load[each])] += 1

    def _keep(self, decision: Decision, now: datetime) -> None:
        status: Object = {"scaleDownSince": timestamp(decision.down_since)} if decision.down_since else {}
        known = self.scaler.status
        last = known.last_scale_time if known else None
        if decision.scaled:
            self.changes.append((now, decision.replicas - self.replicas))
            self.replicas, last = decision.replicas, timestamp(now)
        self.scaler = scaler_of({**status, **({"lastScaleTime": last} if last else {})})

    def _remove(self, now: datetime) -> None:
        """As the set does: the replica that is not ready first, and never a seed with Shoots."""
        if self.coming:
            del self.coming[next(iter(self.coming))]
            return
        empty = [each for each, used in self.load.items() if not used]
        assert empty, "the autoscaler asked for fewer seeds than are used"
        del self.load[empty[0]]
        self.going[empty[0]] = now + timedelta(minutes=10)


def _simulate(loads: list[int], seed: int = 1) -> Fleet:
    """An evaluation each 30 s; ``loads``: number of Shoots in each of them."""
    fleet, chance = Fleet(), random.Random(seed)
    for number, wanted in enumerate(loads):
        fleet.turn(NOW + number * timedelta(seconds=30), wanted, chance)
    return fleet


def _ramp(start: int, end: int, turns: int) -> list[int]:
    return [start + (end - start) * number // turns for number in range(turns)]


def test_the_fleet_grows_with_the_load_and_shrinks_with_it_without_flapping() -> None:
    day = 2880
    loads = _ramp(0, 220, day) + [220] * day + _ramp(220, 0, day) + [0] * day
    fleet = _simulate(loads)

    steps = [step for _, step in fleet.changes]
    assert fleet.homeless == 0
    assert (fleet.replicas, len(fleet.load)) == (1, 1)
    assert steps == [1] * 4 + [-1] * 4, "the fleet grows to five, and shrinks to one; no step is taken back"


@pytest.mark.parametrize("seed", range(5))
def test_a_load_that_varies_around_a_threshold_changes_the_fleet_once(seed: int) -> None:
    """Fifty Shoots of a hundred are the target: a few more need a second seed, a few less do not give it back."""
    chance = random.Random(seed)
    fleet = _simulate([chance.randint(47, 53) for _ in range(5 * 2880)], seed)

    assert [step for _, step in fleet.changes] == [1]


@pytest.mark.parametrize("seed", range(5))
def test_an_arbitrary_load_never_reverses_a_change_within_its_window(seed: int) -> None:
    chance, load, loads = random.Random(seed), 20, []
    for _ in range(5 * 2880):
        load = min(max(load + chance.choice((-1, -1, 0, 0, 0, 1, 1)), 0), 240)
        loads.append(load)
    fleet = _simulate(loads, seed)

    assert len(fleet.changes) > 2
    for (before, first), (after, second) in zip(fleet.changes, fleet.changes[1:], strict=False):
        if second < 0:
            assert after - before >= timedelta(seconds=600), f"{first:+} at {before}, {second:+} at {after}"
    assert fleet.homeless == 0
