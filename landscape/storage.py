"""Storage of a seed: a provisioner of local volumes for the storage class ``default``.

It creates a directory and a PersistentVolume, bound in advance, for each claim, and removes both after the claim.
In a zonal seed, a volume is in the zone of the first pod that uses it, and only nodes of that zone have it.
A process of its own in the seed's network namespace, so it works on while the seed is cut off.
"""

import asyncio
import contextlib
import logging
import shutil
import sys
from pathlib import Path

import click

from api.labels import ZONE
from api.resources import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from kube.cache import Cache, Key
from kube.client import KubeClient, Object
from kube.controller import Controller
from kube.errors import AlreadyExists
from landscape.code import code_digest
from landscape.plan import ClusterPlan, Plan
from landscape.processes import ProcessSpec

PROVISIONER = "landscape.gardener.cloud/local-path"
_CLASS = "default"

log = logging.getLogger("landscape.storage")


def storage_class(*, zonal: bool) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": _CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer" if zonal else "Immediate",
    }


def process(plan: Plan, cluster: ClusterPlan) -> ProcessSpec:
    arguments = ["--kubeconfig", str(plan.kubeconfig(cluster.name)), "--root", str(cluster.directory / "volumes")]
    argv = (sys.executable, "-m", "landscape.storage", *arguments, *(["--zonal"] if cluster.is_zonal else []))
    return ProcessSpec(
        f"{cluster.name}/storage", argv, cluster.netns, {"GARDENER_VERSION": code_digest("landscape", "kube", "api")}
    )


class Provisioner:
    """Watches claims and volumes of one cluster."""

    def __init__(self, client: KubeClient, root: Path, *, zonal: bool = False) -> None:
        self._client = client
        self._root = root
        self._zonal = zonal
        self._claims = Cache(client, PERSISTENT_VOLUME_CLAIM)
        self._volumes = Cache(client, PERSISTENT_VOLUME)

    async def run(self) -> None:
        """Run until cancelled."""
        claims, volumes = Controller("claims", self._claim), Controller("volumes", self._volume)
        claims.watch(self._claims)
        volumes.watch(self._volumes)
        async with self._claims, self._volumes:
            await asyncio.gather(claims.run(), volumes.run())

    async def _claim(self, key: Key) -> None:
        claim = self._claims.get(key.name, key.namespace)
        node = _selected_node(claim) if claim else None
        if claim is None or (self._zonal and node is None):
            return
        zone = (await self._client.get(NODE, node))["metadata"]["labels"][ZONE] if self._zonal and node else None
        volume = volume_for(claim, self._root, zone)
        if volume is None:
            return
        _make_directory(Path(volume["spec"]["hostPath"]["path"]))
        with contextlib.suppress(AlreadyExists):
            await self._client.create(volume)
            log.info("volume %s for claim %s", volume["metadata"]["name"], key)

    async def _volume(self, key: Key) -> None:
        volume = self._volumes.get(key.name)
        if volume is not None and is_released(volume):
            # Remove directories below our root only: the path in the object is not trusted.
            await asyncio.to_thread(shutil.rmtree, self._root / key.name, True)
            await self._client.delete(PERSISTENT_VOLUME, key.name, uid=volume["metadata"]["uid"])
            log.info("volume %s removed", key.name)


def _make_directory(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    # Pods run as an unprivileged user, and the kubelet does not apply fsGroup to hostPath volumes.
    directory.chmod(0o777)


def _selected_node(claim: Object) -> str | None:
    """Node on which the scheduler wants the first pod of a claim."""
    node: str | None = claim["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
    return node


def volume_for(claim: Object, root: Path, zone: str | None = None) -> Object | None:
    """Volume for a claim of our class that waits for one, or ``None``. ``zone``: only its nodes have the volume."""
    metadata, spec = claim["metadata"], claim["spec"]
    if spec.get("storageClassName") != _CLASS or spec.get("volumeName") or "deletionTimestamp" in metadata:
        return None
    name = f"pvc-{metadata['uid']}"
    reference = {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")}
    in_zone = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "storageClassName": _CLASS,
            "accessModes": spec["accessModes"],
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
            "hostPath": {"path": str(root / name), "type": "DirectoryOrCreate"},
            **({"nodeAffinity": {"required": {"nodeSelectorTerms": [in_zone]}}} if zone else {}),
        },
    }


def is_released(volume: Object) -> bool:
    """Whether a volume of ours has lost its claim. The volume controller does not delete it: it has no such plugin."""
    provisioned_by = volume["metadata"].get("annotations", {}).get("pv.kubernetes.io/provisioned-by")
    phase = volume.get("status", {}).get("phase")
    return (
        provisioned_by == PROVISIONER
        and phase in ("Released", "Failed")
        and "deletionTimestamp" not in volume["metadata"]
    )


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path), required=True)
@click.option("--root", type=click.Path(path_type=Path), required=True)
@click.option("--zonal", is_flag=True, help="The cluster has nodes in several zones.")
def main(kubeconfig: Path, root: Path, zonal: bool) -> None:
    """Provision local volumes until stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    async def provision() -> None:
        async with KubeClient.from_kubeconfig(kubeconfig) as client:
            await Provisioner(client, root, zonal=zonal).run()

    asyncio.run(provision())


if __name__ == "__main__":
    main()
