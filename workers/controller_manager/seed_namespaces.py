"""Keeps namespace ``seed-<name>`` of each Seed, with copies of the Secrets of namespace ``garden`` that seeds need.

The gardenlet of the seed may read these Secrets, and no others of them (``workers.admission.seed_authorizer``). The
flow of a Seed deploys the same objects before anything else, and its deletion deletes them.
"""

import asyncio
import logging
from collections.abc import Iterable

from temporalio.exceptions import ApplicationError

from activities.garden.seed_namespaces import MANAGER, copy_secrets, deploy_namespace
from api import resources
from api.constants import FINALIZER, GARDEN_NAMESPACE, ROLE, SEED_NAMESPACE_PREFIX
from api.names import seed_namespace
from kube.cache import Caches, Key
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller, TryAgain
from kube.events import emit
from kube.finalizers import has_finalizer

log = logging.getLogger(__name__)


async def run_seed_namespace_controller(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    reconciler = SeedNamespaces(client, caches)
    await asyncio.gather(reconciler.seeds.synced(), reconciler.sources.synced())
    controller = Controller("namespaces of seeds", reconciler.reconcile, workers=2)
    controller.watch(reconciler.seeds)
    controller.watch(reconciler.sources, keys=reconciler.all_seeds)
    controller.watch(caches.of(resources.NAMESPACE), keys=_seed_of, when=lambda event: event.type == "DELETED")
    await controller.run()


class SeedNamespaces:
    """Reconciles the namespace of one Seed."""

    def __init__(self, client: KubeClient, caches: Caches) -> None:
        self._client = client
        self.seeds = caches.of(resources.SEED)
        self.sources = caches.of(resources.SECRET, GARDEN_NAMESPACE, labels=ROLE)

    def all_seeds(self, event: WatchEvent) -> Iterable[Key]:
        return [Key(None, each["metadata"]["name"]) for each in self.seeds.list()]

    async def reconcile(self, key: Key) -> None:
        """Deploy the namespace and its copies. ``key``: the Seed.

        A Seed without the finalizer has not been reconciled yet, or is about to go: nothing would delete its namespace.
        """
        seed = self.seeds.get(key.name)
        if seed is None or "deletionTimestamp" in seed["metadata"] or not has_finalizer(seed, FINALIZER):
            return
        try:
            await deploy_namespace(self._client, seed)
        except ApplicationError as error:
            await emit(self._client, seed, MANAGER, "NamespaceReconcileFailed", error.message, "Warning")
            raise TryAgain(error.message) from None
        await copy_secrets(self._client, seed, self.sources.list())
        log.debug("namespace %s is up to date", seed_namespace(key.name))


def _seed_of(event: WatchEvent) -> Iterable[Key]:
    name = event.object["metadata"]["name"]
    return [Key(None, name.removeprefix(SEED_NAMESPACE_PREFIX))] if name.startswith(SEED_NAMESPACE_PREFIX) else []
