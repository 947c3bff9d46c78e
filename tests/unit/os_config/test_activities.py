"""The flow's steps about operating system configs, against an API server in memory."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from temporalio.exceptions import ApplicationError

from activities.clusters import ClusterView
from activities.secrets.configs import CertificateAuthority, SSHKeyPair
from activities.secrets.manager import SecretsManager
from activities.seed import operating_system_configs as module
from activities.seed.extension_kinds import OPERATING_SYSTEM_CONFIG
from activities.seed.extension_operations import Extensions
from activities.seed.operating_system_configs import OperatingSystemConfigActivities
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.names import in_place_hash_of, node_agent_secret_name
from kube.cache import Caches
from kube.errors import NotFound
from tests.unit.kube.api_server import ApiServer

NAMESPACE = "shoot--local--demo"
OSCS = "/apis/extensions.gardener.cloud/v1alpha1/operatingsystemconfigs"
MANAGED_RESOURCES = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
SECRETS, NODES = "/api/v1/secrets", "/api/v1/nodes"
WORKERS = "/apis/extensions.gardener.cloud/v1alpha1/workers"
RBAC, AGENT = "/apis/rbac.authorization.k8s.io/v1", "gardener-node-agent"
POOL: dict[str, Any] = {"name": "a", "machine": {"type": "local", "image": {"name": "local", "version": "1"}}}
SHOOT: dict[str, Any] = {
    "metadata": {"name": "demo", "namespace": "garden-local"},
    "spec": {
        "kubernetes": {"version": "1.37.1"},
        "networking": {"services": "100.68.0.0/16"},
        "provider": {"type": "local", "workers": [POOL, {**POOL, "name": "b"}]},
    },
}
KEYS = {name: node_agent_secret_name(SHOOT, {**POOL, "name": name}) for name in ("a", "b")}
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.CREATE,
    trigger="2026-11-21T10:00:00Z",
)


@pytest.fixture
async def seed() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        async with server.client() as client:
            manager = await SecretsManager.load(client, namespace=NAMESPACE)
            for name in ("ca", "ca-kubelet"):
                await manager.generate(CertificateAuthority(name))
            await manager.generate(SSHKeyPair("ssh-keypair"))
        yield server


@pytest.fixture
async def shoot() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        yield server


@pytest.fixture
async def clusters(seed: ApiServer, shoot: ApiServer) -> AsyncIterator[Any]:
    async with seed.client() as seed_client, shoot.client() as shoot_client:
        caches = Caches(seed_client)
        seed_spec = {"spec": {"dns": {"internal": {"domain": "internal.default.garden.test"}}}}
        view = ClusterView(
            {"metadata": {"name": NAMESPACE}, "spec": {"shoot": SHOOT, "seed": seed_spec, "cloudProfile": {"spec": {}}}}
        )

        async def cluster(_: str) -> ClusterView:
            return view

        async def client(_: str) -> Any:
            return shoot_client

        yield SimpleNamespace(seed=seed_client, seed_caches=caches, cluster=cluster, shoot=client)
        await caches.close()


@pytest.fixture
def activities(clusters: Any) -> OperatingSystemConfigActivities:
    return OperatingSystemConfigActivities(clusters)


def bundle(seed: ApiServer, of: str) -> str:
    (found,) = (
        item
        for (path, _, _), item in seed.objects.items()
        if path == SECRETS and item["metadata"]["labels"].get("bundle-for") == of
    )
    return base64.b64decode(found["data"]["bundle.crt"]).decode()


def node(name: str, pool: str, checksum: str, **metadata: Any) -> dict[str, Any]:
    annotations = {"checksum/cloud-config-data": checksum} if checksum else {}
    labels = {"worker.gardener.cloud/pool": pool}
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations, **metadata}}


def pool_secret(pool: str, checksum: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": KEYS[pool],
            "namespace": "kube-system",
            "labels": {"gardener.cloud/role": "operating-system-config"},
            "annotations": {"checksum/data-script": checksum},
        }
    }


async def test_each_pool_gets_user_data_and_a_configuration(
    activities: OperatingSystemConfigActivities, seed: ApiServer
) -> None:
    result = await activities.deploy_os_configs(TASK)
    names = {name for path, _, name in seed.objects if path == OSCS}
    assert names == {f"{key}-{end}" for key in KEYS.values() for end in ("init", "original")}
    init = seed.find(OSCS, f"{KEYS['a']}-init", NAMESPACE)
    assert init is not None
    assert init["spec"]["purpose"] == "provision"
    assert init["metadata"]["labels"] == {"worker.gardener.cloud/pool": "a"}
    assert init["metadata"]["annotations"]["gardener.cloud/operation"] == "reconcile"
    files = {file["path"]: file["content"]["inline"]["data"] for file in init["spec"]["files"]}
    assert files["/var/lib/gardener-node-agent/ca.crt"] == bundle(seed, "ca")
    assert files["/var/lib/kubelet/ca.crt"] == bundle(seed, "ca-kubelet")
    assert "https://api.demo.local.internal.default.garden.test" in files["/var/lib/gardener-node-agent/config.yaml"]
    assert any(name.startswith("ca-kubelet-bundle") for name in result.secrets)


def trusted(seed: ApiServer, pool: str) -> set[str]:
    """Certificates of both configurations of a pool."""
    found = set()
    for end in ("init", "original"):
        spec = (seed.find(OSCS, f"{KEYS[pool]}-{end}", NAMESPACE) or {})["spec"]
        files = {each["path"]: each["content"] for each in spec["files"]}
        known = files.get("/var/lib/ca-certificates-local/ROOTcerts.crt")
        found.add(known["inline"]["data"] if known else "")
        assert ("updatecacerts.service" in [each["name"] for each in spec["units"]]) == (known is not None)
    return found


async def test_machines_trust_the_certificates_of_the_profile_and_of_their_pool(
    activities: OperatingSystemConfigActivities, clusters: Any, seed: ApiServer
) -> None:
    """A pool without any keeps the configuration that it has: each change is applied on all its nodes."""
    await activities.deploy_os_configs(TASK)
    assert trusted(seed, "a") == {""}
    view = (await clusters.cluster(NAMESPACE)).cluster["spec"]
    workers = [{**POOL, "caBundle": "of the pool"}, {**POOL, "name": "b"}]
    view["shoot"] = {**SHOOT, "spec": {**SHOOT["spec"], "provider": {"type": "local", "workers": workers}}}
    await activities.deploy_os_configs(TASK.model_copy(update={"trigger": "2026-11-24T08:01:00Z"}))
    assert (trusted(seed, "a"), trusted(seed, "b")) == ({"of the pool\n"}, {""})
    view["cloudProfile"] = {"spec": {"caBundle": "of the profile\n"}}
    await activities.deploy_os_configs(TASK.model_copy(update={"trigger": "2026-11-24T08:02:00Z"}))
    assert trusted(seed, "a") == {"of the profile\nof the pool\n"}
    assert trusted(seed, "b") == {"of the profile\n"}


def authorized(seed: ApiServer) -> list[str]:
    """Lines of ``authorized_keys`` on machines of pool ``a``."""
    spec = (seed.find(OSCS, f"{KEYS['a']}-original", NAMESPACE) or {})["spec"]
    files = {file["path"]: file["content"] for file in spec["files"]}
    known = files.get("/var/lib/gardener-user-authorized-keys")
    return known["inline"]["data"].splitlines() if known else []


async def test_machines_accept_the_newest_and_the_previous_ssh_key(
    activities: OperatingSystemConfigActivities, clusters: Any, seed: ApiServer
) -> None:
    await activities.deploy_os_configs(TASK)
    [first] = authorized(seed)
    assert first.startswith("ecdsa-sha2-nistp256 ")
    view = await clusters.cluster(NAMESPACE)
    view.shoot["status"] = {"credentials": {"rotation": {"sshKeypair": {"lastInitiationTime": "2026-11-24T08:00:00Z"}}}}
    try:
        manager = await SecretsManager.of_shoot(clusters.seed, NAMESPACE, view.shoot)
        await manager.generate(SSHKeyPair("ssh-keypair"))
        await activities.deploy_os_configs(TASK.model_copy(update={"trigger": "2026-11-24T08:01:00Z"}))
        new, old = authorized(seed)
        assert (new != first, old) == (True, first)
        view.shoot["spec"]["provider"]["workersSettings"] = {"sshAccess": {"enabled": False}}
        await activities.deploy_os_configs(TASK.model_copy(update={"trigger": "2026-11-24T08:02:00Z"}))
        assert authorized(seed) == []
    finally:
        view.shoot.pop("status")
        view.shoot["spec"]["provider"].pop("workersSettings")


async def test_a_second_run_changes_nothing(activities: OperatingSystemConfigActivities, seed: ApiServer) -> None:
    await activities.deploy_os_configs(TASK)
    written = {path: item["metadata"]["resourceVersion"] for path, item in seed.objects.items()}
    await activities.deploy_os_configs(TASK)
    assert {path: item["metadata"]["resourceVersion"] for path, item in seed.objects.items()} == written


async def test_configurations_of_former_pools_are_deleted_too(
    activities: OperatingSystemConfigActivities, clusters: Any, seed: ApiServer
) -> None:
    """A pool that left the Shoot before its deletion would keep the namespace from going."""
    await activities.deploy_os_configs(TASK)
    seed.put(OSCS, {"metadata": {"name": "former-init", "namespace": NAMESPACE}, "spec": {"purpose": "provision"}})
    extensions = Extensions(clusters)
    await extensions.delete(OPERATING_SYSTEM_CONFIG, TASK)
    await asyncio.wait_for(extensions.wait_deleted(OPERATING_SYSTEM_CONFIG, TASK), 10)
    assert not [path for path in seed.objects if path[0] == OSCS]


async def test_the_shoot_gets_the_pools_secrets_and_the_rights_of_its_agents(
    activities: OperatingSystemConfigActivities, seed: ApiServer
) -> None:
    await activities.deploy_os_configs(TASK)
    await activities.deploy_node_agent_resources(TASK)
    assert seed.find(MANAGED_RESOURCES, "shoot-gardener-node-agent", NAMESPACE)
    sent = seed.find(SECRETS, "managedresource-shoot-gardener-node-agent", NAMESPACE)
    assert sent is not None
    assert {f"secret__kube-system__{key}.yaml" for key in KEYS.values()} <= set(sent["data"])


def put_roles_of_an_earlier_version(shoot: ApiServer) -> None:
    """Roles of all node agents, and those of the node agent of one Machine; an owner's role has a similar name."""

    def put(kind: str, name: str, role: str = "", namespace: str = "", **labels: str) -> None:
        place = {"namespace": namespace} if namespace else {}
        obj: dict[str, Any] = {"kind": kind, "metadata": {"name": name, **place, "labels": labels}}
        if role:
            obj["roleRef"] = {"kind": kind.removesuffix("Binding"), "name": role}
        shoot.put(f"{RBAC}/{kind.lower()}s", obj)

    machine = {"gardener.cloud/role": "node-agent-access"}
    for scope, namespace in (("Cluster", ""), ("", "kube-system")):
        put(f"{scope}Role", AGENT, namespace=namespace)
        put(f"{scope}RoleBinding", AGENT, AGENT, namespace)
    put("ClusterRole", f"{AGENT}:m-1")
    put("ClusterRoleBinding", f"{AGENT}:m-1", f"{AGENT}:m-1", **machine)
    put("Role", KEYS["a"], namespace="kube-system")
    put("RoleBinding", f"{AGENT}:m-1", KEYS["a"], "kube-system", **machine)
    put("ClusterRole", f"{AGENT}-of-the-owner")


async def test_roles_of_node_agents_go_once_the_authorizer_decides(
    activities: OperatingSystemConfigActivities, seed: ApiServer, shoot: ApiServer
) -> None:
    """Until then node agents need the roles: without them they could neither renew their Leases nor read Secrets."""
    await activities.deploy_os_configs(TASK)
    await activities.deploy_node_agent_resources(TASK)
    put_roles_of_an_earlier_version(shoot)
    roles = {key for key in shoot.objects if key[0].startswith(RBAC)}
    sent = seed.find(SECRETS, "managedresource-shoot-gardener-node-agent", NAMESPACE)
    status: dict[str, Any] = {"allowed": False}

    def answer(request: web.Request) -> web.Response | None:
        asked = request.path.endswith("/subjectaccessreviews")
        return web.json_response({"status": status}, status=201) if asked else None

    shoot.answer = answer
    with pytest.raises(ApplicationError, match="does not ask the node-agent authorizer yet") as failed:
        await activities.deploy_node_agent_resources(TASK)
    assert not failed.value.non_retryable
    assert {key for key in shoot.objects if key[0].startswith(RBAC)} == roles
    assert seed.find(SECRETS, "managedresource-shoot-gardener-node-agent", NAMESPACE) == sent

    status["denied"] = True
    await activities.deploy_node_agent_resources(TASK)
    assert [key[-1] for key in shoot.objects if key[0].startswith(RBAC)] == [f"{AGENT}-of-the-owner"]
    await activities.deploy_node_agent_resources(TASK)


async def test_a_new_shoot_needs_no_client_for_the_resources_of_node_agents(
    activities: OperatingSystemConfigActivities, clusters: Any
) -> None:
    """Its gardenlet may have no credentials yet, and must not wait for them before it creates machines."""

    async def missing(_: str) -> Any:
        raise NotFound(404, "there are no credentials", "")

    clusters.shoot = missing
    await activities.deploy_os_configs(TASK)
    await activities.deploy_node_agent_resources(TASK)


async def test_a_file_from_a_missing_secret_is_a_configuration_problem(
    activities: OperatingSystemConfigActivities, seed: ApiServer
) -> None:
    await activities.deploy_os_configs(TASK)
    extra = [{"path": "/etc/key", "content": {"secretRef": {"name": "missing", "dataKey": "k"}}}]
    seed.change(OSCS, f"{KEYS['a']}-original", NAMESPACE, {"status": {"extensionFiles": extra}})
    with pytest.raises(ApplicationError) as failed:
        await activities.deploy_node_agent_resources(TASK)
    assert failed.value.non_retryable
    assert f"{KEYS['a']}-original" in str(failed.value)


async def test_the_wait_ends_when_every_node_has_applied_its_configuration(
    activities: OperatingSystemConfigActivities, shoot: ApiServer
) -> None:
    shoot.put(NODES, node("n1", "a", "new-a"))
    shoot.put(NODES, node("n2", "b", ""))
    waiting = asyncio.create_task(activities.wait_os_configs_applied(TASK))
    shoot.put(SECRETS, pool_secret("a", "new-a"))
    shoot.put(SECRETS, pool_secret("b", "new-b"))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.5)
    assert not waiting.done()

    shoot.put(NODES, node("n2", "b", "new-b"))
    result = await asyncio.wait_for(waiting, 10)
    assert result.note == "2 nodes"


async def test_nodes_that_leave_are_not_waited_for(
    activities: OperatingSystemConfigActivities, shoot: ApiServer
) -> None:
    """A machine on its way out may never apply anything again."""
    shoot.put(SECRETS, pool_secret("a", "new-a"))
    shoot.put(SECRETS, pool_secret("b", "new-b"))
    shoot.put(NODES, node("n1", "a", "old", deletionTimestamp="2026-11-21T10:00:00Z", finalizers=["x"]))
    shoot.put(NODES, node("n2", "former-pool", ""))
    await asyncio.wait_for(activities.wait_os_configs_applied(TASK), 10)


async def test_nodes_with_an_old_configuration_are_named(
    activities: OperatingSystemConfigActivities, shoot: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_APPLY_SECONDS", 0.3)
    monkeypatch.setattr(ClusterView, "longest_update_delay", 0)
    shoot.put(SECRETS, pool_secret("a", "new-a"))
    shoot.put(SECRETS, pool_secret("b", "new-b"))
    shoot.put(NODES, node("n1", "a", "old"))
    with pytest.raises(ApplicationError) as failed:
        await activities.wait_os_configs_applied(TASK)
    assert "n1" in str(failed.value)
    assert not failed.value.non_retryable


def in_place(strategy: str, version: str) -> dict[str, Any]:
    """The Shoot with pool ``a`` updated in place to a version of its image."""
    image = {"name": "local", "version": version}
    pool = {**POOL, "updateStrategy": strategy, "machine": {"type": "local", "image": image}}
    return {**SHOOT, "spec": {**SHOOT["spec"], "provider": {"type": "local", "workers": [pool, {**POOL, "name": "b"}]}}}


async def set_updated(clusters: Any, seed: ApiServer, strategy: str, version: str, updated: str) -> ClusterView:
    """Change the version of pool ``a``; all its machines have version ``updated``."""
    view: ClusterView = await clusters.cluster(NAMESPACE)
    view.cluster["spec"]["shoot"] = in_place(strategy, version)
    before = in_place(strategy, updated)
    hashes = {"a": in_place_hash_of(before, before["spec"]["provider"]["workers"][0])}
    status = {"inPlaceUpdates": {"workerPoolToHashMap": hashes}}
    seed.put(WORKERS, {"metadata": {"name": "demo", "namespace": NAMESPACE}, "spec": {}, "status": status})
    return view


@pytest.mark.parametrize(
    ("strategy", "updated", "waits"),
    [("ManualInPlaceUpdate", "1", False), ("ManualInPlaceUpdate", "2", True), ("AutoInPlaceUpdate", "1", True)],
)
async def test_nodes_whose_owner_decides_about_their_update_are_not_waited_for(
    activities: OperatingSystemConfigActivities,
    clusters: Any,
    seed: ApiServer,
    shoot: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    updated: str,
    waits: bool,
) -> None:
    monkeypatch.setattr(module, "_APPLY_SECONDS", 3)
    monkeypatch.setattr(ClusterView, "longest_update_delay", 0)
    await set_updated(clusters, seed, strategy, "2", updated)
    of_a = pool_secret("a", "new-a")
    of_a["metadata"]["name"] = "gardener-node-agent-a"
    shoot.put(SECRETS, of_a)
    shoot.put(SECRETS, pool_secret("b", "new-b"))
    shoot.put(NODES, node("n1", "a", "old"))
    shoot.put(NODES, node("n2", "b", "new-b"))
    if waits:
        with pytest.raises(ApplicationError, match="n1"):
            await activities.wait_os_configs_applied(TASK)
    else:
        await activities.wait_os_configs_applied(TASK)


async def test_the_worker_of_an_in_place_update_waits_for_the_configuration_in_the_shoot(
    activities: OperatingSystemConfigActivities,
    clusters: Any,
    seed: ApiServer,
    shoot: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node agent that is released with the former configuration would report that it has nothing to do."""
    monkeypatch.setattr(module, "_ARRIVE_SECONDS", 3)
    view = await set_updated(clusters, seed, "AutoInPlaceUpdate", "2", "1")
    await activities.deploy_os_configs(TASK)
    wanted = await module._pool_secret(clusters.seed, TASK, view, view.pools[0])
    former = {**wanted, "metadata": {**wanted["metadata"], "annotations": {"checksum/data-script": "old"}}}
    shoot.put(SECRETS, former)
    with pytest.raises(ApplicationError, match="kube-system/gardener-node-agent-a") as failed:
        await module.wait_updates_described(clusters, TASK, view)
    assert not failed.value.non_retryable

    shoot.put(SECRETS, wanted)
    await module.wait_updates_described(clusters, TASK, view)
