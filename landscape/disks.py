"""Disks of the cloud: each is a file with a file system, which the cloud mounts for the machine that it is attached to.

A disk is an object of kind Disk in the namespace of its shoot's machines. Its file outlives machines. To attach it, the
cloud mounts it in the directory of the machine, which the pod of the machine sees; to grow it, the cloud enlarges file
and file system while pods use it. The file system is XFS, because the kernel lets it grow without CAP_SYS_RESOURCE.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from api.labels import ZONE
from api.local import DISKS_VOLUME, MACHINE_LABEL
from api.quantities import parse_quantity
from api.resources import DISK, POD
from kube.cache import Cache, Key
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller
from kube.edit import patch_as_read
from landscape.plan import Plan
from landscape.shell import run

log = logging.getLogger("landscape.disks")

FINALIZER = "cloud.local.provider.extensions.gardener.cloud/disk"
MOST_OF_MACHINE = 16
"""Most disks that one machine can have."""
_MEBIBYTE = 1024 * 1024
_SMALLEST = 300 * _MEBIBYTE
"""Size of the smallest XFS. A smaller disk gets this size, as clouds round sizes up."""


def directory(plan: Plan) -> Path:
    return plan.cloud.directory / "disks"


def attached_directory(plan: Plan) -> Path:
    """Directory with a directory for each namespace, and in it one for each machine."""
    return directory(plan) / "attached"


async def share(plan: Plan) -> None:
    """Let machines see mounts below ``attached_directory`` that are made while they run; before their node starts."""
    attached = attached_directory(plan)
    attached.mkdir(parents=True, exist_ok=True)
    if not _is_mounted(attached):
        await run("mount", "--bind", attached, attached)
    await run("mount", "--make-shared", attached)


def _is_mounted(place: Path) -> bool:
    return place.is_mount()


def definition() -> Object:
    """CustomResourceDefinition of Disk."""
    string = {"type": "string"}
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "string", "pattern": r"^[0-9]+([KMGT]i?)?$", "description": "Size as a quantity."},
            "zone": {**string, "description": "Zone of the machines that it can be attached to; none: of all zones."},
            "machine": {**string, "description": "Name of the machine that it is attached to."},
        },
        "x-kubernetes-validations": [
            {
                "rule": "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
                "message": "a disk cannot shrink",
            },
            {
                "rule": "has(self.zone) == has(oldSelf.zone) && (!has(self.zone) || self.zone == oldSelf.zone)",
                "message": "a disk cannot move to another zone",
            },
        ],
    }
    status = {
        "type": "object",
        "properties": {
            "size": {"type": "integer", "format": "int64", "description": "Size in bytes."},
            "machine": {**string, "description": "Name of the machine that has the disk."},
            "error": {**string, "description": "Why the disk is not as its spec says."},
        },
    }
    columns = [
        {"name": "Size", "type": "string", "jsonPath": ".spec.size"},
        {"name": "Machine", "type": "string", "jsonPath": ".status.machine"},
        {"name": "Error", "type": "string", "jsonPath": ".status.error"},
    ]
    version = {
        "name": DISK.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(DISK)},
        "spec": {
            "group": DISK.group,
            "scope": "Namespaced",
            "names": {"kind": DISK.kind, "plural": DISK.plural, "singular": "disk", "listKind": "DiskList"},
            "versions": [version],
        },
    }


class Files:
    """Files and mounts of disks on the cloud's host. Each method may run twice: the second run changes nothing."""

    def __init__(self, root: Path) -> None:
        self._files = root / "files"
        self._attached = root / "attached"

    async def ensure(self, disk: Object) -> int:
        """Make the file, or enlarge it with its file system; returns its size in bytes."""
        file = self._file(disk)
        size = size_of(disk)
        if not file.exists():
            self._files.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished = file.with_suffix(".new")
            unfinished.unlink(missing_ok=True)
            _resize(unfinished, size)
            await run("mkfs.xfs", "-q", unfinished)
            unfinished.rename(file)
        if file.stat().st_size < size:
            _resize(file, size)
        for device in await self._devices(file):
            await run("losetup", "--set-capacity", device)
        for place in self.mounts(disk):
            await run("xfs_growfs", place)
        return file.stat().st_size

    def mounts(self, disk: Object) -> list[Path]:
        """Directories of machines in which the disk is mounted."""
        metadata = disk["metadata"]
        places = (self._attached / metadata["namespace"]).glob(f"*/{metadata['name']}")
        return [place for place in places if place.is_mount()]

    def of_machine(self, namespace: str, machine: str) -> list[str]:
        """Names of the disks that a machine has."""
        return [each.name for each in (self._attached / namespace / machine).glob("*") if each.is_mount()]

    async def attach(self, disk: Object, machine: str) -> None:
        place = self._attached / disk["metadata"]["namespace"] / machine / disk["metadata"]["name"]
        if place in self.mounts(disk):
            return
        place.mkdir(parents=True, exist_ok=True)
        file = self._file(disk)
        # A machine that is dead may still have the disk. It shares device and file system with the next one.
        known = await self._devices(file)
        device = known[0] if known else await _loop_device(file)
        await run("mount", "-t", "xfs", "-o", "nodev", device, place)
        if not known:
            await run("losetup", "--detach", device)  # from now on, the device ends with its last mount
        await run("xfs_growfs", place)

    async def detach(self, place: Path) -> None:
        await run("umount", place)
        _remove_if_empty(place)

    async def delete(self, disk: Object) -> None:
        for place in self.mounts(disk):
            await self.detach(place)
        self._file(disk).unlink(missing_ok=True)
        self._forget_namespace(disk["metadata"]["namespace"])

    def forget_machine(self, namespace: str, machine: str) -> None:
        """Remove the directory of a machine that is gone."""
        _remove_if_empty(self._attached / namespace / machine)
        self._forget_namespace(namespace)

    def _forget_namespace(self, namespace: str) -> None:
        _remove_if_empty(self._attached / namespace)

    def _file(self, disk: Object) -> Path:
        return self._files / f"{disk['metadata']['uid']}.xfs"

    async def _devices(self, file: Path) -> list[str]:
        return (await run("losetup", "--noheadings", "--output", "NAME", "--associated", file)).split()


def _remove_if_empty(place: Path) -> None:
    with contextlib.suppress(OSError):
        place.rmdir()


def _resize(file: Path, size: int) -> None:
    with file.open("ab") as opened:
        opened.truncate(size)
    file.chmod(0o600)


async def _loop_device(file: Path) -> str:
    """A loop device of the file. Its node is made where the kernel's own directory of devices is not mounted."""
    free = (await run("losetup", "--find")).strip()
    with contextlib.suppress(FileExistsError):
        os.mknod(free, stat.S_IFBLK | 0o600, os.makedev(7, int(free.removeprefix("/dev/loop"))))
    return (await run("losetup", "--find", "--show", file)).strip()


def size_of(disk: Object) -> int:
    """Size in bytes that a disk gets: whole mebibytes, and no less than a file system needs."""
    wanted = max(int(parse_quantity(disk["spec"]["size"])), _SMALLEST)
    return -(-wanted // _MEBIBYTE) * _MEBIBYTE


def refusal(disk: Object, machine: Object | None, others: Iterable[str]) -> str:
    """Reason why a disk cannot be attached to a machine with ``others``; empty if it can."""
    name, zone = disk["spec"]["machine"], disk["spec"].get("zone")
    if machine is None or machine["metadata"].get("deletionTimestamp"):
        return f"machine {name} does not exist"
    if DISKS_VOLUME not in {each["name"] for each in machine["spec"].get("volumes") or ()}:
        return f"machine {name} is older than the disks of this cloud: replace it"
    if zone and (has := machine["metadata"]["labels"].get(ZONE)) != zone:
        return f"machine {name} is in zone {has}, the disk in zone {zone}"
    if len(set(others) - {disk["metadata"]["name"]}) >= MOST_OF_MACHINE:
        return f"machine {name} has {MOST_OF_MACHINE} disks, which is the most that it can have"
    return ""


class Disks:
    """Makes, attaches, grows and deletes disks. One such process runs in a cloud."""

    def __init__(self, client: KubeClient, files: Files) -> None:
        self._client = client
        self._files = files
        self._disks = Cache(client, DISK)
        self._machines = Cache(client, POD, labels=MACHINE_LABEL)

    async def run(self) -> None:
        """Run until cancelled."""
        # One worker: two would count the disks of a machine at the same time.
        controller = Controller("disks", self._reconcile, workers=1)
        async with self._disks, self._machines:
            await self._disks.synced()
            await self._machines.synced()
            controller.watch(self._disks)
            controller.watch(self._machines, keys=self._of_machine)
            await controller.run()

    def _of_machine(self, event: WatchEvent) -> list[Key]:
        metadata = event.object["metadata"]
        if event.type == "DELETED":
            self._files.forget_machine(metadata["namespace"], metadata["name"])
        found = self._disks.list(metadata["namespace"])
        return [
            Key(metadata["namespace"], each["metadata"]["name"]) for each in found if _names(each, metadata["name"])
        ]

    async def _reconcile(self, key: Key) -> None:
        disk = self._disks.get(key.name, key.namespace)
        if disk is None:
            return
        if disk["metadata"].get("deletionTimestamp"):
            await self._delete(disk)
            return
        if FINALIZER not in (disk["metadata"].get("finalizers") or ()):
            finalizers = [*(disk["metadata"].get("finalizers") or ()), FINALIZER]
            disk = await patch_as_read(self._client, DISK, disk, {"metadata": {"finalizers": finalizers}})
        size = await self._files.ensure(disk)
        machine, error = await self._attach(disk)
        await self._report(disk, {"size": size, "machine": machine, "error": error})

    async def _attach(self, disk: Object) -> tuple[str | None, str | None]:
        """Name of the machine that has the disk now, and why no machine has it, or another one than it should."""
        namespace, wanted = disk["metadata"]["namespace"], disk["spec"].get("machine")
        for place in self._files.mounts(disk):
            has = place.parent.name
            gone = self._machines.get(has, namespace) is None
            if has != wanted or gone:
                await self._files.detach(place)
                if gone:  # a machine that runs sees no disk in a directory that is made again
                    self._files.forget_machine(namespace, has)
                log.info("disk %s/%s detached from machine %s", namespace, disk["metadata"]["name"], has)
        if not wanted:
            return None, None
        others = self._files.of_machine(namespace, wanted)
        if reason := refusal(disk, self._machines.get(wanted, namespace), others):
            return None, reason
        await self._files.attach(disk, wanted)
        return wanted, None

    async def _delete(self, disk: Object) -> None:
        metadata = disk["metadata"]
        if FINALIZER not in (metadata.get("finalizers") or ()):
            return
        machine = disk["spec"].get("machine")
        if machine and self._machines.get(machine, metadata["namespace"]) is not None:
            await self._report(disk, {"error": f"machine {machine} still has the disk: detach it first"})
            return
        await self._files.delete(disk)
        log.info("disk %s/%s deleted", metadata["namespace"], metadata["name"])
        left = [each for each in metadata["finalizers"] if each != FINALIZER]
        await patch_as_read(self._client, DISK, disk, {"metadata": {"finalizers": left}})

    async def _report(self, disk: Object, status: Object) -> None:
        live = disk.get("status") or {}
        if any(live.get(key) != value for key, value in status.items()):
            metadata = disk["metadata"]
            await self._client.patch(
                DISK, metadata["name"], metadata["namespace"], {"status": status}, subresource="status"
            )


def _names(disk: Object, machine: str) -> bool:
    return machine in (disk["spec"].get("machine"), (disk.get("status") or {}).get("machine"))
