"""A tenant of the local cloud asks a real API server for what the cloud alone decides: addresses, backends, disks."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api.resources import DISK, ENDPOINT_SLICE, SERVICE
from kube.client import KubeClient
from kube.errors import Forbidden, Invalid
from landscape import cloud, disks, garden
from landscape.cluster import ADMISSION_PLUGINS
from tests import api_servers
from tests.api_servers import free_port, process
from tests.unit.kube.waiting import until

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(180)]

OWN = "infra-shoot--a--b"


@pytest.fixture
async def tenant(tmp_path: Path) -> AsyncIterator[KubeClient]:
    port = free_port()
    tokens = f'a,admin,1,system:masters\nt,tenant,2,"{cloud.TENANTS}"\n'
    plugins = f"--enable-admission-plugins={ADMISSION_PLUGINS}"
    commands = api_servers.commands(tmp_path, port, tokens, "--authorization-mode", "RBAC", plugins)
    started = (process(tmp_path, *command) for command in commands)
    admin, tenant = (api_servers.client(port, token) for token in "at")
    async with next(started), next(started), admin, tenant:
        await api_servers.ready(admin)
        for each in (*garden.tenants(), disks.definition()):
            await admin.apply(each, manager="test")
        await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN}}, manager="test")

        async def serves() -> bool:
            try:
                await tenant.list(DISK, OWN)
            except Exception:
                return False
            return True

        await until(serves)
        yield tenant


def disk(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "pvc-1", "namespace": OWN}
    return {"apiVersion": DISK.api_version, "kind": "Disk", "metadata": metadata, "spec": {"size": "1Gi", **spec}}


@pytest.mark.attack(actor="T1", asset="A3", finding=28)
async def test_a_tenant_of_the_cloud_decides_where_connections_go_and_what_is_attached(tenant: KubeClient) -> None:
    """All of it at one API server: that starts once."""
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "x", "namespace": OWN, "labels": {"kubernetes.io/service-name": "lb"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["198.18.8.9"]}],
        "ports": [],
    }
    with pytest.raises(Forbidden):
        await tenant.create(slice_)
    assert await tenant.list(ENDPOINT_SLICE, OWN) == []

    ports = [{"name": "tcp-80", "port": 80}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "lb", "namespace": OWN},
        "spec": {"type": "LoadBalancer", "ports": ports},
    }
    await tenant.create(service)
    address = {"status": {"loadBalancer": {"ingress": [{"ip": "198.18.4.1"}]}}}
    with pytest.raises(Forbidden):
        await tenant.patch(SERVICE, "lb", OWN, address, subresource="status")
    # kube-proxy would forward connections to the address of another load balancer.
    for foreign in ("198.18.4.1", "2001:2:0:4::1"):
        with pytest.raises(Forbidden):
            await tenant.patch(SERVICE, "lb", OWN, {"spec": {"externalIPs": [foreign]}})

    await tenant.create(disk(zone="0"))
    with pytest.raises(Forbidden):
        await tenant.patch(DISK, "pvc-1", OWN, {"status": {"machine": "m"}}, subresource="status")
    made = await tenant.patch(DISK, "pvc-1", OWN, {"status": {"machine": "m"}, "spec": {"machine": "n"}})
    assert "status" not in made
    for impossible in ({"size": "1Mi"}, {"zone": "1"}, {"zone": None}, {"size": "x"}):
        with pytest.raises(Invalid):
            await tenant.patch(DISK, "pvc-1", OWN, {"spec": impossible})
    await tenant.patch(DISK, "pvc-1", OWN, {"spec": {"size": "2147483648"}})
