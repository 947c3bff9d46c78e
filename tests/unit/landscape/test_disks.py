"""Disks of the cloud: files that outlive machines, attached to one machine at a time, grown, and deleted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api.local import MACHINE_LABEL
from api.resources import DISK, POD
from landscape.disks import FINALIZER, MOST_OF_MACHINE, Disks, Files, refusal, size_of
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until

NAMESPACE = "infra-a"
MEBIBYTE = 1024 * 1024


class NotedFiles(Files):
    """Notes what is mounted where, and mounts nothing."""

    def __init__(self) -> None:
        super().__init__(Path("/disks"))
        self.made: dict[str, int] = {}
        self.attached: dict[tuple[str, str], str] = {}
        self.forgotten: set[str] = set()
        """Machines whose directories were removed."""

    async def ensure(self, disk: dict[str, Any]) -> int:
        self.made[disk["metadata"]["name"]] = size_of(disk)
        return size_of(disk)

    def mounts(self, disk: dict[str, Any]) -> list[Path]:
        name = disk["metadata"]["name"]
        return [Path(f"/disks/attached/{NAMESPACE}/{machine}/{name}") for machine, has in self.attached if has == name]

    def of_machine(self, namespace: str, machine: str) -> list[str]:
        return [name for each, name in self.attached if each == machine]

    async def attach(self, disk: dict[str, Any], machine: str) -> None:
        self.attached[machine, disk["metadata"]["name"]] = "mounted"

    async def detach(self, place: Path) -> None:
        del self.attached[place.parent.name, place.name]

    def forget_machine(self, namespace: str, machine: str) -> None:
        self.forgotten.add(machine)

    async def delete(self, disk: dict[str, Any]) -> None:
        del self.made[disk["metadata"]["name"]]


@pytest.fixture
def files() -> NotedFiles:
    return NotedFiles()


@pytest.fixture
async def cloud(files: NotedFiles) -> AsyncIterator[FakeCluster]:
    cloud = FakeCluster()
    running = asyncio.create_task(Disks(cloud, files).run())
    yield cloud
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def disk(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "pvc-1", "namespace": NAMESPACE}
    return {"apiVersion": DISK.api_version, "kind": "Disk", "metadata": metadata, "spec": {"size": "1Gi", **spec}}


def machine(name: str, zone: str = "0", **spec: Any) -> dict[str, Any]:
    labels = {MACHINE_LABEL: name, "topology.kubernetes.io/zone": zone}
    spec = spec or {"volumes": [{"name": "disks"}]}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def status(cloud: FakeCluster) -> dict[str, Any]:
    found: dict[str, Any] = cloud.objects[DISK, NAMESPACE, "pvc-1"].get("status") or {}
    return found


async def test_a_disk_is_made_attached_and_moved(cloud: FakeCluster, files: NotedFiles) -> None:
    for name in ("m1", "m2"):
        await cloud.create(machine(name))
    await cloud.create(disk())
    await until(lambda: status(cloud).get("size") == 1024 * MEBIBYTE)
    assert not files.attached

    await cloud.patch(DISK, "pvc-1", NAMESPACE, {"spec": {"machine": "m1"}})
    await until(lambda: status(cloud).get("machine") == "m1")
    await cloud.patch(DISK, "pvc-1", NAMESPACE, {"spec": {"machine": "m2"}})
    await until(lambda: status(cloud).get("machine") == "m2")

    assert list(files.attached) == [("m2", "pvc-1")]
    assert not files.forgotten, "a machine that runs would not see the next disk in a new directory"


async def test_a_disk_outlives_its_machine(cloud: FakeCluster, files: NotedFiles) -> None:
    await cloud.create(machine("m1"))
    await cloud.create(disk(machine="m1"))
    await until(lambda: status(cloud).get("machine") == "m1")

    await cloud.delete(POD, "m1", NAMESPACE)

    await until(lambda: not status(cloud).get("machine"))
    assert not files.attached
    assert files.made
    assert files.forgotten == {"m1"}


async def test_a_disk_that_a_machine_has_is_not_deleted(cloud: FakeCluster, files: NotedFiles) -> None:
    await cloud.create(machine("m1"))
    await cloud.create(disk(machine="m1"))
    await until(lambda: status(cloud).get("machine") == "m1")
    await cloud.delete(DISK, "pvc-1", NAMESPACE)
    await until(lambda: "detach it first" in (status(cloud).get("error") or ""))
    assert FINALIZER in cloud.objects[DISK, NAMESPACE, "pvc-1"]["metadata"]["finalizers"]

    await cloud.delete(POD, "m1", NAMESPACE)

    await until(lambda: not cloud.of(DISK))
    assert not files.made


@pytest.mark.parametrize(
    ("found", "others", "told"),
    [
        (None, (), "machine m1 does not exist"),
        (machine("m1", volumes=[]), (), "older than the disks"),
        (machine("m1", zone="1"), (), "is in zone 1, the disk in zone 0"),
        (machine("m1"), [f"pvc-{number}" for number in range(2, 2 + MOST_OF_MACHINE)], "has 16 disks"),
    ],
    ids=["gone", "older", "another zone", "full"],
)
def test_why_a_disk_is_not_attached(found: dict[str, Any] | None, others: list[str], told: str) -> None:
    assert told in refusal(disk(machine="m1", zone="0"), found, others)


def test_a_disk_that_is_attached_already_does_not_count_twice() -> None:
    others = ["pvc-1", *(f"pvc-{number}" for number in range(2, 1 + MOST_OF_MACHINE))]

    assert not refusal(disk(machine="m1", zone="0"), machine("m1"), others)


@pytest.mark.parametrize(("size", "expected"), [("1Mi", 300), ("1G", 954), ("2Gi", 2048)])
def test_sizes_are_whole_mebibytes(size: str, expected: int) -> None:
    assert size_of(disk(size=size)) == expected * MEBIBYTE
