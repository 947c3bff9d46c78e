"""Which claims get a volume, and which volumes go."""

import asyncio
import copy
from pathlib import Path

import pytest

from api.labels import ZONE
from api.resources import PERSISTENT_VOLUME
from landscape.storage import PROVISIONER, Provisioner, is_released, volume_for
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until

ROOT = Path("/state/volumes")
CLAIM = {
    "metadata": {"namespace": "shoot--a--b", "name": "etcd-main", "uid": "u-1", "resourceVersion": "7"},
    "spec": {
        "storageClassName": "default",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
    },
}


def test_only_nodes_of_its_zone_have_a_zonal_volume():
    volume = volume_for(CLAIM, ROOT, "1")

    assert volume is not None
    [term] = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["1"]}]


def test_a_claim_gets_a_volume_that_is_bound_in_advance():
    volume = volume_for(CLAIM, ROOT)

    assert volume is not None
    assert volume["metadata"]["name"] == "pvc-u-1"
    assert volume["spec"]["hostPath"]["path"] == "/state/volumes/pvc-u-1"
    assert volume["spec"]["capacity"] == {"storage": "10Gi"}
    assert volume["spec"]["claimRef"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "shoot--a--b",
        "name": "etcd-main",
        "uid": "u-1",
        "resourceVersion": "7",
    }


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("spec", {"storageClassName": "other"}),
        ("spec", {"volumeName": "pvc-u-1"}),
        ("metadata", {"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    ],
    ids=["of another class", "bound already", "being deleted"],
)
def test_no_volume_for_a_claim(part, change):
    claim = copy.deepcopy(CLAIM)
    claim[part] |= change

    assert volume_for(claim, ROOT) is None


@pytest.mark.parametrize(
    ("phase", "by", "deleted", "expected"),
    [
        ("Released", PROVISIONER, False, True),
        ("Failed", PROVISIONER, False, True),
        ("Bound", PROVISIONER, False, False),
        ("Released", "another/provisioner", False, False),
        ("Released", PROVISIONER, True, False),
    ],
)
def test_only_our_released_volumes_go(phase, by, deleted, expected):
    metadata: dict[str, object] = {"annotations": {"pv.kubernetes.io/provisioned-by": by}}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert is_released({"metadata": metadata, "status": {"phase": phase}}) is expected


async def test_claim_gets_its_volume_and_both_go_together(tmp_path):
    """The data go before the volume: a crash in between would leave data that no object names any more."""
    async with ApiServer().running() as api, api.client() as client:
        claim = CLAIM | {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        claim = await client.create(claim | {"metadata": {"namespace": "shoot--a--b", "name": "etcd-main"}})
        name = f"pvc-{claim['metadata']['uid']}"
        running = asyncio.create_task(Provisioner(client, tmp_path).run())
        try:
            volume = await until(lambda: client.find(PERSISTENT_VOLUME, name))
            (tmp_path / name / "data").write_text("snapshot")
            there = []
            api.answer = lambda request: (
                there.append((tmp_path / name).exists()) if request.method == "DELETE" else None
            )
            path = {"spec": {"hostPath": {"path": "/etc"}}}
            await client.patch(PERSISTENT_VOLUME, name, None, path | {"status": {"phase": "Released"}})
            await until(lambda: _gone(client, name))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    assert there == [False]


async def test_a_zonal_claim_waits_for_the_node_of_its_first_pod(tmp_path):
    async with ApiServer().running() as api, api.client() as client:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "seed-1-2", "labels": {ZONE: "2"}}}
        await client.create(node)
        claim = CLAIM | {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        made = [
            await client.create(claim | {"metadata": {"namespace": "shoot--a--b", "name": name, **annotations}})
            for name, annotations in (
                ("waits", {}),
                ("placed", {"annotations": {"volume.kubernetes.io/selected-node": "seed-1-2"}}),
            )
        ]
        waits, placed = (f"pvc-{each['metadata']['uid']}" for each in made)
        running = asyncio.create_task(Provisioner(client, tmp_path, zonal=True).run())
        try:
            volume = await until(lambda: client.find(PERSISTENT_VOLUME, placed))
            assert await client.find(PERSISTENT_VOLUME, waits) is None
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    assert "nodeAffinity" in volume["spec"]


async def _gone(client, name):
    return await client.find(PERSISTENT_VOLUME, name) is None
