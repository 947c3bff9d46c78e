"""Two seeds tell each other where the members of one etcd are, and clean up."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.components import etcd as component
from activities.components.etcd_between_seeds import LABELS, member_prefix, other_members, own_members
from activities.seed import etcd_between_seeds as module
from activities.seed.etcd_between_seeds import EtcdBetweenSeedsActivities
from api.contracts.operations import OperationType, OtherMembers, ShootRef, ShootTask
from api.resources import CONFIG_MAP, ENDPOINT_SLICE, SERVICE
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from workers.lib.exposed_hosts import hosts

NAMESPACE = "shoot--local--demo"
ETCDS = "/apis/druid.gardener.cloud/v1alpha1/etcds"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-2",
    generation=2,
    operation=OperationType.RESTORE,
    trigger="2026-11-21T10:00:00.000000Z",
)
MADE = {CONFIG_MAP: 4, SERVICE: 5, ENDPOINT_SLICE: 1}


class World:
    def __init__(self, server: ApiServer, seed: Any) -> None:
        self.server, self.seed, self.caches = server, seed, Caches(seed)
        clusters: Any = SimpleNamespace(seed=seed, seed_caches=self.caches)
        self.activities = EtcdBetweenSeedsActivities(clusters)

    def put_gateway(self, **address: str) -> None:
        status = {"loadBalancer": {"ingress": [address]}}
        self.server.put("/api/v1/services", {"metadata": {"name": "istio-ingressgateway", "namespace": "istio-ingress"},
                                             "status": status})  # fmt: skip

    async def left(self) -> dict[Any, int]:
        label = ",".join(f"{name}={value}" for name, value in LABELS.items())
        return {kind: len(await self.seed.list(kind, NAMESPACE, labels=label)) for kind in MADE}


@pytest.fixture
async def world():
    async with ApiServer().running() as server, server.client() as seed:
        made = World(server, seed)
        yield made
        await made.caches.close()


async def test_each_seed_tells_where_its_members_are_and_names_those_of_the_other(world: World) -> None:
    world.put_gateway(ip="192.0.2.7")
    for _ in range(2):
        told = (await world.activities.expose_etcd_members(TASK)).note
        assert told == f"192.0.2.7 {member_prefix('seed-2')}"
    source = OtherMembers.from_note(TASK, "192.0.2.1")
    assert (source.gateway, source.prefix) == ("192.0.2.1", "")
    for _ in range(2):
        await world.activities.name_other_etcd_members(source)
    assert await world.left() == MADE

    for _ in range(2):
        await world.activities.hide_etcd_members(TASK)
        assert not any((await world.left()).values())


async def test_members_keep_the_names_that_they_have(world: World) -> None:
    world.put_gateway(ip="192.0.2.7")
    etcd = {"metadata": {"name": "etcd-main", "namespace": NAMESPACE}, "spec": {"memberNamePrefix": "sold-"}}
    world.server.put(ETCDS, etcd)
    assert (await world.activities.expose_etcd_members(TASK)).note == "192.0.2.7 sold-"
    del etcd["spec"]["memberNamePrefix"]
    world.server.put(ETCDS, etcd)
    told = (await world.activities.expose_etcd_members(TASK)).note
    assert OtherMembers.from_note(TASK, told).prefix == ""


async def test_a_gateway_without_an_ip_address_ends_the_attempt_to_move_live(world: World) -> None:
    world.put_gateway(hostname="lb.example.org")
    with pytest.raises(ApplicationError, match=r"has the address lb\.example\.org") as refused:
        await world.activities.expose_etcd_members(TASK)
    assert refused.value.non_retryable
    assert not any((await world.left()).values())


async def test_members_that_do_not_join_end_the_attempt_and_say_why(world: World, monkeypatch) -> None:
    monkeypatch.setattr(module, "_JOINED_SECONDS", 0.1)
    conditions = [{"type": "AllMembersReady", "status": "False"},
                  {"type": "Ready", "status": "True", "message": "2 of 3 members serve"}]  # fmt: skip
    live = {"metadata": {"name": "etcd-main", "namespace": NAMESPACE}, "status": {"conditions": conditions}}
    world.server.put(ETCDS, live)
    with pytest.raises(ApplicationError, match="2 of 3 members serve") as refused:
        await world.activities.wait_etcd_joined(TASK)
    assert refused.value.non_retryable

    monkeypatch.setattr(module, "_JOINED_SECONDS", 5)
    waiting = asyncio.create_task(world.activities.wait_etcd_joined(TASK))
    conditions[0]["status"] = "True"
    world.server.put(ETCDS, live)
    await waiting


async def test_no_member_leaves_while_those_that_stay_do_not_run(world: World) -> None:
    with pytest.raises(ApplicationError, match="only 0 of 3 members run here"):
        await world.activities.remove_other_etcd_members(TASK)
    assert (await world.activities.let_other_seed_lead(TASK)).note == "no member here leads"


def test_the_names_are_those_by_which_members_know_each_other() -> None:
    """In the list of the cluster that they join, in their certificates, in the DNS, and at the gateway."""
    prefix = member_prefix("seed-1")
    wanted = component.existing_cluster("main", NAMESPACE, prefix, 3)
    urls = [*wanted["clientEndpoints"], *(url for each in wanted["members"] for url in each["peerURLs"])]
    service, endpoints = other_members(NAMESPACE, prefix, 3, "192.0.2.7")
    domain = f"{service['metadata']['name']}.{NAMESPACE}.svc"
    assert {url.split("/")[2].split(":")[0] for url in urls} == {
        f"{each['hostname']}.{domain}" for each in endpoints["endpoints"]
    }
    routed = {}
    for each in own_members(NAMESPACE, prefix, 3):
        if each["kind"] == "ConfigMap":
            exposure = json.loads(each["data"]["service.json"])
            routed[exposure["hosts"][0]] = exposure["port"]
    assert {f"https://{host}:{port}" for host, port in routed.items()} == set(urls)
    peers = component.peer_certificate("main", NAMESPACE, prefix).dns_names
    assert f"*.{domain}" in peers
    assert f"*.{domain}" in component.server_certificate("main", NAMESPACE, prefix).dns_names


def test_members_of_two_seeds_never_have_one_name() -> None:
    assert member_prefix("seed-1") != member_prefix("seed-2")
    assert len(f"{member_prefix('x' * 63)}etcd-events-peer") <= 63


def test_the_gateway_gives_the_names_to_their_namespace_alone() -> None:
    ours = [each for each in own_members(NAMESPACE, "", 3) if each["kind"] == "ConfigMap"]
    given = hosts(ours, "internal.example.org")
    assert all(len(each) == 1 for each in given.served.values())
    assert not any(given.refused.values())
