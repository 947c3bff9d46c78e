"""A shoot to be emptied."""

import json

import pytest

from activities.clusters import ClusterView
from activities.shoot import cleanup
from api.contracts.operations import OperationType, ShootRef, ShootTask
from tests.unit.kube.api_server import ApiServer


@pytest.fixture
async def shoot():
    async with ApiServer().running() as server:
        yield server


class OneShoot:
    """What ``Clusters`` gives to these activities."""

    def __init__(self, client):
        self._client = client
        self.annotations = {}

    async def shoot(self, technical_id):
        assert technical_id == "shoot--dev--one"
        return self._client

    async def cluster(self, technical_id):
        shoot = {"metadata": {"annotations": self.annotations}}
        return ClusterView({"metadata": {"name": technical_id}, "spec": {"shoot": json.loads(json.dumps(shoot))}})


@pytest.fixture
async def clusters(shoot):
    async with shoot.client() as client:
        yield OneShoot(client)


@pytest.fixture
def activities(clusters, monkeypatch):
    monkeypatch.setattr(cleanup, "_PATIENCE", 20.0)
    return cleanup.CleanupActivities(clusters)


@pytest.fixture
def task():
    return ShootTask(
        shoot=ShootRef(namespace="garden-dev", name="one", uid="u"),
        technical_id="shoot--dev--one",
        seed="seed-1",
        generation=2,
        operation=OperationType.DELETE,
    )
