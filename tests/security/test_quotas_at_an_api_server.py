"""A project member tries to use more than Quotas allow, at a real API server with the admission process."""

import asyncio
import contextlib
import functools
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from api import resources
from api.access import OPERATORS, bound_role, rule
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import Forbidden, Invalid
from tests.api_servers import free_port, running
from tests.gardens import ApiServer, asks_admission
from tests.unit.admission.webhooks import BINDING
from tests.unit.api.shoots import PROFILE, REGISTRATION, SHOOT, changed
from tests.unit.api.test_quota import quota
from tests.unit.kube.waiting import until
from workers.controller_manager.protection import run_protection_controllers
from workers.controller_manager.references import run_reference_controllers

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(180)]

OWNER = "garden-owner"
"""Namespace with the cloud credentials that projects may use, and with the Quota for them."""
CORES = 10
"""Limit of the Quota. A machine of these tests has 2 cores, and a pool has 2 machines at most."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An etcd, an API server and an admission process, for all tests of this file."""
    server = ApiServer(tmp_path_factory.mktemp("garden"), {"operator": OPERATORS, "alice": "members"})
    url, gardener = f"https://127.0.0.1:{free_port()}", str(Path(sys.executable).parent / "gardener")
    (server.directory / "kubeconfig").write_text(json.dumps(server.kubeconfig("operator")))
    config = {
        "gardenClientConnection": {"kubeconfig": "kubeconfig"},
        "server": {"address": "127.0.0.1", "port": int(url.rpartition(":")[2])},
        "certificates": {"url": url},
        "health": {"port": free_port()},
    }
    (server.directory / "admission.json").write_text(json.dumps(config))
    with server.running():
        asyncio.run(server.prepare(_object("v1", "Namespace", OWNER), PROFILE, REGISTRATION))
        with running(server.directory, gardener, "worker", "admission", "--config", "admission.json"):
            asyncio.run(_admits(server))
            yield server


async def _admits(server: ApiServer) -> None:
    async with server.client() as admin:
        await asks_admission(admin)


class Tenant:
    """Member alice of a Project that uses credentials of the operator, limited by the operator's Quota."""

    def __init__(self, name: str, admin: KubeClient, alice: KubeClient) -> None:
        self.admin = admin
        self.alice = alice
        self.name = name
        self.namespace = f"garden-{name}"

    async def prepare(self) -> None:
        """Create what the operator gives to the Project: credentials, Quota and binding; alice may get none of them."""
        limit = changed(quota({"cpu": str(CORES)}, "Secret"), "metadata", {"name": self.name, "namespace": OWNER})
        named = {"namespace": OWNER, "name": self.name}
        binding = changed(BINDING, "metadata", {"name": "local", "namespace": self.namespace})
        binding |= {"credentialsRef": {"apiVersion": "v1", "kind": "Secret", **named}, "quotas": [named]}
        everything = [rule(["core.gardener.cloud", "security.gardener.cloud"], ["*"], ["*"])]
        everything.append(rule([""], ["secrets", "configmaps"], ["*"]))
        for each in (
            _object("v1", "Namespace", self.namespace),
            {**_object("core.gardener.cloud/v1beta1", "Project", self.name), "spec": {"namespace": self.namespace}},
            _object("v1", "Secret", self.name, OWNER),
            limit,
            binding,
            *bound_role("member", everything, "members", self.namespace),
        ):
            await self.admin.apply(each, manager="test")
        await until(self._may_list)

    async def _may_list(self) -> bool:
        with contextlib.suppress(Forbidden):
            await self.alice.list(resources.SHOOT, self.namespace)
            return True
        return False

    def shoot(self, name: str = "demo", maximum: int = 2, binding: str = "local") -> dict[str, Any]:
        shoot = changed(SHOOT, "spec.provider.workers.0.maximum", maximum)
        shoot["metadata"] = {"name": name, "namespace": self.namespace}
        shoot["spec"] |= {"credentialsBindingName": binding}
        return shoot

    async def create(self, name: str = "demo", maximum: int = 2, binding: str = "local") -> str:
        """Create a Shoot; the answer is the message of a refusal, or empty."""
        return await self.tries(self.alice.create(self.shoot(name, maximum, binding)))

    async def change(self, patch: dict[str, Any], name: str = "demo") -> str:
        return await self.tries(self.alice.patch(resources.SHOOT, name, self.namespace, patch))

    async def scale(self, maximum: int) -> str:
        shoot = await self.alice.get(resources.SHOOT, "demo", self.namespace)
        workers = shoot["spec"]["provider"]["workers"]
        workers[0]["maximum"] = maximum
        return await self.change({"spec": {"provider": {"workers": workers}}})

    async def tries(self, request: Any) -> str:
        try:
            await request
        except (Forbidden, Invalid) as error:
            return error.message or error.reason  # the client shows no message for Secrets
        return ""


def _object(api_version: str, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


_NUMBERS = iter(range(100))


@pytest.fixture
async def tenant(server: ApiServer) -> AsyncIterator[Tenant]:
    async with server.client("admin") as admin, server.client("alice") as alice:
        made = Tenant(f"p{next(_NUMBERS)}", admin, alice)
        await made.prepare()
        yield made


@pytest.mark.attack(actor="T1", asset="A1", finding=30)
async def test_a_member_exceeds_a_quota_by_many_small_updates(tenant: Tenant) -> None:
    """Each of the updates is counted with all that the Shoot has already."""
    assert await tenant.create(maximum=2) == ""
    assert await tenant.scale(4) == ""
    assert await tenant.scale(5) == ""
    refused = await tenant.scale(6)
    assert f"Quota {OWNER}/{tenant.name} for all clusters with these credentials is exceeded: cpu: " in refused
    assert "cpu: 10 used, 2 asked, 10 allowed" in refused


@pytest.mark.attack(actor="T1", asset="A1", finding=30)
async def test_a_member_creates_many_shoots_at_the_same_moment(tenant: Tenant) -> None:
    """Two Shoots with 4 cores each fit; none of them is stored yet when the others are reviewed."""
    refused = await asyncio.gather(*(tenant.create(f"s-{number}") for number in range(8)))
    assert sorted(map(bool, refused)) == [False] * 2 + [True] * 6
    assert len(await tenant.alice.list(resources.SHOOT, tenant.namespace)) == 2


@pytest.mark.attack(actor="T1", asset="A1", finding=30)
async def test_a_member_raises_the_maximum_of_a_hibernated_shoot(tenant: Tenant) -> None:
    assert await tenant.create() == ""
    assert await tenant.change({"spec": {"hibernation": {"enabled": True}}}) == ""
    assert "cpu: 4 used, 8 asked, 10 allowed" in await tenant.scale(6)


@pytest.mark.attack(actor="T1", asset="A1", finding=30)
async def test_a_member_makes_a_second_binding_to_the_same_credentials(tenant: Tenant) -> None:
    """Without the right to get the credentials the binding is refused. With it, the Quota holds all the same."""
    binding = await tenant.admin.get(resources.CREDENTIALS_BINDING, "local", tenant.namespace)
    second = {**binding, "metadata": {"name": "second", "namespace": tenant.namespace}}
    del second["quotas"]
    assert "user alice may not get Secret" in await tenant.tries(tenant.alice.create(second))
    readable = rule([""], ["secrets"], ["get"]) | {"resourceNames": [tenant.name]}
    for each in bound_role(f"reads-{tenant.name}", [readable], "members", OWNER):
        await tenant.admin.apply(each, manager="test")
    await until(lambda: _creates(tenant, second))
    assert await tenant.create("first", 3) == ""
    assert "cpu: 6 used, 6 asked, 10 allowed" in await tenant.create("second", 3, "second")


async def _creates(tenant: Tenant, obj: dict[str, Any]) -> bool:
    return await tenant.tries(tenant.alice.create(obj)) == ""


@pytest.mark.attack(actor="T1", asset="A1", finding=30)
async def test_a_member_asks_for_impossible_quantities(tenant: Tenant) -> None:
    """A negative amount would make room, and a huge one could overflow."""
    own = changed(quota(), "metadata", {"name": "own", "namespace": tenant.namespace})
    for cpu in ("-1", "1e30", "9e999999999"):
        refused = await tenant.tries(tenant.alice.create(changed(own, "spec.metrics", {"cpu": cpu})))
        assert "spec.metrics" in refused
    assert "maximum" in await tenant.create(maximum=-5)
    assert "asked, 10 allowed" in await tenant.create(maximum=2**31 - 1)
    volume = {"size": "-10Gi"}
    shoot = changed(tenant.shoot(), "spec.provider.workers.0.volume", volume)
    assert "volume.size" in await tenant.tries(tenant.alice.create(shoot))


@pytest.mark.attack(actor="T1", asset="A1", finding=30)
async def test_a_member_names_a_quota_of_another_project(tenant: Tenant) -> None:
    """Shoots would count by a Quota that others need."""
    await tenant.admin.create(_object("v1", "Secret", "own", tenant.namespace))
    foreign = {"namespace": OWNER, "name": tenant.name}
    binding = changed(BINDING, "metadata", {"name": "own", "namespace": tenant.namespace})
    binding |= {"credentialsRef": {"apiVersion": "v1", "kind": "Secret", "name": "own"}, "quotas": [foreign]}
    refused = await tenant.tries(tenant.alice.create(binding))
    assert f"quotas[0]: user alice may not get Quota {OWNER}/{tenant.name}" in refused


@pytest.mark.attack(actor="T1", asset="A1", finding=30)
async def test_a_member_edits_what_admission_has_granted(tenant: Tenant) -> None:
    """Grants of the last seconds are in a Lease, which members have no rights on."""
    assert await tenant.create() == ""
    [lease] = [each for each in await tenant.admin.list(resources.LEASE, OWNER) if tenant.name in json.dumps(each)]
    name = lease["metadata"]["name"]
    for attempt in (
        tenant.alice.get(resources.LEASE, name, OWNER),
        tenant.alice.patch(resources.LEASE, name, OWNER, {"metadata": {"annotations": None}}),
        tenant.alice.delete(resources.LEASE, name, OWNER),
    ):
        assert "cannot" in await tenant.tries(attempt)


@contextlib.asynccontextmanager
async def controllers(tenant: Tenant) -> AsyncIterator[None]:
    caches = Caches(tenant.admin)
    running = [
        asyncio.create_task(each(tenant.admin, caches))
        for each in (run_protection_controllers, run_reference_controllers)
    ]
    try:
        yield
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await caches.close()


@pytest.mark.attack(actor="T1", asset="A1", finding=30)
async def test_a_member_deletes_the_quota_in_use_and_its_finalizer(tenant: Tenant) -> None:
    """The member may write the Quota here, because it is in the member's namespace."""
    own = changed(quota({"cpu": "4"}), "metadata", {"name": "own", "namespace": tenant.namespace})
    await tenant.alice.create(own)
    await tenant.alice.create(_object("v1", "Secret", "own", tenant.namespace))
    binding = changed(BINDING, "metadata", {"name": "own", "namespace": tenant.namespace})
    secret = {"apiVersion": "v1", "kind": "Secret", "name": "own"}
    await tenant.alice.create(binding | {"credentialsRef": secret, "quotas": [{"name": "own"}]})
    names = (resources.QUOTA, resources.SECRET, resources.CREDENTIALS_BINDING)
    async with controllers(tenant):
        assert await tenant.create("demo", 2, "own") == ""
        for kind in names:
            await until(functools.partial(_has_finalizer, tenant, kind))
            await tenant.alice.delete(kind, "own", tenant.namespace)
        for kind in names:
            refused = await tenant.tries(
                tenant.alice.patch(kind, "own", tenant.namespace, {"metadata": {"finalizers": None}})
            )
            assert refused, f"the finalizer of the {kind.kind} was removed"
        assert "cpu: 4 used, 2 asked, 4 allowed" in await tenant.scale(3)


async def _has_finalizer(tenant: Tenant, kind: resources.Resource) -> bool:
    return bool((await tenant.admin.get(kind, "own", tenant.namespace))["metadata"].get("finalizers"))


@pytest.mark.attack(actor="T1", asset="A3", finding=30)
async def test_a_member_takes_away_an_object_that_a_shoot_needs(tenant: Tenant) -> None:
    """Without the ConfigMap of its audit policy an API server cannot be deployed, not even for a deletion."""
    policy = _object("v1", "ConfigMap", "audit", tenant.namespace)
    await tenant.alice.create(
        policy | {"data": {"policy": "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None}]\n"}}
    )
    shoot = tenant.shoot()
    shoot["spec"]["kubernetes"]["kubeAPIServer"] = {"auditConfig": {"auditPolicy": {"configMapRef": {"name": "audit"}}}}
    place = (resources.CONFIG_MAP, "audit", tenant.namespace)
    async with controllers(tenant):
        await tenant.alice.create(shoot)

        async def is_held() -> bool:
            return bool((await tenant.admin.get(*place))["metadata"].get("finalizers"))

        await until(is_held)
        assert "Shoots refer to it: demo" in await tenant.tries(
            tenant.alice.patch(*place, {"metadata": {"finalizers": None}})
        )
        await tenant.alice.delete(*place)
        assert (await tenant.alice.get(*place))["data"]


@pytest.mark.attack(actor="T1", asset="A3", finding=30)
async def test_a_member_replaces_the_ca_bundle_of_a_shoot(tenant: Tenant) -> None:
    """Other members trust the API server whose certificate the bundle's authority has signed."""
    bundle = _object("v1", "ConfigMap", "demo.ca-cluster", tenant.namespace) | {"data": {"ca.crt": "genuine"}}
    bundle["metadata"]["labels"] = {"gardener.cloud/update-restriction": "true"}
    await tenant.admin.create(bundle)
    place = (resources.CONFIG_MAP, "demo.ca-cluster", tenant.namespace)
    for patch in ({"data": {"ca.crt": "forged"}}, {"metadata": {"labels": None}}):
        assert "user alice may not write objects" in await tenant.tries(tenant.alice.patch(*place, patch))
    assert "user alice may not write objects" in await tenant.tries(tenant.alice.delete(*place))
