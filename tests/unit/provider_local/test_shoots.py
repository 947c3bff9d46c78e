"""For which control planes provider-local serves volumes and load balancers, and with which credentials."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.extension import Extension
from activities.provider_local.control_plane import ControlPlaneActuator
from activities.provider_local.infrastructure import InfrastructureActuator
from activities.provider_local.storage import ACCESS_SECRET, MANAGED_RESOURCE_NAME
from api.constants import GARDEN_NAMESPACE, GENERIC_TOKEN_KUBECONFIG_NAME, OWNERSHIP_LEASE
from api.local import DISKS_VOLUME, MACHINE_LABEL
from api.resources import CLUSTER, CONTROL_PLANE, MANAGED_RESOURCE, NAMESPACE, SECRET
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import Unreachable
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until
from tests.unit.provider_local.fake_cloud import OneCloud
from tests.unit.provider_local.test_infrastructure_and_network import (
    CLOUD_NAMESPACE,
    KUBECONFIG,
    give_credentials,
    infrastructure,
)
from tests.unit.provider_local.test_infrastructure_and_network import (
    CONTROL_PLANE as TECHNICAL_ID,
)
from workers.provider_local.shoots import ShootControllers, is_wanted
from workers.resource_manager.critical_components import runs_on

CREDENTIALS = {"name": "cloudprovider", "namespace": TECHNICAL_ID}

GENERIC = {
    **KUBECONFIG,
    "clusters": [{"name": "c", "cluster": {"server": "https://kube-apiserver"}}],
    "users": [{"name": "u", "user": {"tokenFile": "/var/run/token"}}],
}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret(name: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": TECHNICAL_ID}
    content = {key: encoded(value) for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": content}


def control_plane(operation: str = "Reconcile", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": CONTROL_PLANE.api_version,
        "kind": "ControlPlane",
        "metadata": {"name": "one", "namespace": TECHNICAL_ID},
        "spec": {"type": "local", **spec},
        "status": {"lastOperation": {"type": operation, "state": "Succeeded"}},
    }


def cluster(*, hibernated: bool = False, **metadata: Any) -> dict[str, Any]:
    annotations = {GENERIC_TOKEN_KUBECONFIG_NAME: "generic-1"}
    shoot = {"metadata": {"name": "one", **metadata}, "spec": {"hibernation": {"enabled": hibernated}}}
    return {
        "apiVersion": CLUSTER.api_version,
        "kind": "Cluster",
        "metadata": {"name": TECHNICAL_ID, "annotations": annotations},
        "spec": {"shoot": shoot},
    }


class Served:
    """The shoots that are served, and the clients with which they are."""

    def __init__(self) -> None:
        self.clients: dict[str, tuple[KubeClient, KubeClient]] = {}

    async def __call__(self, shoot: KubeClient, cloud: KubeClient, namespace: str) -> None:
        self.clients[namespace] = (shoot, cloud)
        try:
            await asyncio.Event().wait()
        finally:
            del self.clients[namespace]


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
async def seed(served: Served) -> AsyncIterator[FakeCluster]:
    seed = FakeCluster()
    caches = Caches(seed)
    running = asyncio.create_task(ShootControllers(seed, caches, served).run())
    yield seed
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await caches.close()


async def serve(seed: FakeCluster) -> None:
    """Write all objects of a control plane that is served; the token comes last."""
    await give_credentials(seed, KUBECONFIG)
    await seed.create(secret("generic-1", kubeconfig=json.dumps(GENERIC)))
    metadata = {"name": "kube-apiserver", "namespace": TECHNICAL_ID}
    service = {"clusterIP": "100.64.1.7", "ports": [{"port": 443}]}
    await seed.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
    await seed.create(cluster())
    await seed.create(control_plane())
    status = control_plane()["status"]
    await seed.patch(CONTROL_PLANE, "one", TECHNICAL_ID, {"status": status}, subresource="status")
    await seed.create(secret(ACCESS_SECRET, token="first"))


async def test_a_shoot_is_served_with_its_own_credentials_which_are_renewed(seed: FakeCluster, served: Served) -> None:
    await serve(seed)
    shoot, cloud = await until(lambda: served.clients.get(CLOUD_NAMESPACE))

    assert shoot.endpoint.server == "https://100.64.1.7:443"
    assert shoot.endpoint.tls_server_name == f"kube-apiserver.{TECHNICAL_ID}.svc"
    assert (shoot.endpoint.token, shoot.endpoint.token_file) == ("first", None)
    assert shoot.is_limited, "the owner of the shoot decides how large its objects are"
    assert (cloud.endpoint.server, cloud.endpoint.token) == ("https://198.18.1.2:6443", "t")

    await seed.patch(SECRET, ACCESS_SECRET, TECHNICAL_ID, {"data": {"token": encoded("second")}})
    await until(lambda: shoot.endpoint.token == "second")
    assert served.clients[CLOUD_NAMESPACE] == (shoot, cloud)


@pytest.mark.parametrize("change", ["hibernated", "migrated", "deleted", "another seed"])
async def test_a_shoot_is_not_served_any_more(seed: FakeCluster, served: Served, change: str) -> None:
    await serve(seed)
    await until(lambda: CLOUD_NAMESPACE in served.clients)
    match change:
        case "hibernated":
            await seed.patch(CLUSTER, TECHNICAL_ID, None, {"spec": cluster(hibernated=True)["spec"]})
        case "migrated":
            status = control_plane("Migrate")["status"]
            await seed.patch(CONTROL_PLANE, "one", TECHNICAL_ID, {"status": status}, subresource="status")
        case "deleted":
            await seed.delete(CONTROL_PLANE, "one", TECHNICAL_ID)
        case "another seed":
            elsewhere = {"seed": {"metadata": {"name": "here"}}, "shoot": {"status": {"seedName": "there"}}}
            await seed.patch(CLUSTER, TECHNICAL_ID, None, {"spec": elsewhere})

    await until(lambda: not served.clients)


async def test_a_seed_that_lost_the_garden_serves_again_when_it_is_back(seed: FakeCluster, served: Served) -> None:
    def renewed(at: datetime) -> dict[str, Any]:
        return {"renewTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "leaseDurationSeconds": 1}

    metadata = {"name": OWNERSHIP_LEASE, "namespace": GARDEN_NAMESPACE}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    await seed.create(lease | {"spec": renewed(datetime.now(UTC) - timedelta(seconds=60))})
    await serve(seed)
    await asyncio.sleep(0.1)
    assert not served.clients

    await seed.apply(lease | {"spec": renewed(datetime.now(UTC))}, manager="gardenlet")
    await until(lambda: CLOUD_NAMESPACE in served.clients)
    await until(lambda: not served.clients, timeout=5)


@pytest.mark.parametrize(
    ("plane", "shoot", "expected"),
    [
        (control_plane(), cluster(), True),
        (control_plane(type="other"), cluster(), False),
        ({**control_plane(), "status": {}}, cluster(), False),
        (control_plane("Delete"), cluster(), False),
        (control_plane(), cluster(hibernated=True), False),
        (control_plane(), cluster(hibernated=True, deletionTimestamp="2026-01-01T00:00:00Z"), True),
        (None, cluster(), False),
        (control_plane(), None, False),
    ],
    ids=["serves", "other type", "new", "deleting", "hibernated", "hibernated and deleting", "gone", "no Cluster"],
)
def test_which_shoots_are_served(plane: Any, shoot: Any, expected: bool) -> None:
    assert is_wanted(plane, shoot) is expected


async def test_a_control_plane_gets_a_token_and_a_class_and_a_move_leaves_the_class_in_the_shoot() -> None:
    seed = FakeCluster()
    await give_credentials(seed, KUBECONFIG)
    caches = Caches(seed)
    actuator = ControlPlaneActuator(seed, caches, OneCloud(FakeCluster()))
    extension = Extension(CONTROL_PLANE, control_plane(secretRef=CREDENTIALS), cluster())
    await actuator.reconcile(extension)
    await actuator.reconcile(extension)
    access = seed.objects[SECRET, TECHNICAL_ID, ACCESS_SECRET]
    assert access["metadata"]["labels"]["resources.gardener.cloud/purpose"] == "token-requestor"
    data = seed.objects[SECRET, TECHNICAL_ID, f"managedresource-{MANAGED_RESOURCE_NAME}"]["data"]
    assert any('"StorageClass"' in base64.b64decode(each).decode() for each in data.values())

    await actuator.migrate(extension)

    patched = [each for each in seed.requests if each[0] == "patch" and each[1] == MANAGED_RESOURCE.kind]
    assert patched, "keepObjects is set before the deletion"
    assert not seed.of(MANAGED_RESOURCE)
    assert (SECRET, TECHNICAL_ID, ACCESS_SECRET) not in seed.objects
    await caches.close()


async def test_the_driver_runs_on_no_machine_of_an_earlier_version() -> None:
    """Such a machine has no image of it: the shoot would not get healthy after an upgrade."""
    seed, cloud = FakeCluster(), FakeCluster()
    await give_credentials(seed, KUBECONFIG)
    for name, volumes in (("older", []), ("newer", [{"name": DISKS_VOLUME}])):
        metadata = {"name": name, "namespace": CLOUD_NAMESPACE, "labels": {MACHINE_LABEL: name}}
        await cloud.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"volumes": volumes}})
    caches = Caches(seed)
    actuator = ControlPlaneActuator(seed, caches, OneCloud(cloud))

    await actuator.reconcile(Extension(CONTROL_PLANE, control_plane(secretRef=CREDENTIALS), cluster()))

    data = seed.objects[SECRET, TECHNICAL_ID, f"managedresource-{MANAGED_RESOURCE_NAME}"]["data"]
    objects = [json.loads(base64.b64decode(each)) for each in data.values()]
    [driver] = [each for each in objects if each["kind"] == "DaemonSet"]
    pod = driver["spec"]["template"]["spec"]
    nodes = [{"metadata": {"name": name}} for name in ("older", "newer")]
    assert [runs_on(pod, node) for node in nodes] == [False, True]
    await caches.close()


@pytest.mark.parametrize("answers", [True, False])
async def test_a_force_deletion_ends_the_namespace_in_the_cloud_if_the_cloud_answers(answers: bool) -> None:
    """Disks, addresses and machines go with the namespace. A cloud that does not answer keeps no force-deletion."""
    seed, cloud = FakeCluster(), FakeCluster()
    await give_credentials(seed, KUBECONFIG)
    await cloud.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CLOUD_NAMESPACE}})
    if not answers:
        cloud.refuse("get", NAMESPACE, Unreachable(0, "Unreachable", "reading"))
        cloud.refuse("find", NAMESPACE, Unreachable(0, "Unreachable", "reading"))

    await InfrastructureActuator(seed, OneCloud(cloud)).force_delete(infrastructure())

    assert bool(cloud.of(NAMESPACE)) is not answers
