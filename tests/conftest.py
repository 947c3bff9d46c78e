"""Fixtures of all tests: a landscape that is brought up once for all of them, and taken down after the last.

``GARDENER_TEST_LANDSCAPE=NAME`` uses a landscape that is up already, and leaves it up: for those who write tests.
``GARDENER_TEST_KEEP=1`` leaves the Shoot of the tests, too; the next run finds it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.landscape.conftest import Landscape

if TYPE_CHECKING:
    from tests.landscape.shoots import Shoot

_SECURITY = Path(__file__).parent / "security"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit landscape tests to 300 s each, and run the attacks on the landscape before its other tests.

    The limit is of the test function alone, because the first test waits until the landscape is up. Attacks use the
    shared Shoot, and the last test of tests/landscape/test_shoot.py deletes it.
    """
    for item in items:
        if item.get_closest_marker("landscape") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300, func_only=True))
    items.sort(key=lambda item: not (item.get_closest_marker("landscape") and _SECURITY in item.path.parents))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were run again: pytest tells it only of those that failed in the end."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_sep("_", f"{report.nodeid}, run again")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="session")
def landscape() -> Iterator[Landscape]:
    """A landscape that is up. A test that breaks something in it mends it."""
    if name := os.environ.get("GARDENER_TEST_LANDSCAPE"):
        yield Landscape(name)
        return
    landscape = Landscape("test")
    landscape.up()
    yield landscape
    landscape.down()


@pytest.fixture(scope="session")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Shoot]":
    """The Shoot with two machines that tests share, created. Its deletion is the last of the tests in test_shoot."""
    from tests.landscape.shoots import CREATION, Shoot

    shoot = Shoot(landscape, "tests", tmp_path_factory.mktemp("kubeconfigs"))
    shoot.apply(shoot.manifest(machines=2))
    shoot.wait_for_state("Succeeded", CREATION)
    yield shoot
    if not os.environ.get("GARDENER_TEST_KEEP"):
        shoot.remove()
