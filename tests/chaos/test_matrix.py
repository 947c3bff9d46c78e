"""Processes are killed at points of a Seed's flows, at real servers: nothing is doubled, and nothing is left out.

``make chaos`` kills at every point with the product's timeouts; here some points of each flow are enough, and a short
heartbeat timeout. The ledger must find the planted faults of the creation, and no other.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api.contracts.operations import OperationType
from tests.chaos.matrix import OPERATIONS, all_points, falls_of, matrix
from tests.chaos.plants import PLANTS, planted_points, shows
from tests.chaos.points import Moment
from tests.chaos.stage import SERVERS, Stage, stage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(900, func_only=True),
]
_HEARTBEAT = 1.0
_EACH = 7
"""One point of seven: another moment of another task each time."""


@pytest.fixture
async def servers(tmp_path: Path, kubernetes_is_built: None) -> AsyncIterator[Stage]:
    async with stage(tmp_path) as made:
        yield made


async def test_kills_double_nothing_and_leave_nothing_out_but_for_planted_faults(servers: Stage) -> None:
    async with servers.workers(planted=True, heartbeat=_HEARTBEAT):
        undisturbed = await servers.operate(OperationType.CREATE)
        await servers.clean()
        await servers.operate(OperationType.DELETE)
        points = sorted({*all_points(OperationType.CREATE, undisturbed)[::_EACH], *planted_points()})
        assert {point.moment for point in points} == set(Moment)
        result = await matrix(servers, OperationType.CREATE, undisturbed, points, {})
    print(result.row())
    assert result.missed == []
    assert result.effects > 60
    assert result.resumes.keys() == set(points)
    for plant in PLANTS:
        assert any(shows(plant, finding) for finding in result.findings), plant.__name__
    assert [finding for finding in result.findings if "default/planted-" not in finding.what] == []


async def test_kills_and_falls_of_servers_double_nothing_and_leave_nothing_out(servers: Stage) -> None:
    async with servers.workers(heartbeat=_HEARTBEAT):
        undisturbed = {each: await servers.operate(each) for each in OPERATIONS}
        for each in OPERATIONS:
            points = all_points(each, undisturbed[each])[::_EACH]
            result = await matrix(servers, each, undisturbed[each], points, falls_of(each, SERVERS))
            print(result.row())
            assert result.missed == []
            assert sorted(fall.server for fall in result.falls) == sorted(SERVERS)
            assert result.findings == []
