"""For all unit tests."""

import asyncio

import pytest
from hypothesis import settings

from landscape import binaries
from landscape.progress import Progress
from tests import object_stores

# How long a generated case takes says more about the machine's load than about us.
settings.register_profile("unhurried", deadline=None, max_examples=50)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def etcd_is_built() -> None:
    """Find etcd in the cache, download it, or compile it: half a minute, once."""
    asyncio.run(binaries.ensure((binaries.etcd(),), Progress(quiet=True)))


@pytest.fixture(scope="session")
def object_store_is_built() -> None:
    """Find the landscape's object store in the cache, or compile it: a minute, once."""
    object_stores.build()


@pytest.fixture(scope="session")
def kubernetes_is_built() -> None:
    """Find etcd and Kubernetes in the cache, download them, or compile them: minutes, once."""
    asyncio.run(binaries.ensure(binaries.cluster_tools(), Progress(quiet=True)))
