"""Two ControllerRegistrations that are written at the same moment, at a real API server.

There is no admission here: it may accept both, because each of its reviews knows only the objects before it.
"""

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api import resources
from kube.client import KubeClient
from tests.gardens import ADMIN, ApiServer, controllers
from tests.unit.api.shoots import SEED, changed
from tests.unit.api.test_installations import registration
from tests.unit.garden_controllers.test_installations_at_an_api_server import _served, deployments_without_conversion
from tests.unit.kube.waiting import until
from workers.controller_manager.installations import run_installation_controller

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]


def objects() -> list[dict[str, Any]]:
    """A Seed, whose provider needs a ControlPlane, and a chart."""
    seed = changed(SEED, "metadata.name", "seed-1")
    del seed["status"]
    chart = {
        "apiVersion": resources.CONTROLLER_DEPLOYMENT.api_version,
        "kind": "ControllerDeployment",
        "metadata": {"name": "chart"},
        "helm": {"rawChart": "aGk="},
    }
    return [chart, seed]


def primary(name: str) -> dict[str, Any]:
    kind = {"apiVersion": resources.CONTROLLER_REGISTRATION.api_version, "kind": "ControllerRegistration"}
    return {**registration("ControlPlane", SEED["spec"]["provider"]["type"]), **kind, "metadata": {"name": name}}


@pytest.fixture
async def admin(kubernetes_is_built: None, tmp_path: Path) -> AsyncIterator[KubeClient]:
    server = ApiServer(tmp_path, {})
    with server.running():
        await server.prepare(*deployments_without_conversion())
        async with server.client(ADMIN) as client:
            await until(functools.partial(_served, client))
            for each in objects():
                await client.create(each)
            yield client


async def _installed(client: KubeClient) -> list[str]:
    found = await client.list(resources.CONTROLLER_INSTALLATION)
    return [each["spec"]["registrationRef"]["name"] for each in found]


async def _told(client: KubeClient) -> dict[str, str]:
    """Events of this conflict by the registration that they are about."""
    events = await client.list(resources.EVENT, "default")
    found = [each for each in events if each["reason"] == "TwoPrimaryRegistrations"]
    return {each["involvedObject"]["name"]: each["message"] for each in found}


async def test_of_two_primary_registrations_written_at_once_one_is_installed_and_the_other_one_tells_why_not(
    admin: KubeClient,
) -> None:
    names = ("b", "a", "c")
    made = await asyncio.gather(*(admin.create(primary(each)) for each in names))
    first, *others = sorted(made, key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]))

    async with controllers(admin, run_installation_controller):

        async def all_told() -> bool:
            return set(await _told(admin)) == {each["metadata"]["name"] for each in others}

        await until(all_told, 30)
        oldest = first["metadata"]["name"]
        assert await _installed(admin) == [oldest]
        for name, message in (await _told(admin)).items():
            assert f"the older ControllerRegistration {oldest} is, too: {name} is not installed" in message

        await admin.delete(resources.CONTROLLER_REGISTRATION, oldest, None)
        following = others[0]["metadata"]["name"]

        async def follows() -> bool:
            return following in await _installed(admin)

        await until(follows, 30)
