"""What a rotation of credentials does inside a shoot, beside new Secrets for its components.

Names, labels and their order: spec/credentials.md 4 to 6.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import heartbeating
from activities.kube.cache import Cache
from activities.kube.clusters import Clusters, ClusterView
from activities.secrets.manager import SecretsManager
from activities.secrets.rotation import Rotation
from api import resources
from api.operations import ShootTask, TaskResult

CA_BUNDLE_NAME = "credentials.gardener.cloud/ca-bundle-name"
"""Label of a namespace's root CA: the bundle of the control plane that it was seen to hold."""
ROOT_CA = "kube-root-ca.crt"

MINUTE = 60.0
_ROOT_CA_SECONDS = 4.5 * MINUTE
"""A little less than the task may take. Source: spec/flows.md 2."""
_PARALLEL = 20


class RotationActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def wait_root_ca_configmaps(self, task: ShootTask) -> TaskResult:
        """Wait until all namespaces publish the present CA bundle to their pods, and label what was seen.

        Raises:
            ApplicationError: ``NotReady``, naming namespaces that still publish another one.
        """
        view = await self._clusters.cluster(task.technical_id)
        bundle = (await self._secrets(task, view)).get("ca")
        wanted = bundle.data["bundle.crt"].decode()
        shoot = await self._clusters.shoot(task.technical_id)
        cache = Cache(shoot, resources.CONFIG_MAP, fields=f"metadata.name={ROOT_CA}")
        behind: list[str] = []

        def published(_: object) -> bool:
            behind[:] = sorted(
                item["metadata"]["namespace"]
                for item in cache.list()
                if (item.get("data") or {}).get("ca.crt") != wanted and "deletionTimestamp" not in item["metadata"]
            )
            return not behind

        cache.start()
        try:
            await cache.synced()
            await heartbeating(
                cache.wait_until(published, _ROOT_CA_SECONDS), details=lambda: f"behind: {', '.join(behind[:5])}"
            )
            found = cache.list()
        except TimeoutError:
            raise ApplicationError(
                f"ConfigMaps {ROOT_CA} of shoot {task.technical_id} do not hold the new CA in namespaces "
                f"{', '.join(behind[:10])}; is its kube-controller-manager running?",
                type="NotReady",
            ) from None
        finally:
            await cache.close()
        await _each(found, lambda item: self._label(task, item, bundle.name))
        return TaskResult(note=f"{len(found)} namespaces")

    async def _label(self, task: ShootTask, item: Mapping[str, Any], bundle: str) -> None:
        metadata = item["metadata"]
        if (metadata.get("labels") or {}).get(CA_BUNDLE_NAME) == bundle:
            return
        shoot = await self._clusters.shoot(task.technical_id)
        patch = {"metadata": {"labels": {CA_BUNDLE_NAME: bundle}}}
        await shoot.patch(resources.CONFIG_MAP, ROOT_CA, metadata["namespace"], patch)

    async def _secrets(self, task: ShootTask, view: ClusterView) -> SecretsManager:
        return await SecretsManager.load(
            self._clusters.seed, namespace=task.technical_id, rotation=Rotation.of_shoot(view.shoot)
        )


async def _each(items: list[dict[str, Any]], do: Callable[[dict[str, Any]], Any]) -> None:
    limit = asyncio.Semaphore(_PARALLEL)

    async def one(item: dict[str, Any]) -> None:
        async with limit:
            await do(item)

    await asyncio.gather(*map(one, items))
