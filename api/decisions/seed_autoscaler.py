"""Decides how many replicas a ManagedSeedSet should have, by the use of its seeds. Source: GEP-13; decision record 21.

The number depends on what is used in all, not on the present number of replicas. So a second decision before the first
one has taken effect asks for the same number. A seed is removed only if the remaining ones stay below the target by a
tolerance, if this was so for the whole stabilization window, and if no change was made within the cooldown: a load that
varies around the target changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil, floor

from api.quantities import parse_quantity
from api.seedmanagement.v1alpha1.seed_autoscaler import Metric, ScalingRules, SeedAutoscaler

UP = ScalingRules(stabilization_window_seconds=0, cooldown_seconds=60)
DOWN = ScalingRules(stabilization_window_seconds=600, cooldown_seconds=600)
TOLERANCE_PERCENT = 10


@dataclass(frozen=True)
class SeedUse:
    """One replica of the set."""

    name: str
    used: int
    """Number of Shoots that its Seed hosts or is about to host."""
    allocatable: int | None
    """Number of Shoots that the Seed has capacity for; None if the Seed does not exist, or does not tell it."""
    ready: bool
    removable: bool
    """Whether the set may remove the replica: it has no Shoots and no protection."""


@dataclass(frozen=True)
class Decision:
    replicas: int
    """Number of replicas to set; the present number if nothing changes."""
    reason: str
    message: str
    active: bool = True
    """False: the metric cannot be computed."""
    limited: str = ""
    """Why the number is not the recommended one; empty if it is."""
    down_since: datetime | None = None
    """Time since which fewer replicas have been enough."""
    scaled: bool = False


def decide(scaler: SeedAutoscaler, replicas: int, seeds: Sequence[SeedUse], now: datetime) -> Decision:
    """Number of replicas that the set should have.

    ``replicas``: the number in the spec of the set. ``seeds``: its replicas, also those that are not ready yet.
    """
    spec, status = scaler.spec, scaler.status
    low, high = spec.min_replicas, max(spec.max_replicas, spec.min_replicas)
    since = _time(status.scale_down_since if status else None)
    # No number below this one can be reached: the set removes no replica that is in use or protected.
    floor_ = sum(not each.removable for each in seeds)
    bounded = max(min(replicas, high), low)
    if bounded != replicas:
        target = max(bounded, min(floor_, replicas))
        if target != replicas:
            return Decision(
                target, "OutOfBounds", f"the set has {replicas} replicas, allowed are {low} to {high}", scaled=True
            )
    try:
        enough, wanted = _recommended(scaler, seeds)
    except _NoMetric as error:
        return Decision(replicas, "FailedGetResourceMetric", str(error), active=False)
    limit = _limit(wanted, low, high)
    if wanted > replicas and replicas < high:
        return _up(scaler, replicas, min(wanted, high), limit, now)
    down = max(enough, low, floor_)
    if down >= replicas:
        return Decision(replicas, "DesiredWithinRange", "the number of replicas is right", limited=limit)
    return _down(scaler, replicas, since or now, now)


def _up(scaler: SeedAutoscaler, replicas: int, wanted: int, limit: str, now: datetime) -> Decision:
    rules = _rules(scaler.spec.behavior.scale_up if scaler.spec.behavior else None, UP)
    if left := _cooldown(scaler, rules, now):
        return Decision(replicas, "BackoffBoth", f"{wanted} replicas are needed; next change in {left:.0f} s")
    return Decision(wanted, "SucceededRescale", f"{wanted} replicas are needed", limited=limit, scaled=True)


def _down(scaler: SeedAutoscaler, replicas: int, since: datetime, now: datetime) -> Decision:
    """One replica less, if fewer have been enough for long."""
    rules = _rules(scaler.spec.behavior.scale_down if scaler.spec.behavior else None, DOWN)
    window = timedelta(seconds=rules.stabilization_window_seconds or 0)
    waits = max((since + window - now).total_seconds(), _cooldown(scaler, rules, now))
    if waits > 0:
        text = f"fewer replicas are enough since {since:%H:%M:%S}; the next one goes in {waits:.0f} s"
        return Decision(replicas, "ScaleDownStabilized", text, down_since=since)
    # The window of the next removal begins with this one.
    return Decision(replicas - 1, "SucceededRescale", "fewer replicas are enough", down_since=now, scaled=True)


class _NoMetric(Exception):
    """The use of the seeds cannot be computed; the text gives the reason."""


def _recommended(scaler: SeedAutoscaler, seeds: Sequence[SeedUse]) -> tuple[int, int]:
    """Number of replicas that would be enough with the tolerance, and number that is needed."""
    used = sum(each.used for each in seeds)
    tolerance = scaler.spec.behavior.tolerance_percent if scaler.spec.behavior else TOLERANCE_PERCENT
    enough, wanted = [], []
    for metric in scaler.spec.metrics:
        share = _per_seed(metric, seeds)
        enough.append(_needed(used, share * (100 - tolerance) / 100))
        wanted.append(_needed(used, share))
    capacity = _capacity(seeds)
    if capacity is not None:
        # One Shoot more must find a place: at a target of 100 %, full seeds would otherwise be right.
        spare = floor(used / capacity) + 1
        enough, wanted = [*enough, spare], [*wanted, spare]
    return max(enough), max(wanted)


def _needed(used: int, share: Fraction) -> int:
    return ceil(used / share)


def _per_seed(metric: Metric, seeds: Sequence[SeedUse]) -> Fraction:
    """Number of Shoots that each seed should host on average."""
    target = metric.resource.target
    if target.type == "AverageValue":
        return Fraction(parse_quantity(target.average_value or 0))
    capacity = _capacity(seeds)
    if capacity is None:
        raise _NoMetric(
            "no ready seed of the set tells status.allocatable.shoots: set resources.capacity.shoots in the "
            "configuration of their gardenlets"
        )
    return capacity * Fraction(target.average_utilization or 100, 100)


def _capacity(seeds: Sequence[SeedUse]) -> Fraction | None:
    """Number of Shoots that a seed of the set has capacity for, on average; None if no seed tells it.

    Seeds that do not exist yet will be of the same template, so they count as the average.
    """
    known = [each.allocatable for each in seeds if each.ready and each.allocatable]
    return Fraction(sum(known), len(known)) if known else None


def _limit(wanted: int, low: int, high: int) -> str:
    if wanted > high:
        return f"{wanted} replicas are needed, maxReplicas allows {high}"
    return f"{wanted} replicas are needed, minReplicas keeps {low}" if wanted < low else ""


def _cooldown(scaler: SeedAutoscaler, rules: ScalingRules, now: datetime) -> float:
    """Seconds until the next change is allowed; 0 if it is."""
    last = _time(scaler.status.last_scale_time if scaler.status else None)
    if last is None:
        return 0.0
    return max((last + timedelta(seconds=rules.cooldown_seconds or 0) - now).total_seconds(), 0.0)


def _rules(given: ScalingRules | None, default: ScalingRules) -> ScalingRules:
    window, cooldown = default.stabilization_window_seconds, default.cooldown_seconds
    if given is not None and given.stabilization_window_seconds is not None:
        window = given.stabilization_window_seconds
    if given is not None and given.cooldown_seconds is not None:
        cooldown = given.cooldown_seconds
    return ScalingRules(stabilization_window_seconds=window, cooldown_seconds=cooldown)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
