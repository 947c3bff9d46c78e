"""Which claims get a volume, and which volumes go."""

import copy
from pathlib import Path

import pytest

from landscape.storage import PROVISIONER, Provisioner, is_released, volume_for

ROOT = Path("/state/volumes")
CLAIM = {
    "metadata": {"namespace": "shoot--a--b", "name": "etcd-main", "uid": "u-1", "resourceVersion": "7"},
    "spec": {
        "storageClassName": "default",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
    },
}


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


class FakeApi:
    def __init__(self):
        self.calls = []

    async def create(self, path, obj):
        self.calls.append(("create", obj["metadata"]["name"]))
        return obj

    async def delete(self, path):
        self.calls.append(("delete", path))


async def test_the_data_of_a_released_volume_is_removed_before_the_volume(tmp_path):
    """The other way round, a crash in between would leave data that nothing names any more."""
    api = FakeApi()
    provisioner = Provisioner(api, tmp_path)
    await provisioner._claim(CLAIM)
    (tmp_path / "pvc-u-1" / "data").write_text("snapshot")

    volume = {
        "metadata": {"name": "pvc-u-1", "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {"hostPath": {"path": "/etc"}},
        "status": {"phase": "Released"},
    }
    await provisioner._volume(volume)

    assert not (tmp_path / "pvc-u-1").exists()
    assert api.calls == [("create", "pvc-u-1"), ("delete", "/api/v1/persistentvolumes/pvc-u-1")]
