import pytest

from tests.unit.kube.api_server import ApiServer


@pytest.fixture
async def api():
    async with ApiServer().running() as server:
        yield server


@pytest.fixture
async def client(api):
    async with api.client() as client:
        yield client
