"""Processes are ended only if the landscape started them, and started again if they die."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from landscape.errors import LandscapeError
from landscape.keeper import Keeper
from landscape.processes import Processes, ProcessSpec, go_environment, start_time

SLEEPER = ProcessSpec("seed-1/sleeper", ("sleep", "300"))
STUBBORN = ProcessSpec("stubborn", ("sh", "-c", "trap '' TERM; echo trapped; sleep 300 & wait; wait"))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path / "processes", tmp_path / "logs")
    yield processes
    processes.stop(list(processes.all()), grace=0.2)


def test_a_started_process_is_found_by_a_later_command(processes, tmp_path):
    started = processes.start(SLEEPER)

    found = Processes(tmp_path / "processes", tmp_path / "logs").get("seed-1/sleeper")

    assert found == started
    assert found.alive


def test_starting_twice_starts_once(processes):
    assert processes.start(SLEEPER).pid == processes.start(SLEEPER).pid


def test_a_process_with_other_arguments_replaces_the_old_one(processes):
    old = processes.start(SLEEPER)

    new = processes.start(ProcessSpec("seed-1/sleeper", ("sleep", "301")))

    assert not old.alive
    assert new.alive
    assert len(list(processes.all())) == 1


def test_output_goes_to_the_log_of_the_process(processes, tmp_path):
    processes.start(ProcessSpec("talker", ("sh", "-c", "echo out; echo err >&2; sleep 300")))

    _eventually(lambda: processes.log("talker").read_text() == "out\nerr\n")
    assert processes.log("talker") == tmp_path / "logs" / "talker.log"


def test_a_process_gets_no_secret_from_our_environment(processes, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SENTINEL")
    processes.start(ProcessSpec("env", ("sh", "-c", "env; echo done; sleep 300"), environment={"GOGC": "50"}))

    _eventually(lambda: "done" in processes.log("env").read_text())
    assert "SENTINEL" not in processes.log("env").read_text()
    assert "GOGC=50" in processes.log("env").read_text()


@pytest.mark.parametrize(("gibibytes", "chosen"), [(4, "75"), (8, "150")])
def test_go_collects_garbage_more_seldom_where_memory_is_ample(monkeypatch, gibibytes, chosen):
    monkeypatch.delenv("GOGC", raising=False)
    monkeypatch.setattr("landscape.processes._memory", lambda: gibibytes * 2**30 * 0.97)

    assert go_environment(75) == {"GOGC": chosen}


def test_our_environment_decides_when_go_collects_garbage(monkeypatch):
    monkeypatch.setenv("GOGC", "400")

    assert go_environment(75) == {"GOGC": "400"}


def test_a_missing_program_is_named(processes):
    with pytest.raises(LandscapeError, match="starting broken: No such file or directory: /no/such/program"):
        processes.start(ProcessSpec("broken", ("/no/such/program",)))


def test_a_foreign_process_with_a_reused_pid_is_never_signalled(processes, tmp_path):
    """After a reboot our pid files name other people's processes."""
    running = processes.start(SLEEPER)
    file = tmp_path / "processes" / "seed-1-sleeper.json"
    record = json.loads(file.read_text())
    with subprocess.Popen(["sleep", "300"]) as foreign:
        try:
            file.write_text(json.dumps(record | {"pid": foreign.pid, "start_time": record["start_time"] - 100}))

            stale = processes.get("seed-1/sleeper")
            assert not stale.alive
            assert processes.send(stale, signal.SIGKILL) is False
            processes.stop([stale])

            assert foreign.poll() is None
        finally:
            foreign.kill()
            os.kill(running.pid, signal.SIGKILL)


def test_stopping_asks_politely_and_then_insists(processes):
    running = processes.start(STUBBORN)
    _eventually(lambda: "trapped" in processes.log("stubborn").read_text())

    processes.stop([running], grace=0.2)

    assert not running.alive
    assert list(processes.all()) == []


def test_a_paused_process_is_seen_as_such_and_can_be_stopped(processes):
    running = processes.start(SLEEPER)

    assert processes.send(running, signal.SIGSTOP)
    _eventually(lambda: running.stopped)
    assert running.alive
    processes.stop([running], grace=2.0)

    assert not running.alive


def test_an_unknown_process_is_answered_with_the_known_ones(processes):
    processes.start(SLEEPER)

    with pytest.raises(LandscapeError, match="no process 'seed-1/kubelet': there are seed-1/sleeper"):
        processes.get("seed-1/kubelet")


def test_a_process_that_dies_again_and_again_is_hopeless(processes):
    for _ in range(4):
        dead = processes.find("loser")
        if dead is None:
            processes.start(ProcessSpec("loser", ("sh", "-c", "echo no such flag; exit 1")))
        else:
            processes.restart(dead)
        _eventually(lambda: not processes.get("loser").alive)

    assert "loser ended 4 times" in (processes.hopeless("loser") or "")
    assert "no such flag" in (processes.hopeless("loser") or "")


def test_a_single_end_of_a_process_is_tolerated(processes):
    processes.start(ProcessSpec("loser", ("false",)))
    _eventually(lambda: not processes.get("loser").alive)

    assert processes.hopeless("loser") is None


class TestKeeper:
    """The keeper runs as a process of its own; here as one, too."""

    @pytest.fixture
    def keeper(self, processes: Processes, tmp_path: Path) -> None:
        command = (sys.executable, "-m", "landscape.keeper", str(tmp_path / "processes"), str(tmp_path / "logs"))
        processes.start(ProcessSpec("keeper", command, directory=str(Path(__file__).parents[3])))

    def test_a_killed_process_runs_again(self, processes, keeper):
        first = processes.start(SLEEPER)

        processes.send(first, signal.SIGKILL)

        _eventually(lambda: processes.get("seed-1/sleeper").alive and processes.get("seed-1/sleeper") != first)
        assert processes.get("seed-1/sleeper").starts == 2

    def test_a_stopped_process_stays_stopped(self, processes, keeper, tmp_path):
        running = processes.start(SLEEPER)
        other = processes.start(ProcessSpec("other", ("sleep", "300")))
        processes.stop([running])

        processes.send(other, signal.SIGKILL)  # once the keeper has dealt with this, it has seen the rest
        _eventually(lambda: processes.get("other").starts == 2)

        assert processes.find("seed-1/sleeper") is None

    def test_a_paused_process_is_left_alone(self, processes, keeper):
        running = processes.start(SLEEPER)
        other = processes.start(ProcessSpec("other", ("sleep", "300")))
        processes.send(running, signal.SIGSTOP)

        processes.send(other, signal.SIGKILL)
        _eventually(lambda: processes.get("other").starts == 2)

        assert processes.get("seed-1/sleeper") == running


def test_a_failing_process_is_started_less_and_less_often(processes, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("landscape.keeper.time.monotonic", lambda: clock[0])
    keeper = Keeper(processes)
    processes.start(ProcessSpec("loser", ("false",)))
    delays = []
    for _ in range(8):
        _eventually(lambda: not processes.get("loser").alive)
        keeper._discover()
        delays.append(keeper._watched["loser"].restart_at - clock[0])
        clock[0] += delays[-1]
        keeper._restart()

    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]


def test_start_time_tells_processes_apart():
    assert start_time(os.getpid()) == start_time(os.getpid())
    assert start_time(2**22 - 1) is None


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in 20 s"
        time.sleep(0.02)
