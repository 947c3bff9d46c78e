"""The webhooks at a real API server: what becomes of new pods, and of new pods while no resource manager answers."""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.components import resource_manager
from activities.components import resource_manager_webhooks as registration
from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage
from api.resources import MUTATING_WEBHOOK_CONFIGURATION, NODE, POD, SECRET
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import ApiError, Invalid
from tests.api_servers import free_port, ready
from tests.gardens import ADMIN, ApiServer, new_authority
from tests.unit.kube.waiting import until
from workers.lib import serving, webhook_certificates
from workers.resource_manager.config import ResourceManagerConfig
from workers.resource_manager.webhooks import Webhooks

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

Object = dict[str, Any]
MANAGED = {"resources.gardener.cloud/managed-by": "gardener"}
SYSTEM = {"worker.gardener.cloud/system-components": "true"}
TOKEN_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
NAMESPACES: dict[str, dict[str, str]] = {
    "kube-system": {},
    "default": {},
    "closed": {"apiserver-proxy.networking.gardener.cloud/inject": "disable"},
    "garden": {"gardener.cloud/role": "garden"},
    "shoot--a--b": {"gardener.cloud/role": "shoot"},
}


def configured(objects: list[Object]) -> Object:
    """The webhooks in the configuration that the gardenlet gives to a resource manager."""
    [file] = [each for each in objects if each["kind"] == "ConfigMap"]
    webhooks: Object = json.loads(file["data"]["config.yaml"])["webhooks"]
    # tests/unit/resource_manager/test_node_agent_authorizer_at_an_api_server.py tries the authorizer.
    return {name: each for name, each in webhooks.items() if name != "nodeAgentAuthorizer"}


OF_SHOOT = configured(
    resource_manager.objects(
        resource_manager.ResourceManager(
            "shoot--a--b",
            "generic",
            server="server",
            api_server="api.example.org",
            taints=[{"key": "pool", "value": "system", "effect": "NoSchedule"}],
        )
    )
)
OF_SEED = configured(resource_manager.seed_objects(2))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("shoot"), {})
    with made.running():
        asyncio.run(_prepared(made))
        yield made


async def _prepared(server: ApiServer) -> None:
    async with server.client() as admin:
        await ready(admin)
        for namespace, labels in NAMESPACES.items():
            metadata: Object = {"name": namespace, "labels": labels}
            await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, manager="test")
            for name in ("default", "silent", "open"):
                account: Object = {"apiVersion": "v1", "kind": "ServiceAccount"}
                account["metadata"] = {"name": name, "namespace": namespace}
                if name == "silent":
                    account["automountServiceAccountToken"] = False
                await admin.apply(account, manager="test")


class Cluster:
    """Creates pods, and starts and stops the webhooks of a resource manager."""

    def __init__(self, server: ApiServer, admin: KubeClient, directory: Path) -> None:
        self.server = server
        self.admin = admin
        self.directory = directory
        self.port = free_port()
        self.authority = new_authority("ca")

    async def create(self, name: str = "", namespace: str = "kube-system", **fields: Any) -> Object:
        """Create a pod, as a dry run. ``fields``: labels, annotations and ownerReferences; the others are its spec."""
        metadata: Object = {"namespace": namespace, **({"name": name} if name else {"generateName": "p-"})}
        for each in ("labels", "annotations", "ownerReferences"):
            if each in fields:
                metadata[each] = fields.pop(each)
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**_SPEC, **fields}}
        made: Object = await self.admin.request("POST", POD.path(namespace), query={"dryRun": "All"}, body=pod)
        return made

    async def refuses(self, **fields: Any) -> bool:
        try:
            await self.create(**fields)
        except ApiError as error:
            if "failed calling webhook" not in str(error):
                raise
            return True
        return False

    def show(self, authority: KeyPair) -> None:
        """Write the files with the server's certificate, as a kubelet."""
        shown = crypto.signed(
            "rm",
            ca=authority,
            usage=Usage.SERVER,
            algorithm=KeyAlgorithm.P256,
            now=datetime.now(UTC),
            validity=timedelta(days=1),
            ip_addresses=["127.0.0.1"],
        )
        (self.directory / "tls.crt").write_bytes(shown.certificate)
        (self.directory / "tls.key").write_bytes(shown.key)

    async def register(self, *authorities: KeyPair) -> None:
        """Register the webhooks, as a gardenlet does it by a ManagedResource."""
        bundle = base64.b64encode(b"".join(each.certificate for each in authorities)).decode()

        def client(path: str) -> Object:
            return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": bundle}

        made = registration.configuration(
            registration.Registered(resource_manager.WEBHOOKS_OF_SHOOT, client, shoot=True)
        )
        await self.admin.apply(made, manager="test")

    @contextlib.asynccontextmanager
    async def webhooks(self, webhooks: Object, server: Object) -> AsyncIterator[None]:
        """Serve webhooks until the end of the block."""
        address = {"bindAddress": "127.0.0.1", "port": self.port}
        config = ResourceManagerConfig.model_validate(
            {"server": {"webhooks": {**address, **server}}, "webhooks": webhooks}
        )
        caches = Caches(self.admin)
        serves = Webhooks(config, source=self.admin, source_caches=caches, target=self.admin, target_caches=caches)
        task = asyncio.create_task(serves.run())
        try:
            async with asyncio.timeout(20):
                await serves.ready.wait()
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await caches.close()

    @contextlib.asynccontextmanager
    async def of_shoot(self) -> AsyncIterator[None]:
        """The webhooks of a Shoot's instance, once the API server calls them."""
        self.show(self.authority)
        async with self.webhooks(OF_SHOOT, {"tls": {"serverCertDir": str(self.directory)}}):
            await self.register(self.authority)
            await until(self.changes, 20)
            yield

    async def changes(self, namespace: str = "kube-system") -> bool:
        """Whether the webhooks change a new pod."""
        try:
            made = await self.create(namespace=namespace, serviceAccountName="silent")
        except ApiError:
            return False
        return "kube-api-access-gardener" in _volumes(made)


_SPEC: Object = {
    "initContainers": [{"name": "first", "image": "i"}],
    "containers": [{"name": "one", "image": "i"}, {"name": "two", "image": "i"}],
}


@pytest.fixture
async def cluster(server: ApiServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with server.client(ADMIN) as admin:
        yield Cluster(server, admin, tmp_path)
        for name in (registration.OF_SHOOT, registration.OF_SEED):
            await admin.delete(MUTATING_WEBHOOK_CONFIGURATION, name)
        for node in await admin.list(NODE):
            await admin.delete(NODE, node["metadata"]["name"])


def _volumes(pod: Object) -> list[str]:
    return [each["name"] for each in pod["spec"].get("volumes") or ()]


def _containers(pod: Object) -> list[Object]:
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


def _hosts(pod: Object) -> list[list[str]]:
    variables = [each.get("env") or () for each in _containers(pod)]
    return [[one["value"] for one in each if one["name"] == "KUBERNETES_SERVICE_HOST"] for each in variables]


@pytest.mark.row("webhooks", "projected token mount: pods whose ServiceAccount has automount false get a token for 12h")
async def test_a_pod_gets_the_token_that_its_account_does_not_mount(cluster: Cluster) -> None:
    async with cluster.of_shoot():
        pod = await cluster.create(serviceAccountName="silent")

    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "kube-api-access-gardener"]
    assert volume["projected"]["defaultMode"] == 0o644
    token, bundle, namespace = volume["projected"]["sources"]
    assert token["serviceAccountToken"] == {"expirationSeconds": 43200, "path": "token"}
    assert bundle["configMap"] == {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert namespace["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == "metadata.namespace"
    mount = {"name": "kube-api-access-gardener", "mountPath": TOKEN_DIRECTORY, "readOnly": True}
    assert [[_without_defaults(one) for one in each["volumeMounts"]] for each in _containers(pod)] == [[mount]] * 3


def _without_defaults(mount: Object) -> Object:
    return {key: value for key, value in mount.items() if key in ("name", "mountPath", "readOnly")}


@pytest.mark.row("webhooks", "projected token mount: annotation expiration-seconds sets the validity")
async def test_a_pod_chooses_the_validity_of_its_token(cluster: Cluster) -> None:
    key = "projected-token-mount.resources.gardener.cloud/expiration-seconds"
    async with cluster.of_shoot():
        pod = await cluster.create(serviceAccountName="silent", annotations={key: "3600"})
        with pytest.raises(Invalid, match="must be a number of seconds"):
            await cluster.create(serviceAccountName="silent", annotations={key: "1h"})

    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "kube-api-access-gardener"]
    assert volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] == 3600


@pytest.mark.row(
    "webhooks", "projected token mount: not for account default, automount true, a pod that says false, label skip"
)
async def test_other_pods_get_no_token_of_ours(cluster: Cluster) -> None:
    others: list[Object] = [
        {},
        {"serviceAccountName": "open"},
        {"serviceAccountName": "silent", "automountServiceAccountToken": False},
        {"serviceAccountName": "silent", "automountServiceAccountToken": True},
        {"serviceAccountName": "silent", "labels": {"projected-token-mount.resources.gardener.cloud/skip": "true"}},
        {"serviceAccountName": "silent", "namespace": "default"},
    ]
    async with cluster.of_shoot():
        made = [await cluster.create(**each) for each in others]

    assert all("kube-api-access-gardener" not in _volumes(each) for each in made)


@pytest.mark.row("webhooks", "kubernetes service host: all containers of all namespaces; a variable of the pod stays")
async def test_containers_get_the_host_name_of_the_api_server(cluster: Cluster) -> None:
    own = [{"name": "one", "image": "i", "env": [{"name": "KUBERNETES_SERVICE_HOST", "value": "own"}]}]
    async with cluster.of_shoot():
        pod = await cluster.create(namespace="default")
        chosen = await cluster.create(namespace="default", containers=own)

    assert _hosts(pod) == [["api.example.org"]] * 3
    assert _hosts(chosen) == [["api.example.org"], ["own"]]


@pytest.mark.row("webhooks", "kubernetes service host: a pod or namespace opts out by inject=disable")
async def test_a_pod_or_namespace_opts_out_of_the_host_name(cluster: Cluster) -> None:
    label = {"apiserver-proxy.networking.gardener.cloud/inject": "disable"}
    async with cluster.of_shoot():
        made = [await cluster.create(namespace="default", labels=label), await cluster.create(namespace="closed")]

    assert [_hosts(each) for each in made] == [[[]] * 3] * 2


def _constraint(**fields: Any) -> Object:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "a"}},
        **fields,
    }


@pytest.mark.row("webhooks", "pod topology spread constraints: each constraint selects the revision of the pod")
async def test_each_revision_of_a_deployment_is_spread_by_itself(cluster: Cluster) -> None:
    revision = {"pod-template-hash": "abc"}
    given = [_constraint(), _constraint(topologyKey="zone", matchLabelKeys=["pod-template-hash", "app"])]
    given[1]["labelSelector"] = {"matchExpressions": [{"key": "b", "operator": "Exists"}]}
    async with cluster.of_shoot():
        pod = await cluster.create(labels={**MANAGED, **revision, "app": "a"}, topologySpreadConstraints=given)

    first, second = pod["spec"]["topologySpreadConstraints"]
    assert first["labelSelector"] == {"matchLabels": {"app": "a", **revision}}
    assert second["labelSelector"]["matchLabels"] == revision
    assert second["matchLabelKeys"] == ["app"]


@pytest.mark.row(
    "webhooks", "pod topology spread constraints: not without pod-template-hash, label skip, unmanaged pods"
)
async def test_constraints_of_other_pods_stay(cluster: Cluster) -> None:
    revision = {"pod-template-hash": "abc"}
    skip = {"topology-spread-constraints.resources.gardener.cloud/skip": "true"}
    async with cluster.of_shoot():
        made = [
            await cluster.create(labels=labels, topologySpreadConstraints=[_constraint()])
            for labels in (MANAGED, revision, {**MANAGED, **revision, **skip})
        ]

    assert [each["spec"]["topologySpreadConstraints"] for each in made] == [[_constraint()]] * 3


@pytest.mark.row("webhooks", "system components: node selector and tolerations of the configuration")
@pytest.mark.row("webhooks", "system components: tolerations of taints of matching nodes, but not of temporary taints")
async def test_system_components_run_on_their_pools(cluster: Cluster) -> None:
    temporary = ["node.kubernetes.io/unschedulable", "ToBeDeletedByClusterAutoscaler"]
    temporary.append("node.gardener.cloud/critical-components-not-ready")
    taints = [{"key": "old", "value": "v", "effect": "NoExecute"}, {"key": "plain", "effect": "NoSchedule"}]
    taints += [{"key": each, "effect": "NoSchedule"} for each in temporary]
    for name, labels in (("system", SYSTEM), ("other", {})):
        own = taints if labels else [{"key": "foreign", "effect": "NoSchedule"}]
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": own},
        }
        await cluster.admin.create(node)
    async with cluster.of_shoot():
        pod = await cluster.create(labels=MANAGED, nodeSelector={"disk": "fast"})

    assert pod["spec"]["nodeSelector"] == {"disk": "fast", **SYSTEM}
    found = [each for each in pod["spec"]["tolerations"] if "kubernetes.io" not in each["key"]]
    assert found == [
        {"key": "pool", "operator": "Equal", "value": "system", "effect": "NoSchedule"},
        {"key": "old", "operator": "Equal", "value": "v", "effect": "NoExecute"},
        {"key": "plain", "operator": "Exists", "effect": "NoSchedule"},
    ]


@pytest.mark.row("webhooks", "system components: not for pods of DaemonSets, unmanaged pods, label skip")
async def test_pods_that_are_no_system_components_run_where_they_want(cluster: Cluster) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    skip = {"system-components-config.resources.gardener.cloud/skip": "true"}
    async with cluster.of_shoot():
        made = [
            await cluster.create(labels=MANAGED, ownerReferences=[owner]),
            await cluster.create(),
            await cluster.create(labels={**MANAGED, **skip}),
            await cluster.create(namespace="default", labels=MANAGED),
        ]

    assert all("nodeSelector" not in each["spec"] for each in made)


@pytest.mark.row("webhooks", "static pods stay as they are")
async def test_a_static_pod_stays_as_it_is(cluster: Cluster) -> None:
    mirror = {"kubernetes.io/config.mirror": "abc"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    await cluster.admin.create(node)
    async with cluster.of_shoot():
        pod = await cluster.create("static", labels=MANAGED, annotations=mirror, nodeName="n")

    assert _hosts(pod) == [[]] * 3
    assert "nodeSelector" not in pod["spec"]


@pytest.mark.row("webhooks", "no resource manager: pods of kube-system are held, pods of other namespaces start")
async def test_without_resource_manager_only_pods_of_the_system_are_held(cluster: Cluster) -> None:
    async with cluster.of_shoot():
        assert not await cluster.refuses(labels=MANAGED)

    assert await cluster.refuses(labels=MANAGED)
    assert await cluster.refuses()
    pod = await cluster.create(namespace="default", labels=MANAGED)
    assert _hosts(pod) == [[]] * 3

    async with cluster.of_shoot():
        assert not await cluster.refuses(labels=MANAGED)


@pytest.mark.row(
    "webhooks", "certificate: a renewed one in files is shown without a restart; no review fails meanwhile"
)
async def test_a_renewed_certificate_needs_no_restart(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle first, then the certificate, as the gardenlet orders them when a CA is rotated."""
    monkeypatch.setattr(serving.ServingCertificate.follow, "__defaults__", (0.05,))
    async with cluster.of_shoot():
        new = new_authority("new ca")
        await cluster.register(new, cluster.authority)
        cluster.show(new)
        await until(lambda: is_shown_by(new, cluster.port), 10)
        await cluster.register(new)

        async def trusted() -> bool:
            stored = await cluster.admin.get(MUTATING_WEBHOOK_CONFIGURATION, registration.OF_SHOOT)
            return len(stored["webhooks"]) == len(resource_manager.WEBHOOKS_OF_SHOOT)

        await until(trusted, 10)
        assert [await cluster.refuses(labels=MANAGED) for _ in range(20)] == [False] * 20


async def is_shown_by(authority: KeyPair, port: int) -> bool:
    """Whether the server shows a certificate of this authority."""
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except ssl.SSLError:
        return False
    writer.close()
    return True


# The seed


@contextlib.asynccontextmanager
async def of_seed(cluster: Cluster) -> AsyncIterator[None]:
    """The webhooks of a seed's instance; its Service leads to this process."""
    service = {"name": registration.SEED_SERVICE, "namespace": "garden"}
    spec = {"type": "ExternalName", "externalName": "localhost"}
    await cluster.admin.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": service, "spec": spec}, manager="test"
    )
    async with cluster.webhooks(OF_SEED, {"service": {**service, "port": cluster.port}}):

        async def called() -> bool:
            return await cluster.changes("shoot--a--b")

        await until(called, 20)
        yield


@pytest.mark.row("webhooks", "seed: registered by the process, for namespaces with label gardener.cloud/role")
async def test_a_seed_registers_its_webhooks_itself(cluster: Cluster) -> None:
    async with of_seed(cluster):
        stored = await cluster.admin.get(MUTATING_WEBHOOK_CONFIGURATION, registration.OF_SEED)
        in_garden = await cluster.create(namespace="garden", serviceAccountName="silent")
        others = [
            await cluster.create(namespace=each, serviceAccountName="silent") for each in ("default", "kube-system")
        ]

    assert [each["name"].split(".")[0] for each in stored["webhooks"]] == [
        "projected-token-mount",
        "pod-topology-spread-constraints",
        "seccomp-profile",
    ]
    assert "kube-api-access-gardener" in _volumes(in_garden)
    assert all("kube-api-access-gardener" not in _volumes(each) for each in others)


@pytest.mark.row("webhooks", "seccomp profile: RuntimeDefault for pods that choose none; not with label skip")
async def test_pods_of_a_seed_are_confined(cluster: Cluster) -> None:
    others: list[Object] = [
        {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
        {"labels": {"seccompprofile.resources.gardener.cloud/skip": "true"}},
        {"namespace": "default"},
    ]
    async with of_seed(cluster):
        pod = await cluster.create(namespace="shoot--a--b", securityContext={"runAsUser": 7})
        made = [await cluster.create(**{"namespace": "shoot--a--b", **each}) for each in others]

    assert pod["spec"]["securityContext"] == {"runAsUser": 7, "seccompProfile": {"type": "RuntimeDefault"}}
    profiles = [each["spec"]["securityContext"].get("seccompProfile") for each in made]
    assert profiles == [{"type": "Unconfined"}, None, None]


@pytest.mark.row("webhooks", "seed, no resource manager: its own pods and the gardenlet's start, others are held")
async def test_a_seed_without_resource_manager_can_get_one_again(cluster: Cluster) -> None:
    async with of_seed(cluster):
        pass

    assert await cluster.refuses(namespace="shoot--a--b")
    assert await cluster.refuses(namespace="garden")
    await cluster.create(namespace="garden", labels={"app": "gardener-resource-manager"})
    await cluster.create(namespace="garden", labels={"app": "gardener", "role": "gardenlet"})
    await cluster.create(namespace="default")
    async with of_seed(cluster):
        assert not await cluster.refuses(namespace="garden")


@pytest.mark.row("webhooks", "seed: a new authority is trusted before its certificate is shown; no review fails")
async def test_a_new_authority_of_a_seed_needs_no_restart(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_certificates, "SETTLE", timedelta(seconds=2))
    async with of_seed(cluster):

        async def data() -> Object:
            found: Object = (await cluster.admin.get(SECRET, registration.SEED_SERVICE, "garden"))["data"]
            return found

        before = await data()
        renew = {"metadata": {"annotations": {"gardener.cloud/operation": "renew"}}}
        await cluster.admin.patch(SECRET, registration.SEED_SERVICE, "garden", renew)

        async def renewed() -> bool:
            assert not await cluster.refuses(namespace="shoot--a--b")
            return (await data())["tls.crt"] != before["tls.crt"]

        await until(renewed, 30)
        monkeypatch.setattr(webhook_certificates, "KEEP_OLD", timedelta())
        await cluster.admin.patch(SECRET, registration.SEED_SERVICE, "garden", {"metadata": {"labels": {"a": "b"}}})

        async def forgotten() -> bool:
            assert not await cluster.refuses(namespace="shoot--a--b")
            return "old-ca.crt" not in await data()

        await until(forgotten, 30)
        assert (await data())["ca.crt"] != before["ca.crt"]
