"""A survey of a Shoot's objects in its seed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from temporalio.testing import ActivityEnvironment

from activities.clusters import Clusters
from activities.seed.survey import SurveyActivities
from api import resources
from api.constants import SHOOT_UID
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.resources import Resource

TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="c0ffee"),
    technical_id="shoot--local--demo",
    seed="seed-1",
    generation=1,
    operation=OperationType.DELETE,
)


class Together:
    """A cluster that answers only once six objects are asked for at the same time."""

    def __init__(self) -> None:
        self._barrier = asyncio.Barrier(6)

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        if resource == resources.NAMESPACE:
            return {"metadata": {"name": name, "annotations": {SHOOT_UID: "c0ffee"}, "labels": {SHOOT_UID: "c0ffee"}}}
        await self._barrier.wait()
        return None if resource == resources.CORE_BACKUP_ENTRY else {"metadata": {}, "status": {}}

    async def cluster(self, namespace: str) -> SimpleNamespace:
        await self._barrier.wait()
        return SimpleNamespace(shoot={"spec": {"provider": {"workers": []}}})


async def test_the_objects_are_read_at_the_same_time() -> None:
    """Six answers one after the other would delay each deletion and each move."""
    world = Together()
    clusters = cast(Clusters, SimpleNamespace(seed=world, garden=world, cluster=world.cluster))

    async with asyncio.timeout(5):
        survey = await ActivityEnvironment().run(SurveyActivities(clusters).survey, TASK)

    assert (survey.namespace, survey.cluster, survey.control_plane) == (True, True, False)
    assert (survey.api_server, survey.controller_manager, survey.backups) == (True, True, False)
