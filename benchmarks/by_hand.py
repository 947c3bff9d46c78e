"""Baseline of benchmarks with Shoots: a control plane's etcds and API server, applied at once, without a flow.

The objects are a real Shoot's, read while it lives and applied again once it is gone: same namespace, same
keys, same addresses, so that the user's kubeconfig works unchanged.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from typing import Any

from api import resources
from api.constants import EXTENSION_ROLE, GARDEN_NAMESPACE, SHOOT_UID
from api.names import backup_entry_names
from etcd import s3
from etcd.store import open_store
from kube.cache import Caches
from kube.client import KubeClient, Object

_KINDS = (
    resources.SECRET,
    resources.CONFIG_MAP,
    resources.SERVICE_ACCOUNT,
    resources.ROLE,
    resources.ROLE_BINDING,
    resources.SERVICE,
    resources.PERSISTENT_VOLUME_CLAIM,
)
_WORKLOADS = ((resources.STATEFUL_SET, "etcd-main"), (resources.STATEFUL_SET, "etcd-events"),
              (resources.DEPLOYMENT, "kube-apiserver"))  # fmt: skip
_KEPT_METADATA = ("name", "namespace", "labels", "annotations")
_BACKUP_SECRET = "etcd-backup"
_GONE_SECONDS = 300.0
"""The namespace controller of Kubernetes waits longer after each attempt: a removal may take more than two minutes."""


class ControlPlane:
    """Objects of one control plane, without the fields that the cluster has added."""

    def __init__(self, namespace: Object, objects: list[Object]) -> None:
        self._namespace = namespace
        self._objects = objects

    @classmethod
    async def of(cls, seed: KubeClient, namespace: str) -> "ControlPlane":
        """Read it from a seed where it runs."""
        lists = await asyncio.gather(*(seed.list(kind, namespace) for kind in _KINDS))
        workloads = await asyncio.gather(*(seed.get(kind, name, namespace) for kind, name in _WORKLOADS))
        objects = [
            {"apiVersion": kind.api_version, "kind": kind.kind, **each}
            for kind, items in zip(_KINDS, lists, strict=True)
            for each in items
            if each["metadata"]["name"] not in ("default", "kube-root-ca.crt")
            and EXTENSION_ROLE not in (each["metadata"].get("labels") or {})  # the gardenlet binds them again
        ]
        for each in filter(_is_backup_secret, objects):
            # The etcd's own key ends with its Shoot; the bucket's key stays.
            bucket = base64.b64decode(each["data"][s3.BUCKET]).decode()
            generated = await seed.get(resources.SECRET, f"generated-bucket-{bucket}", GARDEN_NAMESPACE)
            each["data"] = {**each["data"], **{key: generated["data"][key] for key in (s3.ACCESS_KEY, s3.SECRET_KEY)}}
        live = await seed.get(resources.NAMESPACE, namespace)
        return cls(_bare(live), [_bare(each) for each in (*objects, *workloads)])

    async def start(self, seed: KubeClient, answers: Callable[[], Awaitable[object]]) -> float:
        """Apply everything at once; returns the seconds until the API server answers."""
        started = time.monotonic()
        await seed.create(self._namespace)
        await asyncio.gather(*(seed.create(each) for each in self._objects))
        await answers()
        return time.monotonic() - started

    async def stop(self, seed: KubeClient, caches: Caches) -> float:
        """Scale everything to zero; returns the seconds until its pods are gone."""
        name, started = self._namespace["metadata"]["name"], time.monotonic()
        await self._scale(seed, lambda _: 0)
        pods = caches.of(resources.POD, name)
        await pods.wait_until(lambda store: not store.list() or None, _GONE_SECONDS)
        return time.monotonic() - started

    async def resume(self, seed: KubeClient, answers: Callable[[], Awaitable[object]]) -> float:
        """Scale everything to the replicas that it had; returns the seconds until the API server answers."""
        started = time.monotonic()
        await self._scale(seed, lambda workload: int(workload["spec"]["replicas"]))
        await answers()
        return time.monotonic() - started

    async def _scale(self, seed: KubeClient, replicas: Callable[[Object], int]) -> None:
        name = self._namespace["metadata"]["name"]
        workloads = {(each["kind"], each["metadata"]["name"]): each for each in self._objects}
        for kind, workload in _WORKLOADS:
            count = replicas(workloads[kind.kind, workload])
            await seed.patch(kind, workload, name, {"spec": {"replicas": count}})

    async def remove(self, seed: KubeClient, caches: Caches) -> float:
        """Delete it, and what its sidecar has stored meanwhile; returns the seconds until both are gone."""
        name, started = self._namespace["metadata"]["name"], time.monotonic()
        await seed.delete(resources.NAMESPACE, name)
        await caches.of(resources.NAMESPACE).wait_for(name, None, lambda live: live is None or None, _GONE_SECONDS)
        store = next((each["data"] for each in self._objects if _is_backup_secret(each)), None)
        if store is not None:
            credentials = {key: base64.b64decode(value).decode() for key, value in store.items()}
            _, entry = backup_entry_names(name, self._namespace["metadata"]["annotations"][SHOOT_UID])
            await open_store("local", credentials, credentials[s3.BUCKET]).delete_all(f"{entry}/")
        return time.monotonic() - started


def _is_backup_secret(each: Object) -> bool:
    return bool(each["kind"] == "Secret" and each["metadata"]["name"] == _BACKUP_SECRET)


def _bare(live: Object) -> dict[str, Any]:
    made = {key: value for key, value in live.items() if key != "status"}
    made["metadata"] = {key: live["metadata"][key] for key in _KEPT_METADATA if key in live["metadata"]}
    if live["kind"] == "PersistentVolumeClaim":
        annotations = made["metadata"].pop("annotations", {})
        made["metadata"]["annotations"] = {
            key: value for key, value in annotations.items() if "volume.kubernetes.io" not in key and "pv." not in key
        }
        made["spec"] = {key: value for key, value in live["spec"].items() if key != "volumeName"}
    return made
