"""An extension wants to go on with control planes that another seed may have; a real API server refuses."""

import pytest

from api import resources
from api.constants import OWNERSHIP_LEASE
from kube.errors import Forbidden
from tests.unit.extension.test_ownership import CORE, SOURCE, Seed, seeds
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until

__all__ = ["seeds"]

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(180)]


@pytest.mark.attack(actor="T4", asset="A2", finding=14)
async def test_an_extension_extends_the_lease_that_says_when_it_must_stop_and_is_refused(
    seeds: list[Seed],
) -> None:
    """It may read this Lease of namespace garden, and no other one."""
    source, _ = seeds
    async with GardenServer().running() as garden, garden.client() as client:
        garden.put(f"{CORE}/seeds", {"metadata": {"name": SOURCE}, "spec": {}})
        async with source.running(client):
            await until(source.has_lease)

            async def readable() -> bool:
                try:
                    return await source.extension.find(resources.LEASE, OWNERSHIP_LEASE, "garden") is not None
                except Forbidden:
                    return False

            await until(readable)
            later = {"spec": {"renewTime": "2099-01-01T00:00:00.000000Z"}}
            with pytest.raises(Forbidden):
                await source.extension.patch(resources.LEASE, OWNERSHIP_LEASE, "garden", later)
            with pytest.raises(Forbidden):
                await source.extension.list(resources.LEASE, "garden")
