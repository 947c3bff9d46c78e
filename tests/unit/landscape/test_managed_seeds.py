"""Machines of managed seeds reach the central services of a landscape; machines of other Shoots do not."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from api.local import MACHINE_LABEL
from api.resources import CONTROLLER_INSTALLATION, MANAGED_SEED, SECRET, SHOOT, resource_of
from kube.cache import Cache
from kube.client import KubeClient
from landscape import network
from landscape.managed_seeds import Firewall, Identities, addresses
from landscape.plan import Plan
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until
from workers.lib.codec import write_key_file

Object = dict[str, Any]
REGISTERED: Object = {
    "metadata": {"name": "seed", "namespace": "garden"},
    "spec": {"shoot": {"name": "nested"}},
}


def shoot(name: str) -> Object:
    return {
        "metadata": {"name": name, "namespace": "garden"},
        "status": {"technicalID": f"shoot--garden--{name}"},
    }


def machine(shoot: str, address: str) -> Object:
    metadata = {"name": f"{shoot}-{address}", "namespace": f"infra-shoot--garden--{shoot}"}
    return {"metadata": metadata, "status": {"podIP": address} if address else {}}


MACHINES = [machine("nested", "198.18.8.10"), machine("nested", "198.18.8.9"), machine("other", "198.18.8.3")]


def test_only_machines_of_the_shoot_of_a_managed_seed_are_admitted() -> None:
    """Another Shoot of namespace garden is no seed until an operator says so. The order is that of addresses."""
    shoots = [shoot("nested"), shoot("other")]

    assert addresses([REGISTERED], shoots, MACHINES) == ["198.18.8.9", "198.18.8.10"]


@pytest.mark.parametrize(
    ("registered", "shoots", "machines"),
    [
        ([], [shoot("nested")], MACHINES),
        ([REGISTERED], [], MACHINES),
        ([REGISTERED], [{"metadata": {"name": "nested", "namespace": "garden"}}], MACHINES),
        ([REGISTERED], [shoot("nested")], [machine("nested", "")]),
    ],
    ids=["no ManagedSeed", "no Shoot", "a Shoot without a technical ID", "a machine without an address"],
)
def test_no_machine_is_admitted_without(registered: list[Object], shoots: list[Object], machines: list[Object]) -> None:
    assert addresses(registered, shoots, machines) == []


def test_a_seed_needs_the_garden_temporal_and_both_ports_of_the_object_store() -> None:
    assert Plan("a", 1, "1.37.1").seed_ports == (6443, 7233, 9001, 9002)


async def test_the_firewall_follows_machines_and_managed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is replaced gets another address; without the ManagedSeed, no machine is admitted."""
    garden, cloud, admitted = FakeCluster(), FakeCluster(), [["never written"]]

    async def admit(_: Plan, found: list[str]) -> bool:
        admitted.append(found)
        return True

    monkeypatch.setattr(network, "admit_seed_machines", admit)
    await stored(garden, {**REGISTERED, **_kind("seedmanagement.gardener.cloud/v1alpha1", "ManagedSeed")})
    await stored(garden, {**shoot("nested"), **_kind("core.gardener.cloud/v1beta1", "Shoot")})
    async with Cache(garden, MANAGED_SEED, "garden") as registered, Cache(garden, SHOOT, "garden") as shoots:
        task = asyncio.create_task(Firewall(Plan("a", 1, "1.37.1"), registered, shoots, cloud).run())
        await until(lambda: admitted[-1] == [])
        await stored(cloud, pod("198.18.8.9"))
        await until(lambda: admitted[-1] == ["198.18.8.9"])
        await garden.delete(MANAGED_SEED, "seed", "garden")
        await until(lambda: admitted[-1] == [])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_provider_local_of_a_managed_seed_gets_an_identity_for_its_seed_alone(tmp_path: Path) -> None:
    """Other seeds get theirs by ``up``."""
    garden, nested, asked = FakeCluster(), FakeCluster(), []
    plan = Plan("a", 1, "1.37.1", state_home=tmp_path)
    plan.codec_key.parent.mkdir()
    write_key_file(plan.codec_key)

    @asynccontextmanager
    async def connect(name: str) -> AsyncIterator[KubeClient]:
        asked.append(name)
        yield nested

    for name, seed in (("provider-local-a", "seed"), ("provider-local-b", "seed-1")):
        spec = {"registrationRef": {"name": "provider-local"}, "seedRef": {"name": seed}}
        kind = _kind(CONTROLLER_INSTALLATION.api_version, "ControllerInstallation")
        await stored(garden, {"metadata": {"name": name}, "spec": spec, **kind})
    await stored(garden, {**REGISTERED, **_kind(MANAGED_SEED.api_version, "ManagedSeed")})
    async with Cache(garden, MANAGED_SEED, "garden") as registered:
        task = asyncio.create_task(Identities(plan, registered, garden, connect).run())
        await until(lambda: len(nested.of(SECRET)) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert set(asked) == {"nested"}
    written = {each["metadata"]["name"]: each for each in nested.of(SECRET)}
    assert {each["metadata"]["namespace"] for each in written.values()} == {"extension-provider-local-a"}
    certificate = x509.load_pem_x509_certificate(
        base64.b64decode(written["provider-local-temporal-tls"]["data"]["tls.crt"])
    )
    assert "extension:provider-local:seed" in certificate.subject.rfc4514_string()


def _kind(api_version: str, kind: str) -> Object:
    return {"apiVersion": api_version, "kind": kind}


def pod(address: str) -> Object:
    made = machine("nested", address)
    made["metadata"]["labels"] = {MACHINE_LABEL: made["metadata"]["name"]}
    return {**made, **_kind("v1", "Pod")}


async def stored(cluster: FakeCluster, obj: Object) -> None:
    """Create an object with its status."""
    metadata = obj["metadata"]
    await cluster.create(obj)
    if "status" in obj:
        place = metadata["name"], metadata.get("namespace")
        await cluster.patch(resource_of(obj), *place, {"status": obj["status"]}, subresource="status")
