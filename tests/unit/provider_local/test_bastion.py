"""Bastions of provider-local: one machine and one address each, open to the given sources only, and nothing left."""

import asyncio
import base64
import copy
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.extension import Extension
from activities.provider_local.bastion import LABEL, BastionActuator, source_ranges
from api.local import MACHINE_LABEL
from api.resources import BASTION, POD, SECRET, SERVICE
from kube.errors import Forbidden
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

NAME = "bastion-u"
SCRIPT = b"#!/bin/bash -eu\nuseradd gardener\n"


@pytest.fixture
def cloud() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def seed() -> FakeCluster:
    seed = FakeCluster()
    await give_credentials(seed, KUBECONFIG)
    return seed


@pytest.fixture
def actuator(seed: FakeCluster, cloud: FakeCluster) -> BastionActuator:
    return BastionActuator(seed, OneCloud(cloud))


def bastion(*blocks: dict[str, Any]) -> Extension:
    ingress = [{"ipBlock": each} for each in blocks or ({"cidr": "203.0.113.7/32"},)]
    spec = {"type": "local", "userData": base64.b64encode(SCRIPT).decode(), "ingress": ingress}
    found = {"metadata": {"name": "alice", "namespace": CONTROL_PLANE, "uid": "u"}, "spec": spec}
    return Extension(BASTION, found, CLUSTER)


async def be_the_cloud(cloud: FakeCluster, address: str = "198.18.4.1") -> None:
    """Give the Service its address, and start the machine."""
    await until(lambda: (POD, CLOUD_NAMESPACE, NAME) in cloud.objects)
    given = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
    await cloud.patch(SERVICE, NAME, CLOUD_NAMESPACE, given, subresource="status")
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await cloud.patch(POD, NAME, CLOUD_NAMESPACE, ready, subresource="status")


async def made(actuator: BastionActuator, cloud: FakeCluster, extension: Extension) -> dict[str, Any]:
    status, _ = await asyncio.gather(actuator.reconcile(extension), be_the_cloud(cloud))
    return status


def kinds(cloud: FakeCluster) -> list[str]:
    return sorted(resource.kind for resource, _, _ in cloud.objects)


async def test_a_bastion_boots_with_the_users_key_and_reports_its_address(
    actuator: BastionActuator, cloud: FakeCluster
) -> None:
    assert await made(actuator, cloud, bastion()) == {"ingress": {"ip": "198.18.4.1"}}

    secret = cloud.objects[SECRET, CLOUD_NAMESPACE, f"{NAME}-user-data"]
    assert base64.b64decode(secret["data"]["userdata"]) == SCRIPT
    pod = cloud.objects[POD, CLOUD_NAMESPACE, NAME]
    assert {"name": "userdata", "secret": {"secretName": f"{NAME}-user-data", "defaultMode": 0o400}} in pod["spec"][
        "volumes"
    ]
    assert "hostNetwork" not in pod["spec"]
    # The machine-controller-manager deletes pods with this label that no Machine stands for.
    assert MACHINE_LABEL not in pod["metadata"]["labels"]


async def test_it_waits_for_the_machine_and_for_the_address(actuator: BastionActuator, cloud: FakeCluster) -> None:
    work = asyncio.create_task(actuator.reconcile(bastion()))
    await until(lambda: (POD, CLOUD_NAMESPACE, NAME) in cloud.objects)
    given = {"status": {"loadBalancer": {"ingress": [{"ip": "198.18.4.9"}]}}}
    await cloud.patch(SERVICE, NAME, CLOUD_NAMESPACE, given, subresource="status")
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await cloud.patch(POD, NAME, CLOUD_NAMESPACE, unready, subresource="status")
    done, _ = await asyncio.wait({work}, timeout=0.2)
    assert not done

    await be_the_cloud(cloud, "198.18.4.9")
    assert await work == {"ingress": {"ip": "198.18.4.9"}}


async def test_the_service_is_open_to_the_sources_alone_before_the_machine_exists(
    actuator: BastionActuator, cloud: FakeCluster
) -> None:
    await made(actuator, cloud, bastion({"cidr": "203.0.113.0/24"}, {"cidr": "192.0.2.7/32"}))

    spec = cloud.objects[SERVICE, CLOUD_NAMESPACE, NAME]["spec"]
    assert spec["loadBalancerSourceRanges"] == ["192.0.2.7/32", "203.0.113.0/24"]
    # A port of the cloud's node would be open to all.
    assert spec["allocateLoadBalancerNodePorts"] is False
    assert spec["selector"] == {LABEL: NAME}
    kinds = [kind for verb, kind, _ in cloud.requests if verb in ("apply", "create")]
    assert list(dict.fromkeys(kinds)) == ["Service", "Secret", "Pod"]


async def test_its_rules_are_loaded_before_it_boots(actuator: BastionActuator, cloud: FakeCluster) -> None:
    """Other machines of the network reach the pod without the Service."""
    await made(actuator, cloud, bastion())

    [firewall] = cloud.objects[POD, CLOUD_NAMESPACE, NAME]["spec"]["initContainers"]
    [script] = firewall["command"][2:]
    accepted = [line for line in script.splitlines() if "-A INPUT" in line]
    assert accepted == [
        "-A INPUT -i lo -j ACCEPT",
        "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
        "-A INPUT -s $gateway/32 -p tcp --dport 22 -j ACCEPT",
        "-A INPUT -i lo -j ACCEPT",  # IPv6
    ]
    assert script.count(":INPUT DROP") == script.count(":OUTPUT DROP") == 2
    assert firewall["env"] == [{"name": "MACHINES", "value": "198.18.8.0/22"}]


async def test_it_reaches_machines_by_ipv6_only_if_they_have_no_other_address(
    actuator: BastionActuator, cloud: FakeCluster
) -> None:
    cluster = copy.deepcopy(CLUSTER)
    cluster["spec"]["shoot"]["spec"]["networking"] = {"ipFamilies": ["IPv6"]}
    cluster["spec"]["cloudProfile"]["spec"]["providerConfig"]["machineNetworkIPv6"] = "2001:2:0:8::/64"
    await made(actuator, cloud, Extension(BASTION, bastion().object, cluster))
    (firewall,) = cloud.objects[POD, CLOUD_NAMESPACE, NAME]["spec"]["initContainers"]

    assert {"name": "MACHINES_IPV6", "value": "2001:2:0:8::/64"} in firewall["env"]
    assert "-A OUTPUT -d $MACHINES_IPV6 -p tcp --dport 22 -j ACCEPT" in firewall["command"][-1]


async def test_a_second_run_changes_the_sources_and_keeps_the_machine(
    actuator: BastionActuator, cloud: FakeCluster
) -> None:
    await made(actuator, cloud, bastion())
    uid = cloud.objects[POD, CLOUD_NAMESPACE, NAME]["metadata"]["uid"]

    await made(actuator, cloud, bastion({"cidr": "192.0.2.0/24"}))
    assert cloud.objects[SERVICE, CLOUD_NAMESPACE, NAME]["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
    assert cloud.objects[POD, CLOUD_NAMESPACE, NAME]["metadata"]["uid"] == uid


async def test_a_run_that_was_killed_is_finished_by_the_next(actuator: BastionActuator, cloud: FakeCluster) -> None:
    work = asyncio.create_task(actuator.reconcile(bastion()))
    await until(lambda: (SECRET, CLOUD_NAMESPACE, f"{NAME}-user-data") in cloud.objects)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)

    assert await made(actuator, cloud, bastion()) == {"ingress": {"ip": "198.18.4.1"}}
    assert kinds(cloud) == ["Pod", "Secret", "Service"]


async def test_deletion_leaves_nothing_and_may_run_twice(actuator: BastionActuator, cloud: FakeCluster) -> None:
    await made(actuator, cloud, bastion())

    await actuator.delete(bastion())
    assert kinds(cloud) == []
    await actuator.delete(bastion())


async def test_deletion_waits_for_the_machine(actuator: BastionActuator, cloud: FakeCluster) -> None:
    await made(actuator, cloud, bastion())
    held = {"metadata": {"finalizers": ["example.org/held"]}}
    await cloud.patch(POD, NAME, CLOUD_NAMESPACE, held)

    work = asyncio.create_task(actuator.delete(bastion()))
    await until(lambda: (SERVICE, CLOUD_NAMESPACE, NAME) not in cloud.objects)
    done, _ = await asyncio.wait({work}, timeout=0.2)
    assert not done
    await cloud.patch(POD, NAME, CLOUD_NAMESPACE, {"metadata": {"finalizers": None}})
    await work
    assert kinds(cloud) == []


async def test_without_credentials_it_is_not_made_and_deletion_ends(
    actuator: BastionActuator, seed: FakeCluster, cloud: FakeCluster
) -> None:
    await seed.delete(SECRET, "cloudprovider", CONTROL_PLANE)

    with pytest.raises(ApplicationError, match=r"shoot--dev--one/cloudprovider, .* does not exist") as failure:
        await actuator.reconcile(bastion())
    assert (failure.value.type, failure.value.non_retryable) == ("ERR_CONFIGURATION_PROBLEM", True)
    await actuator.delete(bastion())
    assert cloud.requests == []


async def test_force_deletion_asks_nothing_of_the_cloud(actuator: BastionActuator, cloud: FakeCluster) -> None:
    await actuator.force_delete(bastion())
    assert cloud.requests == []


async def test_missing_rights_in_the_cloud_are_reported_as_such(actuator: BastionActuator, cloud: FakeCluster) -> None:
    cloud.refuse("apply", SERVICE, Forbidden(403, "Forbidden", "applying a Service"))
    with pytest.raises(ApplicationError) as failure:
        await actuator.reconcile(bastion())
    assert failure.value.type == "ERR_INFRA_UNAUTHORIZED"


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([{"cidr": "203.0.113.7/24"}], ["203.0.113.0/24"]),
        ([{"cidr": "0.0.0.0/0"}, {"cidr": "0.0.0.0/0"}], ["0.0.0.0/0"]),
        ([{"cidr": "10.0.0.0/30", "except": ["10.0.0.1/32"]}], ["10.0.0.0/32", "10.0.0.2/31"]),
        ([{"cidr": "10.0.0.0/30", "except": ["10.0.0.0/31", "10.0.0.3/32"]}], ["10.0.0.2/32"]),
        ([{"cidr": "10.0.0.0/30", "except": ["10.0.0.1/32", "10.0.0.0/31"]}], ["10.0.0.2/31"]),
    ],
    ids=["host bits", "twice", "exception", "two exceptions", "one in the other"],
)
def test_sources_are_networks_without_their_exceptions(blocks: list[dict[str, Any]], expected: list[str]) -> None:
    assert source_ranges(bastion(*blocks)) == expected


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([{"cidr": "203.0.113.7/32"}, {"cidr": "2001:db8::/32"}], "only IPv4"),
        ([{"cidr": "10.0.0.0/30", "except": ["10.0.0.0/30"]}], "lets no address in"),
    ],
    ids=["IPv6", "nothing"],
)
async def test_sources_that_would_open_the_service_to_all_are_refused(
    actuator: BastionActuator, cloud: FakeCluster, blocks: list[dict[str, Any]], said: str
) -> None:
    """A Service without source ranges of its family is open to every address."""
    with pytest.raises(ApplicationError, match=said) as failure:
        await actuator.reconcile(bastion(*blocks))
    assert failure.value.type == "ERR_CONFIGURATION_PROBLEM"
    assert cloud.requests == []
