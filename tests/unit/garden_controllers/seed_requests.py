"""A garden whose gardenlets ask for operations of their seeds."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from api import resources
from tests.unit.garden_controllers.conftest import Garden
from tests.unit.garden_controllers.temporal import Temporal, Workflow
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until

PAST = "2026-01-01T00:00:00Z"
OURS, THEIRS = "seed-1", "seed-2"
"""The seed of the gardenlet that lies, and another one."""


class World:
    """A garden with project ``dev``, two seeds, and Shoots of the other seed."""

    def __init__(self, garden: Garden) -> None:
        self.garden = garden
        self.temporal = Temporal()
        self.put(resources.PROJECT, "dev", spec={"namespace": "garden-dev"})
        for seed in (OURS, THEIRS):
            self.put(resources.SEED, seed, uid=f"uid-of-{seed}", spec={})

    def put(self, resource: resources.Resource, name: str, namespace: str | None = None, **parts: Any) -> None:
        spec, status = parts.pop("spec", None), parts.pop("status", None)
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, **parts}}
        obj |= {"spec": spec} if spec is not None else {}
        obj |= {"status": status} if status is not None else {}
        self.garden.api.put(resource.path(), obj, namespace)

    def shoot(self, name: str, seed: str, operation: str = "Reconcile", state: str = "Succeeded") -> None:
        last = {"type": operation, "state": state}
        status = {"seedName": seed, "technicalID": f"shoot--dev--{name}", "lastOperation": last}
        self.put(resources.SHOOT, name, "garden-dev", uid=f"uid-of-{name}", spec={"seedName": seed}, status=status)

    def claim(self, *remains: Any) -> None:
        """Write the annotation that the gardenlet of ``seed-1`` may write."""
        annotations = {"seed.gardener.cloud/remains": json.dumps(remains)}
        self.garden.api.change(resources.SEED.path(), OURS, None, {"metadata": {"annotations": annotations}})

    def entry(self, shoot: str, *, name: str = "", seed: str = OURS, bucket: str = "", uid: str = "") -> None:
        """A BackupEntry that the gardenlet has marked as deleted and expired."""
        uid = uid or f"uid-of-{shoot}"
        self.put(
            resources.CORE_BACKUP_ENTRY,
            name or f"shoot--dev--{shoot}--{uid}",
            "garden-dev",
            deletionTimestamp=PAST,
            finalizers=["gardener"],
            annotations={"backup.gardener.cloud/expired": PAST},
            ownerReferences=[{"kind": "Shoot", "name": shoot, "uid": uid}],
            spec={"seedName": seed, "bucketName": bucket or f"uid-of-{seed}"},
        )

    async def only(self, workflow_id: str) -> Workflow:
        """The workflow of the true request, once it is started, and only it."""
        await until(lambda: self.temporal.started)
        assert self.temporal.ids == [workflow_id]
        return self.temporal.started[0]


def remnant(shoot: str, **changes: Any) -> dict[str, Any]:
    technical_id = f"shoot--dev--{shoot}"
    return {"namespace": "garden-dev", "name": shoot, "uid": f"uid-of-{shoot}", "technicalID": technical_id, **changes}


@asynccontextmanager
async def watched(watcher: Any) -> AsyncIterator[World]:
    async with ApiServer().running() as api:
        garden = Garden(api)
        world = World(garden)
        running = watcher(garden.client, garden.caches, world.temporal)
        async with garden.running(running.run()):
            yield world
        await garden.caches.close()
        await garden.client.close()
