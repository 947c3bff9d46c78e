from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.kube.api_server import ApiServer


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        yield server


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The agent's directory after a first boot."""
    directory = tmp_path / "state"
    (directory / "credentials").mkdir(parents=True)
    (directory / "machine-name").write_text("machine-1")
    (directory / "credentials/bootstrap-token").write_text("abcdef.0123456789abcdef")
    return directory
