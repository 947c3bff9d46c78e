"""The API server of a Shoot or a seed, and the webhooks of its resource manager."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from activities.components import resource_manager, scheduler
from activities.components import resource_manager_webhooks as registration
from activities.secrets.crypto import KeyPair
from api.resources import POD, Resource
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import ApiError, NotFound
from tests.api_servers import free_port, ready
from tests.gardens import ApiServer, new_authority, show_certificate
from tests.unit.kube.waiting import until
from workers.resource_manager.config import ResourceManagerConfig
from workers.resource_manager.webhooks import Webhooks

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


MANAGER = resource_manager.ResourceManager(
    "shoot--a--b",
    "generic",
    server="server",
    api_server="api.example.org",
    taints=[{"key": "pool", "value": "system", "effect": "NoSchedule"}],
    scheduler_name=scheduler.name_for_pods({"profile": "bin-packing"}),
    tolerations={"defaultNotReadyTolerationSeconds": 7},
    vertical_autoscaling=True,
)
OF_SHOOT = configured(resource_manager.objects(MANAGER))
OF_SEED = configured(resource_manager.seed_objects(2))


async def prepared(server: ApiServer) -> None:
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
        self.caches = Caches(admin)
        """Caches of the webhooks that are served now."""

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
        show_certificate(self.directory, authority)

    async def register(self, *authorities: KeyPair, names: tuple[str, ...] = MANAGER.webhooks) -> None:
        """Register the webhooks, as a gardenlet does it by a ManagedResource."""
        bundle = base64.b64encode(b"".join(each.certificate for each in authorities)).decode()

        def client(path: str) -> Object:
            return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": bundle}

        made = registration.configuration(registration.Registered(names, client, shoot=True))
        await self.admin.apply(made, manager="test")

    @contextlib.asynccontextmanager
    async def webhooks(
        self, webhooks: Object, server: Object, controllers: Object | None = None
    ) -> AsyncIterator[None]:
        """Serve webhooks until the end of the block."""
        address = {"bindAddress": "127.0.0.1", "port": self.port}
        config = ResourceManagerConfig.model_validate(
            {"server": {"webhooks": {**address, **server}}, "webhooks": webhooks, "controllers": controllers or {}}
        )
        self.caches = caches = Caches(self.admin)
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

    async def knows(self, resource: Resource) -> bool:
        """Whether the API server serves a kind."""
        try:
            await self.admin.list(resource, "default")
        except NotFound:
            return False
        return True

    async def changes(self, namespace: str = "kube-system") -> bool:
        """Whether the webhooks change a new pod."""
        try:
            made = await self.create(namespace=namespace, serviceAccountName="silent")
        except ApiError:
            return False
        return "kube-api-access-gardener" in volumes(made)


_SPEC: Object = {
    "initContainers": [{"name": "first", "image": "i"}],
    "containers": [{"name": "one", "image": "i"}, {"name": "two", "image": "i"}],
}


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


def volumes(pod: Object) -> list[str]:
    return [each["name"] for each in pod["spec"].get("volumes") or ()]
