"""A control plane moves, or is taken over, while anything breaks: never do two seeds serve, and promises are kept.

A run that fails prints its seed and what happened in it; ``python -m tests.simulation SEED`` repeats it.
"""

from pathlib import Path

import pytest

from tests.simulation.takeover import simulate
from tests.simulation.variants import VARIANTS, Tried
from tests.simulation.world import Variant

SOAK = 1000
PER_TEST = 50


@pytest.mark.parametrize("seed", range(PER_TEST))
def test_no_two_seeds_serve_and_nothing_promised_is_lost(seed: int, tmp_path: Path) -> None:
    report = simulate(seed, tmp_path)
    assert not report.violations, str(report)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(PER_TEST, PER_TEST + SOAK, PER_TEST))
def test_no_two_seeds_serve_in_a_thousand_runs(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + PER_TEST):
        report = simulate(seed, tmp_path)
        assert not report.violations, str(report)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each.name)
def test_the_checker_fails_without_each_part_of_the_protocol(variant: Variant, tmp_path: Path) -> None:
    """Without each part of the protocol something goes wrong that goes well with it."""
    reports = (simulate(seed, tmp_path, variant) for seed in range(60))
    noticed = next(each for each in reports if each.violations)
    assert variant.noticed_as in noticed.violations[0], str(noticed)
    ours = simulate(noticed.seed, tmp_path, Tried(variant))
    assert not ours.violations, str(ours)


def test_the_same_random_seed_repeats_the_same_run(tmp_path: Path) -> None:
    """Otherwise a failed run could not be examined."""
    first, second = (simulate(7, tmp_path / each) for each in ("a", "b"))
    assert first.trace == second.trace
