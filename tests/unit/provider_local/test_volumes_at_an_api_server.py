"""Volumes and load balancers with real API servers: what the controllers write is what Kubernetes accepts."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from activities.provider_local.storage import ACCOUNT, CSI_DRIVER, manifests
from api import resources
from api.resources import (
    DAEMON_SET,
    DISK,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    SERVICE,
    VOLUME_ATTACHMENT,
)
from kube.client import KubeClient
from landscape import disks, garden
from landscape.cloud import TENANTS
from tests import api_servers
from tests.api_servers import free_port, process
from tests.unit.kube.waiting import until
from workers.provider_local.shoots import serve

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(180), pytest.mark.usefixtures("kubernetes_is_built")]

NAMESPACE = "infra-shoot--a--b"
MEBIBYTE = 1 << 20
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "m1", "labels": {"topology.kubernetes.io/zone": "0"}},
}


class Both:
    """A shoot and the cloud at one API server, as their administrator. provider-local has the rights that it gets."""

    def __init__(self, admin: KubeClient) -> None:
        self.admin = admin

    async def disk(self, name: str) -> dict[str, Any] | None:
        return await self.admin.find(DISK, name, NAMESPACE)

    async def status(self, kind: Any, name: str, namespace: str | None, **status: Any) -> None:
        await self.admin.patch(kind, name, namespace, {"status": status}, subresource="status")


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    port = free_port()
    account = f"system:serviceaccount:kube-system:{ACCOUNT}"
    tokens = f'a,admin,1,system:masters\ns,{account},2\nt,tenant,3,"{TENANTS}"\n'
    commands = api_servers.commands(tmp_path, port, tokens, "--authorization-mode", "RBAC", "--allow-privileged")
    started = (process(tmp_path, *command) for command in commands)
    admin, shoot, cloud = (api_servers.client(port, token) for token in "ast")
    async with next(started), next(started), admin, shoot, cloud:
        await api_servers.ready(admin)
        await until(lambda: admin.find(resources.NAMESPACE, "kube-system"), 30)
        for each in (*garden.tenants(), disks.definition(), *manifests(), NODE):
            await admin.apply(each, manager="test")
        for name in (NAMESPACE, "app"):
            await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, manager="test")
        assert await admin.get(DAEMON_SET, "csi-driver-node", "kube-system")
        running = asyncio.create_task(serve(shoot, cloud, NAMESPACE))
        yield Both(admin)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_volume_is_made_attached_grown_detached_and_deleted(both: Both) -> None:
    admin = both.admin
    claim: dict[str, Any] = {
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
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    made = await admin.create(claim)
    assert made["spec"]["storageClassName"] == "default", "the default class"
    name = f"pvc-{made['metadata']['uid']}"
    await until(lambda: both.disk(name))
    await both.status(DISK, name, NAMESPACE, size=1024 * MEBIBYTE)
    volume = await until(lambda: admin.find(PERSISTENT_VOLUME, name))
    assert volume["spec"]["capacity"] == {"storage": str(1024 * MEBIBYTE)} or volume["spec"]["capacity"] == {
        "storage": "1Gi"
    }
    await admin.patch(PERSISTENT_VOLUME_CLAIM, "data", "app", {"spec": {"volumeName": name}})
    await both.status(PERSISTENT_VOLUME_CLAIM, "data", "app", phase="Bound", capacity={"storage": "1Gi"})
    await both.status(PERSISTENT_VOLUME, name, None, phase="Bound")

    attachment = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": "a"},
        "spec": {"attacher": CSI_DRIVER, "nodeName": "m1", "source": {"persistentVolumeName": name}},
    }
    await admin.create(attachment)

    async def machine() -> str | None:
        found: str | None = ((await both.disk(name)) or {"spec": {}})["spec"].get("machine")
        return found

    async def has_machine() -> bool:
        return await machine() == "m1"

    async def is_attached() -> bool:
        return bool(((await admin.get(VOLUME_ATTACHMENT, "a")).get("status") or {}).get("attached"))

    await until(has_machine)
    await both.status(DISK, name, NAMESPACE, error="not now")

    async def is_refused() -> bool:
        status = (await admin.get(VOLUME_ATTACHMENT, "a")).get("status") or {}
        return (status.get("attachError") or {}).get("message") == "not now"

    await until(is_refused)
    await both.status(DISK, name, NAMESPACE, machine="m1", error=None)
    await until(is_attached)

    larger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    await admin.patch(PERSISTENT_VOLUME_CLAIM, "data", "app", larger)

    async def is_larger() -> bool:
        found = await both.disk(name)
        return found is not None and found["spec"]["size"] == str(2048 * MEBIBYTE)

    await until(is_larger)
    await both.status(DISK, name, NAMESPACE, size=2048 * MEBIBYTE)

    async def has_grown() -> bool:
        live = await admin.get(PERSISTENT_VOLUME_CLAIM, "data", "app")
        return str(live["status"]["capacity"]["storage"]) in ("2Gi", str(2048 * MEBIBYTE))

    await until(has_grown)

    await admin.delete(VOLUME_ATTACHMENT, "a")

    async def has_none() -> bool:
        return await machine() is None

    await until(has_none)
    await both.status(DISK, name, NAMESPACE, machine=None)

    async def is_detached() -> bool:
        return await admin.find(VOLUME_ATTACHMENT, "a") is None

    await until(is_detached)
    await both.status(PERSISTENT_VOLUME, name, None, phase="Released")

    async def all_gone() -> bool:
        live = await admin.find(PERSISTENT_VOLUME, name)
        # The volume controller, which does not run here, has a finalizer of its own.
        ours = live is not None and any("external-provisioner" in each for each in live["metadata"]["finalizers"])
        return await both.disk(name) is None and not ours

    await until(all_gone)


async def test_a_service_gets_its_address_and_gives_it_back(both: Both) -> None:
    admin = both.admin
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "app"},
        "spec": {
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "selector": {"app": "web"},
            "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 53, "protocol": "UDP"}],
            "loadBalancerSourceRanges": ["203.0.113.0/24"],
            "sessionAffinity": "ClientIP",
        },
    }
    made = await admin.create(service)
    name = f"lb-{made['metadata']['uid']}"
    balancer = await until(lambda: admin.find(SERVICE, name, NAMESPACE))
    assert balancer["spec"]["loadBalancerSourceRanges"] == ["203.0.113.0/24"]
    assert [each["targetPort"] for each in balancer["spec"]["ports"]] == [
        each["nodePort"] for each in made["spec"]["ports"]
    ]
    ingress = [{"ip": "198.18.4.1", "ipMode": "VIP"}]
    await both.status(SERVICE, name, NAMESPACE, loadBalancer={"ingress": ingress})

    async def is_written() -> bool:
        live = await admin.get(SERVICE, "web", "app")
        return bool(live["status"]["loadBalancer"].get("ingress") == ingress)

    await until(is_written)
    changed = json.loads(json.dumps({"spec": {"loadBalancerSourceRanges": None}}))
    await admin.patch(SERVICE, "web", "app", changed)

    async def is_open() -> bool:
        live = await admin.get(SERVICE, name, NAMESPACE)
        return "loadBalancerSourceRanges" not in live["spec"]

    await until(is_open)
    await admin.delete(SERVICE, "web", "app")

    async def is_gone() -> bool:
        return await admin.find(SERVICE, "web", "app") is None and await admin.find(SERVICE, name, NAMESPACE) is None

    await until(is_gone)
