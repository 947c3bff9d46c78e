"""A seed and a shoot in memory, and the activities that rotate credentials between them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from activities.clusters import ClusterView
from activities.secrets.manager import SecretsManager
from activities.secrets.rotation import Rotation
from activities.shoot.rotation import RotationActivities
from api.contracts.operations import OperationType, ShootRef, ShootTask
from kube.cache import Caches
from kube.client import KubeClient
from tests.unit.kube.api_server import ApiServer

NAMESPACE = "shoot--local--demo"
STARTED = "2026-11-21T10:00:00Z"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.RECONCILE,
    trigger="2026-11-21T10:00:00Z",
)


@dataclass
class World:
    seed: ApiServer
    shoot: ApiServer
    pinned: dict[str, Any]
    """The Shoot as the flow's first task has pinned it."""
    activities: RotationActivities
    client: KubeClient
    """Of the seed."""

    def rotates(self, kind: str, phase: str, **rest: Any) -> None:
        state = {"phase": phase, "lastInitiationTime": STARTED, **rest}
        self.pinned["status"] = {"credentials": {"rotation": {kind: state}}}

    async def secrets(self) -> SecretsManager:
        """As the activities before have it."""
        return await SecretsManager.load(self.client, namespace=NAMESPACE, rotation=Rotation.of_shoot(self.pinned))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    pinned: dict[str, Any] = {
        "metadata": {"name": "demo", "namespace": "garden-local"},
        "spec": {"kubernetes": {"version": "1.37.1"}, "provider": {"type": "local", "workers": [{"name": "a"}]}},
    }
    view = ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": pinned}})
    async with (
        ApiServer().running() as seed,
        ApiServer().running() as shoot,
        seed.client() as seed_client,
        shoot.client() as shoot_client,
    ):
        caches = Caches(seed_client)

        async def cluster(_: str) -> ClusterView:
            return view

        async def client(_: str) -> Any:
            return shoot_client

        clusters = SimpleNamespace(seed=seed_client, seed_caches=caches, cluster=cluster, shoot=client)
        yield World(seed, shoot, pinned, RotationActivities(clusters), seed_client)  # type: ignore[arg-type]
        await caches.close()
