"""Operations on the objects of any kind of ``activities.seed.extension_kinds``, the same for all kinds."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from activities.clusters import Clusters
from activities.errors import permanent
from activities.seed import extension_objects as extension
from activities.seed.extension_kinds import Kind
from activities.seed.extension_objects import ExtensionObject, apply_extension
from activities.seed.facts import inputs_digest
from activities.seed.shoot_state import ShootStateView, not_restorable, read_shoot_state
from api import resources
from api.constants import SHOOT_TASKS
from api.contracts.operations import OperationType, ShootTask, TaskResult, Wait
from api.decisions.shoot_state import NotRestorable
from api.errors import ErrorCode
from kube.errors import AlreadyExists

CLOUD_SECRET = "cloudprovider"


class Extensions:
    """Operations on the objects of any kind. Each method may run twice."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    async def deploy(self, kind: Kind, task: ShootTask, wanted: Iterable[ExtensionObject]) -> None:
        """Apply the objects and ask their controllers to reconcile them, if an input of the controllers has changed.

        On restore, apply them with the state that the source has saved, and ask the controllers to restore it.
        """
        if task.operation is OperationType.RESTORE:
            state = await read_shoot_state(self._clusters, task) or ShootStateView()
            await asyncio.gather(*(self._restore(task, state, each) for each in wanted))
            return
        if kind.only_on_change:
            only_on_change = not (kind.asked_by and await self._asked_for(kind, task))
        else:
            only_on_change = False
            cloud = await self._versions(_cloud_secret(task))
            wanted = [dataclasses.replace(each, inputs=await self._inputs(task, each, cloud)) for each in wanted]
        await asyncio.gather(
            *(
                apply_extension(self._clusters.seed, each, task.trigger, only_on_change=only_on_change)
                for each in wanted
            )
        )

    async def _inputs(self, task: ShootTask, wanted: ExtensionObject, cloud: list[str]) -> str:
        """Digest of all inputs of the object's controller: the Cluster, credentials of the cloud and of the object.

        ``cloud``: version of the cloud's credentials, which are the same for all objects.
        """
        own = wanted.spec.get("secretRef")
        versions = await self._versions(own) if own and own != _cloud_secret(task) else []
        return inputs_digest(await self._clusters.cluster(task.technical_id), *cloud, *versions)

    async def _versions(self, secret: Mapping[str, str]) -> list[str]:
        """Version of a Secret; empty if there is no such Secret."""
        found = await self._clusters.seed.find(resources.SECRET, secret["name"], secret["namespace"])
        return [str(found["metadata"]["resourceVersion"])] if found else []

    async def _asked_for(self, kind: Kind, task: ShootTask) -> bool:
        view = await self._clusters.cluster(task.technical_id)
        return kind.asked_by in view.annotations.get(SHOOT_TASKS, "").split(",")

    async def wait(self, kind: Kind, task: ShootTask) -> TaskResult:
        """Wait until the objects that the Shoot has of this kind are ready."""
        await self.ready(kind, task)
        return TaskResult()

    async def ready(self, kind: Kind, task: ShootTask) -> list[dict[str, Any]]:
        """Wait like ``wait``, and return the objects."""
        names = await kind.wanted(self._clusters, task)
        waits = await kind.waits(self._clusters, task) if kind.waits else {}
        return list(
            await asyncio.gather(*(self._ready(kind, task, name, waits.get(name, kind.wait)) for name in names))
        )

    async def delete(self, kind: Kind, task: ShootTask) -> TaskResult:
        """Delete all objects of this kind, including former ones."""
        names = await kind.there(self._clusters, task)
        await self._delete(kind, task, names)
        return TaskResult(note=f"{len(names)} deleted" if kind.existing else "")

    async def wait_deleted(self, kind: Kind, task: ShootTask) -> TaskResult:
        """Wait until no object of this kind is left."""
        await self._gone(kind, task, await kind.there(self._clusters, task))
        return TaskResult()

    async def delete_stale(self, kind: Kind, task: ShootTask) -> TaskResult:
        """Delete the objects of this kind that the Shoot no longer needs."""
        names = await kind.stale(self._clusters, task)
        await self._delete(kind, task, names)
        return TaskResult(note=", ".join(sorted(names)))

    async def wait_stale_deleted(self, kind: Kind, task: ShootTask) -> TaskResult:
        """Wait until the objects that the Shoot no longer needs are gone."""
        await self._gone(kind, task, await kind.stale(self._clusters, task))
        return TaskResult()

    async def migrate(self, kind: Kind, task: ShootTask) -> TaskResult:
        """Ask the controllers of all objects of this kind to release them."""
        names = await kind.there(self._clusters, task)
        await asyncio.gather(
            *(
                extension.migrate_extension(self._clusters.seed, kind.resource, name, kind.place(task), task.trigger)
                for name in names
            )
        )
        return TaskResult(note=f"{len(names)} requested" if kind.existing else "")

    async def wait_migrated(self, kind: Kind, task: ShootTask) -> TaskResult:
        """Wait until the controllers have released all objects of this kind."""
        await asyncio.gather(
            *(
                extension.wait_extension_migrated(
                    self._clusters.seed_caches, kind.resource, name, kind.place(task), kind.wait, task.trigger
                )
                for name in await kind.there(self._clusters, task)
            )
        )
        return TaskResult()

    async def delete_and_wait(self, kind: Kind, task: ShootTask) -> TaskResult:
        """Delete all objects of this kind and wait until they are gone, in one task."""
        await self.delete(kind, task)
        return await self.wait_deleted(kind, task)

    async def _restore(self, task: ShootTask, state: ShootStateView, wanted: ExtensionObject) -> None:
        """Restore an object with its state in the ShootState; create the objects that the state refers to first.

        Raises:
            ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if the state refers to an object that no seed
                restores.
        """
        kept = state.extension(wanted.resource.kind, wanted.name)
        if wanted.resource == resources.WORKER and state.machine_state is not None:
            if kept and kept.get("state"):
                raise permanent(
                    ErrorCode.CONFIGURATION_PROBLEM,
                    f"ShootState {task.shoot} has machines twice: in Worker {wanted.name} and as machine-state; "
                    "drop one of them",
                )
            kept = {**(kept or {}), "state": state.machine_state}
        try:
            referenced = [] if kept is None else state.referenced(kept, wanted.resource.kind, wanted.name)
        except NotRestorable as error:
            raise not_restorable(task, error) from None
        for item in referenced:
            with contextlib.suppress(AlreadyExists):
                await self._clusters.seed.create(
                    {**item, "metadata": {**item["metadata"], "namespace": task.technical_id}}
                )
        await extension.restore_extension(self._clusters.seed, wanted, task.trigger, kept)

    async def _ready(self, kind: Kind, task: ShootTask, name: str, wait: Wait) -> dict[str, Any]:
        # Wait for the operation that wrote the object last, whichever it was.
        trigger = await extension.asked_at(self._clusters.seed, kind.resource, name, kind.place(task))
        return await extension.wait_extension_ready(
            self._clusters.seed_caches, kind.resource, name, kind.place(task), wait, trigger=trigger
        )

    async def _delete(self, kind: Kind, task: ShootTask, names: Iterable[str]) -> None:
        await asyncio.gather(
            *(
                extension.delete_extension(self._clusters.seed, kind.resource, name, kind.place(task), task.trigger)
                for name in names
            )
        )

    async def _gone(self, kind: Kind, task: ShootTask, names: Iterable[str]) -> None:
        seed, caches, place = self._clusters.seed, self._clusters.seed_caches, kind.place(task)
        await asyncio.gather(
            *(
                extension.wait_extension_deleted(seed, caches, kind.resource, name, place, kind.wait, task.trigger)
                for name in names
            )
        )


def _cloud_secret(task: ShootTask) -> dict[str, str]:
    return {"namespace": task.technical_id, "name": CLOUD_SECRET}
