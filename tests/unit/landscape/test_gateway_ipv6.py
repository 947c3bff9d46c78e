"""Addresses of IPv6 of a seed's gateways, with a real Envoy."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from landscape import gateway_ipv6, kernel
from landscape.plan import Plan
from tests.api_servers import free_port, process
from tests.unit.kube.waiting import until

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(not kernel.has_ipv6(), reason="the kernel has no IPv6")]

ADDRESS, ADDRESS_IPV6 = "127.0.0.2", "::1"


@asynccontextmanager
async def pod(port: int) -> AsyncIterator[None]:
    """A server that sends back what it receives."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while received := await reader.read(100):
                writer.write(received)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, ADDRESS, port):
        yield


async def answer(port: int) -> bytes:
    """Answer from the address of IPv6; empty if the connection ends before."""
    try:
        reader, writer = await asyncio.open_connection(ADDRESS_IPV6, port)
    except ConnectionError:
        return b""
    try:
        writer.write(b"asked")
        return await asyncio.wait_for(reader.read(5), 3)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_connections_reach_the_gateway_again_when_its_pods_have_changed(tmp_path: Path) -> None:
    """Without a pod, connections end at once, and clients try again."""
    port, unused = free_port(), free_port()
    config = gateway_ipv6.bootstrap(
        "test",
        {ADDRESS: ADDRESS_IPV6},
        (port, unused),
        admin_socket=tmp_path / "admin.sock",
        metrics_port=free_port(),
    )
    (tmp_path / "bootstrap.json").write_text(config)
    executable = Path(sys.executable).parent / "envoy"
    argv = (executable, "-c", str(tmp_path / "bootstrap.json"), "--concurrency", "1", "--disable-hot-restart")
    async with process(tmp_path, *argv):

        async def serves() -> bool:
            return await answer(port) == b"asked"

        async with pod(port):
            await until(serves, 30)
            assert await answer(unused) == b"", "the gateway refuses this port"
        assert await answer(port) == b""
        async with pod(port):
            assert await answer(port) == b"asked"


def test_the_process_runs_where_the_addresses_are_and_is_replaced_with_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines reach no port of etcds, by which members in two seeds find each other."""
    monkeypatch.setattr("landscape.plan.RUN_HOME", tmp_path / "run")
    plan = Plan("a", 1, "1.37.1", state_home=tmp_path)
    seed = plan.cluster("seed-2")
    seed.directory.mkdir(parents=True)

    first = gateway_ipv6.process(plan, seed)

    assert (first.name, first.netns) == ("seed-2/gateway-ipv6", "gardener-a-seed-2")
    assert gateway_ipv6.process(plan, seed) == first
    config = json.loads(Path(first.argv[2]).read_text())
    places = [each["address"]["socket_address"] for each in config["static_resources"]["listeners"][1:]]
    assert {(each["address"], each["port_value"]) for each in places} == {
        (address, port) for address in plan.gateway_addresses("seed-2").values() for port in (443, 8132, 8443)
    }
    monkeypatch.setattr(gateway_ipv6, "_CONNECT_TIMEOUT", "4s")
    assert gateway_ipv6.process(plan, seed) != first
