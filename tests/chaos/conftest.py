"""Programs that tests of this folder need."""

import asyncio

import pytest

from landscape import binaries
from landscape.progress import Progress


@pytest.fixture(scope="session")
def kubernetes_is_built() -> None:
    """Find etcd and Kubernetes in the cache, download them, or compile them: minutes, once."""
    asyncio.run(binaries.ensure(binaries.cluster_tools(), Progress(quiet=True)))
