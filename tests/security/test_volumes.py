"""An owner of a Shoot writes volumes and Services that name disks and addresses of another Shoot."""

import asyncio
from typing import Any

import pytest

from activities.provider_local.storage import CSI_DRIVER
from api.resources import DISK, VOLUME_ATTACHMENT
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until
from tests.unit.provider_local.shoot_cluster import ShootCluster
from workers.provider_local.volumes import Volumes

OWN, OTHER = "infra-shoot--a--own", "infra-shoot--a--other"


@pytest.mark.attack(actor="T1", asset="A3", finding=28)
@pytest.mark.parametrize("handle", ["pvc-1", f"{OTHER}/pvc-1", f"../{OTHER}/pvc-1"])
async def test_a_volume_names_the_disk_of_another_shoot(handle: str) -> None:
    """The owner is administrator of the Shoot, and may write volumes and attachments as it likes."""
    shoot, cloud = ShootCluster(), FakeCluster()
    metadata = {"name": "pvc-1", "namespace": OTHER}
    spec: dict[str, Any] = {"size": "1Gi", "machine": "victim"}
    await cloud.create({"apiVersion": DISK.api_version, "kind": "Disk", "metadata": metadata, "spec": spec})
    await shoot.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "stolen", "annotations": {"pv.kubernetes.io/provisioned-by": CSI_DRIVER}},
            "spec": {
                "persistentVolumeReclaimPolicy": "Delete",
                "csi": {"driver": CSI_DRIVER, "volumeHandle": handle},
            },
        }
    )
    source = {"persistentVolumeName": "stolen"}
    await shoot.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": {"name": "a"},
            "spec": {"attacher": CSI_DRIVER, "nodeName": "own-machine", "source": source},
        }
    )
    running = asyncio.create_task(Volumes(shoot, cloud, OWN).run())

    def told() -> bool:
        status = shoot.objects[VOLUME_ATTACHMENT, "", "a"].get("status") or {}
        return "does not exist" in (status.get("attachError") or {}).get("message", "")

    await until(told)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert cloud.objects[DISK, OTHER, "pvc-1"]["spec"] == spec
