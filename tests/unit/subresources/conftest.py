from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.garden_api_server import Garden, api_server, garden_of
from tests.gardens import ApiServer


@pytest.fixture(scope="session")
def server(kubernetes_is_built: None) -> Iterator[ApiServer]:
    """One real API server for all tests of a session."""
    with api_server() as made:
        yield made


@pytest.fixture
async def garden(server: ApiServer, tmp_path: Path) -> AsyncIterator[Garden]:
    async with garden_of(server, tmp_path) as made:
        yield made
