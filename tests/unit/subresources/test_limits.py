"""Limits of one user's requests, by a clock of the test."""

import contextlib
from dataclasses import dataclass

import pytest

from workers.subresources import limits
from workers.subresources.limits import UserLimits, Users
from workers.subresources.refusals import Refusal


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def served(users: Users, name: str, times: int) -> int:
    """Number of requests that are served, of ``times`` at once."""
    done = 0
    for _ in range(times):
        with contextlib.suppress(Refusal), users.request(name):
            done += 1
    return done


def users_of(clock: Clock, **values: float) -> Users:
    return Users(UserLimits.model_validate({"requestsPerSecond": 2, "burst": 10, "atOnce": 2} | values), clock)


def test_a_user_has_a_burst_and_then_requests_at_a_rate() -> None:
    clock = Clock()
    users = users_of(clock)

    assert served(users, "alice", 50) == 10
    clock.now += 3
    assert served(users, "alice", 50) == 6
    clock.now += 3600
    assert served(users, "alice", 50) == 10, "a pause gives one burst, and not more"


def test_a_refusal_says_when_the_next_request_is_served() -> None:
    clock = Clock()
    users = users_of(clock, requestsPerSecond=0.1)
    assert served(users, "alice", 10) == 10

    with pytest.raises(Refusal) as refused, users.request("alice"):
        pass
    seconds = int(refused.value.headers["Retry-After"])
    assert seconds == 10
    clock.now += seconds - 1
    assert served(users, "alice", 1) == 0
    clock.now += 1
    assert served(users, "alice", 1) == 1


def test_the_log_names_the_user_and_is_not_filled(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    users = users_of(clock)

    for _ in range(3):
        assert served(users, "alice", 1000) < 1000
        clock.now += 4
    assert [each.getMessage() for each in caplog.records] == [
        "user 'alice' gets status 429: more requests than limitsOfUsers allows"
    ]
    clock.now += 2
    assert served(users, "alice", 1000) < 1000
    assert len(caplog.records) == 2


def test_a_place_of_a_user_is_free_after_an_error() -> None:
    users = users_of(Clock())
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"), users.request("alice"):
            raise ValueError("broken")


def test_memory_is_bounded_by_number_and_size_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users that may ask for a whole burst again are forgotten first: they are as users that never asked."""
    monkeypatch.setattr(limits, "_USERS", 5)
    clock = Clock()
    users = users_of(clock)
    assert served(users, "x" * 100_000, 1) == 1
    clock.now += 1
    assert served(users, "alice", 20) == 10
    assert len(users._rested) == 1
    for number in range(4):
        assert served(users, f"user-{number}", 1) == 1
    assert served(users, "alice", 1) == 0, "four other users do not make it forget alice"
    for number in range(100):
        assert served(users, f"user-{number}", 1) == 1
    assert len(users._rested) == 5
    assert all(len(key) == 32 for key in users._rested)
    assert not users._running
