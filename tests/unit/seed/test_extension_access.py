"""What rights extensions get in a seed, against API servers in memory."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from activities.seed.extension_access import (
    ExtensionAccess,
    SharedSecret,
    control_plane_roles,
    shared_by_seed,
    shared_by_source,
)
from activities.seed.namespace import NamespaceActivities
from api.contracts.operations import OperationType, ShootRef, ShootTask
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
CLUSTER_ROLES, ROLE_BINDINGS, ROLES = (f"{RBAC}/{each}" for each in ("clusterroles", "rolebindings", "roles"))
CORE = "/apis/core.gardener.cloud/v1beta1"
REGISTRATIONS, SHOOTS = f"{CORE}/controllerregistrations", f"{CORE}/shoots"
NAMESPACE = "shoot--local--demo"
BINDING = "extension:provider-x:control-planes"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.RECONCILE,
)
BACKUP = SharedSecret("backup-bucket", frozenset({("BackupBucket", "x")}), "generated-bucket-5eed")


def cluster_role(
    name: str = "provider-x:control-planes", extension: str = "provider-x", account: str = "x/account"
) -> Any:
    labels = {"extensions.gardener.cloud/control-plane-role-of": extension}
    annotations = {"extensions.gardener.cloud/service-account": account}
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": []}


def registration(name: str, *resources: tuple[str, str]) -> dict[str, Any]:
    listed = [{"kind": kind, "type": type_, "primary": True} for kind, type_ in resources]
    return {"metadata": {"name": name}, "spec": {"resources": listed}}


class Seed:
    """A seed and its garden, with what a gardenlet gives to extensions there."""

    def __init__(self, clusters: Any, garden: ApiServer, api: ApiServer) -> None:
        self.clusters = clusters
        self.garden = garden
        self.api = api
        self.access = ExtensionAccess(clusters)

    def binding(self, name: str = BINDING, namespace: str = NAMESPACE) -> Any:
        return self.api.find(ROLE_BINDINGS, name, namespace)

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path in self.api.requests if method != "GET"]


@pytest.fixture
async def seed() -> AsyncIterator[Seed]:
    async with (
        ApiServer().running() as garden,
        ApiServer().running() as api,
        garden.client() as garden_client,
        api.client() as client,
    ):
        caches = Caches(client)
        api.put(CLUSTER_ROLES, cluster_role())
        garden.put(REGISTRATIONS, registration("provider-x", ("BackupBucket", "x"), ("DNSRecord", "x")))
        clusters: Any = SimpleNamespace(garden=garden_client, seed=client, seed_caches=caches, seed_name="seed-1")
        yield Seed(clusters, garden, api)
        await caches.close()


async def test_the_namespace_of_a_control_plane_comes_with_the_rights_of_extensions(seed: Seed) -> None:
    spec = {"provider": {"type": "local", "workers": [{"name": "a"}]}}
    seed.garden.put(SHOOTS, {"metadata": {"name": "demo", "namespace": "garden-local", "uid": "uid"}, "spec": spec})

    await NamespaceActivities(seed.clusters).deploy_namespace(TASK)

    binding = seed.binding()
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "provider-x:control-planes",
    }
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "account", "namespace": "x"}]


async def test_a_namespace_that_is_being_deleted_gets_no_new_rights(seed: Seed) -> None:
    """The API server would refuse them, and a deletion that is tried again would end there."""
    spec = {"provider": {"type": "local"}}
    seed.garden.put(SHOOTS, {"metadata": {"name": "demo", "namespace": "garden-local", "uid": "uid"}, "spec": spec})
    metadata = {"name": NAMESPACE, "deletionTimestamp": "2026-11-21T10:00:00Z", "finalizers": ["kubernetes"]}
    seed.api.put("/api/v1/namespaces", {"metadata": metadata})

    await NamespaceActivities(seed.clusters).deploy_namespace(TASK)

    assert seed.binding() is None


async def test_a_second_run_writes_nothing(seed: Seed) -> None:
    for _ in range(2):
        await seed.access.bind(NAMESPACE)

    assert [method for method, _ in seed.writes] == ["PATCH"], "the first run"


async def test_a_cluster_role_without_the_label_is_left_to_its_own_bindings(seed: Seed) -> None:
    """Extensions of others bring their own bindings, and go on as they are."""
    foreign = cluster_role("provider-y")
    del foreign["metadata"]["labels"]
    seed.api.put(CLUSTER_ROLES, foreign)

    await seed.access.bind(NAMESPACE)

    assert [name for _, _, name in seed.api.objects if name.startswith("extension:")] == [BINDING]


async def test_a_role_that_is_gone_is_bound_no_longer(seed: Seed) -> None:
    """A ClusterRole of the same name would give its rights to the account again."""
    other = {"metadata": {"name": "of-an-operator", "labels": cluster_role()["metadata"]["labels"]}}
    seed.api.put(ROLE_BINDINGS, other, NAMESPACE)
    await seed.access.bind(NAMESPACE)
    seed.api.remove(CLUSTER_ROLES, "provider-x:control-planes")
    await until(lambda: not seed.access.roles.list())
    await until(lambda: seed.access.bindings.get(BINDING, NAMESPACE))

    await seed.access.bind(NAMESPACE)

    assert seed.binding() is None
    assert seed.binding("of-an-operator")


async def test_an_account_that_moves_is_followed(seed: Seed) -> None:
    await seed.access.bind(NAMESPACE)
    await until(lambda: seed.access.bindings.get(BINDING, NAMESPACE))
    seed.api.put(CLUSTER_ROLES, cluster_role(account="y/account"))
    await until(lambda: control_plane_roles(seed.access.roles.list())[0].account == ("account", "y"))

    await seed.access.bind(NAMESPACE)

    assert seed.binding()["subjects"] == [{"kind": "ServiceAccount", "name": "account", "namespace": "y"}]


@pytest.mark.parametrize("account", ["", "account", "x/", "/account", "a/b/c", "X/account"])
def test_a_role_that_names_no_account_is_bound_nowhere_and_the_log_says_why(
    account: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other roles are bound all the same."""
    roles = control_plane_roles([cluster_role("bad", account=account), cluster_role("good")])

    assert [each.name for each in roles] == ["good"]
    assert "ClusterRole bad is not bound in control planes" in caplog.text


async def test_a_secret_of_the_seed_is_shared_with_the_extension_that_serves_its_object(seed: Seed) -> None:
    seed.api.put(CLUSTER_ROLES, cluster_role("provider-y", "provider-y", "y/account"))
    seed.garden.put(REGISTRATIONS, registration("provider-y", ("BackupBucket", "y")))

    await seed.access.share(BACKUP)

    assert seed.binding("extension-secret:backup-bucket", "garden")["subjects"] == [
        {"kind": "ServiceAccount", "name": "account", "namespace": "x"}
    ]
    role = seed.api.find(ROLES, "extension-secret:backup-bucket", "garden")
    assert role is not None
    assert [(rule["resourceNames"], rule["verbs"]) for rule in role["rules"]] == [
        (["backup-bucket"], ["get"]),
        (["generated-bucket-5eed"], ["get", "create", "patch", "update", "delete"]),
    ]


async def test_a_secret_that_no_extension_serves_any_more_is_taken_back(seed: Seed) -> None:
    await seed.access.share(BACKUP)
    seed.garden.remove(REGISTRATIONS, "provider-x")

    for _ in range(2):
        await seed.access.share(BACKUP)

    assert seed.binding("extension-secret:backup-bucket", "garden") is None
    assert seed.api.find(ROLES, "extension-secret:backup-bucket", "garden") is None


def test_a_seed_shares_what_its_own_objects_name_and_nothing_else() -> None:
    spec = {
        "dns": {"provider": {"type": "route53", "credentialsRef": {"name": "dns", "namespace": "garden"}}},
        "ingress": {"domain": "ingress.test"},
        "backup": {"provider": "s3", "credentialsRef": {"name": "backup", "namespace": "garden"}},
    }
    metadata = {"name": "seed-1", "uid": "5eed"}

    shared = {each.name: each for each in shared_by_seed({"metadata": metadata, "spec": spec})}

    assert shared["dnsrecord-seed-ingress"].pairs == {("DNSRecord", "route53")}
    assert shared["backup-bucket"].pairs == {("BackupBucket", "s3"), ("BackupEntry", "s3")}
    assert shared["backup-bucket"].generated == "generated-bucket-5eed"
    assert shared.keys() == {"dnsrecord-seed-ingress", "backup-bucket"}
    assert shared_by_seed({"metadata": metadata, "spec": {"dns": {}}}) == []


def test_the_way_to_an_old_bucket_is_shared_by_the_type_that_the_garden_says() -> None:
    bucket = {"spec": {"provider": {"type": "s3"}}}

    assert shared_by_source("source-a", bucket) == SharedSecret("source-a", frozenset({("BackupEntry", "s3")}))
