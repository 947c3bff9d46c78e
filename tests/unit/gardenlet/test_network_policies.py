"""The gardenlet keeps the general NetworkPolicies of its seed, against API servers in memory."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from activities.clusters import Clusters
from activities.components.network_policies import NAMES
from kube.client import KubeClient
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.gardenlet import network_policies
from workers.gardenlet.network_policies import NetworkPolicyController

NAMESPACES = "/api/v1/namespaces"
SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
CLUSTERS = "/apis/extensions.gardener.cloud/v1alpha1/clusters"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
EVENTS = "/api/v1/events"


@dataclass
class Running:
    garden: ApiServer
    seed: ApiServer
    clusters: Clusters
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, *, enabled: bool = True) -> None:
        controller = NetworkPolicyController(self.clusters, enabled=enabled)
        self.tasks.append(asyncio.create_task(controller.run()))

    async def stop(self) -> None:
        for each in self.tasks:
            each.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def namespace(self, name: str, role: str) -> None:
        labels = {"gardener.cloud/role": role} if role else {}
        self.seed.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})

    def names(self, namespace: str) -> set[str]:
        return {name for path, place, name in self.seed.objects if (path, place) == (POLICIES, namespace)}

    def spec(self, name: str, namespace: str) -> dict[str, Any]:
        found = self.seed.find(POLICIES, name, namespace)
        return dict(found["spec"]) if found else {}


@pytest.fixture
async def gardenlet() -> AsyncIterator[Running]:
    async with ApiServer().running() as garden, ApiServer().running() as seed:
        networks = {"nodes": "198.18.1.0/24", "pods": "100.96.0.0/16", "services": "100.64.0.0/24"}
        garden.put(SEEDS, {"metadata": {"name": "seed-1", "uid": "5eed"}, "spec": {"networks": networks}})
        seed.put(
            SLICES,
            {
                "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
                "endpoints": [{"addresses": ["198.18.1.1"]}],
                "ports": [{"port": 443}],
            },
            "default",
        )
        async with garden.client() as one, seed.client() as other:
            running = Running(garden, seed, Clusters(garden=one, seed=other, seed_name="seed-1"))
            yield running
            await running.stop()
            await running.clusters.close()


async def test_namespaces_are_closed_by_their_roles(gardenlet: Running) -> None:
    gardenlet.start()
    for name, role in (("shoot--a--b", "shoot"), ("garden", "garden"), ("extension-x", "extension"), ("other", "")):
        gardenlet.namespace(name, role)
    await until(lambda: gardenlet.names("shoot--a--b") == set(NAMES))
    await until(lambda: gardenlet.names("garden") == gardenlet.names("extension-x") == set(NAMES[:-1]))
    assert gardenlet.names("other") == set()


async def test_a_policy_that_is_changed_or_deleted_comes_back(gardenlet: Running) -> None:
    gardenlet.namespace("garden", "garden")
    gardenlet.start()
    await until(lambda: gardenlet.names("garden") == set(NAMES[:-1]))
    before = gardenlet.spec("deny-all", "garden")
    gardenlet.seed.change(POLICIES, "deny-all", "garden", {"spec": {"ingress": [{}]}})
    await until(lambda: gardenlet.spec("deny-all", "garden") == before)
    gardenlet.seed.remove(POLICIES, "deny-all", "garden")
    await until(lambda: gardenlet.spec("deny-all", "garden") == before)


async def test_pods_reach_the_api_server_by_its_name_whose_addresses_follow_the_dns(
    gardenlet: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a seed that is a Shoot, pods are given the name of the API server."""
    answers = {"api.edge.example.org": "198.18.18.2"}

    async def resolve(_: asyncio.AbstractEventLoop, host: str, port: int, **options: Any) -> list[Any]:
        if not (address := answers.get(host)):
            raise socket.gaierror("no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(network_policies, "_RESOLVED_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    server = gardenlet.clusters.seed
    named = replace(server.endpoint, server="https://api.edge.example.org")
    monkeypatch.setattr(KubeClient, "endpoint", property(lambda each: named if each is server else each._endpoint))
    gardenlet.namespace("garden", "garden")
    gardenlet.start()

    def allowed() -> set[tuple[str, int]]:
        rules = gardenlet.spec("allow-to-runtime-apiserver", "garden").get("egress", [])
        return {(each["to"][0]["ipBlock"]["cidr"], each["ports"][0]["port"]) for each in rules}

    own = ("198.18.1.1/32", 443)
    await until(lambda: allowed() == {own, ("198.18.18.2/32", 443)})
    answers["api.edge.example.org"] = "198.18.17.2"  # its control plane has moved
    await until(lambda: allowed() == {own, ("198.18.17.2/32", 443)})
    answers.clear()
    gardenlet.seed.change(SLICES, "kubernetes", "default", {"endpoints": [{"addresses": ["198.18.1.2"]}]})
    await until(lambda: allowed() == {("198.18.1.2/32", 443), ("198.18.17.2/32", 443)})


async def test_policies_follow_the_seed_its_api_server_and_the_shoot(gardenlet: Running) -> None:
    gardenlet.namespace("shoot--a--b", "shoot")
    gardenlet.start()
    await until(lambda: gardenlet.names("shoot--a--b") == set(NAMES))

    gardenlet.garden.change(SEEDS, "seed-1", None, {"spec": {"networks": {"blockCIDRs": ["203.0.113.0/24"]}}})
    await until(lambda: "203.0.113.0/24" in str(gardenlet.spec("allow-to-public-networks", "shoot--a--b")))
    gardenlet.seed.change(SLICES, "kubernetes", "default", {"endpoints": [{"addresses": ["198.18.1.2"]}]})
    await until(lambda: "198.18.1.2/32" in str(gardenlet.spec("allow-to-runtime-apiserver", "shoot--a--b")))
    shoot = {
        "spec": {"networking": {"pods": "100.112.0.0/16", "nodes": None}},
        "status": {"networking": {"nodes": ["10.250.0.0/16"]}},
    }
    gardenlet.seed.put(CLUSTERS, {"metadata": {"name": "shoot--a--b"}, "spec": {"shoot": shoot}})
    await until(
        lambda: (
            gardenlet.spec("allow-to-shoot-networks", "shoot--a--b").get("egress")
            == [{"to": [{"ipBlock": {"cidr": "10.250.0.0/16"}}, {"ipBlock": {"cidr": "100.112.0.0/16"}}]}]
        )
    )


async def test_a_namespace_that_loses_its_role_loses_its_policies(gardenlet: Running) -> None:
    gardenlet.namespace("extension-x", "extension")
    gardenlet.start()
    await until(lambda: gardenlet.names("extension-x") == set(NAMES[:-1]))
    gardenlet.seed.change(NAMESPACES, "extension-x", None, {"metadata": {"labels": {"gardener.cloud/role": None}}})
    await until(lambda: gardenlet.names("extension-x") == set())


async def test_policies_are_deleted_when_they_are_switched_off(gardenlet: Running) -> None:
    """Policies of others stay."""
    gardenlet.namespace("garden", "garden")
    gardenlet.seed.put(POLICIES, {"metadata": {"name": "mine"}, "spec": {"podSelector": {}}}, "garden")
    gardenlet.start()
    await until(lambda: gardenlet.names("garden") == {"mine", *NAMES[:-1]})
    await gardenlet.stop()
    gardenlet.start(enabled=False)
    await until(lambda: gardenlet.names("garden") == {"mine"})


async def test_networks_that_stay_open_although_the_seed_blocks_them_are_an_event(gardenlet: Running) -> None:
    gardenlet.garden.change(SEEDS, "seed-1", None, {"spec": {"networks": {"blockCIDRs": ["203.0.113.0/24"]}}})
    gardenlet.start(enabled=False)

    def events() -> list[dict[str, Any]]:
        return [each for (path, *_), each in gardenlet.garden.objects.items() if path == EVENTS]

    [event] = await until(events)
    assert event["reason"] == "NetworkPoliciesDisabled"
    assert "set networkPolicies.enabled in the configuration of the gardenlet of seed seed-1" in event["message"]
