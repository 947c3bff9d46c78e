"""Watches of the garden are disturbed: controllers end in the same state, and delete or release nothing that is used.

A run that fails prints its seed and what happened in it; ``python -m tests.simulation.watches SEED`` repeats it.
"""

import pytest

from tests.simulation.watches import Trusting, simulate

RUNS = 200
SOAK = 10_000
PER_TEST = 20


def play(first: int, number: int) -> None:
    for seed in range(first, first + number):
        report = simulate(seed)
        assert not report.violations, str(report)


@pytest.mark.parametrize("first", range(0, RUNS, PER_TEST))
def test_disturbed_watches_change_nothing_in_the_end(first: int) -> None:
    play(first, PER_TEST)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(RUNS, RUNS + SOAK, 10 * PER_TEST))
def test_disturbed_watches_change_nothing_in_ten_thousand_runs(first: int) -> None:
    play(first, 10 * PER_TEST)


def test_a_shoot_whose_predecessor_is_reported_late_as_deleted_gets_its_signal() -> None:
    """Found by the soak: the cache dropped the Shoot, and its watcher held the next report of it for known."""
    play(1989, 1)


def test_controllers_that_trust_an_old_list_are_noticed() -> None:
    """A controller that deletes or releases an object must read the users of the object from the API server."""
    noticed = next(each for each in (simulate(seed, Trusting) for seed in range(60)) if each.violations)
    assert any("although" in each for each in noticed.violations), str(noticed)


def test_the_same_seed_repeats_the_same_run() -> None:
    """Otherwise a failed run could not be examined."""
    assert simulate(7).trace == simulate(7).trace
