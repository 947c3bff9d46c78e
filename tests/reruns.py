"""Limits each run of a test that runs again after a failure.

pytest-timeout starts the clock of a test once for all of its runs. Without this, the run after one that took too long
has no limit: it may hang forever, or pass however long it takes.
"""

from typing import Any

import pytest

_LIMIT = pytest.StashKey[Any]()
"""Settings of pytest-timeout for a test."""


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    item.stash[_LIMIT] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    runs = getattr(item, "execution_count", 1)
    # A limit of the test function alone starts again with each call.
    if runs > 1 and _LIMIT in item.stash and not item.stash[_LIMIT].func_only:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=item.stash[_LIMIT])
