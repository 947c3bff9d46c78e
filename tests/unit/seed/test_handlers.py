"""Handlers of ExposureClasses: their gateways in a seed, and the Shoots that these gateways serve."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from temporalio.exceptions import ApplicationError

from activities.clusters import ClusterView
from activities.components import gateway
from activities.components.gateway import OWN, Place
from activities.seed.control_plane import ControlPlaneActivities
from activities.seed.extensions import ExtensionActivities
from activities.seed.handlers import ExposureClassHandler, Handlers
from activities.seed.teardown import SeedTeardownActivities
from api.contracts.operations import LEAVING, ForwardTask, OperationType, SeedTask, ShootRef, ShootTask
from api.resources import CLUSTER
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from workers.gardenlet.config import GardenletConfig

NAMESPACE = "shoot--dev--a"
CLASSES = "/apis/core.gardener.cloud/v1beta1/exposureclasses"
CLUSTERS = "/apis/extensions.gardener.cloud/v1alpha1/clusters"
DNS_RECORDS = "/apis/extensions.gardener.cloud/v1alpha1/dnsrecords"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAMESPACES, SERVICES, CONFIG_MAPS = "/api/v1/namespaces", "/api/v1/services", "/api/v1/configmaps"
DEPLOYMENTS = "/apis/apps/v1/deployments"
INTERNAL = "istio-ingress-handler-internal"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-dev", name="a", uid="u-1"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.RECONCILE,
)
SHOOT: dict[str, Any] = {
    "metadata": {"name": "a", "namespace": "garden-dev", "uid": "u-1"},
    "spec": {
        "dns": {"domain": "a.example.org"},
        "exposureClassName": "company",
        "kubernetes": {"version": "1.37.1"},
        "provider": {"type": "local", "workers": [{"name": "w"}]},
    },
}
SEED: dict[str, Any] = {
    "metadata": {"name": "seed-1"},
    "spec": {
        "dns": {"internal": {"domain": "internal.example.org"}},
        "settings": {"loadBalancerServices": {"annotations": {"a": "seed", "b": "seed"}, "class": "of-seed"}},
    },
}


def handler(name: str = "internal", **fields: Any) -> ExposureClassHandler:
    return ExposureClassHandler.model_validate({"name": name, **fields})


class World:
    def __init__(self, garden: ApiServer, seed: ApiServer, clusters: Any) -> None:
        self.garden, self.seed, self.clusters = garden, seed, clusters

    def pin(self, **spec: Any) -> None:
        content = {"shoot": SHOOT | {"spec": SHOOT["spec"] | spec}, "seed": SEED, "cloudProfile": {"spec": {}}}
        self.seed.put(CLUSTERS, {"metadata": {"name": NAMESPACE}, "spec": content})

    def reach_at(self, address: str, namespace: str) -> None:
        self.seed.change(
            SERVICES, gateway.NAME, namespace, {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
        )

    def record(self, address: str) -> None:
        self.seed.put(
            DNS_RECORDS, {"metadata": {"name": "a-internal", "namespace": NAMESPACE}, "spec": {"values": [address]}}
        )

    def handlers(self, *configured: ExposureClassHandler) -> Handlers:
        return Handlers(self.clusters, configured)

    async def deploy(self, *configured: ExposureClassHandler) -> str:
        return await self.handlers(*configured).deploy(SEED)

    async def place(self, *configured: ExposureClassHandler, operation: OperationType = TASK.operation) -> Any:
        return await self.handlers(*configured).place(TASK.model_copy(update={"operation": operation}))

    def control_plane(self, *configured: ExposureClassHandler) -> ControlPlaneActivities:
        return ControlPlaneActivities(self.clusters, handlers=configured)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with (
        ApiServer().running() as garden,
        ApiServer().running() as seed,
        garden.client() as garden_client,
        seed.client() as client,
    ):
        caches = Caches(client)

        async def cluster(name: str) -> Any:
            return ClusterView(await client.get(CLUSTER, name))

        clusters = SimpleNamespace(
            garden=garden_client, seed=client, seed_caches=caches, seed_name="seed-1", cluster=cluster
        )
        made = World(garden, seed, clusters)
        garden.put(CLASSES, {"metadata": {"name": "company"}, "handler": "internal"})
        made.pin()
        yield made
        await caches.close()


def gardenlet_config(*handlers: dict[str, Any]) -> GardenletConfig:
    return GardenletConfig.model_validate(
        {
            "gardenClientConnection": {},
            "seedConfig": {"metadata": {"name": "seed-1"}, "spec": {}},
            "temporal": {"address": "127.0.0.1:7233", "codecKeyFile": "/key"},
            "exposureClassHandlers": handlers,
        }
    )


def test_the_example_of_the_documentation_is_a_configuration() -> None:
    """Source: Gardener's page on ExposureClasses."""
    internet = {"name": "internet-config", "loadBalancerService": {"annotations": {"loadbalancer/network": "internet"}}}
    internal = {
        "name": "internal-config",
        "loadBalancerService": {
            "class": "internal-loadbalancer",
            "annotations": {"loadbalancer/network": "internal"},
        },
        "sni": {"ingress": {"namespace": "ingress-internal", "labels": {"network": "internal"}}},
    }
    config = gardenlet_config(internet, internal)

    assert config.gateways == (
        OWN,
        Place("istio-ingress-handler-internet-config", "internet-config"),
        Place("ingress-internal", "internal-config", {"network": "internal"}),
    )


@pytest.mark.parametrize(
    "handlers",
    [
        [{"name": "a"}, {"name": "a"}],
        [{"name": "a", "sni": {"ingress": {"namespace": "istio-ingress-handler-b"}}}, {"name": "b"}],
        [{"name": "a", "sni": {"ingress": {"namespace": "istio-ingress"}}}],
        [{"name": "a", "sni": {"ingress": {"namespace": "garden"}}}],
        [{"name": "a", "sni": {"ingress": {"namespace": "kube-system"}}}],
        [{"name": "a", "sni": {"ingress": {"namespace": NAMESPACE}}}],
        [{"name": "a", "sni": {"ingress": {"labels": {"app": "x"}}}}],
        [{"name": "a", "sni": {"ingress": {"labels": {"gardener.cloud/role": "shoot"}}}}],
        [{"name": "A"}],
        [{"name": "a" * 35}],
        [{"name": "a", "loadBalancer": {}}],
    ],
)
def test_handlers_that_would_share_objects_are_refused(handlers: list[dict[str, Any]]) -> None:
    with pytest.raises(ValidationError, match="xposureClassHandlers") as refused:
        gardenlet_config(*handlers)

    assert len(refused.value.errors()) == 1


async def test_a_handler_gets_a_gateway_with_its_own_load_balancer(world: World) -> None:
    service = {"annotations": {"b": "handler", "c": "handler"}}
    assert await world.deploy(
        handler(loadBalancerService=service, sni={"ingress": {"labels": {"network": "internal"}}})
    ) == ("handlers internal")

    namespace = world.seed.find(NAMESPACES, INTERNAL)
    assert namespace
    labels = {"gardener.cloud/role": "exposureclass-handler", "handler.exposureclass.gardener.cloud/name": "internal"}
    assert labels.items() <= namespace["metadata"]["labels"].items()
    made = world.seed.find(SERVICES, gateway.NAME, INTERNAL)
    assert made
    assert made["metadata"]["annotations"].items() >= {"a": "seed", "b": "handler", "c": "handler"}.items()
    assert made["metadata"]["labels"] == labels | {"network": "internal", "app": gateway.NAME}
    assert "loadBalancerClass" not in made["spec"], "a handler does not get the class of the seed's own gateway"
    deployment = world.seed.find(DEPLOYMENTS, gateway.NAME, INTERNAL)
    assert deployment
    assert deployment["spec"]["selector"]["matchLabels"] == {"app": gateway.NAME}
    assert made["spec"]["selector"] == {"app": gateway.NAME, "networking.gardener.cloud/keeps-serving": "true"}
    of_pods = deployment["spec"]["template"]["metadata"]["labels"].items()
    assert of_pods >= labels.items() | made["spec"]["selector"].items()
    binding = world.seed.find(f"{RBAC}/clusterrolebindings", "gardener.cloud:istio-ingressgateway:internal")
    assert binding
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": gateway.NAME, "namespace": INTERNAL}]

    objects = dict(world.seed.objects)
    await world.deploy(handler(loadBalancerService=service, sni={"ingress": {"labels": {"network": "internal"}}}))
    assert world.seed.objects == objects, "a second run changes nothing"


async def test_a_handlers_gateway_has_as_many_pods_as_the_seeds_own_one(world: World) -> None:
    for replicas in (2, 1):
        await world.handlers(handler()).deploy(SEED, replicas)
        deployment = world.seed.find(DEPLOYMENTS, gateway.NAME, INTERNAL)
        assert deployment
        assert deployment["spec"]["replicas"] == replicas


async def test_a_handlers_own_class_of_load_balancers_is_used(world: World) -> None:
    await world.deploy(handler(loadBalancerService={"class": "dmz"}))

    made = world.seed.find(SERVICES, gateway.NAME, INTERNAL)
    assert made
    assert made["spec"]["loadBalancerClass"] == "dmz"


async def test_a_namespace_with_another_purpose_becomes_no_handlers_namespace(world: World) -> None:
    """Otherwise the gardenlet would delete it, once the handler leaves the configuration."""
    world.seed.put(NAMESPACES, {"metadata": {"name": "mine", "labels": {"team": "net"}}})

    with pytest.raises(ApplicationError, match="namespace mine of handler internal exists in seed seed-1") as refused:
        await world.deploy(handler(sni={"ingress": {"namespace": "mine"}}))

    assert refused.value.non_retryable
    assert world.seed.find(NAMESPACES, "mine")["metadata"]["labels"] == {"team": "net"}  # type: ignore[index]


def exists(world: World) -> bool:
    namespace = world.seed.find(NAMESPACES, INTERNAL)
    binding = world.seed.find(f"{RBAC}/clusterrolebindings", "gardener.cloud:istio-ingressgateway:internal")
    role = world.seed.find(f"{RBAC}/clusterroles", "gardener.cloud:istio-ingressgateway:internal")
    assert bool(namespace) == bool(binding) == bool(role)
    return namespace is not None


async def test_a_former_handlers_gateway_stays_until_no_shoot_uses_it(world: World) -> None:
    await world.deploy(handler())
    world.reach_at("198.18.2.5", INTERNAL)

    assert await world.deploy() == f"kept {INTERNAL}, which Shoots use"
    assert exists(world), "a Shoot names an ExposureClass of this handler; it may be hibernated"

    world.pin(exposureClassName=None)
    world.record("198.18.2.5")
    await world.deploy()
    assert exists(world), "a name of a Shoot still points to it"

    world.record("198.18.2.2")
    forwarding = gateway.forwarding(
        "shoot--dev--moved",
        gateway.Forwarding(hosts=("x",), address="192.0.2.1", until="2030-01-01T00:00:00Z"),
        Place(INTERNAL, "internal"),
    )
    world.seed.put(CONFIG_MAPS, forwarding)
    await world.deploy()
    assert exists(world), "it forwards clients of a Shoot that has moved"

    world.seed.remove(CONFIG_MAPS, "shoot--dev--moved", INTERNAL)
    assert await world.deploy() == ""
    assert not exists(world)


async def test_a_handler_that_gets_another_namespace_keeps_the_former_one_until_names_point_to_the_new_one(
    world: World,
) -> None:
    await world.deploy(handler())
    world.reach_at("198.18.2.5", INTERNAL)
    world.record("198.18.2.5")
    moved = handler(sni={"ingress": {"namespace": "elsewhere"}})

    assert await world.deploy(moved) == f"handlers internal; kept {INTERNAL}, which Shoots use"
    world.record("198.18.2.6")
    assert await world.deploy(moved) == "handlers internal"

    assert world.seed.find(NAMESPACES, INTERNAL) is None
    binding = world.seed.find(f"{RBAC}/clusterrolebindings", "gardener.cloud:istio-ingressgateway:internal")
    assert binding, "the new gateway has it"
    assert binding["subjects"][0]["namespace"] == "elsewhere"


async def test_a_shoot_is_served_by_the_gateway_of_its_exposure_classs_handler(world: World) -> None:
    assert await world.place(handler(), handler("other")) == Place(INTERNAL, "internal")

    world.pin(exposureClassName=None)
    assert await world.place(handler()) == OWN


async def test_a_seed_without_the_handler_is_named(world: World) -> None:
    text = "seed seed-1 does not serve handler internal of ExposureClass company of Shoot garden-dev/a: "
    for operation in (OperationType.CREATE, OperationType.RECONCILE, OperationType.RESTORE):
        with pytest.raises(ApplicationError, match=text) as refused:
            await world.place(handler("other"), operation=operation)
        assert (refused.value.type, refused.value.non_retryable) == ("ERR_CONFIGURATION_PROBLEM", True)

    world.garden.remove(CLASSES, "company")
    with pytest.raises(ApplicationError, match="ExposureClass company of Shoot garden-dev/a does not exist"):
        await world.place(handler())


async def test_a_control_plane_leaves_a_seed_that_has_lost_the_handler(world: World) -> None:
    """The remains of the handler's gateway serve it until the end; without remains, nothing exposes it."""
    assert [await world.place(operation=each) for each in LEAVING] == [None] * 3

    await world.deploy(handler())
    assert [await world.place(operation=each) for each in LEAVING] == [Place(INTERNAL, "internal")] * 3


async def test_tasks_of_a_deletion_without_a_gateway_expose_nothing(world: World) -> None:
    task = TASK.model_copy(update={"operation": OperationType.DELETE})
    control_plane = world.control_plane()

    notes = [
        await control_plane.wait_api_service(task),
        await control_plane.deploy_apiserver_sni(task),
        await control_plane.forward_apiserver_sni(ForwardTask(task=task, address="192.0.2.7")),
        await ExtensionActivities(world.clusters).deploy_internal_dns(task),
    ]

    assert {each.note for each in notes} == {
        "not exposed: seed seed-1 does not serve the handler of the Shoot's ExposureClass"
    }
    assert not [name for (path, _, name) in world.seed.objects if path in (CONFIG_MAPS, DNS_RECORDS)]


async def test_the_exposure_and_the_forwarding_of_a_shoot_are_its_handlers(world: World) -> None:
    await world.deploy(handler())
    world.reach_at("198.18.2.5", INTERNAL)
    control_plane = world.control_plane(handler())

    assert (await control_plane.wait_api_service(TASK)).note == "198.18.2.5"
    await control_plane.deploy_apiserver_sni(TASK)
    exposure = world.seed.find(CONFIG_MAPS, gateway.EXPOSURE, NAMESPACE)
    assert exposure
    assert gateway.handler_of(exposure) == "internal"

    leaving = TASK.model_copy(update={"operation": OperationType.MIGRATE})
    await control_plane.forward_apiserver_sni(ForwardTask(task=leaving, address="198.18.3.5"))
    assert world.seed.find(CONFIG_MAPS, NAMESPACE, INTERNAL)
    assert world.seed.find(CONFIG_MAPS, NAMESPACE, gateway.NAMESPACE) is None

    api_server = {"metadata": {"name": "kube-apiserver", "namespace": NAMESPACE}, "spec": {"clusterIP": "100.64.1.7"}}
    world.seed.put(SERVICES, api_server)
    await control_plane.deploy_api_service(TASK.model_copy(update={"operation": OperationType.RESTORE}))
    assert world.seed.find(CONFIG_MAPS, NAMESPACE, INTERNAL) is None, "two seeds would forward to each other"


async def test_a_seed_that_is_deleted_loses_the_gateways_of_all_handlers(world: World) -> None:
    """The namespaces say which there are: the configuration may have lost the handler before."""
    await world.deploy(handler())
    task = SeedTask(name="seed-1", uid="5eed", generation=1, trigger="")

    for note in (f"{gateway.NAMESPACE}, {INTERNAL}", gateway.NAMESPACE):
        assert (await SeedTeardownActivities(world.clusters).delete_seed_gateway(task)).note == note
    assert not exists(world)
