"""The owner of a self-hosted Shoot writes its exposure, and tries to get the connections or machines of others."""

import asyncio
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.extension import Extension
from activities.provider_local.self_hosted_shoot_exposure import SelfHostedShootExposureActuator
from api.local import CHOSEN_MACHINES, MACHINE_LABEL
from api.resources import ENDPOINT_SLICE, POD, SECRET, SELF_HOSTED_SHOOT_EXPOSURE, SERVICE
from landscape.load_balancers import Backends
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until
from tests.unit.provider_local.fake_cloud import OneCloud
from tests.unit.provider_local.test_infrastructure_and_network import (
    CLOUD_NAMESPACE,
    CONTROL_PLANE,
    KUBECONFIG,
    give_credentials,
)
from tests.unit.provider_local.test_self_hosted_shoot_exposure import OF_SHOOT, endpoint, exposure

THEIRS = "infra-shoot--dev--theirs"


def _extension(found: dict[str, Any]) -> Extension:
    return Extension(SELF_HOSTED_SHOOT_EXPOSURE, found, OF_SHOOT)


async def _actuator(cloud: FakeCluster) -> SelfHostedShootExposureActuator:
    cluster = FakeCluster()
    await give_credentials(cluster, KUBECONFIG)
    data = (await cluster.get(SECRET, "cloudprovider", CONTROL_PLANE))["data"]
    for name, namespace in (("cloudprovider", "kube-system"), ("theirs", "elsewhere")):
        metadata = {"name": name, "namespace": namespace}
        await cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    return SelfHostedShootExposureActuator(cluster, OneCloud(cloud))


@pytest.mark.attack(actor="T1", asset="A3", finding=28)
@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "198.18.1.2", "169.254.169.254", "::1", "gardener.test"])
async def test_an_endpoint_outside_of_the_network_of_machines(address: str) -> None:
    """The load balancer would connect to the cloud's own services, or to any host that the cloud reaches."""
    cloud = FakeCluster()
    actuator = await _actuator(cloud)

    with pytest.raises(ApplicationError, match="no address of type InternalIP in") as refused:
        await actuator.reconcile(_extension(exposure(endpoint("m1", "198.18.8.7"), endpoint("m2", address))))
    assert refused.value.non_retryable
    assert cloud.objects == {}


@pytest.mark.attack(actor="T1", asset="A3", finding=28)
async def test_an_exposure_takes_the_load_balancer_of_another_shoot() -> None:
    """Names are computed from the uid, which the API server gives, and the place from the Shoot's technical ID."""
    cloud = FakeCluster()
    metadata = {"name": "exposure-theirs", "namespace": THEIRS}
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "LoadBalancer"}}
    await cloud.create(theirs)
    before = cloud.objects[SERVICE, THEIRS, "exposure-theirs"]
    actuator = await _actuator(cloud)
    forged = exposure(uid="theirs")
    forged["metadata"]["name"] = "../infra-shoot--dev--theirs/exposure-theirs"

    running = asyncio.create_task(actuator.reconcile(_extension(forged)))
    await until(lambda: (SERVICE, CLOUD_NAMESPACE, "exposure-theirs") in cloud.objects)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await actuator.delete(_extension(forged))
    assert cloud.objects[SERVICE, THEIRS, "exposure-theirs"] == before


@pytest.mark.attack(actor="T1", asset="A3", finding=28)
async def test_an_exposure_names_credentials_of_another_namespace() -> None:
    actuator = await _actuator(FakeCluster())
    reference = {"kind": "Secret", "namespace": "elsewhere", "name": "theirs"}

    with pytest.raises(ApplicationError, match="Secret of namespace kube-system"):
        await actuator.reconcile(_extension(exposure(credentialsRef=reference)))


@pytest.mark.attack(actor="T1", asset="A3", finding=28)
async def test_an_exposure_names_the_address_of_a_machine_of_another_shoot() -> None:
    """Its load balancer would send the clients of one Shoot to the machines of another one, or attack these."""
    cloud = FakeCluster()
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    for name, namespace in (("mine", CLOUD_NAMESPACE), ("foreign", THEIRS)):
        metadata = {"name": name, "namespace": namespace, "labels": {MACHINE_LABEL: name}}
        await cloud.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "cloud"}})
    await cloud.patch(POD, "mine", CLOUD_NAMESPACE, {"status": {"podIP": "127.0.0.2"}}, subresource="status")
    await cloud.patch(POD, "foreign", THEIRS, {"status": {"podIP": "127.0.0.1"}}, subresource="status")
    metadata = {"name": "lb", "namespace": CLOUD_NAMESPACE, "annotations": {CHOSEN_MACHINES: "127.0.0.1"}}
    ports = [{"name": "tcp", "protocol": "TCP", "port": 443, "targetPort": port}]
    spec = {"type": "LoadBalancer", "ports": ports}
    await cloud.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    running = asyncio.create_task(Backends(cloud).run())
    try:
        await until(lambda: bool(cloud.of(ENDPOINT_SLICE)))
        [made] = cloud.of(ENDPOINT_SLICE)
        assert made["endpoints"] == []
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        listening.close()
