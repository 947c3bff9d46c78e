"""Claims of a shoot get disks of the cloud, machines get disks, disks grow and go, and no disk of others is reached."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities.provider_local.storage import CSI_DRIVER, storage_class
from api.resources import DISK, EVENT, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_ATTACHMENT
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until
from tests.unit.provider_local.shoot_cluster import NAMESPACE, ShootCluster, cloud_with
from workers.provider_local.volumes import ATTACHER_FINALIZER, VOLUME_FINALIZER, Volumes

GIBIBYTE = 1 << 30


@pytest.fixture
async def shoot() -> ShootCluster:
    shoot = ShootCluster()
    await shoot.create(storage_class())
    for name in ("m1", "m2"):
        labels = {"topology.kubernetes.io/zone": "0"}
        await shoot.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    return shoot


@pytest.fixture
async def cloud(shoot: ShootCluster) -> AsyncIterator[FakeCluster]:
    async with cloud_with(Volumes, shoot) as cloud:
        yield cloud


def claim(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data",
            "namespace": "app",
            "annotations": {
                "volume.kubernetes.io/storage-provisioner": CSI_DRIVER,
                "volume.kubernetes.io/selected-node": "m1",
            },
        },
        "spec": {
            "storageClassName": "default",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
        },
    }


async def bound(shoot: ShootCluster, cloud: FakeCluster) -> str:
    """Name of the volume of a claim that is bound."""
    made = await shoot.create(claim())
    name = f"pvc-{made['metadata']['uid']}"
    await report(cloud, name, size=GIBIBYTE)
    await until(lambda: shoot.of(PERSISTENT_VOLUME))
    await shoot.patch(PERSISTENT_VOLUME_CLAIM, "data", "app", {"spec": {"volumeName": name}})
    status = {"status": {"phase": "Bound", "capacity": {"storage": str(GIBIBYTE)}}}
    await shoot.patch(PERSISTENT_VOLUME_CLAIM, "data", "app", status, subresource="status")
    await shoot.patch(PERSISTENT_VOLUME, name, None, {"status": {"phase": "Bound"}}, subresource="status")
    return name


async def report(cloud: FakeCluster, name: str, **status: Any) -> None:
    await until(lambda: (DISK, NAMESPACE, name) in cloud.objects)
    await cloud.patch(DISK, name, NAMESPACE, {"status": status}, subresource="status")


async def attach(shoot: ShootCluster, volume: str, node: str) -> str:
    name = f"csi-{volume}-{node}"
    attachment = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {"attacher": CSI_DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}},
    }
    await shoot.create(attachment)
    return name


def status_of(shoot: ShootCluster, attachment: str) -> dict[str, Any]:
    found: dict[str, Any] = shoot.objects[VOLUME_ATTACHMENT, "", attachment].get("status") or {}
    return found


def machine_of(cloud: FakeCluster, disk: str) -> str | None:
    machine: str | None = cloud.objects[DISK, NAMESPACE, disk]["spec"].get("machine")
    return machine


async def test_a_claim_gets_a_disk_in_the_zone_of_its_node(shoot: ShootCluster, cloud: FakeCluster) -> None:
    made = await shoot.create(claim())
    name = f"pvc-{made['metadata']['uid']}"
    await report(cloud, name, size=2 * GIBIBYTE)

    volume = await until(lambda: shoot.objects.get((PERSISTENT_VOLUME, "", name)))

    assert cloud.objects[DISK, NAMESPACE, name]["spec"] == {"size": str(GIBIBYTE), "zone": "0"}
    assert volume["spec"]["capacity"] == {"storage": str(2 * GIBIBYTE)}, "the cloud rounds up"
    assert volume["spec"]["claimRef"]["uid"] == made["metadata"]["uid"]
    assert volume["spec"]["csi"] == {"driver": CSI_DRIVER, "volumeHandle": name}
    [term] = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["0"]}]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"accessModes": ["ReadWriteMany"]}, "accessMode ReadWriteMany"),
        ({"volumeMode": "Block"}, "volumeMode Block"),
        ({"dataSource": {"kind": "VolumeSnapshot", "name": "x"}}, "dataSource"),
        ({"selector": {}}, "selector"),
    ],
)
async def test_what_a_disk_cannot_be_is_told(
    shoot: ShootCluster, cloud: FakeCluster, change: dict[str, Any], told: str
) -> None:
    if "selector" in change:
        change = {"selector": {"matchLabels": {"a": "b"}}}
    await shoot.create(claim(**change))

    [event] = await until(lambda: shoot.of(EVENT))

    assert event["reason"] == "ProvisioningFailed"
    assert told in event["message"]
    assert not cloud.of(DISK)


async def test_a_claim_whose_node_is_gone_is_scheduled_again(shoot: ShootCluster, cloud: FakeCluster) -> None:
    waiting = claim()
    waiting["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "gone"
    await shoot.create(waiting)

    def unselected() -> bool:
        live = shoot.objects[PERSISTENT_VOLUME_CLAIM, "app", "data"]
        return "volume.kubernetes.io/selected-node" not in live["metadata"]["annotations"]

    await until(unselected)
    assert not cloud.of(DISK)


async def test_a_disk_is_attached_to_the_machine_of_the_node_and_detached(
    shoot: ShootCluster, cloud: FakeCluster
) -> None:
    volume = await bound(shoot, cloud)
    attachment = await attach(shoot, volume, "m1")
    await until(lambda: machine_of(cloud, volume) == "m1")
    assert not status_of(shoot, attachment).get("attached")
    await report(cloud, volume, machine="m1")
    await until(lambda: status_of(shoot, attachment).get("attached"))

    await shoot.delete(VOLUME_ATTACHMENT, attachment)
    await until(lambda: machine_of(cloud, volume) is None)
    assert ATTACHER_FINALIZER in shoot.objects[VOLUME_ATTACHMENT, "", attachment]["metadata"]["finalizers"]
    await report(cloud, volume, machine=None)
    await until(lambda: not shoot.of(VOLUME_ATTACHMENT))


async def test_a_disk_is_not_taken_from_another_machine(shoot: ShootCluster, cloud: FakeCluster) -> None:
    volume = await bound(shoot, cloud)
    first = await attach(shoot, volume, "m1")
    await until(lambda: machine_of(cloud, volume) == "m1")
    await report(cloud, volume, machine="m1")
    second = await attach(shoot, volume, "m2")

    await until(
        lambda: "still attached to m1" in (status_of(shoot, second).get("attachError") or {}).get("message", "")
    )
    assert machine_of(cloud, volume) == "m1"

    await shoot.delete(VOLUME_ATTACHMENT, first)
    await until(lambda: machine_of(cloud, volume) == "m2")
    assert (VOLUME_ATTACHMENT, "", first) in shoot.objects, "m1 still has it"
    await report(cloud, volume, machine="m2")
    await until(lambda: status_of(shoot, second).get("attached"))
    await until(lambda: (VOLUME_ATTACHMENT, "", first) not in shoot.objects)


async def test_what_the_cloud_refuses_is_told_at_the_attachment(shoot: ShootCluster, cloud: FakeCluster) -> None:
    volume = await bound(shoot, cloud)
    attachment = await attach(shoot, volume, "m1")
    await until(lambda: machine_of(cloud, volume) == "m1")

    await report(cloud, volume, error="machine m1 does not exist")

    await until(lambda: (status_of(shoot, attachment).get("attachError") or {}).get("message"))
    assert status_of(shoot, attachment)["attachError"]["message"] == "machine m1 does not exist"


async def test_a_claim_grows_with_its_disk(shoot: ShootCluster, cloud: FakeCluster) -> None:
    volume = await bound(shoot, cloud)
    larger = {"spec": {"resources": {"requests": {"storage": "3Gi"}}}}
    await shoot.patch(PERSISTENT_VOLUME_CLAIM, "data", "app", larger)
    await until(lambda: cloud.objects[DISK, NAMESPACE, volume]["spec"]["size"] == str(3 * GIBIBYTE))

    def capacity() -> str:
        live = shoot.objects[PERSISTENT_VOLUME_CLAIM, "app", "data"]
        return str(live["status"]["capacity"]["storage"])

    assert capacity() == str(GIBIBYTE), "not before the disk has grown"
    await report(cloud, volume, size=3 * GIBIBYTE)
    await until(lambda: capacity() == str(3 * GIBIBYTE))
    assert shoot.objects[PERSISTENT_VOLUME, "", volume]["spec"]["capacity"] == {"storage": str(3 * GIBIBYTE)}


async def test_disk_and_volume_go_after_the_claim_and_the_last_machine(shoot: ShootCluster, cloud: FakeCluster) -> None:
    volume = await bound(shoot, cloud)
    attachment = await attach(shoot, volume, "m1")
    await until(lambda: machine_of(cloud, volume) == "m1")
    await report(cloud, volume, machine="m1")
    await until(lambda: status_of(shoot, attachment).get("attached"))
    await shoot.patch(PERSISTENT_VOLUME, volume, None, {"status": {"phase": "Released"}}, subresource="status")
    await asyncio.sleep(0.05)
    assert cloud.of(DISK), "a machine still has it"

    await shoot.delete(VOLUME_ATTACHMENT, attachment)
    await until(lambda: machine_of(cloud, volume) is None)
    await report(cloud, volume, machine=None)

    await until(lambda: not cloud.of(DISK) and not shoot.of(PERSISTENT_VOLUME))


async def test_a_kept_disk_stays_when_its_volume_is_deleted(shoot: ShootCluster, cloud: FakeCluster) -> None:
    volume = await bound(shoot, cloud)
    await shoot.patch(PERSISTENT_VOLUME, volume, None, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
    await shoot.patch(PERSISTENT_VOLUME, volume, None, {"status": {"phase": "Released"}}, subresource="status")
    assert VOLUME_FINALIZER in shoot.objects[PERSISTENT_VOLUME, "", volume]["metadata"]["finalizers"]

    await shoot.delete(PERSISTENT_VOLUME, volume)

    await until(lambda: not shoot.of(PERSISTENT_VOLUME))
    assert cloud.of(DISK)


async def test_a_volume_that_an_owner_made_is_never_deleted_with_its_disk(
    shoot: ShootCluster, cloud: FakeCluster
) -> None:
    volume = await bound(shoot, cloud)
    own = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "own"},
        "spec": {"persistentVolumeReclaimPolicy": "Delete", "csi": {"driver": CSI_DRIVER, "volumeHandle": volume}},
    }
    await shoot.create(own)
    await shoot.patch(PERSISTENT_VOLUME, "own", None, {"status": {"phase": "Released"}}, subresource="status")
    await asyncio.sleep(0.05)

    assert cloud.of(DISK)
