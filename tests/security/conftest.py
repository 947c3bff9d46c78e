"""For attacks at real servers."""

import asyncio
from collections.abc import Iterator

import pytest

from landscape import binaries
from landscape.progress import Progress
from tests import temporal_dev_server


@pytest.fixture(scope="session")
def temporal_address() -> Iterator[str]:
    """A real server for all tests of a session."""
    with temporal_dev_server.dev_server() as address:
        yield address


@pytest.fixture(scope="session")
def kubernetes_is_built() -> None:
    """Find etcd and Kubernetes in the cache, download them, or compile them: minutes, once."""
    asyncio.run(binaries.ensure(binaries.cluster_tools(), Progress(quiet=True)))
