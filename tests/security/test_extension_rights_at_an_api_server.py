"""An extension controller asks a real API server for more than its rights; what it needs, it gets there."""

import functools
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from activities.seed.extension_access import ExtensionAccess, shared_by_seed
from api import resources
from api.constants import EXTENSION_ROLE
from api.crds import crds
from api.policies import managed_resource_classes
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import Forbidden
from tests import api_servers
from tests.api_servers import free_port, process
from tests.unit.charts import rights_of_provider_local
from tests.unit.kube.waiting import until
from tests.unit.seed.test_extension_access import registration
from workers.provider_local.access import NAME

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(180)]

OWN, CONTROL_PLANE, GENERATED = "extension-provider-local", "shoot--a--b", "generated-bucket-5eed"
ACCOUNT = f"system:serviceaccount:{OWN}:{NAME}"
RBAC = "rbac.authorization.k8s.io"
SEED = {"dns": {"provider": {"type": "local"}}, "ingress": {"domain": "test"}, "backup": {"provider": "local"}}


class Seed:
    """A seed with one control plane, as its administrator and as provider-local."""

    def __init__(self, admin: KubeClient, extension: KubeClient) -> None:
        self.admin = admin
        self.extension = extension

    async def prepare(self) -> None:
        """Apply the objects that the gardenlet, the chart and an operator apply."""
        for each in crds("seed"):
            await self.admin.apply(each, manager="test")
        for name in (OWN, "garden", CONTROL_PLANE):
            await self.admin.apply(_object("v1", "Namespace", name, None), manager="test")
        for each in (*rights_of_provider_local(OWN), *managed_resource_classes()):
            await self.admin.apply(each, manager="test")
        for name in ("gardenlet-kubeconfig", "backup-bucket"):
            await self.admin.apply(secret(name, "garden"), manager="test")
        garden = SimpleNamespace(list=self._registrations)
        caches = Caches(self.admin)
        given = ExtensionAccess(SimpleNamespace(garden=garden, seed=self.admin, seed_caches=caches))  # type: ignore[arg-type]
        await given.bind(CONTROL_PLANE)
        for shared in shared_by_seed({"metadata": {"uid": "5eed"}, "spec": SEED}):
            await given.share(shared)
        await caches.close()
        await until(functools.partial(self.may, "get", resources.SECRET, "garden", "backup-bucket"))
        await until(functools.partial(self.may, "list", resources.SECRET, CONTROL_PLANE))
        await until(self._has_policy)

    async def may(self, verb: str, kind: resources.Resource, namespace: str | None = None, name: str = "") -> bool:
        """Whether the API server lets the extension read something."""
        try:
            if verb == "get":
                await self.extension.find(kind, name, namespace)
            else:
                await self.extension.list(kind, namespace, fields=f"metadata.name={name}" if name else "")
        except Forbidden:
            return False
        return True

    async def _has_policy(self) -> bool:
        """An API server enforces a policy some time after it was written."""
        path = resources.MANAGED_RESOURCE.path(CONTROL_PLANE)
        body = managed_resource(CONTROL_PLANE, **{"class": "seed"})
        try:
            await self.extension.request("POST", path, query={"dryRun": "All"}, body=body)
        except Forbidden:
            return True
        return False

    @staticmethod
    async def _registrations(_: resources.Resource) -> list[dict[str, Any]]:
        served = [(kind, "local") for kind in ("BackupBucket", "BackupEntry", "DNSRecord")]
        return [registration("provider-local", *served)]


def _object(api_version: str, kind: str, name: str, namespace: str | None, **content: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def secret(name: str, namespace: str) -> dict[str, Any]:
    return _object("v1", "Secret", name, namespace, data={"a": "YQ=="})


def managed_resource(namespace: str, **spec: str) -> dict[str, Any]:
    spec_: dict[str, Any] = {"secretRefs": [{"name": "x"}], **spec}
    return _object("resources.gardener.cloud/v1alpha1", "ManagedResource", "intruder", namespace, spec=spec_)


@pytest.fixture
async def seed(tmp_path: Path) -> AsyncIterator[Seed]:
    port = free_port()
    tokens = f"a,admin,1,system:masters\ne,{ACCOUNT},2\n"
    commands = api_servers.commands(tmp_path, port, tokens, "--authorization-mode", "RBAC")
    started = (process(tmp_path, *command) for command in commands)
    admin, extension = (api_servers.client(port, token) for token in "ae")
    async with next(started), next(started), admin, extension:
        await api_servers.ready(admin)
        seed = Seed(admin, extension)
        await seed.prepare()
        yield seed


@pytest.mark.attack(actor="T4", asset="A2", finding=14)
async def test_an_extension_gets_the_rights_that_it_needs_and_no_others(seed: Seed) -> None:
    """All of it at one API server: that starts once."""
    kinds = (resources.SECRET, resources.CONFIG_MAP, resources.POD, resources.DEPLOYMENT, resources.MACHINE)
    assert [await seed.may("list", kind) for kind in kinds] == [False] * 5
    assert [await seed.may("list", resources.SECRET, each) for each in ("garden", "kube-system")] == [False] * 2
    assert not await seed.may("list", resources.SERVICE)
    assert not await seed.may("get", resources.SECRET, "garden", "gardenlet-kubeconfig")
    assert not await seed.may("get", resources.DEPLOYMENT, CONTROL_PLANE, "kube-apiserver")
    assert not await seed.may("get", resources.SERVICE, CONTROL_PLANE, "etcd-main-client")

    assert await seed.may("list", resources.SERVICE, None, "istio-ingressgateway")
    assert await seed.may("get", resources.DEPLOYMENT, CONTROL_PLANE, "machine-controller-manager")
    assert await seed.may("get", resources.SERVICE, CONTROL_PLANE, "kube-apiserver")
    for kind in (resources.MACHINE, resources.MACHINE_CLASS, resources.MANAGED_RESOURCE):
        assert await seed.may("list", kind, CONTROL_PLANE)
    for kind in (resources.WORKER, resources.DNS_RECORD, resources.BACKUP_ENTRY, resources.CLUSTER):
        assert await seed.may("list", kind)
    for each in (secret("x", CONTROL_PLANE), secret(GENERATED, "garden"), managed_resource(CONTROL_PLANE)):
        await seed.extension.apply(each, manager="test")
    await seed.extension.delete(resources.SECRET, GENERATED, "garden")

    for each in (
        secret("backup-bucket", "garden"),
        secret("generated-bucket-of-another", "garden"),
        managed_resource("garden"),
        managed_resource(CONTROL_PLANE, **{"class": "seed"}),
        _object("extensions.gardener.cloud/v1alpha1", "Cluster", CONTROL_PLANE, None, spec={}),
    ):
        with pytest.raises(Forbidden):
            await seed.extension.apply_blindly(each, manager="test")


@pytest.mark.attack(actor="T4", asset="A2", finding=14)
async def test_an_extension_labels_a_role_that_is_stronger_than_itself_and_is_refused(seed: Seed) -> None:
    """The gardenlet would bind the role in each control plane. Extensions of others often may write ClusterRoles."""
    rules = [{"apiGroups": [RBAC], "resources": ["clusterroles"], "verbs": ["get", "create", "patch", "update"]}]
    role = _object(f"{RBAC}/v1", "ClusterRole", "author", None, rules=rules)
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "author"}
    subjects = [{"apiGroup": RBAC, "kind": "User", "name": ACCOUNT}]
    binding = _object(f"{RBAC}/v1", "ClusterRoleBinding", "author", None, roleRef=reference, subjects=subjects)
    for each in (role, binding):
        await seed.admin.apply(each, manager="test")
    await until(functools.partial(seed.may, "get", resources.CLUSTER_ROLE, None, "author"))

    for name in ("cluster-admin", "admin", "gardener.cloud:extensions:provider-local:control-planes"):
        with pytest.raises(Forbidden):
            await seed.extension.patch(
                resources.CLUSTER_ROLE, name, None, {"metadata": {"labels": {EXTENSION_ROLE: "intruder"}}}
            )


@pytest.mark.attack(actor="T4", asset="A2", finding=39)
async def test_an_extension_that_writes_managed_resources_everywhere_brings_none_of_a_class_into_namespace_garden(
    seed: Seed,
) -> None:
    """It has one Secret there, that of a backup bucket. It can also not remove the class of a ManagedResource there."""
    rules = [{"apiGroups": ["resources.gardener.cloud"], "resources": ["managedresources"], "verbs": ["*"]}]
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "everywhere"}
    subjects = [{"apiGroup": RBAC, "kind": "User", "name": ACCOUNT}]
    of_operator = managed_resource("garden", **{"class": "seed"})
    for each in (
        _object(f"{RBAC}/v1", "ClusterRole", "everywhere", None, rules=rules),
        _object(f"{RBAC}/v1", "ClusterRoleBinding", "everywhere", None, roleRef=reference, subjects=subjects),
        of_operator,
    ):
        await seed.admin.apply(each, manager="test")
    await until(functools.partial(seed.may, "list", resources.MANAGED_RESOURCE))

    await seed.extension.apply(secret(GENERATED, "garden"), manager="test")
    metadata = {**of_operator["metadata"], "name": "of-bucket"}
    spec = {"class": "seed", "secretRefs": [{"name": GENERATED}]}
    with pytest.raises(Forbidden, match="may create Secrets in its namespace"):
        await seed.extension.apply_blindly({**of_operator, "metadata": metadata, "spec": spec}, manager="test")
    with pytest.raises(Forbidden, match="may create Secrets in its namespace"):
        await seed.extension.patch(resources.MANAGED_RESOURCE, "intruder", "garden", {"spec": {"class": None}})
    await seed.extension.apply(managed_resource(CONTROL_PLANE, **{"class": "seed"}), manager="test")
