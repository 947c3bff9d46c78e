"""Fixtures of all tests: a landscape that is brought up once for all of them, and taken down after the last.

Several processes may share it (``--numprocesses 2 --dist loadfile --no-loadscope-reorder``): the first one brings it
up, the last one takes it down. A test that breaks something in it (marker ``chaos``) has it to itself.

``GARDENER_TEST_LANDSCAPE=NAME`` uses a landscape that is up already, and leaves it up: for authors of tests.
``GARDENER_TEST_KEEP=1`` leaves the Shoot of the tests, too; the next run finds it.
"""

import contextlib
import fcntl
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.landscape.conftest import Landscape
from tests.reruns import pytest_runtest_setup, pytest_timeout_set_timer  # noqa: F401 - hooks

if TYPE_CHECKING:
    from tests.landscape.shoots import Shoot

_HERE = Path(__file__).parent
_LANDSCAPE = _HERE / "landscape"
_SECURITY = _HERE / "security"
_WORKFLOW = _HERE / "workflow"
_BESIDE_OTHERS = {
    *(_LANDSCAPE / f"test_{name}.py" for name in ("bad_input", "extensions", "issuer", "own_credentials")),
    _SECURITY / "test_temporal_on_a_landscape.py",
}
"""Files whose tests use a landscape, but not the Shoot that tests share, and break nothing. They run beside the
others."""
_DELETES_THE_SHARED_SHOOT = _LANDSCAPE / "test_shoot.py"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return _ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


class _ByFile(LoadScopeScheduling):
    """Gives each file to one process, and the files with the shared Shoot to the same one.

    pytest-xdist has groups for that (``--dist loadgroup``), but pytest 9.2 does not tell it of them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "one process" if _in_one_process(self.config.rootpath / file) else file


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark, limit and order the tests.

    Each test in tests/landscape is one of the landscape. Those are limited to 300 s each; the limit is of the test
    function alone, because the first test waits until the landscape is up.
    """
    for item in items:
        if _LANDSCAPE in item.path.parents:
            item.add_marker(pytest.mark.landscape)
        if _has(item, "landscape") and not _has(item, "timeout"):
            item.add_marker(pytest.mark.timeout(300, func_only=True))
        for marker in ("binaries", "landscape"):
            if _has(item, marker) and item.path not in _files_with(marker):
                raise pytest.UsageError(f"{item.nodeid}: write mark.{marker} in its file, where make test looks for it")
        if item.path in _BESIDE_OTHERS and (_has(item, "chaos") or _uses_the_shared_shoot(item)):
            raise pytest.UsageError(f"{item.nodeid} cannot run beside others: take its file out of {__file__}")
    items.sort(key=_place)


@functools.cache
def _files_with(marker: str) -> frozenset[Path]:
    """Files that ``make test`` reads for the tests with a marker."""
    files = frozenset(each for each in _HERE.rglob("test_*.py") if f"mark.{marker}" in each.read_text())
    return files | frozenset(_LANDSCAPE.glob("test_*.py")) if marker == "landscape" else files


def _in_one_process(file: Path) -> bool:
    uses_a_landscape = _LANDSCAPE in file.parents or file.name.endswith("_on_a_landscape.py")
    return uses_a_landscape and file not in _BESIDE_OTHERS


def _has(node: pytest.Item | pytest.Module, marker: str) -> bool:
    return node.get_closest_marker(marker) is not None


def _uses_the_shared_shoot(item: pytest.Function) -> bool:
    """Whether ``shoot`` is the fixture of this file; some files have one of their own."""
    return _has(item, "landscape") and "shoot" in item.fixturenames and not hasattr(item.module, "shoot")


def _place(item: pytest.Function) -> tuple[int, int]:
    """Files that take longest begin first; of those with the shared Shoot, the one that deletes it is the last.

    Files that only need root begin the second process: meanwhile the first one gets the landscape to itself, for the
    tests that break something.
    """
    if _in_one_process(item.path):
        if _has(item, "chaos"):
            return 0, 0
        return 0, 1 if _SECURITY in item.path.parents else 2 if item.path != _DELETES_THE_SHARED_SHOOT else 3
    if _has(item, "landscape"):
        return 1, 1 if "landscape" in item.fixturenames else 0
    return (3, 0) if _WORKFLOW in item.path.parents else (4, 0)


class _ReasonsAtOnce:
    """Prints why a test failed, in one line, when it fails: a run that is killed ends without pytest's report."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome not in ("passed", "skipped"):
            reason = getattr(getattr(report.longrepr, "reprcrash", None), "message", "") or report.longreprtext
            self._reporter.write_line(f"\n{report.nodeid}, {report.when}: {' '.join(reason.split())[:500]}")


@pytest.hookimpl(trylast=True)  # the reporter is registered before
def pytest_configure(config: pytest.Config) -> None:
    if reporter := config.pluginmanager.get_plugin("terminalreporter"):
        config.pluginmanager.register(_ReasonsAtOnce(reporter))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report why tests were run again: pytest reports it only for tests that failed in the end."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_sep("_", f"{report.nodeid}, run again")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A directory that all processes of this run share."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@pytest.fixture(scope="session", autouse=True)
def take_down_after_the_last_process(run_directory: Path) -> Iterator[None]:
    """Take the landscape down once no process of this run is left that may use it."""
    with (run_directory / "landscape.users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (run_directory / "landscape").exists():
                Landscape((run_directory / "landscape").read_text()).down()


@pytest.fixture(scope="session")
def landscape(run_directory: Path) -> Landscape:
    """A landscape that is up. A test that breaks a part of it repairs it."""
    if name := os.environ.get("GARDENER_TEST_LANDSCAPE"):
        return Landscape(name)
    landscape, is_up, begun = Landscape("test"), run_directory / "landscape", run_directory / "landscape.begun"
    with (run_directory / "landscape.up").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_up.exists():
            if not begun.exists():
                landscape.down()  # a run that was killed leaves its own up, with processes of its checkout
                begun.touch()
            with _two_attempts(run_directory, "landscape"):
                landscape.up()
            is_up.write_text(landscape.name)
    return landscape


@contextlib.contextmanager
def _two_attempts(run_directory: Path, what: str) -> Iterator[None]:
    """Make something that many tests share. After two failures the others fail at once: each would wait for minutes."""
    attempts = run_directory / f"attempts at the shared {what}"
    begun = len(attempts.read_text()) if attempts.exists() else 0
    if begun == 2:
        pytest.fail(f"the shared {what} could not be made twice: read why in the first test that needs it")
    attempts.write_text("x" * (begun + 1))
    yield
    attempts.unlink()


class Turns:
    """The right of this process to use the landscape, alone or with others."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a")
        self._door = file.with_suffix(".door").open("a")
        self._held = fcntl.LOCK_UN

    def take(self, kind: int) -> None:
        """Wait for a lock of the landscape: exclusive, shared or none.

        The process keeps an exclusive lock from one file that breaks something to the next. Between two other files it
        gives its lock back, so that another process may get an exclusive one. A process that waits for its lock holds
        the door: otherwise one that shares the landscape, and takes its next lock at once, would always be the first.
        """
        if (kind, self._held) == (fcntl.LOCK_EX, fcntl.LOCK_EX):
            return
        fcntl.flock(self._file, fcntl.LOCK_UN)
        if kind != fcntl.LOCK_UN:
            fcntl.flock(self._door, fcntl.LOCK_EX)
            fcntl.flock(self._file, kind)
            fcntl.flock(self._door, fcntl.LOCK_UN)
        self._held = kind

    def close(self) -> None:
        self._file.close()
        self._door.close()


@pytest.fixture(scope="session")
def turns(run_directory: Path) -> Iterator[Turns]:
    with contextlib.closing(Turns(run_directory / "landscape.turn")) as turns:
        yield turns


@pytest.fixture(scope="module", autouse=True)
def turn(request: pytest.FixtureRequest, turns: Turns) -> None:
    """A file with tests that break something has the landscape to itself; other files that use it share it."""
    of_file = (each for each in request.session.items if isinstance(each, pytest.Function))
    if not any("landscape" in each.fixturenames for each in of_file if each.path == request.path):
        turns.take(fcntl.LOCK_UN)
    else:
        turns.take(fcntl.LOCK_EX if _has(request.node, "chaos") else fcntl.LOCK_SH)


@pytest.fixture(scope="session")
def shoot(
    landscape: Landscape, run_directory: Path, worker_id: str, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[Shoot]":
    """The Shoot with two machines that tests share, created. Its deletion is the last of the tests in test_shoot."""
    from tests.landscape.shoots import CREATION, Shoot

    owner = run_directory / "owner of the shared Shoot"
    if owner.exists() and owner.read_text() != worker_id:
        pytest.fail(f"{owner.read_text()} has the shared Shoot, so {worker_id} must not use it: --dist loadfile")
    owner.write_text(worker_id)
    shoot = Shoot(landscape, "tests", tmp_path_factory.mktemp("kubeconfigs"))
    with _two_attempts(run_directory, "Shoot"):
        shoot.apply(shoot.manifest(machines=2))
        shoot.wait_for_state("Succeeded", CREATION)
    yield shoot
    if not os.environ.get("GARDENER_TEST_KEEP"):
        shoot.remove()
