"""Delete Bastions that have expired, that are too old, or whose Shoot cannot be reached through them.

A Bastion expires an hour after its creation, or after the last annotation ``gardener.cloud/operation=keepalive``. The
gardenlet of its seed removes it from the cloud. Source: spec/api-core.md 9, 12; for Shoots that are force-deleted,
spec/flows.md 1.3.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import Field

from api import constants, resources
from api.decisions import ssh
from api.labels import is_true
from api.model import ApiModel
from api.times import timestamp
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.errors import Conflict, NotFound
from workers.lib.events import emit

log = logging.getLogger(__name__)

Object = dict[str, Any]

_NAME = "gardener-controller-manager"
_NEEDED_FOR = timedelta(hours=1)
"""Time from the creation of a Bastion, or from its last keepalive, to its expiration."""


class BastionConfig(ApiModel):
    max_lifetime: timedelta = Field(default=timedelta(hours=24), gt=timedelta())
    """Maximum lifetime of a Bastion; keepalives do not extend it."""


async def run_bastion_controller(client: KubeClient, caches: Caches, config: BastionConfig) -> None:
    """Run until cancelled."""
    bastions, shoots = caches.of(resources.OPERATIONS_BASTION), caches.of(resources.SHOOT)
    await asyncio.gather(bastions.synced(), shoots.synced())
    controller = Controller("bastions", _Keeper(client, caches, config).reconcile, workers=2)
    controller.watch(bastions)

    def through_it(event: WatchEvent) -> Iterable[Key]:
        shoot = key_of(event.object)
        return [key_of(each) for each in bastions.list(shoot.namespace) if _shoot_of(each) == shoot.name]

    controller.watch(shoots, keys=through_it, when=_concerns)
    await controller.run()


class _Keeper:
    def __init__(self, client: KubeClient, caches: Caches, config: BastionConfig) -> None:
        self._client = client
        self._bastions = caches.of(resources.OPERATIONS_BASTION)
        self._config = config

    async def reconcile(self, key: Key) -> Requeue | None:
        bastion = self._bastions.get(key.name, key.namespace)
        if bastion is None:
            return None
        # Read from the server: the Bastion was admitted for a Shoot that the cache may not hold yet.
        shoot = await self._client.find(resources.SHOOT, _shoot_of(bastion), key.namespace)
        if shoot is not None and _is_given_up(shoot):
            bastion = await self._give_up(bastion)
        if "deletionTimestamp" in bastion["metadata"]:
            return None
        if why := _unreachable(bastion, shoot):
            await self._end(bastion, why)
            return None
        if _is_needed(bastion):
            bastion = await self._prolong(bastion)
        now = datetime.now(UTC)
        expires = datetime.fromisoformat(bastion["status"]["expirationTimestamp"])
        oldest = datetime.fromisoformat(bastion["metadata"]["creationTimestamp"]) + self._config.max_lifetime
        if (left := min(expires, oldest) - now) > timedelta():
            return Requeue(left.total_seconds())
        await self._end(bastion, "nobody needs it any more" if expires <= now else "it is too old")
        return None

    async def _prolong(self, bastion: Object) -> Object:
        """Write a new expiration, then remove the keepalive annotation.

        If the process is killed in between, the next one does both again, which is harmless.
        """
        now = datetime.now(UTC)
        status = {"lastHeartbeatTimestamp": timestamp(now), "expirationTimestamp": timestamp(now + _NEEDED_FOR)}
        bastion = await self._patch(bastion, {"status": status}, "status")
        if _annotations(bastion).get(constants.OPERATION) != constants.OPERATION_KEEPALIVE:
            return bastion
        version = bastion["metadata"]["resourceVersion"]
        heard = {"resourceVersion": version, "annotations": {constants.OPERATION: None}}
        return await self._patch(bastion, {"metadata": heard})

    async def _give_up(self, bastion: Object) -> Object:
        """Confirm the force-deletion of a Bastion: the gardenlet then removes it without calling the cloud."""
        if _is_confirmed(bastion):
            return bastion
        annotations = {constants.CONFIRMATION_FORCE_DELETION: "true"}
        return await self._patch(bastion, {"metadata": {"annotations": annotations}})

    async def _end(self, bastion: Object, why: str) -> None:
        metadata = bastion["metadata"]
        await self._client.delete(
            resources.OPERATIONS_BASTION, metadata["name"], metadata["namespace"], uid=metadata["uid"]
        )
        log.info("Bastion %s: %s; deleting it", key_of(bastion), why)
        await emit(self._client, bastion, _NAME, "BastionEnded", f"{why}: deleting it")

    async def _patch(self, bastion: Object, patch: Object, subresource: str = "") -> Object:
        metadata = bastion["metadata"]
        place = resources.OPERATIONS_BASTION, metadata["name"], metadata["namespace"]
        try:
            return await self._client.patch(*place, patch, subresource=subresource)
        except (Conflict, NotFound):
            raise TryAgain("it has changed meanwhile", after=0.1) from None


def _shoot_of(bastion: Mapping[str, Any]) -> str:
    return str(bastion["spec"]["shootRef"]["name"])


def _annotations(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


def _is_confirmed(obj: Mapping[str, Any]) -> bool:
    """Whether force-deletion of the object is confirmed: it is then deleted without calls to its cloud."""
    return is_true(_annotations(obj).get(constants.CONFIRMATION_FORCE_DELETION))


def _is_given_up(shoot: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in shoot["metadata"] and _is_confirmed(shoot)


def _is_needed(bastion: Mapping[str, Any]) -> bool:
    """Whether the Bastion is new, or has a keepalive annotation."""
    asked = _annotations(bastion).get(constants.OPERATION) == constants.OPERATION_KEEPALIVE
    return asked or not (bastion.get("status") or {}).get("expirationTimestamp")


def _unreachable(bastion: Mapping[str, Any], shoot: Mapping[str, Any] | None) -> str:
    """Reason why the Bastion must give no access to nodes; empty if it may."""
    if shoot is None:
        return "its Shoot is gone"
    if "deletionTimestamp" in shoot["metadata"]:
        return "its Shoot is being deleted"
    if shoot["spec"].get("seedName") != bastion["spec"].get("seedName"):
        return f"its Shoot is for seed {shoot['spec'].get('seedName')} now"
    return "" if ssh.has_access(shoot) else "its Shoot takes no SSH any more"


def _concerns(event: WatchEvent) -> bool:
    return event.old is None or event.type == "DELETED" or _facts(event.old) != _facts(event.object)


def _facts(shoot: Mapping[str, Any]) -> object:
    deleting = "deletionTimestamp" in shoot["metadata"]
    return deleting, _is_confirmed(shoot), shoot["spec"].get("seedName"), ssh.has_access(shoot)
