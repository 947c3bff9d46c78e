"""Requests a reconciliation of a Shoot when a ConfigMap or Secret by which its owner configures logins has changed.

The reconciliation writes the files of the API server again. Of each object, this process keeps a digest only.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

from api import resources
from api.constants import OPERATION, OPERATION_RECONCILE, OPERATION_RETRY
from api.errors import ErrorCode
from api.resources import Resource
from api.validation.kubeconfigs import KUBECONFIG_KEY
from api.validation.logins import CONFIG_KEY
from api.validation.references import references_in
from kube.cache import Cache, Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, TryAgain
from kube.edit import edit
from kube.events import emit

log = logging.getLogger(__name__)

_NAME = "gardener-controller-manager"
_KINDS = (resources.CONFIG_MAP, resources.SECRET)
_FIELDS = ("structuredAuthentication", "structuredAuthorization", "admissionPlugins")
_INDEX = "objects of logins"


async def run_login_controller(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    shoots = caches.of(resources.SHOOT)
    shoots.index(_INDEX, _named_by)
    async with AsyncExitStack() as stack:
        watched = [await stack.enter_async_context(Cache(client, kind, keep=_digest)) for kind in _KINDS]
        await asyncio.gather(shoots.synced(), *(each.synced() for each in watched))
        await _LoginReconciler(client, shoots, watched).run()


class _LoginReconciler:
    def __init__(self, client: KubeClient, shoots: Cache, watched: Iterable[Cache]) -> None:
        self._client = client
        self._shoots = shoots
        self._changed: dict[Key, str] = {}
        """Shoots that an object has changed for, with the object's kind and name."""
        self._controller = Controller("logins", self._reconcile, workers=2)
        for cache in watched:
            self._controller.watch(cache, keys=self._using)

    async def run(self) -> None:
        await self._controller.run()

    def _using(self, event: WatchEvent) -> list[Key]:
        """Shoots whose control plane does not have the content of an object yet, as far as the event tells."""
        obj, resource = event.object, resources.SECRET if event.object["kind"] == "Secret" else resources.CONFIG_MAP
        if event.type == "DELETED" or (event.old is not None and event.old["digest"] == obj["digest"]):
            return []
        found = []
        for shoot in self._shoots.by_index(_INDEX, _place(resource, obj["metadata"])):
            # Without an old object, this process has just started: then the time of the last write decides.
            if event.old is not None or obj["changed"] > _applied(shoot):
                self._changed[key_of(shoot)] = f"{resource.kind} {obj['metadata']['name']}"
                found.append(key_of(shoot))
        return found

    async def _reconcile(self, key: Key) -> None:
        shoot, what = self._shoots.get(key.name, key.namespace), self._changed.get(key)
        if what is None:
            return
        if shoot is None or not _follows(shoot):
            self._changed.pop(key, None)
            return
        wanted, asked = _operation(shoot), False

        def request(live: Object) -> Mapping[str, Any] | None:
            nonlocal asked
            before = (live["metadata"].get("annotations") or {}).get(OPERATION)
            if before not in (None, wanted):
                raise TryAgain(f"operation {before} comes first")
            asked = before is None
            return {"metadata": {"annotations": {OPERATION: wanted}}} if asked else None

        # The live object: in the cache, an operation that has already read the old content may still be requested.
        await edit(self._client, resources.SHOOT, key.name, key.namespace, request, uid=shoot["metadata"]["uid"])
        if asked:
            log.info("Shoot %s: %s changed, requesting operation %s", key, what, wanted)
            message = f"{what} has changed: the Shoot is reconciled, and its API server reads the new content."
            await emit(self._client, shoot, _NAME, "LoginsChanged", message)
        if self._changed.get(key) == what:
            del self._changed[key]


def _follows(shoot: Mapping[str, Any]) -> bool:
    """Whether a Shoot follows changes of the objects that it names at once.

    A Shoot whose changes are confined to its maintenance window follows then.
    """
    metadata, status = shoot["metadata"], shoot.get("status") or {}
    confined = (shoot["spec"].get("maintenance") or {}).get("confineSpecUpdateRollout")
    failed = (status.get("lastOperation") or {}).get("state") == "Failed"
    return (
        "deletionTimestamp" not in metadata
        and bool(status.get("seedName"))
        and not confined
        and (not failed or _operation(shoot) == OPERATION_RETRY)
    )


def _operation(shoot: Mapping[str, Any]) -> str:
    """Operation that applies a change. A Shoot that failed by a fault of its configuration may be mended now."""
    status = shoot.get("status") or {}
    if (status.get("lastOperation") or {}).get("state") != "Failed":
        return OPERATION_RECONCILE
    codes = {code for each in status.get("lastErrors") or () for code in each.get("codes") or ()}
    return OPERATION_RETRY if ErrorCode.CONFIGURATION_PROBLEM in codes else OPERATION_RECONCILE


def _named_by(shoot: Object) -> Iterable[str]:
    """Places of the objects by which the logins of a Shoot are configured."""
    prefix = "spec.kubernetes.kubeAPIServer."
    return {
        _place(each.resource, {"namespace": each.namespace, "name": each.name})
        for each in references_in(shoot)
        if str(each.path).startswith(tuple(f"{prefix}{field}" for field in _FIELDS))
    }


def _place(resource: Resource, metadata: Mapping[str, Any]) -> str:
    return f"{resource.kind} {metadata['namespace']}/{metadata['name']}"


def _applied(shoot: Mapping[str, Any]) -> str:
    """Time of the last operation that succeeded; empty if the last one did not. RFC 3339 in UTC, seconds."""
    last = (shoot.get("status") or {}).get("lastOperation") or {}
    return _seconds(last.get("lastUpdateTime") or "") if last.get("state") == "Succeeded" else ""


def _digest(obj: Object) -> Object | None:
    """Names, digest and time of the last write of an object with a key of logins; None for other objects."""
    data = obj.get("data") or {}
    kept = {key: data[key] for key in (CONFIG_KEY, KUBECONFIG_KEY) if key in data}
    metadata = obj["metadata"]
    if not kept:
        return None
    times = [each.get("time") or "" for each in metadata.get("managedFields") or ()]
    return {
        "kind": "Secret" if obj.get("kind") == "Secret" else "ConfigMap",
        "metadata": {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in metadata},
        "digest": hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest(),
        "changed": _seconds(max([*times, metadata.get("creationTimestamp") or ""])),
    }


def _seconds(time: str) -> str:
    return datetime.fromisoformat(time).strftime("%Y-%m-%dT%H:%M:%SZ") if time else ""
