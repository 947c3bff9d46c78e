"""Remove from a seed what its reconciliation has deployed, before its Seed goes.

Each activity reads what exists and deletes that, so a second run deletes the rest, or finds nothing.
"""

from datetime import timedelta

from temporalio import activity

from activities.clusters import Clusters
from activities.components import gateway
from activities.errors import transient
from activities.heartbeat import heartbeating
from activities.seed import extension_objects as extension
from activities.seed.bootstrap import INGRESS_DNS
from activities.seed.extension_access import BACKUP_SECRET, INGRESS_DNS_SECRET, ExtensionAccess
from activities.seed.handlers import places
from api import resources
from api.constants import CONFIRMATION_DELETION, GARDEN_NAMESPACE
from api.contracts.operations import SeedTask, TaskResult, Wait
from api.crds import crds
from api.policies import seed_policies
from api.resources import Resource
from kube.client import Object
from kube.errors import NotFound

_WAIT = Wait(timeout=timedelta(minutes=14))
"""Shorter than the timeout of the activities, so that their errors name the object."""
_GONE_SECONDS = 4 * 60.0
_SHOWN = 5
"""Number of objects that a message names."""


class SeedTeardownActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def delete_seed_extensions(self, task: SeedTask) -> TaskResult:
        """Delete the Extensions of class ``seed``, and wait until their controllers have released them."""
        found = [each for each in await self._list(resources.EXTENSION) if each["spec"].get("class") == "seed"]
        for each in found:
            await self._delete_extension(
                resources.EXTENSION, each["metadata"]["name"], each["metadata"]["namespace"], task, wait=False
            )
        for each in found:
            await self._delete_extension(
                resources.EXTENSION, each["metadata"]["name"], each["metadata"]["namespace"], task
            )
        return TaskResult(note=f"{len(found)} extensions")

    @activity.defn
    async def delete_seed_ingress_dns(self, task: SeedTask) -> TaskResult:
        """Delete the DNSRecord of the seed's ingress domain, and then the Secret with its credentials."""
        await self._delete_extension(resources.DNS_RECORD, INGRESS_DNS, GARDEN_NAMESPACE, task)
        await self._delete_secret(INGRESS_DNS_SECRET)
        return TaskResult()

    @activity.defn
    async def delete_seed_backup_bucket(self, task: SeedTask) -> TaskResult:
        """Delete the extension's BackupBucket, which empties and removes the bucket, and then its Secret."""
        await self._delete_extension(resources.BACKUP_BUCKET, task.uid, None, task)
        await self._delete_secret(BACKUP_SECRET)
        return TaskResult(note=f"bucket {task.uid}")

    @activity.defn
    async def delete_seed_gateway(self, task: SeedTask) -> TaskResult:
        """Delete the gateways with their namespaces, and wait until these, and so the load balancers, are gone.

        These are the seed's own gateway and those of handlers of ExposureClasses.
        """
        found = [gateway.OWN, *await places(self._clusters.seed)]
        for place in found:
            for kind in (resources.CLUSTER_ROLE_BINDING, resources.CLUSTER_ROLE):
                await self._clusters.seed.delete(kind, place.role)
        for place in found:
            await self._delete_and_wait(resources.NAMESPACE, place.namespace, 14 * 60.0 / len(found))
        return TaskResult(note=", ".join(each.namespace for each in found))

    @activity.defn
    async def delete_seed_secrets(self, task: SeedTask) -> TaskResult:
        """Delete the Secrets that the gardenlet copied into namespace ``garden``, and the rights of extensions on them.

        The namespace stays, as does all that operators have put there: the gardenlet itself runs in it.
        """
        for name in (INGRESS_DNS_SECRET, BACKUP_SECRET):
            await self._delete_secret(name)
        return TaskResult()

    @activity.defn
    async def delete_seed_crds(self, task: SeedTask) -> TaskResult:
        """Delete the kinds of the seed, if no object of them is left, and then the policies of the seed.

        Raises:
            ApplicationError: ``ObjectsLeft``, retried: names the objects.
        """
        seed = self._clusters.seed
        definitions = crds("seed")
        kinds = [_kind_of(each) for each in definitions]
        found = {kind.kind: left for kind in kinds if (left := await self._list(kind))}
        if found:
            told = "; ".join(f"{kind} {_names(left)}" for kind, left in found.items())
            raise transient("ObjectsLeft", f"kinds are deleted once their objects are gone from the seed: {told}")
        for definition in definitions:
            name = definition["metadata"]["name"]
            live = await seed.find(resources.CUSTOM_RESOURCE_DEFINITION, name)
            if live is not None and "deletionTimestamp" not in live["metadata"]:
                confirmed = {"metadata": {"annotations": {CONFIRMATION_DELETION: "true"}}}
                await seed.patch(resources.CUSTOM_RESOURCE_DEFINITION, name, None, confirmed)
                await seed.delete(resources.CUSTOM_RESOURCE_DEFINITION, name, uid=live["metadata"]["uid"])
        for definition in definitions:
            await self._gone(resources.CUSTOM_RESOURCE_DEFINITION, definition["metadata"]["name"], _GONE_SECONDS)
        for policy in reversed(seed_policies()):
            kind = resources.resource_of(policy["apiVersion"], policy["kind"])
            await seed.delete(kind, policy["metadata"]["name"])
        return TaskResult(note=f"{len(definitions)} kinds")

    async def _list(self, resource: Resource) -> list[Object]:
        """All objects of a kind; none if the seed does not have the kind."""
        try:
            return await self._clusters.seed.list(resource)
        except NotFound:
            return []

    async def _delete_extension(
        self, resource: Resource, name: str, namespace: str | None, task: SeedTask, *, wait: bool = True
    ) -> None:
        if await self._clusters.seed.find(resource, name, namespace) is None:
            return
        await extension.delete_extension(self._clusters.seed, resource, name, namespace, task.trigger)
        if wait:
            seed, caches = self._clusters.seed, self._clusters.seed_caches
            await extension.wait_extension_deleted(seed, caches, resource, name, namespace, _WAIT, task.trigger)

    async def _delete_secret(self, name: str) -> None:
        """Delete a Secret of namespace ``garden``, and the rights of extensions on it."""
        await ExtensionAccess(self._clusters).unshare(name)
        await self._clusters.seed.delete(resources.SECRET, name, GARDEN_NAMESPACE)

    async def _delete_and_wait(self, resource: Resource, name: str, seconds: float) -> None:
        """Delete an object that is in no namespace, and wait until it is gone."""
        live = await self._clusters.seed.find(resource, name)
        if live is None:
            return
        await self._clusters.seed.delete(resource, name, uid=live["metadata"]["uid"])
        await self._gone(resource, name, seconds)

    async def _gone(self, resource: Resource, name: str, seconds: float) -> None:
        cache = self._clusters.seed_caches.of(resource)
        try:
            await heartbeating(cache.wait_for(name, None, lambda live: live is None or None, seconds))
        except TimeoutError:
            status = (cache.get(name) or {}).get("status") or {}
            said = "; ".join(str(each.get("message")) for each in status.get("conditions") or () if each.get("message"))
            raise transient("NotReady", f"{resource.kind} {name} still exists: {said or 'it says no more'}") from None


def _kind_of(definition: Object) -> Resource:
    spec = definition["spec"]
    return resources.resource_of(f"{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["kind"])


def _names(objects: list[Object]) -> str:
    names = sorted(
        "/".join(filter(None, (each["metadata"].get("namespace"), each["metadata"]["name"]))) for each in objects
    )
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
