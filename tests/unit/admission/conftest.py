"""The webhook server with a garden in memory."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.unit.admission.webhooks import FakeGarden
from workers.admission.app import application


@pytest.fixture
def garden() -> FakeGarden:
    return FakeGarden()


@pytest.fixture
async def client(garden: FakeGarden) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(application(garden))) as client:
        yield client
