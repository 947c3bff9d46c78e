"""Installations of 50 seeds with 1000 Shoots and 30 registrations, at a real API server that counts its requests."""

import asyncio
import functools
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from api import resources
from api.crds import converted_crds
from kube.client import KubeClient
from kube.errors import NotFound
from tests.gardens import ADMIN, ApiServer, controllers
from tests.unit.api.shoots import SEED, SHOOT, changed
from tests.unit.api.test_installations import registration
from tests.unit.kube.waiting import until
from workers.controller_manager.installations import run_installation_controller

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.slow,  # 1000 Shoots are created one by one
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

SEEDS, SHOOTS, REGISTRATIONS = 50, 1000, 30
NAMESPACE = SHOOT["metadata"]["namespace"]
_AT_ONCE = 32
_SECONDS = 10.0
"""Limit for the effect of one change. Measured: 0.05 s on two busy processors."""
_LISTED = re.compile(r'apiserver_request_total\{.*resource="([a-z]+)".*verb="LIST".*\} (\d+)')


def types_of(shoot: int) -> list[str]:
    """Types of the Extensions of a Shoot, two for each seed at most. No Shoot has the last type."""
    return sorted({f"ext-{number % SEEDS % (REGISTRATIONS - 1)}" for number in (shoot, shoot * 7)})


def objects() -> Iterable[dict[str, Any]]:
    yield {
        "apiVersion": resources.CONTROLLER_DEPLOYMENT.api_version,
        "kind": "ControllerDeployment",
        "metadata": {"name": "chart"},
        "helm": {"rawChart": "aGk="},
    }
    for number in range(REGISTRATIONS):
        kind = {"apiVersion": resources.CONTROLLER_REGISTRATION.api_version, "kind": "ControllerRegistration"}
        made = registration("Extension", f"ext-{number}", f"ext-{number}")
        yield {**made, **kind, "metadata": {"name": f"ext-{number}"}}
    for number in range(SEEDS):
        seed = changed(SEED, "metadata.name", f"seed-{number}")
        del seed["status"]
        yield seed
    for number in range(SHOOTS):
        shoot = changed(SHOOT, "metadata", {"name": f"shoot-{number}", "namespace": NAMESPACE})
        shoot["spec"] |= {
            "seedName": f"seed-{number % SEEDS}",
            "extensions": [{"type": each} for each in types_of(number)],
        }
        yield shoot


def deployments_without_conversion() -> Iterable[dict[str, Any]]:
    """Definition of ControllerDeployments in their newest version alone: this garden has no admission to convert."""
    for each in converted_crds("garden", {}):
        versions = [version for version in each["spec"]["versions"] if version["storage"]]
        yield {**each, "spec": {**each["spec"], "versions": versions, "conversion": {"strategy": "None"}}}


async def _served(client: KubeClient) -> bool:
    try:
        await client.list(resources.CONTROLLER_DEPLOYMENT)
    except NotFound:
        return False
    return True


def wanted() -> set[tuple[str, str]]:
    """Seed and registration of each installation that the Shoots need."""
    return {(f"seed-{shoot % SEEDS}", type_) for shoot in range(SHOOTS) for type_ in types_of(shoot)}


@pytest.fixture
async def admin(kubernetes_is_built: None, tmp_path: Path) -> AsyncIterator[KubeClient]:
    server = ApiServer(tmp_path, {})
    with server.running():
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await server.prepare(namespace, *deployments_without_conversion())
        async with server.client(ADMIN) as client:
            await until(functools.partial(_served, client))
            turns = asyncio.Semaphore(_AT_ONCE)

            async def create(obj: dict[str, Any]) -> None:
                async with turns:
                    await client.create(obj)

            await asyncio.gather(*(create(each) for each in objects()))
            yield client


async def installed(client: KubeClient) -> set[tuple[str, str]]:
    found = await client.list(resources.CONTROLLER_INSTALLATION)
    pairs = [(each["spec"]["seedRef"]["name"], each["spec"]["registrationRef"]["name"]) for each in found]
    assert len(pairs) == len(set(pairs)), "a seed has a registration twice"
    return set(pairs)


async def lists(client: KubeClient) -> Counter[str]:
    """Number of lists that the API server has answered, by plural of the kind."""
    text = str(await client.request("GET", "/metrics"))
    found: Counter[str] = Counter()
    for line in text.splitlines():
        if match := _LISTED.match(line):
            found[match[1]] += int(match[2])
    return found


async def extend(client: KubeClient, *types: str) -> float:
    """Change the Extensions of one Shoot; returns the time of the change."""
    patch = {"spec": {"extensions": [{"type": each} for each in types]}}
    await client.patch(resources.SHOOT, "shoot-0", NAMESPACE, patch)
    return time.monotonic()


async def test_a_change_of_one_of_a_thousand_shoots_lists_at_most_the_installations_of_its_seed(
    admin: KubeClient,
) -> None:
    """A list of all Shoots for each change of one would keep the garden's API server busy."""
    expected, last = wanted(), f"ext-{REGISTRATIONS - 1}"
    async with controllers(admin, run_installation_controller):
        started = time.monotonic()

        async def complete() -> bool:
            return await installed(admin) == expected

        await until(complete, 120)
        print(f"{len(expected)} installations in {time.monotonic() - started:.1f} s")

        async def exists() -> bool:
            return bool([1 for each in await one_seed() if each["spec"]["registrationRef"]["name"] == last])

        async def one_seed() -> list[dict[str, Any]]:
            # A watch cache of the API server answers it, as a gardenlet's list.
            return await admin.list(resources.CONTROLLER_INSTALLATION, fields="spec.seedRef.name=seed-0")

        before = await lists(admin)
        since = await extend(admin, *types_of(0), last)
        polls = await _polls(exists)
        print(f"created {time.monotonic() - since:.3f} s after the change")
        assert time.monotonic() - since < _SECONDS
        asked = await lists(admin) - before
        assert asked.pop("controllerinstallations") == polls + 1
        assert not asked

        before = await lists(admin)
        since = await extend(admin, *types_of(0))

        async def gone() -> bool:
            return not await exists()

        polls = await _polls(gone)
        print(f"deleted {time.monotonic() - since:.3f} s after the change")
        asked = await lists(admin) - before
        assert asked == Counter(controllerinstallations=polls)
        assert await installed(admin) == expected


async def _polls(condition: Any) -> int:
    """Number of calls until the condition holds."""
    calls = 0

    async def counted() -> bool:
        nonlocal calls
        calls += 1
        return bool(await condition())

    await until(counted, _SECONDS)
    return calls
