"""Applies one object to the target cluster, or deletes it.

Objects are written by server-side apply: fields that we no longer name are removed, fields of other managers stay, and
writing the same object again changes nothing. That covers most of the merge table of spec/resource-manager.md 3. For
the rest, ``adapt`` copies values from the live object first.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, cast

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
from kube.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound
from kube.objects import label_selector
from workers.lib import resource_names as names
from workers.lib.resource_names import annotation
from workers.resource_manager.manifests import Reference, pod_templates, truthy_annotation

MANAGER = "gardener-resource-manager"

_log = logging.getLogger(__name__)

_FOREGROUND = frozenset({"apps", "extensions", "batch"})
_SCALED = (DEPLOYMENT.kind, STATEFUL_SET.kind)


class Applier:
    """Writes to one target cluster."""

    def __init__(self, target: KubeClient) -> None:
        self._target = target

    async def apply(self, obj: Object, *, force_labels: bool = False, force_annotations: bool = False) -> Object:
        """Create or update an object. Raises ApiError, also after an object that cannot be updated was deleted."""
        resource = await self._target.resource_for(obj["apiVersion"], obj["kind"])
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
        if truthy_annotation(obj, names.IGNORE):
            return await self._create_only(obj, resource)
        wanted = obj
        live = await self._target.find(resource, name, namespace)
        if live is not None and needs_live(obj):
            wanted = adapt(obj, live, autoscaled=await self._autoscaled(obj))
        try:
            if live is None:
                written = await self._target.apply_blindly(wanted, manager=MANAGER)
            else:
                written = await self._target.apply(wanted, manager=MANAGER, live=live)
        except Invalid as error:
            await self._delete_what_cannot_be_updated(obj, resource, error)
            raise
        if force_labels or force_annotations:
            written = await self._drop_foreign(obj, written, resource, force_labels, force_annotations)
        return written

    async def _create_only(self, obj: Object, resource: Resource) -> Object:
        try:
            return await self._target.create(obj)
        except AlreadyExists:
            return await self._target.get(resource, obj["metadata"]["name"], obj["metadata"].get("namespace"))

    async def _autoscaled(self, obj: Object) -> bool:
        """Whether a HorizontalPodAutoscaler scales the object, so that its replicas are not ours to set."""
        if obj["kind"] not in _SCALED or (obj.get("spec") or {}).get("replicas") is None:
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

    async def _drop_foreign(
        self, obj: Object, live: Object, resource: Resource, labels: bool, annotations: bool
    ) -> Object:
        patch: dict[str, dict[str, None]] = {}
        for field, forced in (("labels", labels), ("annotations", annotations)):
            wanted = obj["metadata"].get(field) or {}
            foreign = {key: None for key in live["metadata"].get(field) or {} if key not in wanted}
            if forced and foreign:
                patch[field] = foreign
        if not patch:
            return live
        metadata = live["metadata"]
        return await self._target.patch(resource, metadata["name"], metadata.get("namespace"), {"metadata": patch})

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
            propagation: Literal["Foreground"] | None = "Foreground" if resource.group in _FOREGROUND else None
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
        return f"{reference} is being deleted" + await self._explain(resource, live)

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
        selector = label_selector((stateful_set["spec"].get("selector") or {}).get("matchLabels") or {})
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


def needs_live(obj: Mapping[str, Any]) -> bool:
    """Whether the applied object depends on the live object."""
    return (
        obj["kind"] == STATEFUL_SET.kind
        or (obj["kind"] == DEPLOYMENT.kind and (obj.get("spec") or {}).get("replicas") is not None)
        or annotation(obj, names.PRESERVE_RESOURCES) == "true"
    )


def adapt(obj: Object, live: Mapping[str, Any], *, autoscaled: bool = False) -> Object:
    """The object to apply, with those values that the live object decides.

    These values are copied, not left out: a field that we owned and no longer name would be reset.
    """
    wanted: Object = {**obj, "spec": dict(obj.get("spec") or {})}
    spec, live_spec = wanted["spec"], live.get("spec") or {}
    if obj["kind"] in _SCALED and "replicas" in live_spec:
        keep = annotation(obj, names.PRESERVE_REPLICAS) == "true" or autoscaled
        if keep or spec.get("replicas") is None:
            spec["replicas"] = live_spec["replicas"]
    if obj["kind"] == STATEFUL_SET.kind and live_spec.get("volumeClaimTemplates"):
        # Immutable: the API server would refuse a change each time.
        spec["volumeClaimTemplates"] = [
            {key: value for key, value in claim.items() if key != "status"}
            for claim in live_spec["volumeClaimTemplates"]
        ]
    if annotation(obj, names.PRESERVE_RESOURCES) == "true":
        _keep_resources(wanted, live)
    return wanted


def _keep_resources(wanted: Object, live: Mapping[str, Any]) -> None:
    """Copy the live cpu and memory of each container, as an autoscaler has set them; not of init containers."""
    for template, live_template in zip(pod_templates(wanted), pod_templates(live), strict=False):
        living = {
            container["name"]: container.get("resources") or {} for container in live_template["spec"]["containers"]
        }
        containers = []
        for container in template["spec"]["containers"]:
            resources = {key: dict(value) for key, value in (container.get("resources") or {}).items() if value}
            for part in ("requests", "limits"):
                for quantity in ("cpu", "memory"):
                    value = (living.get(container["name"], {}).get(part) or {}).get(quantity)
                    if value is not None:
                        resources.setdefault(part, {})[quantity] = value
            containers.append({**container, "resources": resources} if resources else container)
        template["spec"] = {**template["spec"], "containers": containers}
