"""Exposures of self-hosted Shoots: one load balancer of the cloud for the machines of the control plane."""

import asyncio
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.extension import Extension, load_extension
from activities.provider_local.self_hosted_shoot_exposure import SelfHostedShootExposureActuator
from api.local import CHOSEN_MACHINES
from api.resources import CLUSTER as CLUSTERS
from api.resources import SECRET, SELF_HOSTED_SHOOT_EXPOSURE, SERVICE
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.kube.waiting import until
from tests.unit.provider_local.fake_cloud import OneCloud
from tests.unit.provider_local.test_infrastructure_and_network import (
    CLOUD_NAMESPACE,
    CLUSTER,
    CONTROL_PLANE,
    KUBECONFIG,
    give_credentials,
)

NAME = "exposure-u"
BALANCER = (SERVICE, CLOUD_NAMESPACE, NAME)
OF_SHOOT = {**CLUSTER, "metadata": {"name": CONTROL_PLANE}}


@pytest.fixture
def cloud() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def cluster() -> FakeCluster:
    """The self-hosted cluster: its objects are in kube-system, and its Cluster has the technical ID as its name."""
    cluster = FakeCluster()
    await give_credentials(cluster, KUBECONFIG)
    secret = await cluster.get(SECRET, "cloudprovider", CONTROL_PLANE)
    metadata = {"name": "cloudprovider", "namespace": "kube-system"}
    await cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": secret["data"]})
    other = {**OF_SHOOT, "metadata": {"name": "shoot--dev--hosted"}}
    for each in ({**other, "spec": {**other["spec"], "seed": {"metadata": {"name": "one"}}}}, OF_SHOOT):
        await cluster.create({"apiVersion": CLUSTERS.api_version, "kind": "Cluster", **each})
    return cluster


@pytest.fixture
def actuator(cluster: FakeCluster, cloud: FakeCluster) -> SelfHostedShootExposureActuator:
    return SelfHostedShootExposureActuator(cluster, OneCloud(cloud))


def endpoint(name: str, address: str, type_: str = "InternalIP") -> dict[str, Any]:
    addresses = [{"type": "Hostname", "address": name}, {"type": type_, "address": address}]
    return {"nodeName": name, "addresses": addresses}


def exposure(*endpoints: dict[str, Any], uid: str = "u", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": SELF_HOSTED_SHOOT_EXPOSURE.api_version,
        "kind": "SelfHostedShootExposure",
        "metadata": {"name": "one", "namespace": "kube-system", "uid": uid},
        "spec": {
            "type": "local",
            "port": 443,
            "endpoints": list(endpoints or (endpoint("m1", "198.18.8.7"),)),
            "credentialsRef": {"kind": "Secret", "namespace": "kube-system", "name": "cloudprovider"},
            **spec,
        },
    }


def extension(*endpoints: dict[str, Any], **spec: Any) -> Extension:
    return Extension(SELF_HOSTED_SHOOT_EXPOSURE, exposure(*endpoints, **spec), OF_SHOOT)


async def be_the_cloud(cloud: FakeCluster) -> None:
    await until(lambda: BALANCER in cloud.objects)
    given = {"status": {"loadBalancer": {"ingress": [{"ip": "198.18.4.1"}]}}}
    await cloud.patch(SERVICE, NAME, CLOUD_NAMESPACE, given, subresource="status")


async def made(
    actuator: SelfHostedShootExposureActuator, cloud: FakeCluster, *endpoints: dict[str, Any]
) -> dict[str, Any]:
    status, _ = await asyncio.gather(actuator.reconcile(extension(*endpoints)), be_the_cloud(cloud))
    return status


async def test_the_api_servers_get_an_address_of_the_cloud(
    actuator: SelfHostedShootExposureActuator, cloud: FakeCluster
) -> None:
    found = await made(actuator, cloud, endpoint("m2", "198.18.8.9"), endpoint("m1", "198.18.8.7"))

    assert found == {"ingress": [{"ip": "198.18.4.1"}]}
    service = cloud.objects[BALANCER]
    assert service["metadata"]["annotations"] == {CHOSEN_MACHINES: "198.18.8.7,198.18.8.9"}
    assert [(each["port"], each["targetPort"]) for each in service["spec"]["ports"]] == [(443, 443)]
    # A port of the cloud's node would be reached without the load balancer.
    assert service["spec"]["allocateLoadBalancerNodePorts"] is False


async def test_the_address_stays_when_endpoints_change(
    actuator: SelfHostedShootExposureActuator, cloud: FakeCluster
) -> None:
    await made(actuator, cloud)
    uid = cloud.objects[BALANCER]["metadata"]["uid"]

    assert await made(actuator, cloud, endpoint("m9", "198.18.9.1")) == {"ingress": [{"ip": "198.18.4.1"}]}
    assert cloud.objects[BALANCER]["metadata"]["uid"] == uid
    assert cloud.objects[BALANCER]["metadata"]["annotations"] == {CHOSEN_MACHINES: "198.18.9.1"}


async def test_a_run_that_was_killed_is_finished_by_the_next(
    actuator: SelfHostedShootExposureActuator, cloud: FakeCluster
) -> None:
    work = asyncio.create_task(actuator.reconcile(extension()))
    await until(lambda: BALANCER in cloud.objects)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)

    assert await made(actuator, cloud) == {"ingress": [{"ip": "198.18.4.1"}]}
    assert len(cloud.of(SERVICE)) == 1


async def test_a_deletion_leaves_nothing_and_can_be_repeated(
    actuator: SelfHostedShootExposureActuator, cloud: FakeCluster
) -> None:
    await made(actuator, cloud)

    for _ in range(2):
        await actuator.delete(extension())
    assert cloud.objects == {}


async def test_a_deletion_without_credentials_ends(
    actuator: SelfHostedShootExposureActuator, cluster: FakeCluster, cloud: FakeCluster
) -> None:
    await made(actuator, cloud)
    await cluster.delete(SECRET, "cloudprovider", "kube-system")

    await actuator.delete(extension())
    with pytest.raises(ApplicationError, match="Secret kube-system/cloudprovider"):
        await actuator.reconcile(extension())


@pytest.mark.parametrize("reference", [None, {"kind": "ConfigMap", "name": "cloudprovider"}, {"kind": "Secret"}])
async def test_an_object_without_credentials_is_refused(
    actuator: SelfHostedShootExposureActuator, cloud: FakeCluster, reference: dict[str, Any] | None
) -> None:
    with pytest.raises(ApplicationError, match="credentialsRef must name a Secret") as refused:
        await actuator.reconcile(extension(credentialsRef=reference))
    assert refused.value.non_retryable
    assert cloud.objects == {}


async def test_the_cluster_of_a_self_hosted_shoot_is_the_one_without_a_seed(cluster: FakeCluster) -> None:
    await cluster.create(exposure())

    found = await load_extension(cluster, SELF_HOSTED_SHOOT_EXPOSURE, "kube-system", "one")
    assert found is not None
    assert found.technical_id == CONTROL_PLANE
