"""For attacks through Temporal, and at a real API server."""

from collections.abc import Iterator

import pytest

from tests import temporal_dev_server
from tests.unit.conftest import kubernetes_is_built

__all__ = ["kubernetes_is_built"]


@pytest.fixture(scope="session")
def temporal_address() -> Iterator[str]:
    """A real server for all tests of a session."""
    with temporal_dev_server.dev_server() as address:
        yield address
