"""A resource manager between two API servers in memory."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from activities.components import resource_manager_webhooks
from activities.managed_resources import secrets_checksum
from api.resources import MUTATING_WEBHOOK_CONFIGURATION, NODE
from kube.cache import Caches
from tests import gardens
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.webhook_cluster import Cluster, prepared
from workers.resource_manager.config import Controllers
from workers.resource_manager.managed_resources import ManagedResourceController

NAMESPACE = "shoot--dev--one"
MANAGED_RESOURCES = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
SECRETS = "/api/v1/secrets"
CONFIG_MAPS = "/api/v1/configmaps"
NAMESPACES = "/api/v1/namespaces"
DEPLOYMENTS = "/apis/apps/v1/deployments"


@pytest.fixture
async def source():
    async with ApiServer().running() as server:
        yield server


@pytest.fixture
async def target():
    async with ApiServer().running() as server:
        # An object whose namespace is gone does not hold the deletion of its ManagedResource.
        for name in ("default", "kube-system"):
            server.put(NAMESPACES, {"metadata": {"name": name}})
        yield server


@pytest.fixture
async def clients(source, target):
    async with source.client() as one, target.client() as other:
        yield one, other


class Manager:
    """Starts controllers, writes ManagedResources, reads what became of them."""

    def __init__(self, source, target, clients):
        self.source, self.target = source, target
        self._source_client, self._target_client = clients
        self._stack = contextlib.AsyncExitStack()

    async def start(self, cluster_id="", **controllers):
        source_caches, target_caches = Caches(self._source_client), Caches(self._target_client)
        controller = ManagedResourceController(
            Controllers.model_validate({"managedResource": {"syncPeriod": "1h"}, **controllers}),
            source=self._source_client,
            source_caches=source_caches,
            target=self._target_client,
            target_caches=target_caches,
            namespaces=[NAMESPACE],
            cluster_id=cluster_id,
        )
        task = asyncio.create_task(controller.run())

        async def stop():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await source_caches.close()
            await target_caches.close()

        self._stack.push_async_callback(stop)
        return stop

    async def close(self):
        await self._stack.aclose()

    def write(self, *objects, name="one", annotations=None, raw=None, **spec):
        data = {f"{number}.yaml": _encode(json.dumps(obj)) for number, obj in enumerate(objects)}
        data |= {key: _encode(text) for key, text in (raw or {}).items()}
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"managedresource-{name}", "namespace": NAMESPACE},
            "data": data,
        }
        if self.source.find(SECRETS, f"managedresource-{name}", NAMESPACE) is None:
            self.source.put(SECRETS, secret)
        else:
            self.source.change(
                SECRETS, f"managedresource-{name}", NAMESPACE, {"data": {**self._gone(name, data), **data}}
            )
        if self.get(name) is None:
            metadata = {"name": name, "namespace": NAMESPACE, "annotations": annotations or {}}
            self.source.put(
                MANAGED_RESOURCES,
                {
                    "apiVersion": "resources.gardener.cloud/v1alpha1",
                    "kind": "ManagedResource",
                    "metadata": metadata,
                    "spec": {"secretRefs": [{"name": f"managedresource-{name}"}], **spec},
                },
            )

    async def handles_another(self, name, **spec):
        """Wait until a ManagedResource is applied that is written now: what was written before was handled before."""
        metadata = {"name": name, "namespace": "kube-system"}
        self.write({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}, name=name, **spec)
        await self.sees("Applied", "True", name=name)

    def _gone(self, name, data):
        before = self.source.find(SECRETS, f"managedresource-{name}", NAMESPACE)["data"]
        return {key: None for key in before if key not in data}

    def annotate(self, name="one", **annotations):
        self.source.change(MANAGED_RESOURCES, name, NAMESPACE, {"metadata": {"annotations": annotations}})

    def get(self, name="one"):
        return self.source.find(MANAGED_RESOURCES, name, NAMESPACE)

    def delete(self, name="one"):
        now = "2026-01-01T00:00:00Z"
        self.source.change(MANAGED_RESOURCES, name, NAMESPACE, {"metadata": {"deletionTimestamp": now}})

    def condition(self, kind, name="one"):
        conditions = ((self.get(name) or {}).get("status") or {}).get("conditions") or ()
        for condition in conditions:
            if condition["type"] == f"Resources{kind}":
                return condition["status"], condition["reason"], condition["message"]
        return None, None, None

    async def sees(self, kind, status, reason=None, name="one"):
        """Wait for a condition; returns its message."""

        def there():
            found = self.condition(kind, name)
            return found[0] == status and reason in (None, found[1])

        try:
            await until(there)
        except TimeoutError:
            raise AssertionError(f"{kind} is {self.condition(kind, name)}, not {status} {reason}") from None
        return self.condition(kind, name)[2]

    async def applied(self, name="one"):
        """Wait until what is in the Secret now has been applied."""
        data = self.source.find(SECRETS, f"managedresource-{name}", NAMESPACE)
        await until(
            lambda: ((self.get(name) or {}).get("status") or {}).get("secretsDataChecksum") == secrets_checksum([data])
        )
        await self.sees("Applied", "True", name=name)

    def live(self, path, name, namespace="kube-system"):
        return self.target.find(path, name, namespace)


@pytest.fixture
async def manager(source, target, clients):
    manager = Manager(source, target, clients)
    yield manager
    await manager.close()


@pytest.fixture(scope="module")
def cluster_server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[gardens.ApiServer]:
    """A real API server, with the namespaces and ServiceAccounts of the tests of webhooks."""
    made = gardens.ApiServer(tmp_path_factory.mktemp("shoot"), {})
    with made.running():
        asyncio.run(prepared(made))
        yield made


@pytest.fixture
async def cluster(cluster_server: gardens.ApiServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_server.client(gardens.ADMIN) as admin:
        yield Cluster(cluster_server, admin, tmp_path)
        for name in (resource_manager_webhooks.OF_SHOOT, resource_manager_webhooks.OF_SEED):
            await admin.delete(MUTATING_WEBHOOK_CONFIGURATION, name)
        for node in await admin.list(NODE):
            await admin.delete(NODE, node["metadata"]["name"])


def _encode(text):
    return base64.b64encode(text.encode()).decode()
