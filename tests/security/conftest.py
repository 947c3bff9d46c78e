"""For attacks through Temporal."""

from collections.abc import Iterator

import pytest

from tests import temporal_dev_server


@pytest.fixture(scope="session")
def temporal_address() -> Iterator[str]:
    """A real server for all tests of a session."""
    with temporal_dev_server.dev_server() as address:
        yield address
