"""A member of a project names a cluster, and the controller-manager connects to it: what the member gets by that.

The member chooses the address and all answers.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from api import resources
from kube.cache import Caches
from kube.client import Guard
from tests.foreign_cluster import HOST, ForeignCluster, guarded, reachable
from tests.security.memory import less_memory_than
from tests.unit.api.shoots import changed
from tests.unit.api.test_plants import PLANT, node
from tests.unit.kube.api_server import ApiServer
from workers.controller_manager.plants import PlantConfig, run_plant_controller
from workers.lib.addresses import public_only

PLANTS = "/apis/core.gardener.cloud/v1beta1/plants"
CONFIG = PlantConfig(
    sync_period=timedelta(seconds=0.05),
    probe_timeout=timedelta(seconds=2),
    api_server_threshold=timedelta(),
    nodes_threshold=timedelta(),
)
ROOM_BYTES = 120 << 20


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as api:
        api.put(PLANTS, PLANT)
        yield api


@pytest.fixture
async def cluster() -> AsyncIterator[ForeignCluster]:
    async with ForeignCluster().running() as made:
        yield made


async def status_of(garden: ApiServer, guard: Guard, config: PlantConfig = CONFIG) -> dict[str, Any]:
    """Status of the Plant after the first probe."""
    client = garden.client()
    caches = Caches(client)
    task = asyncio.create_task(run_plant_controller(client, caches, config, guard))
    try:
        found = await caches.of(resources.PLANT).wait_for(
            "crazy", "garden-local", lambda plant: (plant or {}).get("status") or None, 20
        )
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await caches.close()
        await client.close()
    assert isinstance(found, dict)
    return found


def told(status: dict[str, Any]) -> str:
    return json.dumps(status)


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "10.0.0.1", "172.16.3.4", "192.168.1.1", "100.64.0.1"),
        *("198.18.0.1", "fd00::1", "fe80::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1"),
        *("2002:0a00:0001::1", "::10.0.0.1", "224.0.0.1", "255.255.255.255"),
    ],
)
async def test_a_plant_reaches_no_address_inside_the_garden(
    garden: ApiServer, cluster: ForeignCluster, address: str
) -> None:
    """By a name that the member's DNS server resolves to it: Temporal, etcd, metadata of the cloud, other clusters."""
    garden.put("/api/v1/secrets", cluster.secret())
    status = await status_of(garden, guarded(address))
    assert cluster.asked == []
    [server] = [each for each in status["conditions"] if each["type"] == "APIServerAvailable"]
    assert server["status"] == "False"
    assert "can't be reached: its address is" in server["message"]


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "10.0.0.1", "[::ffff:7f00:1]", "0x7f000001", "2130706433"])
async def test_a_plant_reaches_no_inner_address_that_its_kubeconfig_names(
    garden: ApiServer, cluster: ForeignCluster, host: str
) -> None:
    secret = cluster.secret(server=f"https://{host}:{cluster.port}", **{"tls-server-name": HOST})
    garden.put("/api/v1/secrets", secret)
    status = await status_of(garden, guarded("127.0.0.1"))
    assert cluster.asked == []
    assert "HealthzRequestSucceeded" not in told(status)


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
async def test_an_allowed_network_does_not_include_the_machine_or_link_local_addresses() -> None:
    """An operator who allows all networks does not mean the metadata of the cloud."""
    everything = PlantConfig.model_validate(
        {"allowedNetworks": ["0.0.0.0/0", "::/0"], "blockedNetworks": ["8.8.8.0/24"]}
    )
    fault = public_only(everything.blocked_networks, everything.allowed_networks)
    assert fault("10.1.2.3") == ""
    for address in ("127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "8.8.8.8"):
        assert fault(address), address


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
async def test_a_plant_follows_no_redirect(garden: ApiServer, cluster: ForeignCluster) -> None:
    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": f"https://{HOST}:{cluster.port}/inner"})

    cluster.answers = dict.fromkeys(("/healthz", "/version", "/api/v1/nodes"), redirect)
    garden.put("/api/v1/secrets", cluster.secret())
    status = await status_of(garden, reachable())
    assert set(cluster.asked) == {"/healthz"}
    assert "answered with status 302" in told(status)


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
async def test_a_plant_gets_no_text_of_the_server_that_it_reaches(garden: ApiServer, cluster: ForeignCluster) -> None:
    """The member would read answers of servers that only the controller-manager reaches."""

    async def secret(_: web.Request) -> web.Response:
        return web.json_response({"reason": "SENTINEL", "message": "SENTINEL"}, status=500, reason="SENTINEL")

    cluster.answers = {"/healthz": secret}
    garden.put("/api/v1/secrets", cluster.secret())
    assert "SENTINEL" not in told(await status_of(garden, reachable()))
    cluster.answers = {"/version": secret}
    garden.put(PLANTS, PLANT)
    assert "SENTINEL" not in told(await status_of(garden, reachable()))


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
async def test_a_kubeconfig_that_got_past_admission_runs_no_program(
    garden: ApiServer, cluster: ForeignCluster, tmp_path: Any
) -> None:
    made = tmp_path / "made"
    secret = cluster.secret()
    config = json.loads(base64.b64decode(secret["data"]["kubeconfig"]))
    config["users"][0]["user"] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch"}}
    config["users"][0]["user"]["exec"] |= {"args": [str(made)], "interactiveMode": "Never"}
    garden.put(
        "/api/v1/secrets", changed(secret, "data.kubeconfig", base64.b64encode(json.dumps(config).encode()).decode())
    )
    assert "runs a program" in told(await status_of(garden, reachable()))
    assert not made.exists()
    assert cluster.asked == []


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        await response.write(b'{"items": [')
        for _ in range(300):
            await response.write(b" " * (1 << 20))
    return response


async def compressed(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_compression(web.ContentCoding.gzip)
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for _ in range(300):
            await response.write(b" " * (1 << 20))
    return response


async def many_pages(request: web.Request) -> web.StreamResponse:
    metadata = {"resourceVersion": "1", "continue": "more"}
    large = node("x" * 100_000)
    return web.json_response({"metadata": metadata, "items": [large] * 15})


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)
    return response


async def busy(request: web.Request) -> web.StreamResponse:
    return web.Response(status=429, headers={"Retry-After": "100000"})


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
@pytest.mark.parametrize("path", ["/healthz", "/version", "/api/v1/nodes"])
@pytest.mark.parametrize("answer", [endless, compressed, many_pages, drip, busy])
async def test_an_answer_costs_the_controller_manager_little_memory_and_time(
    garden: ApiServer, cluster: ForeignCluster, path: str, answer: Any
) -> None:
    cluster.answers = {path: answer}
    garden.put("/api/v1/secrets", cluster.secret())
    with less_memory_than(ROOM_BYTES):
        async with asyncio.timeout(8):
            status = await status_of(garden, reachable())
    assert {each["type"] for each in status["conditions"]} == {"APIServerAvailable", "EveryNodeReady"}


ODD = (
    *("", "null", "[]", "3", "{}", '"x"', "{", "[" * 100_000, "9" * 10_000, '{"items": 3}', '{"items": [3]}'),
    *('{"metadata": 3, "items": []}', '{"metadata": {}, "items": [{"metadata": {"name": {}}}]}', '{"metadata": null}'),
    '{"metadata": {}, "items": [{"metadata": {"name": "a"}, "status": {"conditions": [{"type": 3}]}}]}',
    '{"gitVersion": {"a": 1}, "metadata": {"continue": 7}}',
)


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
@pytest.mark.parametrize("path", ["/healthz", "/version", "/api/v1/nodes"])
@pytest.mark.parametrize("text", ODD, ids=[str(number) for number in range(len(ODD))])
async def test_an_odd_answer_is_a_condition_and_no_crash(
    garden: ApiServer, cluster: ForeignCluster, path: str, text: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type="application/json")

    cluster.answers = {path: answer}
    garden.put("/api/v1/secrets", cluster.secret())
    status = await status_of(garden, reachable())
    assert {each["type"] for each in status["conditions"]} == {"APIServerAvailable", "EveryNodeReady"}


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
async def test_texts_of_the_cluster_cannot_forge_a_line_or_fill_the_status(
    garden: ApiServer, cluster: ForeignCluster
) -> None:
    forged = node("a\n\x1b[2J" + "x" * 100_000, "False", "ev il://x", **{"topology.kubernetes.io/region": "\n"})
    forged["status"]["conditions"][0]["message"] = "\r\n" + "y" * 100_000
    cluster.nodes = [forged]
    garden.put("/api/v1/secrets", cluster.secret())
    status = await status_of(garden, reachable())
    assert len(told(status)) < 4000
    assert not {"\n", "\x1b", "\r"} & set("".join(each["message"] for each in status["conditions"]))
    assert status["clusterInfo"]["provider"] == {"type": "<unknown>", "region": "<unknown>"}


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
async def test_credentials_of_a_plant_are_in_no_status_and_no_log(
    garden: ApiServer, cluster: ForeignCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(_: web.Request) -> web.Response:
        return web.Response(status=401)

    cluster.answers = {"/healthz": refused}
    garden.put("/api/v1/secrets", cluster.secret())
    text = base64.b64decode(cluster.secret()["data"]["kubeconfig"]).decode()
    assert '"token": "secret"' in text
    assert '"secret"' not in told(await status_of(garden, reachable()))
    assert "Bearer" not in caplog.text
    assert cluster.authority.decode() not in caplog.text
