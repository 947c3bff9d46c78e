"""Storage of a seed: a provisioner of local volumes for the storage class ``default``.

It creates a directory and a PersistentVolume, bound in advance, for each claim, and removes both after the claim.
A process of its own in the seed's network namespace, so it works on while the seed is cut off.
"""

import asyncio
import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import aiohttp
import click

from landscape.code import code_digest
from landscape.kube import Api, Object
from landscape.plan import ClusterPlan, Plan
from landscape.processes import ProcessSpec

PROVISIONER = "landscape.gardener.cloud/local-path"
_CLASS = "default"
_CLAIMS = "/api/v1/persistentvolumeclaims"
_VOLUMES = "/api/v1/persistentvolumes"

log = logging.getLogger("landscape.storage")


def storage_class() -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": _CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def process(plan: Plan, cluster: ClusterPlan) -> ProcessSpec:
    arguments = ["--kubeconfig", str(plan.kubeconfig(cluster.name)), "--root", str(cluster.directory / "volumes")]
    argv = (sys.executable, "-m", "landscape.storage", *arguments)
    return ProcessSpec(f"{cluster.name}/storage", argv, cluster.netns, {"GARDENER_VERSION": code_digest("landscape")})


class Provisioner:
    """Watches claims and volumes of one cluster."""

    def __init__(self, api: Api, root: Path) -> None:
        self._api = api
        self._root = root

    async def run(self) -> None:
        await asyncio.gather(self._follow(_CLAIMS, self._claim), self._follow(_VOLUMES, self._volume))

    async def _follow(self, path: str, handle: Any) -> None:
        """List and watch without end; after a lost connection it lists again."""
        while True:
            try:
                listing = await self._api.get(path) or {}
                for obj in listing.get("items", []):
                    await handle(obj)
                response = await self._api.watch(path, listing["metadata"]["resourceVersion"])
                async with response:
                    async for line in response.content:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        if event["type"] in ("ADDED", "MODIFIED"):
                            await handle(event["object"])
            except (aiohttp.ClientError, click.ClickException, TimeoutError, OSError) as error:
                log.warning("watching %s: %s: %s", path, type(error).__name__, error)
                await asyncio.sleep(1)

    async def _claim(self, claim: Object) -> None:
        if volume := volume_for(claim, self._root):
            _make_directory(Path(volume["spec"]["hostPath"]["path"]))
            if await self._api.create(_VOLUMES, volume):
                metadata = claim["metadata"]
                log.info(
                    "volume %s for claim %s/%s", volume["metadata"]["name"], metadata["namespace"], metadata["name"]
                )

    async def _volume(self, volume: Object) -> None:
        if is_released(volume):
            name = volume["metadata"]["name"]
            # Remove directories below our root only: the path in the object is not trusted.
            await asyncio.to_thread(shutil.rmtree, self._root / name, True)
            await self._api.delete(f"{_VOLUMES}/{name}")
            log.info("volume %s removed", name)


def _make_directory(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    # Pods run as an unprivileged user, and the kubelet does not apply fsGroup to hostPath volumes.
    directory.chmod(0o777)


def volume_for(claim: Object, root: Path) -> Object | None:
    """Volume for a claim of our class that waits for one, or ``None``."""
    metadata, spec = claim["metadata"], claim["spec"]
    if spec.get("storageClassName") != _CLASS or spec.get("volumeName") or "deletionTimestamp" in metadata:
        return None
    name = f"pvc-{metadata['uid']}"
    reference = {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")}
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
def main(kubeconfig: Path, root: Path) -> None:
    """Provision local volumes until stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    async def provision() -> None:
        async with Api(kubeconfig) as api:
            await Provisioner(api, root).run()

    asyncio.run(provision())


if __name__ == "__main__":
    main()
