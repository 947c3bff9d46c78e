"""Operations on extension objects of any kind, against an API server in memory."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from activities.clusters import ClusterView
from activities.secrets.configs import SSHKeyPair
from activities.secrets.manager import SecretsManager
from activities.seed import extension_kinds as kinds
from activities.seed.extension_kinds import Kind
from activities.seed.extension_objects import ExtensionObject
from activities.seed.extension_operations import Extensions
from activities.seed.extensions import ExtensionActivities, machine_settings, node_template
from api import resources
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.names import operating_system_config_names
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.lib import registry
from workflows.flow import activity_name

NAMESPACE = "shoot--local--demo"
SHOOT: dict[str, Any] = {
    "metadata": {"name": "demo", "namespace": "garden-local"},
    "spec": {"kubernetes": {"version": "1.37.1"}, "provider": {"type": "local", "workers": []}},
}
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.CREATE,
    trigger="2026-11-21T10:00:00.000000Z",
)
KINDS = [each for each in vars(kinds).values() if isinstance(each, Kind)]
NETWORKS = "/apis/extensions.gardener.cloud/v1alpha1/networks"
INFRASTRUCTURES = "/apis/extensions.gardener.cloud/v1alpha1/infrastructures"
DNS_RECORDS = "/apis/extensions.gardener.cloud/v1alpha1/dnsrecords"


@pytest.fixture
async def seed() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        yield server


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with GardenServer().running() as server:
        yield server


@pytest.fixture
async def clusters(seed: ApiServer, garden: ApiServer) -> AsyncIterator[Any]:
    async with seed.client() as client, garden.client() as garden_client:
        caches = Caches(client)

        async def cluster(_: str) -> ClusterView:
            return ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": SHOOT}})

        yield SimpleNamespace(garden=garden_client, seed=client, seed_caches=caches, cluster=cluster)
        await caches.close()


def wanted(kind: Kind, name: str) -> ExtensionObject:
    return ExtensionObject(kind.resource, name, kind.place(TASK), {"type": "local"})


def done(seed: ApiServer, path: str, name: str) -> None:
    """Write what a controller writes when it is done."""
    status = {
        "observedGeneration": 1,
        "lastOperation": {"type": "Create", "state": "Succeeded", "lastUpdateTime": "2026-11-21T10:00:01Z"},
    }
    change = {"metadata": {"annotations": {"gardener.cloud/operation": None}}, "status": status}
    seed.change(path, name, NAMESPACE, change)


async def test_a_deployed_extension_is_awaited_and_deleted(clusters: Any, seed: ApiServer) -> None:
    extensions = Extensions(clusters)
    await extensions.deploy(kinds.NETWORK, TASK, [wanted(kinds.NETWORK, "demo")])
    waiting = asyncio.create_task(extensions.ready(kinds.NETWORK, TASK))
    await until(lambda: seed.watching)
    assert not waiting.done()
    done(seed, NETWORKS, "demo")
    (live,) = await asyncio.wait_for(waiting, 10)
    assert live["metadata"]["name"] == "demo"
    await extensions.delete(kinds.NETWORK, TASK)
    await asyncio.wait_for(extensions.wait_deleted(kinds.NETWORK, TASK), 10)
    assert seed.find(NETWORKS, "demo", NAMESPACE) is None


async def test_a_second_deployment_of_the_same_operation_writes_nothing(clusters: Any, seed: ApiServer) -> None:
    extensions = Extensions(clusters)
    await extensions.deploy(kinds.NETWORK, TASK, [wanted(kinds.NETWORK, "demo")])
    before = seed.find(NETWORKS, "demo", NAMESPACE)
    await extensions.deploy(kinds.NETWORK, TASK, [wanted(kinds.NETWORK, "demo")])
    assert seed.find(NETWORKS, "demo", NAMESPACE) == before


async def test_a_name_in_the_dns_is_deleted_and_waited_for_in_one_task(clusters: Any, seed: ApiServer) -> None:
    """Nothing of the other name is touched."""
    for role in ("internal", "external"):
        seed.put(DNS_RECORDS, {"metadata": {"name": f"demo-{role}", "namespace": NAMESPACE}, "spec": {}})
    await asyncio.wait_for(ExtensionActivities(clusters).delete_external_dns(TASK), 10)
    assert [name for path, _, name in seed.objects if path == DNS_RECORDS] == ["demo-internal"]


async def test_deleting_a_missing_extension_is_done_at_once(clusters: Any) -> None:
    extensions = Extensions(clusters)
    for kind in KINDS:
        await extensions.delete(kind, TASK)
        await asyncio.wait_for(extensions.wait_deleted(kind, TASK), 10)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.task)
def test_each_kind_can_be_deleted_and_moved(kind: Kind) -> None:
    needed = {f"delete_{kind.task}", f"migrate_{kind.task}", f"wait_{kind.task}_migrated"}
    if not kind.at_once:
        needed |= {f"wait_{kind.task}", f"wait_{kind.task}_deleted"}
    assert needed <= set(vars(ExtensionActivities))


def test_a_force_deletion_and_a_shoot_state_know_each_kind() -> None:
    """Otherwise a force-deletion would leave the objects of a kind, and a move would lose their state."""
    assert {kind.resource for kind in KINDS if kind.resource.namespaced} == set(kinds.IN_NAMESPACE)


def test_an_activity_has_the_name_of_its_method(clusters: Any) -> None:
    """A flow names a method, and Temporal calls the activity by its name."""
    clusters.garden_caches = clusters.seed_caches
    for each in registry.seed_activities(clusters, vpn_network="192.168.1.0/24"):
        owner = each.__self__  # type: ignore[attr-defined]
        assert getattr(owner, activity_name(each), None) == each


async def test_the_newest_ssh_key_is_passed_to_the_infrastructure(clusters: Any, seed: ApiServer) -> None:
    async def told(key: SSHKeyPair, status: dict[str, Any], *, enabled: bool = True) -> tuple[str | None, str]:
        """The key that the next operation passes to the extensions, and the newest key."""
        settings = {"sshAccess": {"enabled": enabled}}
        provider = {"type": "local", "workers": [{"name": "a"}], "workersSettings": settings}
        shoot = {**SHOOT, "spec": {**SHOOT["spec"], "region": "local", "provider": provider}, "status": status}

        async def cluster(_: str) -> ClusterView:
            return ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": shoot}})

        clusters.cluster = cluster
        newest = await (await SecretsManager.of_shoot(clusters.seed, NAMESPACE, shoot)).generate(key)
        task = TASK.model_copy(update={"trigger": datetime.now(UTC).isoformat()})
        await ExtensionActivities(clusters).deploy_infrastructure(task)
        found = (seed.find(INFRASTRUCTURES, "demo", NAMESPACE) or {})["spec"].get("sshPublicKey")
        done(seed, INFRASTRUCTURES, "demo")
        return found and base64.b64decode(found).decode(), newest.data["id_rsa.pub"].decode().strip()

    key, rotation = SSHKeyPair("ssh-keypair"), {"sshKeypair": {"lastInitiationTime": "2026-11-21T10:00:00Z"}}
    before, first = await told(key, {})
    after, second = await told(key, {"credentials": {"rotation": rotation}})
    assert (before, after) == (first, second)
    assert first != second
    off, _ = await told(key, {"credentials": {"rotation": rotation}}, enabled=False)
    assert off is None


# Extension objects by phase


REGISTRATIONS = "/apis/core.gardener.cloud/v1beta1/controllerregistrations"
EXTENSIONS = "/apis/extensions.gardener.cloud/v1alpha1/extensions"


@pytest.fixture
def extensible(clusters: Any, garden: ApiServer) -> ExtensionActivities:
    """A Shoot that asks for three extensions, of which one is not registered any more."""
    before, after = "BeforeKubeAPIServer", "AfterKubeAPIServer"
    phases = {"early": (before, after), "late": (after, before), "last": ("AfterWorker", after)}
    resources = [
        {"kind": "Extension", "type": type_, "lifecycle": {"reconcile": reconcile, "delete": delete}}
        for type_, (reconcile, delete) in phases.items()
    ]
    garden.put(REGISTRATIONS, {"metadata": {"name": "three"}, "spec": {"resources": resources}})
    asked = [{"type": type_, "providerConfig": {"of": type_}} for type_ in phases]
    pool = {"name": "a", "cri": {"containerRuntimes": [{"type": "gvisor"}]}}
    shoot = {**SHOOT, "spec": {**SHOOT["spec"], "extensions": asked, "provider": {"workers": [pool]}}}

    async def cluster(_: str) -> ClusterView:
        return ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": shoot}})

    clusters.cluster = cluster
    return ExtensionActivities(clusters)


def there(seed: ApiServer, path: str = EXTENSIONS) -> set[str]:
    return {name for each, _, name in seed.objects if each == path}


async def run(activities: ExtensionActivities, name: str) -> Any:
    return await asyncio.wait_for(getattr(activities, name)(TASK), 10)


async def test_each_phase_deploys_and_waits_for_its_own(extensible: ExtensionActivities, seed: ApiServer) -> None:
    for phase, type_ in (("before_apiserver", "early"), ("after_apiserver", "late"), ("after_worker", "last")):
        before = there(seed)
        await run(extensible, f"deploy_extensions_{phase}")
        assert there(seed) - before == {type_}
        made = seed.find(EXTENSIONS, type_, NAMESPACE)
        assert made is not None
        assert made["spec"] == {"type": type_, "providerConfig": {"of": type_}}
        done(seed, EXTENSIONS, type_)
        await run(extensible, f"wait_extensions_{phase}")


async def test_an_extension_goes_in_the_phase_that_its_registration_names(
    extensible: ExtensionActivities, seed: ApiServer
) -> None:
    """An extension that no registration names any more is deleted while the API server still answers."""
    for phase in ("before_apiserver", "after_apiserver", "after_worker"):
        await run(extensible, f"deploy_extensions_{phase}")
    seed.put(EXTENSIONS, {"metadata": {"name": "forgotten", "namespace": NAMESPACE}, "spec": {"type": "forgotten"}})
    await run(extensible, "delete_extensions_before_apiserver")
    await run(extensible, "wait_extensions_before_apiserver_deleted")
    assert there(seed) == {"early", "last"}
    await run(extensible, "delete_extensions_after_apiserver")
    await run(extensible, "wait_extensions_after_apiserver_deleted")
    assert there(seed) == set()


async def test_the_wait_for_a_deletion_asks_the_api_server_for_what_its_cache_lacks(
    extensible: ExtensionActivities, clusters: Any, seed: ApiServer
) -> None:
    """A cache that lags behind a new object looks as one that has seen its end."""
    await clusters.seed_caches.of(resources.EXTENSION).synced()
    seed.watches_flow.clear()
    await run(extensible, "deploy_extensions_after_apiserver")
    seed.change(EXTENSIONS, "late", NAMESPACE, {"metadata": {"finalizers": ["a/b"]}})
    await run(extensible, "delete_extensions_before_apiserver")
    asked = len(seed.requests)
    waiting = asyncio.ensure_future(extensible.wait_extensions_before_apiserver_deleted(TASK))
    await until(lambda: len(seed.requests) > asked + 1 or waiting.done())
    assert not waiting.done()
    seed.change(EXTENSIONS, "late", NAMESPACE, {"metadata": {"finalizers": None}})
    await asyncio.wait_for(waiting, 10)


async def test_only_extensions_that_left_the_spec_are_deleted(extensible: ExtensionActivities, seed: ApiServer) -> None:
    await run(extensible, "deploy_extensions_after_apiserver")
    seed.put(EXTENSIONS, {"metadata": {"name": "former", "namespace": NAMESPACE}, "spec": {"type": "former"}})
    result = await run(extensible, "delete_stale_extensions")
    await run(extensible, "wait_stale_extensions_deleted")
    assert result.note == "former"
    assert there(seed) == {"late"}


async def test_container_runtimes_belong_to_pools(extensible: ExtensionActivities, seed: ApiServer) -> None:
    path = "/apis/extensions.gardener.cloud/v1alpha1/containerruntimes"
    seed.put(path, {"metadata": {"name": "gvisor-former", "namespace": NAMESPACE}, "spec": {"type": "gvisor"}})
    await run(extensible, "deploy_container_runtimes")
    made = seed.find(path, "gvisor-a", NAMESPACE)
    assert made is not None
    selector = {"matchLabels": {"worker.gardener.cloud/pool": "a"}}
    assert made["spec"]["workerPool"] == {"name": "a", "selector": selector}
    await run(extensible, "delete_stale_container_runtimes")
    assert there(seed, path) == {"gvisor-a"}


async def test_machines_are_on_their_way_when_the_provider_says_how_they_are_grouped(
    extensible: ExtensionActivities, seed: ApiServer
) -> None:
    """The wait is for the last write, which may be an earlier operation's: a Worker without a change is not written."""
    path = "/apis/extensions.gardener.cloud/v1alpha1/workers"
    asked = "2026-11-21T10:00:00.000000Z"
    metadata = {"name": "demo", "namespace": NAMESPACE, "annotations": {"gardener.cloud/timestamp": asked}}
    former = {"machineDeploymentsLastUpdateTime": "2026-11-21T09:00:00Z"}
    seed.put(path, {"kind": "Worker", "metadata": metadata, "status": former})
    later = TASK.model_copy(update={"trigger": "2026-11-21T11:00:00.000000Z"})
    waiting = asyncio.create_task(extensible.wait_machine_deployments(later))
    await until(lambda: seed.watching)
    assert not waiting.done()
    seed.change(path, "demo", NAMESPACE, {"status": {"machineDeploymentsLastUpdateTime": "2026-11-21T10:00:00Z"}})
    await asyncio.wait_for(waiting, 10)


@pytest.mark.parametrize(("tasks", "triggered"), [("", False), ("deployInfrastructure", True), ("other", False)])
async def test_an_unchanged_extension_is_reconciled_only_on_request(
    clusters: Any, seed: ApiServer, tasks: str, triggered: bool
) -> None:
    """Every call of a cloud's API counts against a limit of its account."""
    infrastructures = "/apis/extensions.gardener.cloud/v1alpha1/infrastructures"
    shoot = {**SHOOT, "metadata": {**SHOOT["metadata"], "annotations": {"shoot.gardener.cloud/tasks": tasks}}}

    async def cluster(_: str) -> ClusterView:
        return ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": shoot}})

    clusters.cluster = cluster
    extensions = Extensions(clusters)
    await extensions.deploy(kinds.INFRASTRUCTURE, TASK, [wanted(kinds.INFRASTRUCTURE, "demo")])
    done(seed, infrastructures, "demo")
    later = TASK.model_copy(update={"trigger": "2026-11-21T11:00:00.000000Z"})
    await extensions.deploy(kinds.INFRASTRUCTURE, later, [wanted(kinds.INFRASTRUCTURE, "demo")])
    live = seed.find(infrastructures, "demo", NAMESPACE)
    assert live is not None
    assert (live["metadata"]["annotations"]["gardener.cloud/timestamp"] == later.trigger) is triggered


@pytest.mark.parametrize("secret", ["cloudprovider", "bucket"])
async def test_an_extension_is_reconciled_when_its_credentials_have_changed(
    clusters: Any, seed: ApiServer, secret: str
) -> None:
    """A BackupEntry must get a new key before the earlier one ends, though the Shoot has not changed."""
    reference = {"name": "bucket", "namespace": NAMESPACE}
    entry = ExtensionObject(kinds.NETWORK.resource, "demo", NAMESPACE, {"type": "local", "secretRef": reference})
    for name in ("cloudprovider", "bucket"):
        seed.put("/api/v1/secrets", {"metadata": {"name": name, "namespace": NAMESPACE}, "data": {}})
    extensions = Extensions(clusters)
    await extensions.deploy(kinds.NETWORK, TASK, [entry])
    done(seed, NETWORKS, "demo")

    async def asked_at(trigger: str) -> str:
        await extensions.deploy(kinds.NETWORK, TASK.model_copy(update={"trigger": trigger}), [entry])
        live = seed.find(NETWORKS, "demo", NAMESPACE)
        assert live is not None
        return str(live["metadata"]["annotations"]["gardener.cloud/timestamp"])

    assert await asked_at("2026-11-21T11:00:00.000000Z") == TASK.trigger
    seed.change("/api/v1/secrets", secret, NAMESPACE, {"data": {"key": "bmV3"}})
    assert await asked_at("2026-11-21T12:00:00.000000Z") == "2026-11-21T12:00:00.000000Z"


async def test_the_cloud_s_credentials_are_read_once_for_all_objects_of_a_kind(clusters: Any, seed: ApiServer) -> None:
    """A Shoot has an OperatingSystemConfig or two for each pool."""
    seed.put("/api/v1/secrets", {"metadata": {"name": "cloudprovider", "namespace": NAMESPACE}, "data": {}})
    objects = [ExtensionObject(kinds.NETWORK.resource, name, NAMESPACE, {"type": "local"}) for name in ("a", "b", "c")]
    await Extensions(clusters).deploy(kinds.NETWORK, TASK, objects)

    assert all(seed.find(NETWORKS, name, NAMESPACE) for name in ("a", "b", "c"))
    assert [path for method, path in seed.requests if path.endswith("/secrets/cloudprovider")] == [
        f"/api/v1/namespaces/{NAMESPACE}/secrets/cloudprovider"
    ]


async def test_no_two_activities_of_a_seed_have_one_name(clusters: Any) -> None:
    """A gardenlet would not start."""
    clusters.garden_caches = clusters.seed_caches
    names = [activity_name(each) for each in registry.seed_activities(clusters, vpn_network="192.168.1.0/24")]
    assert len(names) == len(set(names))


PROFILE: dict[str, Any] = {
    "spec": {
        "machineTypes": [
            {"name": "small", "cpu": 2, "gpu": "0", "memory": "4Gi"},
            {"name": "large", "cpu": "8", "gpu": "1", "memory": "32Gi", "storage": {"size": "50Gi"}},
        ]
    }
}


@pytest.mark.parametrize(
    ("pool", "capacity"),
    [
        ({"machine": {"type": "small"}}, {"cpu": "2", "gpu": "0", "memory": "4Gi"}),
        (
            {"machine": {"type": "large"}},
            {"cpu": "8", "gpu": "1", "memory": "32Gi", "ephemeral-storage": "50Gi"},
        ),
        (
            {"machine": {"type": "large"}, "volume": {"size": "80Gi"}},
            {"cpu": "8", "gpu": "1", "memory": "32Gi", "ephemeral-storage": "80Gi"},
        ),
    ],
)
def test_the_capacity_of_a_new_node_is_that_of_its_machine_type(pool: dict[str, Any], capacity: dict[str, str]) -> None:
    assert node_template(PROFILE, pool) == {"capacity": capacity}


@pytest.mark.parametrize(
    ("of_type", "of_pool", "wanted"),
    [
        (None, None, None),
        ("5m", None, {"machineCreationTimeout": "5m"}),
        (
            "5m",
            {"machineCreationTimeout": "9m", "maxEvictRetries": 3},
            {"machineCreationTimeout": "9m", "maxEvictRetries": 3},
        ),
        ("5m", {"maxEvictRetries": 3}, {"machineCreationTimeout": "5m", "maxEvictRetries": 3}),
    ],
)
def test_a_machine_may_take_as_long_as_its_type_says_unless_the_pool_says_otherwise(
    of_type: str | None, of_pool: dict[str, Any] | None, wanted: dict[str, Any] | None
) -> None:
    kind = {"name": "small", **({"machineControllerManager": {"machineCreationTimeout": of_type}} if of_type else {})}
    pool = {"machine": {"type": "small"}, **({"machineControllerManager": of_pool} if of_pool else {})}

    assert machine_settings({"spec": {"machineTypes": [kind]}}, pool) == wanted


def test_an_unknown_machine_type_has_no_capacity() -> None:
    """The extension reports the unknown machine type; an error here would hide that message."""
    assert node_template(PROFILE, {"machine": {"type": "gone"}}) is None


async def test_a_pool_of_the_worker_has_its_capacity_and_the_settings_of_its_kubelets(
    clusters: Any, seed: ApiServer
) -> None:
    pools = [
        {"name": name, "minimum": 0, "maximum": 1, "machine": {"type": "small", "image": {"name": "i", "version": "1"}}}
        for name in ("own", "shared")
    ]
    pools[0]["kubernetes"] = {"kubelet": {"maxPods": 50}}
    spec = {
        "kubernetes": {"version": "1.37.1", "kubelet": {"maxPods": 70}},
        "provider": {"type": "local", "workers": pools, "workersSettings": {"sshAccess": {"enabled": False}}},
        "region": "local",
    }
    view = ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": {**SHOOT, "spec": spec}}})
    view.cluster["spec"]["cloudProfile"] = PROFILE

    async def cluster(_: str) -> ClusterView:
        return view

    clusters.cluster = cluster
    for pool in pools:
        provision, _ = operating_system_config_names(view.shoot, pool)
        status = {"cloudConfig": {"secretRef": {"name": "user-data", "namespace": NAMESPACE}}}
        metadata = {"name": provision, "namespace": NAMESPACE}
        path = "/apis/extensions.gardener.cloud/v1alpha1/operatingsystemconfigs"
        seed.put(path, {"metadata": metadata, "spec": {}, "status": status})
    await ExtensionActivities(clusters).deploy_worker(TASK)

    made = seed.find("/apis/extensions.gardener.cloud/v1alpha1/workers", "demo", NAMESPACE)
    assert made is not None
    assert [each["kubeletConfig"] for each in made["spec"]["pools"]] == [{"maxPods": 50}, {"maxPods": 70}]
    assert made["spec"]["pools"][0]["nodeTemplate"] == {"capacity": {"cpu": "2", "gpu": "0", "memory": "4Gi"}}
