"""Volumes of one shoot: disks of the cloud for claims, attached to the machines of their pods.

It does for the CSI driver what external-provisioner, external-attacher and external-resizer do for others, with one
connection to the shoot. The handle of a volume is the name of a disk, in the namespace of the shoot's machines: no
volume of a shoot can reach a disk of another one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from activities.provider_local.storage import CSI_DRIVER
from api.labels import ZONE
from api.quantities import parse_quantity
from api.resources import DISK, NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS, VOLUME_ATTACHMENT
from kube.cache import Cache, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, TryAgain
from kube.edit import patch_as_read
from kube.errors import AlreadyExists, Invalid, NotFound
from kube.events import emit

COMPONENT = "provider-local"
VOLUME_FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
"""Finalizer of a volume whose disk must go first. Source: KEP-2644."""
ATTACHER_FINALIZER = f"external-attacher/{CSI_DRIVER.replace('.', '-')}"
_PROVISIONER = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
"""Annotations by which the volume controller asks a provisioner for a volume."""
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_READ_ANNOTATIONS = (*_PROVISIONER, _PROVISIONED_BY, _SELECTED_NODE)
_MODES = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})
_BY_DISK = "disk"
_BY_VOLUME = "volume"
_WAIT_SECONDS = 60.0
_WORKERS = 10


def kept(obj: Object) -> Object:
    """The part of an object that the controllers read: owners of shoots decide how large the rest is."""
    metadata = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "finalizers")
    small = {name: metadata[name] for name in names if name in metadata}
    annotations = metadata.get("annotations") or {}
    small["annotations"] = {name: annotations[name] for name in _READ_ANNOTATIONS if name in annotations}
    return {**{part: obj[part] for part in ("apiVersion", "kind", "spec", "status") if part in obj}, "metadata": small}


class Volumes:
    """Controllers of claims, volumes and attachments in one shoot. ``namespace``: that of its machines in the cloud."""

    def __init__(self, shoot: KubeClient, cloud: KubeClient, namespace: str) -> None:
        self._shoot = shoot
        self._cloud = cloud
        self._namespace = namespace
        self._claims = Cache(shoot, PERSISTENT_VOLUME_CLAIM, keep=kept)
        self._volumes = Cache(shoot, PERSISTENT_VOLUME, keep=kept)
        self._attachments = Cache(shoot, VOLUME_ATTACHMENT, keep=kept)
        self._disks = Cache(cloud, DISK, namespace)
        self._volumes.index(_BY_DISK, _disks_of)
        self._attachments.index(_BY_VOLUME, _volumes_of)

    async def run(self) -> None:
        """Run until cancelled."""
        claims = Controller("claims of volumes", self._claim, workers=_WORKERS)
        volumes = Controller("volumes", self._volume, workers=_WORKERS)
        attachments = Controller("attachments of volumes", self._attachment, workers=_WORKERS)
        async with self._claims, self._volumes, self._attachments, self._disks:
            for each in (self._claims, self._volumes, self._attachments, self._disks):
                await each.synced()
            claims.watch(self._claims)
            claims.watch(self._volumes, keys=_claim_of)
            volumes.watch(self._volumes)
            volumes.watch(self._attachments, keys=lambda event: [Key(None, name) for name in _volumes_of(event.object)])
            attachments.watch(self._attachments)
            attachments.watch(self._disks, keys=self._attachments_of)
            await asyncio.gather(claims.run(), volumes.run(), attachments.run())

    def _attachments_of(self, event: WatchEvent) -> list[Key]:
        return [key_of(each) for each in self._of_handle(event.object["metadata"]["name"])]

    def _of_handle(self, disk_name: str) -> list[Object]:
        """Attachments of all volumes of a disk: owners of shoots may make further volumes for it."""
        volumes = self._volumes.by_index(_BY_DISK, disk_name)
        return [each for volume in volumes for each in self._of_volume(volume["metadata"]["name"])]

    def _of_volume(self, name: str) -> list[Object]:
        return self._attachments.by_index(_BY_VOLUME, name)

    # -- claims

    async def _claim(self, key: Key) -> None:
        claim = self._claims.get(key.name, key.namespace)
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            return
        if claim["spec"].get("volumeName"):
            await self._grow(claim)
        else:
            await self._provision(claim)

    async def _provision(self, claim: Object) -> None:
        """Make a disk and a volume for a claim that waits for one. A second run finds the disk by its name."""
        metadata, spec = claim["metadata"], claim["spec"]
        if CSI_DRIVER not in [metadata["annotations"].get(name) for name in _PROVISIONER]:
            return
        try:
            class_ = await self._shoot.get(STORAGE_CLASS, spec.get("storageClassName") or "")
        except NotFound:
            return
        if class_["provisioner"] != CSI_DRIVER:
            return
        node = metadata["annotations"].get(_SELECTED_NODE)
        if class_.get("volumeBindingMode") == "WaitForFirstConsumer" and not node:
            return
        if reason := refusal(claim, class_):
            await emit(self._shoot, claim, COMPONENT, "ProvisioningFailed", reason, "Warning")
            return
        zone = ""
        if node:
            found = await self._shoot.find(NODE, node)
            if found is None:
                # The scheduler chooses another node.
                without = {"metadata": {"annotations": {_SELECTED_NODE: None}}}
                await patch_as_read(self._shoot, PERSISTENT_VOLUME_CLAIM, claim, without)
                return
            zone = found["metadata"]["labels"].get(ZONE, "")
        name = f"pvc-{metadata['uid']}"
        size = spec["resources"]["requests"]["storage"]
        with contextlib.suppress(AlreadyExists):
            await self._cloud.create(disk(name, self._namespace, size, zone))
        made = await self._of_disk(name, lambda live: live if live and _size(live) else None, "is not made")
        with contextlib.suppress(AlreadyExists):
            await self._shoot.create(volume_for(claim, class_, _size(made), made["spec"].get("zone", "")))

    async def _grow(self, claim: Object) -> None:
        """Enlarge the disk of a claim, then report the size in volume and claim."""
        metadata, name = claim["metadata"], claim["spec"]["volumeName"]
        volume = self._volumes.get(name)
        if volume is None or not _is_ours(volume) or (claim.get("status") or {}).get("phase") != "Bound":
            return
        if (volume["spec"].get("claimRef") or {}).get("uid") != metadata["uid"]:
            return
        wanted = parse_quantity(claim["spec"]["resources"]["requests"]["storage"])
        if wanted > parse_quantity(volume["spec"]["capacity"]["storage"]):
            size = await self._enlarge(claim, volume["spec"]["csi"]["volumeHandle"])
            if size is None:
                return
            capacity = {"spec": {"capacity": {"storage": str(size)}}}
            volume = await patch_as_read(self._shoot, PERSISTENT_VOLUME, volume, capacity)
        capacity = volume["spec"]["capacity"]["storage"]
        reported = ((claim.get("status") or {}).get("capacity") or {}).get("storage", "0")
        if parse_quantity(reported) < parse_quantity(capacity):
            status: dict[str, Any] = {"capacity": {"storage": capacity}, "conditions": None}
            status |= {"allocatedResources": None, "allocatedResourceStatuses": None}
            await self._shoot.patch(
                PERSISTENT_VOLUME_CLAIM,
                metadata["name"],
                metadata["namespace"],
                {"status": status},
                subresource="status",
            )

    async def _enlarge(self, claim: Object, name: str) -> int | None:
        """Size of the enlarged disk in bytes; None if the cloud refuses it."""
        request = claim["spec"]["resources"]["requests"]["storage"]
        live = self._disks.get(name)
        if live is None:
            raise TryAgain(f"disk {name} does not exist")
        wanted = int(parse_quantity(request))
        if _size(live) < wanted:
            try:
                await self._cloud.patch(DISK, name, self._namespace, {"spec": {"size": str(wanted)}})
            except Invalid as error:
                await emit(self._shoot, claim, COMPONENT, "VolumeResizeFailed", str(error), "Warning")
                return None
        grown = await self._of_disk(
            name, lambda found: found if found and _size(found) >= wanted else None, f"has not grown to {request}"
        )
        return _size(grown)

    # -- volumes

    async def _volume(self, key: Key) -> None:
        """Delete the disk of a released volume, then the volume; keep the disk if the reclaim policy says so."""
        volume = self._volumes.get(key.name)
        if volume is None or not _is_ours(volume):
            return
        metadata, spec = volume["metadata"], volume["spec"]
        if metadata["annotations"].get(_PROVISIONED_BY) != CSI_DRIVER:
            return
        released = (volume.get("status") or {}).get("phase") in ("Released", "Failed")
        deleting = bool(metadata.get("deletionTimestamp"))
        if spec.get("persistentVolumeReclaimPolicy") != "Delete":
            if deleting:
                await self._release(volume)
            return
        if not released or self._of_volume(key.name):
            return
        disk_name = spec["csi"]["volumeHandle"]
        await self._cloud.delete(DISK, disk_name, self._namespace)
        await self._of_disk(disk_name, lambda live: live is None or None, "is not deleted")
        await self._shoot.delete(PERSISTENT_VOLUME, key.name, uid=metadata["uid"])
        await self._release(volume)

    async def _release(self, volume: Object) -> None:
        name, uid = volume["metadata"]["name"], volume["metadata"]["uid"]
        live = await self._shoot.find(PERSISTENT_VOLUME, name)
        if live is None or live["metadata"]["uid"] != uid:
            return
        finalizers = live["metadata"].get("finalizers") or []
        if VOLUME_FINALIZER in finalizers:
            left = [each for each in finalizers if each != VOLUME_FINALIZER]
            await patch_as_read(self._shoot, PERSISTENT_VOLUME, live, {"metadata": {"finalizers": left}})

    # -- attachments

    async def _attachment(self, key: Key) -> None:
        attachment = self._attachments.get(key.name)
        if attachment is None or attachment["spec"]["attacher"] != CSI_DRIVER:
            return
        if attachment["metadata"].get("deletionTimestamp"):
            await self._detach(attachment)
        else:
            await self._attach(attachment)

    async def _attach(self, attachment: Object) -> None:
        """Attach the disk to the machine of the node, which has the node's name. A second run finds it attached."""
        name, machine = attachment["metadata"]["name"], attachment["spec"]["nodeName"]
        volume_name = attachment["spec"]["source"].get("persistentVolumeName") or ""
        volume = self._volumes.get(volume_name) if volume_name else None
        if volume is None or not _is_ours(volume):
            await self._report(attachment, error=f"PersistentVolume {volume_name} is not of driver {CSI_DRIVER}")
            return
        finalizers = attachment["metadata"].get("finalizers") or []
        if ATTACHER_FINALIZER not in finalizers:
            patch = {"metadata": {"finalizers": [*finalizers, ATTACHER_FINALIZER]}}
            attachment = kept(await patch_as_read(self._shoot, VOLUME_ATTACHMENT, attachment, patch))
        disk_name = volume["spec"]["csi"]["volumeHandle"]
        live = self._disks.get(disk_name)
        if live is None:
            await self._report(attachment, error=f"disk {disk_name} does not exist")
            return
        holder = live["spec"].get("machine")
        if holder and holder != machine:
            others = [each for each in self._of_handle(disk_name) if each["metadata"]["name"] != name]
            if any(each["spec"]["nodeName"] == holder for each in others):
                await self._report(attachment, error=f"disk {disk_name} is still attached to {holder}")
                return
        if holder != machine:
            await patch_as_read(self._cloud, DISK, live, {"spec": {"machine": machine}})
            return  # an event of the disk tells the result
        status = live.get("status") or {}
        if status.get("machine") == machine:
            await self._report(attachment, attached=True)
        elif status.get("error"):
            await self._report(attachment, error=status["error"])

    async def _detach(self, attachment: Object) -> None:
        """Detach the disk, and release the attachment when no machine has the disk any more."""
        finalizers = attachment["metadata"].get("finalizers") or []
        if ATTACHER_FINALIZER not in finalizers:
            return
        machine = attachment["spec"]["nodeName"]
        volume_name = attachment["spec"]["source"].get("persistentVolumeName") or ""
        volume = self._volumes.get(volume_name) if volume_name else None
        handle = volume["spec"]["csi"]["volumeHandle"] if volume is not None and _is_ours(volume) else ""
        live = self._disks.get(handle) if handle else None
        if live is not None:
            if live["spec"].get("machine") == machine:
                await patch_as_read(self._cloud, DISK, live, {"spec": {"machine": None}})
                return  # an event of the disk tells when it is detached
            if (live.get("status") or {}).get("machine") == machine:
                return
        left = [each for each in finalizers if each != ATTACHER_FINALIZER]
        await patch_as_read(self._shoot, VOLUME_ATTACHMENT, attachment, {"metadata": {"finalizers": left}})

    async def _report(self, attachment: Object, *, attached: bool = False, error: str = "") -> None:
        live = attachment.get("status") or {}
        if live.get("attached", False) == attached and (live.get("attachError") or {}).get("message", "") == error:
            return
        status = {"attached": attached, "attachError": {"message": error} if error else None}
        name = attachment["metadata"]["name"]
        await self._shoot.patch(VOLUME_ATTACHMENT, name, None, {"status": status}, subresource="status")

    async def _of_disk(self, name: str, predicate: Callable[[Object | None], Any], otherwise: str) -> Any:
        """Wait for a state of a disk. Raises TryAgain with the error in its status."""
        try:
            return await self._disks.wait_for(name, self._namespace, predicate, _WAIT_SECONDS)
        except TimeoutError:
            live = self._disks.get(name) or {}
            why = (live.get("status") or {}).get("error") or "the cloud does not say why"
            raise TryAgain(f"disk {name} {otherwise} after {_WAIT_SECONDS:.0f} s: {why}") from None


def refusal(claim: Object, class_: Mapping[str, Any]) -> str:
    """Why a claim cannot get a volume of this cloud; empty if it can."""
    spec = claim["spec"]
    if spec.get("volumeMode", "Filesystem") != "Filesystem":
        return "volumeMode Block is not possible: disks of this cloud have a file system"
    if impossible := sorted(set(spec.get("accessModes") or ()) - _MODES):
        return f"accessMode {impossible[0]} is not possible: a disk of this cloud is attached to one machine at a time"
    if spec.get("dataSource") or spec.get("dataSourceRef"):
        return "dataSource is not possible: this cloud has neither snapshots nor copies of disks"
    if spec.get("selector"):
        return "selector is not possible with a volume that is made for the claim"
    if spec.get("volumeAttributesClassName"):
        return "volumeAttributesClassName is not possible: disks of this cloud have no attributes"
    if class_.get("parameters"):
        return f"StorageClass {class_['metadata']['name']} has parameters, {CSI_DRIVER} knows none"
    if class_.get("mountOptions"):
        return f"StorageClass {class_['metadata']['name']} has mountOptions, {CSI_DRIVER} knows none"
    if class_.get("allowedTopologies") and class_.get("volumeBindingMode") != "WaitForFirstConsumer":
        return "allowedTopologies need volumeBindingMode WaitForFirstConsumer"
    return ""


def disk(name: str, namespace: str, size: str, zone: str) -> Object:
    """The disk of a volume."""
    return {
        "apiVersion": DISK.api_version,
        "kind": DISK.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"size": str(int(parse_quantity(size))), **({"zone": zone} if zone else {})},
    }


def volume_for(claim: Object, class_: Mapping[str, Any], size: int, zone: str) -> Object:
    """The volume of a claim, bound in advance; only nodes of its zone have it."""
    metadata, name = claim["metadata"], f"pvc-{claim['metadata']['uid']}"
    reference = {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")}
    in_zone = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {_PROVISIONED_BY: CSI_DRIVER},
            "finalizers": [VOLUME_FINALIZER],
        },
        "spec": {
            "storageClassName": class_["metadata"]["name"],
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": str(size)},
            "persistentVolumeReclaimPolicy": class_.get("reclaimPolicy", "Delete"),
            "volumeMode": "Filesystem",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
            "csi": {"driver": CSI_DRIVER, "volumeHandle": name},
            **({"nodeAffinity": {"required": {"nodeSelectorTerms": [in_zone]}}} if zone else {}),
        },
    }


def _is_ours(volume: Object) -> bool:
    return (volume["spec"].get("csi") or {}).get("driver") == CSI_DRIVER


def _disks_of(volume: Object) -> list[str]:
    return [volume["spec"]["csi"]["volumeHandle"]] if _is_ours(volume) else []


def _volumes_of(attachment: Object) -> list[str]:
    name = attachment["spec"]["source"].get("persistentVolumeName")
    return [name] if name else []


def _claim_of(event: WatchEvent) -> list[Key]:
    reference = event.object["spec"].get("claimRef") or {}
    return [Key(reference["namespace"], reference["name"])] if reference else []


def _size(found: Object) -> int:
    """Size of a disk in bytes, as the cloud reports it."""
    return int((found.get("status") or {}).get("size") or 0)
