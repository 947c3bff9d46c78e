"""Extensions of the seed itself: Extension objects of class ``seed`` in namespace ``garden``.

A Seed enables them by ``spec.extensions``, a ControllerRegistration by ``autoEnable``. Source: spec/extensions.md 1.8.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from temporalio import activity

from activities.clusters import Clusters
from activities.seed import extension_objects as extension
from activities.seed.extension_objects import MANAGER, ExtensionObject
from activities.seed.system import garden_namespace
from api import resources
from api.constants import GARDEN_NAMESPACE, SEED_CLASS
from api.contracts.operations import SeedTask, TaskResult, Wait
from api.decisions.registrations import WantedExtension, wanted_extensions_of_seed

_DELETION = Wait(timeout=timedelta(minutes=10))


class SeedExtensionActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def deploy_seed_extensions(self, task: SeedTask) -> TaskResult:
        """Deploy the Extensions that the Seed wants and wait until all are ready; delete those that it no longer wants.

        A second run finds the timestamp that the first one wrote to each Extension, and continues to wait.

        Raises:
            ApplicationError: as ``wait_extension_ready`` and ``wait_extension_deleted``.
        """
        garden = self._clusters.garden
        seed, registrations = await asyncio.gather(
            garden.get(resources.SEED, task.name), garden.list(resources.CONTROLLER_REGISTRATION)
        )
        wanted = wanted_extensions_of_seed(seed, registrations)
        await self._clusters.seed.apply(garden_namespace(), manager=MANAGER)
        await asyncio.gather(*(self._deploy(each, task) for each in wanted))
        await self._delete_others(task, kept={each.type for each in wanted})
        return TaskResult(note=", ".join(each.type for each in wanted))

    async def _deploy(self, wanted: WantedExtension, task: SeedTask) -> None:
        spec = {"type": wanted.type, "class": SEED_CLASS}
        if wanted.provider_config is not None:
            spec |= {"providerConfig": wanted.provider_config}
        obj = ExtensionObject(resources.EXTENSION, wanted.type, GARDEN_NAMESPACE, spec)
        await extension.apply_extension(self._clusters.seed, obj, task.trigger)
        place = (resources.EXTENSION, wanted.type, GARDEN_NAMESPACE)
        wait = Wait(timeout=wanted.timeout)
        await extension.wait_extension_ready(self._clusters.seed_caches, *place, wait, trigger=task.trigger)

    async def _delete_others(self, task: SeedTask, kept: Iterable[str]) -> None:
        live = await self._clusters.seed.list(resources.EXTENSION, GARDEN_NAMESPACE)
        doomed = [
            (resources.EXTENSION, each["metadata"]["name"], GARDEN_NAMESPACE)
            for each in live
            if each["spec"].get("class") == SEED_CLASS and each["metadata"]["name"] not in kept
        ]
        for place in doomed:
            await extension.delete_extension(self._clusters.seed, *place, task.trigger)
        seed, caches = self._clusters.seed, self._clusters.seed_caches
        await asyncio.gather(
            *(extension.wait_extension_deleted(seed, caches, *place, _DELETION, task.trigger) for place in doomed)
        )
