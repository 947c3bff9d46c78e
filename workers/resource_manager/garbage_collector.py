"""Deletes ConfigMaps and Secrets with a hash in their name, once no object refers to them any more.

Source: spec/resource-manager.md 5.
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from api.resources import (
    CONFIG_MAP,
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    MANAGED_RESOURCE,
    POD,
    SECRET,
    STATEFUL_SET,
    Resource,
)
from kube.client import KubeClient, Object
from kube.errors import ApiError, NotFound
from workers.lib import resource_names as names

_log = logging.getLogger(__name__)

_MINIMUM_AGE = timedelta(minutes=10)
"""Age below which an object is not garbage: the object that refers to it is created shortly after it."""
_REFERRERS = (DEPLOYMENT, STATEFUL_SET, DAEMON_SET, JOB, CRON_JOB, POD, MANAGED_RESOURCE)


def unreferenced(candidates: Iterable[Object], referrers: Iterable[Object], now: datetime) -> list[Object]:
    """The ConfigMaps and Secrets that are old enough, and that no annotation in their namespace names."""
    used = set()
    for referrer in referrers:
        metadata = referrer["metadata"]
        for key, value in (metadata.get("annotations") or {}).items():
            if key.startswith(names.REFERENCE_PREFIX):
                kind = key.removeprefix(names.REFERENCE_PREFIX).partition("-")[0]
                used.add((kind, metadata.get("namespace"), value))
    return [
        candidate
        for candidate in candidates
        if (candidate["kind"].lower(), candidate["metadata"].get("namespace"), candidate["metadata"]["name"])
        not in used
        and now - datetime.fromisoformat(candidate["metadata"]["creationTimestamp"]) >= _MINIMUM_AGE
    ]


class GarbageCollector:
    """Collects garbage in one cluster, or in some of its namespaces, once in each period."""

    def __init__(self, client: KubeClient, namespaces: Iterable[str | None], period: timedelta) -> None:
        self._client = client
        self._namespaces = tuple(namespaces)
        self._period = period

    async def run(self) -> None:
        while True:
            for namespace in self._namespaces:
                try:
                    await self.sweep(namespace)
                except ApiError as error:
                    _log.warning("garbage was not collected: %s", error)
            await asyncio.sleep(self._period.total_seconds())

    async def sweep(self, namespace: str | None) -> None:
        label = f"{names.GARBAGE_COLLECTABLE}=true"
        # Candidates are listed before the objects that refer to them, so that no earlier reference is missed.
        candidates = [
            obj for kind in (CONFIG_MAP, SECRET) for obj in await self._client.list(kind, namespace, labels=label)
        ]
        if not candidates:
            return
        lists = await asyncio.gather(*(self._list(kind, namespace) for kind in _REFERRERS))
        for obj in unreferenced(candidates, (obj for objects in lists for obj in objects), datetime.now(UTC)):
            metadata = obj["metadata"]
            _log.info("deleting unreferenced %s %s/%s", obj["kind"], metadata["namespace"], metadata["name"])
            resource = SECRET if obj["kind"] == SECRET.kind else CONFIG_MAP
            await self._client.delete(resource, metadata["name"], metadata["namespace"], uid=metadata["uid"])

    async def _list(self, resource: Resource, namespace: str | None) -> list[Object]:
        try:
            return await self._client.list(resource, namespace)
        except NotFound:
            return []  # a cluster without ManagedResources
