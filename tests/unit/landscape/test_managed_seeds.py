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
from landscape.managed_seeds import Firewall, Identities, addresses, addresses_with_backups
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


def test_machines_of_a_labelled_namespace_reach_the_object_store() -> None:
    labelled = [{"metadata": {"name": "infra-shoot--garden--other"}}]
    assert addresses_with_backups(labelled, MACHINES) == ["198.18.8.3"]
    assert Plan("a", 1, "1.37.1").services_for_backups == {Plan("a", 1, "1.37.1").central_address: (9001, 9002)}


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
    plan = Plan("a", 1, "1.37.1")
    assert plan.services_for_seeds == {plan.central_address: (6443, 7233, 9001, 9002)}


def test_buckets_have_an_address_of_their_own_where_seeds_are_closed() -> None:
    plan = Plan("a", 1, "1.37.1", closed=True)
    assert plan.services_for_seeds == {plan.central_address: (6443, 7233, 9001), plan.object_store_address: (9002,)}


async def test_the_firewall_follows_machines_and_managed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is replaced gets another address; without the ManagedSeed, no machine is admitted."""
    garden, cloud, admitted = FakeCluster(), FakeCluster(), [["never written"]]

    async def admit(_: Plan, found: list[str], with_backups: list[str]) -> bool:
        assert with_backups == []
        admitted.append(found)
        return True

    monkeypatch.setattr(network, "admit_machines", admit)
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


@pytest.mark.parametrize(
    ("seed", "asked"), [("seed", ["nested"]), ("seed-1", ["seed-1.yaml"])], ids=["a managed seed", "a seed"]
)
async def test_provider_local_gets_an_identity_for_its_seed_alone(
    seed: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed of the landscape that is deleted and added again has a new installation, which ``up`` does not know."""
    garden, connected, used = FakeCluster(), FakeCluster(), []
    plan = Plan("a", 1, "1.37.1", state_home=tmp_path)
    plan.codec_key.parent.mkdir()
    write_key_file(plan.codec_key)

    @asynccontextmanager
    async def connect(name: str | Path) -> AsyncIterator[KubeClient]:
        used.append(Path(name).name)
        yield connected

    monkeypatch.setattr(KubeClient, "from_kubeconfig", connect)
    for name, each in (("provider-local-a", seed), ("provider-local-b", "of-no-landscape")):
        spec = {"registrationRef": {"name": "provider-local"}, "seedRef": {"name": each}}
        kind = _kind(CONTROLLER_INSTALLATION.api_version, "ControllerInstallation")
        await stored(garden, {"metadata": {"name": name}, "spec": spec, **kind})
    await stored(garden, {**REGISTERED, **_kind(MANAGED_SEED.api_version, "ManagedSeed")})
    async with Cache(garden, MANAGED_SEED, "garden") as registered:
        task = asyncio.create_task(Identities(plan, registered, garden, connect).run())
        await until(lambda: len(connected.of(SECRET)) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert set(used) == set(asked)
    written = {each["metadata"]["name"]: each for each in connected.of(SECRET)}
    assert {each["metadata"]["namespace"] for each in written.values()} == {"extension-provider-local-a"}
    certificate = x509.load_pem_x509_certificate(
        base64.b64decode(written["provider-local-temporal-tls"]["data"]["tls.crt"])
    )
    assert f"extension:provider-local:{seed}" in certificate.subject.rfc4514_string()


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
