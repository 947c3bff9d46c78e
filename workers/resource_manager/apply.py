"""Applies one object to the target cluster, or deletes it.

The applier reads the live object, computes what the object is to be (``merge``), and replaces the live object with it.
Server-side apply would not do: fields that other managers added would stay, and the manifest decides about these, too.

The API server completes objects by defaults, so a comparison of the two objects alone finds differences where there
are none. The applier therefore asks for a dry run, and writes only if the API server would store another object.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Set
from datetime import UTC, datetime
from typing import Literal, cast

from api.durations import parse_duration
from api.resources import (
    DEPLOYMENT,
    EVENT,
    HORIZONTAL_POD_AUTOSCALER,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    STATEFUL_SET,
    Resource,
)
from kube.client import KubeClient, Object
from kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from kube.objects import selector_of
from workers.lib import resource_names as names
from workers.lib.resource_names import annotation
from workers.resource_manager.manifests import Reference, truthy_annotation
from workers.resource_manager.merge import Applied, merge

MANAGER = "gardener-resource-manager"

_log = logging.getLogger(__name__)

_FOREGROUND = frozenset({"apps", "extensions", "batch"})
_SCALED = (DEPLOYMENT.kind, STATEFUL_SET.kind)
_TRIES = 5
"""Maximum number of times that an object is read and written in one run, if others write it at the same time."""
_VOLATILE = frozenset({"managedFields", "resourceVersion", "generation"})
"""Metadata that differ between an object and the answer to a dry run that changes nothing."""


class Applier:
    """Writes to one target cluster."""

    def __init__(self, target: KubeClient, *, always_update: bool = False) -> None:
        """``always_update``: write each object in each run, without a dry run before."""
        self._target = target
        self._always_update = always_update
        self._settled: dict[Reference, tuple[str, bytes]] = {}
        """Resource version of each object that a dry run did not change, and the digest of the object to write."""

    async def apply(
        self,
        obj: Object,
        *,
        applied: Applied | None = None,
        known: bool = True,
        force_labels: bool = False,
        force_annotations: bool = False,
    ) -> Object:
        """Create or update an object. ``applied``: its labels and annotations as they were written last.

        None: the object was never written. ``known``: False if it is uncertain that the object was written, because the
        process may have ended before. In both cases the object is created without a read of the live object before.

        A second run finds the object as it is to be, and writes nothing. Raises ApiError, also after an object that
        cannot be updated was deleted.
        """
        resource = await self._target.resource_for(obj["apiVersion"], obj["kind"])
        for attempt in range(1, _TRIES + 1):
            try:
                if (applied is None or not known) and attempt == 1:
                    with contextlib.suppress(AlreadyExists, Invalid):
                        return await self._target.create(obj, manager=MANAGER)
                return await self._apply_once(obj, resource, applied or Applied(), force_labels, force_annotations)
            except (AlreadyExists, Conflict, NotFound):
                # Another component has created, changed or deleted the object since it was read.
                if attempt == _TRIES:
                    raise
        raise AssertionError("unreachable")

    async def _apply_once(
        self, obj: Object, resource: Resource, applied: Applied, force_labels: bool, force_annotations: bool
    ) -> Object:
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
        live = await self._target.find(resource, name, namespace)
        if live is None:
            return await self._target.create(obj, manager=MANAGER)
        if truthy_annotation(obj, names.IGNORE):
            return live
        wanted = merge(
            obj,
            live,
            applied,
            force_labels=force_labels,
            force_annotations=force_annotations,
            autoscaled=await self._autoscaled(obj, live),
        )
        try:
            if not self._always_update and await self._is_settled(Reference.of(obj), wanted, live):
                return live
            return await self._target.replace(wanted, manager=MANAGER)
        except Invalid as error:
            await self._delete_what_cannot_be_updated(obj, resource, error)
            raise

    async def _is_settled(self, reference: Reference, wanted: Object, live: Object) -> bool:
        """Whether the API server would store the live object again, if it were replaced by the wanted object."""
        if wanted == {**live, "metadata": _without(live["metadata"], {"managedFields"})}:
            return True
        state = live["metadata"]["resourceVersion"], _digest(wanted)
        if self._settled.get(reference) == state:
            return True
        self._settled.pop(reference, None)
        if _stored(await self._target.replace(wanted, manager=MANAGER, dry_run=True)) != _stored(live):
            return False
        self._settled[reference] = state
        return True

    async def _autoscaled(self, obj: Object, live: Object) -> bool:
        """Whether a HorizontalPodAutoscaler scales the object, so that its replicas are not ours to set."""
        replicas = (obj.get("spec") or {}).get("replicas")
        if obj["kind"] not in _SCALED or replicas in (None, (live.get("spec") or {}).get("replicas")):
            return False
        metadata = obj["metadata"]
        for scaler in await self._target.list(HORIZONTAL_POD_AUTOSCALER, metadata["namespace"]):
            reference = scaler["spec"]["scaleTargetRef"]
            if (reference["kind"], reference["name"]) == (obj["kind"], metadata["name"]):
                return True
        return False

    async def _delete_what_cannot_be_updated(self, obj: Object, resource: Resource, error: Invalid) -> None:
        """Delete an object that cannot be updated, if that is allowed; the next run creates it again."""
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
        live = await self._target.find(resource, name, namespace)
        if live is None:
            return
        immutable = obj["kind"] in ("ConfigMap", "Secret") and live.get("immutable") is True
        if not immutable and not truthy_annotation(obj, names.DELETE_ON_INVALID_UPDATE):
            return
        _log.info("deleting %s %s/%s to create it again: %s", obj["kind"], namespace, name, error.reason)
        propagation = annotation(obj, names.PROPAGATION_ON_INVALID_UPDATE)
        await self._target.delete(
            resource,
            name,
            namespace,
            uid=live["metadata"]["uid"],
            propagation=cast('Literal["Background", "Foreground", "Orphan"] | None', propagation),
        )

    async def release(self, reference: Reference, origin: str) -> None:
        """Remove our annotations from an object that this ManagedResource no longer manages.

        Another ManagedResource may take it over.
        """
        try:
            resource = await self._target.resource_for(reference.api_version, reference.kind)
        except NotFound:
            return
        live = await self._target.find(resource, reference.name, reference.namespace or None)
        if live is None or annotation(live, names.ORIGIN) != origin:
            return
        marks = {names.ORIGIN: None, names.DESCRIPTION: None}
        await self._target.patch(
            resource, reference.name, reference.namespace or None, {"metadata": {"annotations": marks}}
        )

    async def delete(
        self,
        reference: Reference,
        *,
        delete_claims: bool = False,
        keep_collectable: bool = False,
        origin: str | None = None,
    ) -> str | None:
        """Request an object's deletion. Returns why the object still exists, None if it is gone or to be kept.

        ``origin``: keep an object that has another origin. None: delete it, whatever its origin is.
        """
        namespace = reference.namespace or None
        self._settled.pop(reference, None)
        try:
            resource = await self._target.resource_for(reference.api_version, reference.kind)
        except NotFound:
            return None
        live = await self._target.find(resource, reference.name, namespace)
        if live is None or self._kept(live, keep_collectable):
            return None
        if origin is not None and annotation(live, names.ORIGIN) != origin:
            _log.warning("%s stays: it is in the status of a ManagedResource that did not apply it", reference)
            return None
        metadata = live["metadata"]
        if not metadata.get("deletionTimestamp"):
            if delete_claims and resource == STATEFUL_SET:
                await self._delete_claims(live)
            # Foreground deletion is a finalizer, too.
            foreground = resource.group in _FOREGROUND and not await self._is_without_namespace(live)
            propagation: Literal["Foreground"] | None = "Foreground" if foreground else None
            try:
                left = await self._target.remove(
                    resource, reference.name, namespace, uid=metadata["uid"], propagation=propagation
                )
            except Conflict as error:
                return f"{reference}: {error.reason}"
            if left is None:
                return None
            live = left
        elif self._grace_is_over(live):
            await self._finalize(resource, live)
        if live["metadata"].get("finalizers") and await self._is_without_namespace(live):
            _log.warning("%s stays with finalizers %s: its namespace is gone, so the API server refuses to remove them",
                         reference, ", ".join(live["metadata"]["finalizers"]))  # fmt: skip
            return None
        return f"{reference} is being deleted" + await self._explain(resource, live)

    async def _is_without_namespace(self, live: Object) -> bool:
        """Whether the namespace of an object is gone, for example because an operator has removed its finalizers.

        The API server refuses each update of such an object. So no controller can remove its finalizers, and a
        deletion that waits for them would not end. In a namespace that is being deleted, finalizers can be removed.
        """
        namespace = live["metadata"].get("namespace")
        try:
            return namespace is not None and await self._target.find(NAMESPACE, namespace) is None
        except Forbidden:
            return False

    @staticmethod
    def _kept(live: Object, keep_collectable: bool) -> bool:
        if truthy_annotation(live, names.KEEP_OBJECT):
            return True
        labels = live["metadata"].get("labels") or {}
        collectable = labels.get(names.GARBAGE_COLLECTABLE) == "true"
        return keep_collectable and live["kind"] in ("ConfigMap", "Secret") and collectable

    @staticmethod
    def _grace_is_over(live: Object) -> bool:
        grace = annotation(live, names.FINALIZE_DELETION_AFTER)
        if not grace:
            return False
        try:
            end = datetime.fromisoformat(live["metadata"]["deletionTimestamp"]) + parse_duration(grace)
        except ValueError:
            return False
        return datetime.now(UTC) >= end

    async def _finalize(self, resource: Resource, live: Object) -> None:
        metadata = live["metadata"]
        _log.info("removing finalizers of %s %s: its grace period has passed", resource, metadata["name"])
        try:
            if resource == NAMESPACE:
                body = {**live, "spec": {"finalizers": []}}
                path = resource.path(None, metadata["name"], "finalize")
                await self._target.request("PUT", path, body=body)
            elif metadata.get("finalizers"):
                await self._target.patch(
                    resource, metadata["name"], metadata.get("namespace"), {"metadata": {"finalizers": None}}
                )
        except (NotFound, Conflict):
            pass  # the object is gone or has changed: the next reconciliation decides

    async def _delete_claims(self, stateful_set: Object) -> None:
        namespace = stateful_set["metadata"]["namespace"]
        selector = selector_of(stateful_set["spec"].get("selector") or {})
        claims = await self._target.list(PERSISTENT_VOLUME_CLAIM, namespace, labels=selector) if selector else []
        await asyncio.gather(
            *(
                self._target.delete(
                    PERSISTENT_VOLUME_CLAIM, claim["metadata"]["name"], namespace, uid=claim["metadata"]["uid"]
                )
                for claim in claims
            )
        )

    async def _explain(self, resource: Resource, live: Object) -> str:
        """Warning Events of a Service that is not deleted yet: usually about its load balancer in the cloud."""
        if resource.kind != "Service" or resource.group:
            return ""
        metadata = live["metadata"]
        fields = f"involvedObject.kind=Service,involvedObject.uid={metadata['uid']},type=Warning"
        try:
            events = await self._target.list(EVENT, metadata["namespace"], fields=fields)
        except ApiError:
            return ""
        texts = [f"{event.get('reason')}: {event.get('message')}" for event in events[-5:]]
        return f" ({'; '.join(texts)})" if texts else ""


def _stored(obj: Object) -> Object:
    """The part of an object that a write changes."""
    return {**obj, "metadata": _without(obj["metadata"], _VOLATILE)}


def _without(metadata: Object, keys: Set[str]) -> Object:
    return {key: value for key, value in metadata.items() if key not in keys}


def _digest(obj: Object) -> bytes:
    return hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).digest()
