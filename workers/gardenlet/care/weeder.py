"""Deletes pods that crashed while a component that they need was away, once that component is back.

The kubelet waits up to 5 minutes before it starts the container of a pod in CrashLoopBackOff again. A pod that another
pod replaces starts at once. Source: Gardener's dependency-watchdog, its weeder.
"""

import asyncio
import functools
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from activities.clusters import Clusters
from activities.components import apiserver, etcd
from api import resources
from kube.cache import Cache
from kube.client import Object, WatchEvent
from kube.errors import ApiError
from kube.objects import label_selector
from workers.gardenlet.care.watchdog import WEEDER, is_switched_on
from workers.gardenlet.config import WatchdogConfig
from workers.gardenlet.garden_caches import own_seed

log = logging.getLogger(__name__)

_WATCHED_SECONDS = 5 * 60.0
"""How long pods of a control plane are watched after the component is back: until a kubelet starts them itself."""
_SERVICE = "kubernetes.io/service-name"
_OTHERS = f"gardener.cloud/role=controlplane,role notin (apiserver,{etcd.EVENTS},{etcd.MAIN})"
"""Pods of a control plane but those of API server and etcds."""

DEPENDANTS: Mapping[str, str] = {
    f"{etcd.name_of(etcd.MAIN)}-client": label_selector(apiserver.SELECT),
    apiserver.NAME: _OTHERS,
}
"""Selector of the pods that need a Service, by the name of the Service."""


class Returned(NamedTuple):
    """A Service that has ready pods again."""

    namespace: str
    service: str
    at: datetime


class Weeder:
    """Watches the API servers and etcds of all control planes. One per gardenlet.

    It acts if a Service gets its first ready pod while the weeder runs.
    """

    def __init__(self, clusters: Clusters, config: WatchdogConfig) -> None:
        self._clusters = clusters
        self._config = config
        self._seeds = own_seed(clusters)
        self._slices = clusters.seed_caches.of(
            resources.ENDPOINT_SLICE, labels=f"{_SERVICE} in ({','.join(sorted(DEPENDANTS))})"
        )
        self._returned: asyncio.Queue[Returned] = asyncio.Queue()
        self._weeding: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        if not self._config.enabled:
            await asyncio.Event().wait()
        await self._slices.synced()
        self._slices.subscribe(self._on_slice)
        async with asyncio.TaskGroup() as group:
            while True:
                returned = await self._returned.get()
                key = returned.namespace, returned.service
                if key not in self._weeding and is_switched_on(self._seeds.get(self._clusters.seed_name), WEEDER):
                    self._weeding.add(key)
                    group.create_task(self._weed(returned))

    def _on_slice(self, event: WatchEvent) -> None:
        if event.old is None or event.type == "DELETED":
            return  # a Service that is new had no pods before
        metadata = event.object["metadata"]
        if has_ready_endpoint(event.object) and not has_ready_endpoint(event.old):
            self._returned.put_nowait(Returned(metadata["namespace"], metadata["labels"][_SERVICE], datetime.now(UTC)))

    async def _weed(self, returned: Returned) -> None:
        """Delete the pods that crashed while the Service was away, and those of them that crash in the next minutes."""
        seed, selector = self._clusters.seed, DEPENDANTS[returned.service]
        try:
            async with (
                asyncio.timeout(_WATCHED_SECONDS),
                Cache(seed, resources.POD, returned.namespace, selector) as pods,
            ):
                while True:
                    pod = await pods.wait_until(lambda cache: next(weeds(cache, returned.at), None), _WATCHED_SECONDS)
                    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
                    log.warning(
                        "%s: pod %s crashed while %s was away; deleting it", returned.namespace, name, returned.service
                    )
                    await seed.delete(resources.POD, name, returned.namespace, uid=uid)
                    gone = functools.partial(_is_gone, uid)
                    await pods.wait_for(name, returned.namespace, gone, _WATCHED_SECONDS)
        except TimeoutError:
            pass  # the end of the watched time
        except ApiError as error:
            log.warning("pods of %s that need %s: %s", returned.namespace, returned.service, error)
        finally:
            self._weeding.discard((returned.namespace, returned.service))


def has_ready_endpoint(slice_: Object) -> bool:
    """Whether an EndpointSlice has a ready pod."""
    return any((each.get("conditions") or {}).get("ready") for each in slice_.get("endpoints") or ())


def weeds(pods: Cache, returned: datetime) -> Iterator[Object]:
    """Pods that wait for another start, and are older than the return of the component that they need.

    A younger pod crashes for a reason of its own.
    """
    for pod in pods.list():
        metadata, status = pod["metadata"], pod.get("status") or {}
        if "deletionTimestamp" in metadata or datetime.fromisoformat(metadata["creationTimestamp"]) >= returned:
            continue
        containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        reasons = [((each.get("state") or {}).get("waiting") or {}).get("reason") for each in containers]
        if "CrashLoopBackOff" in reasons:
            yield pod


def _is_gone(uid: str, pod: Object | None) -> bool:
    """Whether a pod is deleted, or ends: its cache may not have seen the deletion yet."""
    return pod is None or pod["metadata"]["uid"] != uid or "deletionTimestamp" in pod["metadata"]
