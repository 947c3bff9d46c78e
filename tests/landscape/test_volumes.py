"""Volumes of a Shoot: a claim is bound, its pod moves to another node with what it wrote, the volume grows and goes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api import images
from tests.landscape.pods import PROBE
from tests.landscape.shoots import Shoot, eventually

CLAIM = "data"
_SECONDS = 60.0
_MEBIBYTE = 1024 * 1024


def claim(name: str, size: str = "400Mi", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": PROBE},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec},
    }


def user(name: str, claimed: str, node: str = "") -> dict[str, Any]:
    """A pod that has the volume of a claim at /data, and runs without root."""
    container = {
        "name": "main",
        "image": images.GARDENER,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": PROBE},
        "spec": {
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claimed}}],
        },
    }


class Volumes:
    """Commands of a user with volumes."""

    def __init__(self, shoot: Shoot) -> None:
        self.shoot = shoot

    def apply(self, *objects: dict[str, Any]) -> None:
        self.shoot.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, *what: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.shoot.kubectl("-n", PROBE, "get", *what, "-o", "json"))
        return found

    def start(self, name: str, claimed: str, node: str = "") -> None:
        self.apply(user(name, claimed, node))
        ready = ("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={_SECONDS:.0f}s")
        self.shoot.kubectl("-n", PROBE, *ready, timeout=_SECONDS + 10)

    def stop(self, name: str) -> None:
        self.shoot.kubectl("-n", PROBE, "delete", "pod", name, "--timeout=30s")

    def run(self, pod: str, command: str) -> str:
        return self.shoot.kubectl("-n", PROBE, "exec", pod, "--", "sh", "-ec", command).strip()

    def disks(self) -> dict[str, dict[str, Any]]:
        """Disks of the Shoot in the cloud, by name."""
        namespace = f"infra-{self.shoot.technical_id}"
        listed = json.loads(self.shoot.landscape.kubectl("cloud", "-n", namespace, "get", "disks", "-o", "json"))
        return {each["metadata"]["name"]: each for each in listed["items"]}


@pytest.fixture(scope="module")
def volumes(shoot: Shoot) -> Iterator[Volumes]:
    shoot.kubectl("create", "namespace", PROBE, "--dry-run=client", "-o", "name")
    made = Volumes(shoot)
    made.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PROBE}})
    yield made
    shoot.kubectl("-n", PROBE, "delete", "pod,pvc", "--all", "--timeout=60s")


def test_a_claim_is_bound_and_its_volume_moves_with_the_pod_and_grows(volumes: Volumes) -> None:
    shoot = volumes.shoot
    one, other = sorted(*shoot.nodes().values())
    volumes.apply(claim(CLAIM))

    volumes.start("writer", CLAIM, one)
    volumes.run("writer", "echo kept > /data/file")
    volumes.stop("writer")
    volumes.start("reader", CLAIM, other)

    assert volumes.run("reader", "cat /data/file") == "kept"
    bound = volumes.get("pvc", CLAIM)
    assert bound["status"]["phase"] == "Bound"
    assert bound["spec"]["storageClassName"] == "default"
    volume = bound["spec"]["volumeName"]
    assert volumes.disks()[volume]["status"]["machine"] == other

    before = int(volumes.run("reader", "df -B1 --output=size /data | tail -n 1"))
    grown = json.dumps({"spec": {"resources": {"requests": {"storage": "1Gi"}}}})
    shoot.kubectl("-n", PROBE, "patch", "pvc", CLAIM, "-p", grown)
    eventually(lambda: volumes.get("pvc", CLAIM)["status"]["capacity"]["storage"] != "400Mi", "the claim grows", 60)
    after = int(volumes.run("reader", "df -B1 --output=size /data | tail -n 1"))
    assert before < 400 * _MEBIBYTE < 900 * _MEBIBYTE < after
    assert volumes.run("reader", "cat /data/file") == "kept"

    volumes.stop("reader")
    shoot.kubectl("-n", PROBE, "delete", "pvc", CLAIM, "--timeout=30s")
    eventually(lambda: volume not in volumes.disks(), "the disk goes with its claim", 60)
    eventually(lambda: volume not in shoot.kubectl("get", "pv", "-o", "name"), "the volume goes", 30)


@pytest.mark.slow
def test_a_kept_volume_outlives_its_claim(volumes: Volumes) -> None:
    shoot = volumes.shoot
    keeping = json.loads(shoot.kubectl("get", "storageclass", "default", "-o", "json"))
    keeping["metadata"] = {"name": "kept"}
    volumes.apply({**keeping, "reclaimPolicy": "Retain"}, claim("kept", storageClassName="kept"))
    volumes.start("keeper", "kept")
    volume = volumes.get("pvc", "kept")["spec"]["volumeName"]
    volumes.stop("keeper")

    shoot.kubectl("-n", PROBE, "delete", "pvc", "kept", "--timeout=30s")
    shoot.kubectl("wait", "--for=jsonpath={.status.phase}=Released", f"pv/{volume}", "--timeout=30s")

    assert volume in volumes.disks()
    shoot.kubectl("patch", "pv", volume, "-p", json.dumps({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}))
    eventually(lambda: volume not in volumes.disks(), "the disk goes when its policy changes", 60)


def test_the_nodes_have_the_driver_and_its_limit(volumes: Volumes) -> None:
    for node in json.loads(volumes.shoot.kubectl("get", "csinodes", "-o", "json"))["items"]:
        [driver] = node["spec"]["drivers"]
        assert driver["name"] == "disks.local.provider.extensions.gardener.cloud"
        assert driver["allocatable"] == {"count": 16}
        assert driver["nodeID"] == node["metadata"]["name"]


def test_what_a_disk_cannot_do_is_told_at_the_claim(volumes: Volumes) -> None:
    volumes.apply(claim("shared", accessModes=["ReadWriteMany"]), user("sharer", "shared"))

    def told() -> bool:
        return "accessMode ReadWriteMany is not possible" in volumes.shoot.kubectl(
            "-n", PROBE, "describe", "pvc", "shared"
        )

    eventually(told, "the claim tells why it gets no volume", 30)


def test_a_volume_that_names_a_disk_elsewhere_is_refused(volumes: Volumes) -> None:
    """The handle names a disk of this Shoot's namespace in the cloud, whatever an owner writes there."""
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "foreign"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "",
            "csi": {"driver": "disks.local.provider.extensions.gardener.cloud", "volumeHandle": "../other/pvc-1"},
        },
    }
    volumes.apply(volume, claim("foreign", "1Gi", storageClassName="", volumeName="foreign"), user("thief", "foreign"))

    def refused() -> bool:
        return "does not exist" in volumes.shoot.kubectl("-n", PROBE, "describe", "pod", "thief")

    eventually(refused, "the pod tells that there is no such disk", 60)
    volumes.shoot.kubectl("-n", PROBE, "delete", "pod", "thief", "--timeout=30s")
