"""The load balancer of a zonal seed, with a real Envoy."""

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from landscape.seed_load_balancer import balancers
from landscape.tcp_load_balancer import Balancer, bootstrap, files
from tests.api_servers import free_port, process
from tests.unit.kube.waiting import until

pytestmark = pytest.mark.timeout(60)

PODS = ("127.0.0.2", "127.0.0.3")


def service(name: str, address: str = "198.18.2.2", **spec: Any) -> dict[str, Any]:
    ports = [{"name": "tls", "port": 443}, {"name": "vpn", "port": 8132}]
    return {
        "metadata": {"name": name, "namespace": "istio-ingress"},
        "spec": {"type": "LoadBalancer", "ports": ports, **spec},
        "status": {"loadBalancer": {"ingress": [{"ip": address}]}},
    }


def endpoint_slice(name: str, **ready: bool) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "istio-ingress", "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"name": "tls", "port": 9443}, {"name": "vpn", "port": 8132}],
        "endpoints": [
            {"addresses": [f"100.96.0.{pod[1:]}"], "conditions": {"ready": each}} for pod, each in ready.items()
        ],
    }


def test_an_address_leads_to_the_ready_pods_of_its_service() -> None:
    services = [service("gateway"), service("inner", type="ClusterIP"), service("other", "198.18.2.5")]
    slices = [endpoint_slice("gateway", p1=True, p2=False), endpoint_slice("gateway", p3=True)]

    found = balancers(services, [*slices, endpoint_slice("other", p9=False)])

    assert [(each.address, each.port, each.backends) for each in found] == [
        ("198.18.2.2", 443, (("100.96.0.1", 9443), ("100.96.0.3", 9443))),
        ("198.18.2.2", 8132, (("100.96.0.1", 8132), ("100.96.0.3", 8132))),
        ("198.18.2.5", 443, (("100.96.0.9", 9443),)),
        ("198.18.2.5", 8132, (("100.96.0.9", 8132),)),
    ]


def test_an_address_of_ipv6_is_left_to_the_process_that_has_it() -> None:
    """Two processes would accept connections at the same address and port."""
    both = service("gateway")
    both["status"]["loadBalancer"]["ingress"].append({"ip": "2001:2:0:9::11"})

    found = balancers([both], [endpoint_slice("gateway", p1=True)])

    assert {each.address for each in found} == {"198.18.2.2"}


class Pods:
    """Servers that answer each connection with their address, and keep it open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._servers: dict[str, asyncio.Server] = {}

    async def start(self, address: str) -> None:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(f"{address}\n".encode())
            with contextlib.suppress(ConnectionError):
                await writer.drain()

        self._servers[address] = await asyncio.start_server(answer, address, self._port)

    def refuse(self, address: str) -> None:
        """Refuse new connections. The open ones stay."""
        self._servers.pop(address).close()

    def close(self) -> None:
        for each in self._servers.values():
            each.close()


@pytest.fixture
async def pods() -> AsyncIterator[tuple[Pods, int]]:
    port = free_port()
    made = Pods(port)
    for each in PODS:
        await made.start(each)
    yield made, port
    made.close()


async def _connected(port: int) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    return (await reader.readline()).decode().strip(), reader, writer


async def _answer(port: int) -> str:
    """Address of the pod that answers a new connection; empty if the connection ends without an answer."""
    try:
        pod, _, writer = await _connected(port)
    except ConnectionError:
        return ""
    writer.close()
    return pod


async def test_connections_reach_the_other_pod_at_once_and_those_of_a_lost_pod_end(
    pods: tuple[Pods, int], tmp_path: Path
) -> None:
    made, port = pods
    balancer = Balancer("ns.gateway.tls.127.0.0.1", "127.0.0.1", free_port(), tuple((each, port) for each in PODS))
    for name, content in files([balancer], tmp_path).items():
        (tmp_path / name).write_text(content)
    config = bootstrap("test", tmp_path, admin_socket=tmp_path / "admin.sock", metrics_port=free_port())
    (tmp_path / "bootstrap.json").write_text(config)
    executable = Path(sys.executable).parent / "envoy"
    argv = (executable, "-c", str(tmp_path / "bootstrap.json"), "--concurrency", "1", "--disable-hot-restart")
    async with process(tmp_path, *argv):

        async def serves() -> bool:
            return bool(await _answer(balancer.port))

        await until(serves, 30)
        assert {await _answer(balancer.port) for _ in range(4)} == set(PODS)
        for _ in itertools.count():
            lost, reader, _writer = await _connected(balancer.port)
            if lost == PODS[0]:
                break

        made.refuse(PODS[0])

        assert [await _answer(balancer.port) for _ in range(20)] == [PODS[1]] * 20
        assert await asyncio.wait_for(reader.read(), 5) == b""

        await made.start(PODS[0])

        async def both_serve() -> bool:
            return {await _answer(balancer.port) for _ in range(4)} == set(PODS)

        await until(both_serve, 10)


async def test_a_pod_that_goes_leaves_connections_to_others_open(pods: tuple[Pods, int], tmp_path: Path) -> None:
    """The pods are a file of their own: the cluster and its listener stay as they are."""
    _, port = pods
    one = Balancer("ns.gateway.tls.127.0.0.1", "127.0.0.1", 443, tuple((each, port) for each in PODS))
    two = Balancer("ns.gateway.tls.127.0.0.1", "127.0.0.1", 443, ((PODS[0], port),))

    before, after = files([one], tmp_path), files([two], tmp_path)

    assert [name for name in before if before[name] != after[name]] == ["backends-ns.gateway.tls.127.0.0.1.json"]
    assert len(json.loads(after["backends-ns.gateway.tls.127.0.0.1.json"])["resources"]) == 1
