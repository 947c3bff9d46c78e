"""Which machines get the connections of a load balancer: those that answer its check, and are not excluded."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from api.local import CHOSEN_MACHINES, EXCLUDED_MACHINES, HEALTH_CHECK_PORT, MACHINE_LABEL
from api.resources import ENDPOINT_SLICE, POD, SERVICE
from landscape import load_balancers
from landscape.load_balancers import Backends, health_check_port
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until

NAMESPACE = "infra-a"


class Checked:
    """A health check that machines answer, and its port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.good = True


@pytest.fixture
async def checked(unused_tcp_port: int) -> AsyncIterator[Checked]:
    checked = Checked(unused_tcp_port)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=200 if checked.good else 503)

    application = web.Application()
    application.router.add_get("/healthz", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    for host in ("127.0.0.1", "::1"):
        await web.TCPSite(runner, host, unused_tcp_port).start()
    yield checked
    await runner.cleanup()


def service(port: object, **spec: Any) -> dict[str, Any]:
    annotations = {HEALTH_CHECK_PORT: str(port), EXCLUDED_MACHINES: "m3"}
    ports = [{"name": "tcp-80", "protocol": "TCP", "port": 80, "targetPort": 30080}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "lb", "namespace": NAMESPACE, "annotations": annotations},
        "spec": {"type": "LoadBalancer", "ports": ports, **spec},
    }


async def start(cloud: FakeCluster, name: str, address: str, *more: str, namespace: str = NAMESPACE) -> None:
    labels = {MACHINE_LABEL: name}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    await cloud.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "cloud"}})
    addresses = [{"ip": each} for each in (address, *more)]
    await cloud.patch(POD, name, namespace, {"status": {"podIPs": addresses}}, subresource="status")


def serving(cloud: FakeCluster) -> list[str] | None:
    slices = cloud.of(ENDPOINT_SLICE)
    return [each["addresses"][0] for each in slices[0]["endpoints"]] if slices else None


async def test_only_machines_of_the_namespace_that_answer_get_connections(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_balancers, "_PERIOD", 0.01)
    cloud = FakeCluster()
    await cloud.create(service(checked.port))
    for name, address in (("m1", "127.0.0.1"), ("m2", "127.0.0.2"), ("m3", "127.0.0.1")):
        await start(cloud, name, address)
    await start(cloud, "foreign", "127.0.0.1", namespace="infra-b")
    running = asyncio.create_task(Backends(cloud).run())
    await until(lambda: serving(cloud) == ["127.0.0.1"])
    [made] = cloud.of(ENDPOINT_SLICE)
    assert made["endpoints"][0]["nodeName"] == "cloud"
    assert made["ports"] == [{"name": "tcp-80", "protocol": "TCP", "port": 30080}]
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "lb"

    checked.good = False
    await until(lambda: serving(cloud) == [])
    checked.good = True
    await until(lambda: serving(cloud) == ["127.0.0.1"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_machine_is_checked_at_its_address_of_each_family(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods may have one family alone: then kube-proxy answers the health check at the address of that family."""
    monkeypatch.setattr(load_balancers, "_PERIOD", 0.01)
    cloud = FakeCluster()
    await cloud.create(service(checked.port, ipFamilies=["IPv4", "IPv6"]))
    await start(cloud, "m1", "127.0.0.1", "::1")
    await start(cloud, "m2", "127.0.0.1")
    await start(cloud, "m4", "127.0.0.2", "::1")

    def serving() -> dict[str, list[str]]:
        slices = cloud.of(ENDPOINT_SLICE)
        return {each["addressType"]: [one["addresses"][0] for one in each["endpoints"]] for each in slices}

    running = asyncio.create_task(Backends(cloud).run())
    await until(lambda: serving() == {"IPv4": ["127.0.0.1", "127.0.0.1"], "IPv6": ["::1", "::1"]})

    await cloud.patch(SERVICE, "lb", NAMESPACE, {"spec": {"ipFamilies": ["IPv4"]}})
    await until(lambda: list(serving()) == ["IPv4"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_chosen_machines_get_connections_while_their_port_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API servers of a self-hosted Shoot: other machines of its namespace are no part of the control plane."""
    monkeypatch.setattr(load_balancers, "_PERIOD", 0.01)
    cloud = FakeCluster()
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    exposed = service("", ports=[{"name": "tcp", "protocol": "TCP", "port": 443, "targetPort": port}])
    exposed["metadata"]["annotations"] = {CHOSEN_MACHINES: "127.0.0.1,127.0.0.3"}
    await cloud.create(exposed)
    for name, address in (("m1", "127.0.0.1"), ("m2", "127.0.0.2"), ("m3", "127.0.0.3")):
        await start(cloud, name, address)
    running = asyncio.create_task(Backends(cloud).run())
    await until(lambda: serving(cloud) == ["127.0.0.1"])

    server.close()
    await server.wait_closed()
    await until(lambda: serving(cloud) == [])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_load_balancer_that_no_machine_is_chosen_for_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_balancers, "_PERIOD", 0.01)
    cloud = FakeCluster()
    exposed = service("")
    exposed["metadata"]["annotations"] = {CHOSEN_MACHINES: ""}
    await cloud.create(exposed)
    await start(cloud, "m1", "127.0.0.1")
    running = asyncio.create_task(Backends(cloud).run())
    await until(lambda: serving(cloud) == [])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("port", "spec"),
    [("0", {}), ("70000", {}), ("x", {}), ("80", {"selector": {"a": "b"}}), ("80", {"type": "ClusterIP"})],
)
def test_other_services_are_left_alone(port: str, spec: dict[str, Any]) -> None:
    assert health_check_port(service(port, **spec)) is None
