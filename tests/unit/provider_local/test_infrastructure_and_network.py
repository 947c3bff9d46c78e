"""The place of a shoot in the cloud, and its pod network."""

import asyncio
import base64
import copy
import itertools
import json
from collections.abc import Callable
from ipaddress import IPv6Network
from typing import Any

import pytest
import yaml
from temporalio.exceptions import ApplicationError

from activities.extension import Extension
from activities.provider_local.infrastructure import InfrastructureActuator
from activities.provider_local.network import FlannelActuator, manifests
from api.local import ipv6_networks
from api.resources import INFRASTRUCTURE, MANAGED_RESOURCE, NAMESPACE, NETWORK, SECRET
from kube.cache import Caches
from kube.errors import Forbidden, Unauthorized, Unreachable
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.provider_local.fake_cloud import OneCloud

CONTROL_PLANE = "shoot--dev--one"
CLOUD_NAMESPACE = "infra-shoot--dev--one"
KUBECONFIG = {
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://198.18.1.2:6443"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}
CLUSTER: dict[str, Any] = {
    "spec": {
        "shoot": {
            "metadata": {"name": "one", "uid": "shoot-uid"},
            "spec": {"networking": {"pods": "100.112.0.0/16", "services": "100.68.0.0/16"}},
        },
        "cloudProfile": {
            "metadata": {"name": "local"},
            "spec": {
                "providerConfig": {
                    "apiVersion": "local.provider.extensions.gardener.cloud/v1alpha1",
                    "kind": "CloudProfileConfig",
                    "machineNetwork": "198.18.8.0/22",
                }
            },
        },
    }
}


@pytest.fixture
def cloud() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def seed() -> FakeCluster:
    seed = FakeCluster()
    await give_credentials(seed, KUBECONFIG)
    return seed


async def give_credentials(seed: FakeCluster, kubeconfig: Any) -> None:
    await seed.delete(SECRET, "cloudprovider", CONTROL_PLANE)
    text = kubeconfig if isinstance(kubeconfig, str) else yaml.safe_dump(kubeconfig)
    await seed.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "cloudprovider", "namespace": CONTROL_PLANE},
            "data": {"kubeconfig": base64.b64encode(text.encode()).decode()},
        }
    )


def infrastructure(status: dict[str, Any] | None = None, **spec: Any) -> Extension:
    found = {
        "metadata": {"name": "one", "namespace": CONTROL_PLANE, "uid": "u"},
        "spec": {"secretRef": {"name": "cloudprovider", "namespace": CONTROL_PLANE}, "region": "local", **spec},
        "status": status or {},
    }
    return Extension(INFRASTRUCTURE, found, CLUSTER)


async def test_a_shoot_gets_a_namespace_and_learns_the_network_of_its_nodes(
    seed: FakeCluster, cloud: FakeCluster
) -> None:
    status = await InfrastructureActuator(seed, OneCloud(cloud)).reconcile(infrastructure())

    assert (NAMESPACE, "", CLOUD_NAMESPACE) in cloud.objects
    assert status["nodesCIDR"] == "198.18.8.0/22"
    assert status["providerStatus"]["namespace"] == CLOUD_NAMESPACE
    assert status["networking"] == {
        "nodes": ["198.18.8.0/22"],
        "pods": ["100.112.0.0/16"],
        "services": ["100.68.0.0/16"],
    }


def dual_stack(machines: str) -> Extension:
    """An Infrastructure of a Shoot with both families. ``machines``: IPv6 network of machines; empty: none."""
    cluster = copy.deepcopy(CLUSTER)
    cluster["spec"]["shoot"]["spec"]["networking"]["ipFamilies"] = ["IPv4", "IPv6"]
    return _of(cluster, machines)


def ipv6_alone(machines: str, nodes: int = 3) -> Extension:
    """An Infrastructure of a Shoot with IPv6 alone, which may have so many nodes."""
    cluster = copy.deepcopy(CLUSTER)
    spec = cluster["spec"]["shoot"]["spec"]
    spec["networking"] = {"type": "flannel", "ipFamilies": ["IPv6"]}
    spec["provider"] = {"workers": [{"name": "w", "maximum": nodes}]}
    return _of(cluster, machines)


def _of(cluster: dict[str, Any], machines: str) -> Extension:
    if machines:
        cluster["spec"]["cloudProfile"]["spec"]["providerConfig"]["machineNetworkIPv6"] = machines
    return Extension(INFRASTRUCTURE, infrastructure().object, cluster)


async def test_a_shoot_with_both_families_gets_networks_of_both(seed: FakeCluster, cloud: FakeCluster) -> None:
    """The next reconciliation must give the same networks: nodes and Services keep their addresses."""
    actuator = InfrastructureActuator(seed, OneCloud(cloud))
    first, second = [(await actuator.reconcile(dual_stack("2001:2:0:8::/64")))["networking"] for _ in range(2)]

    assert first == second
    assert [first[each][0] for each in ("nodes", "pods", "services")] == [
        "198.18.8.0/22",
        "100.112.0.0/16",
        "100.68.0.0/16",
    ]
    assert first["nodes"][1:] == ["2001:2:0:8::/64"]
    (pods,), (services,) = ([IPv6Network(each) for each in first[name][1:]] for name in ("pods", "services"))
    assert (pods.prefixlen, services.prefixlen) == (56, 112)
    assert not pods.overlaps(services)
    assert all(IPv6Network("fd00::/8").supernet_of(each) for each in (pods, services))
    assert services.supernet(new_prefix=48) == pods.supernet(new_prefix=48)


async def test_a_shoot_with_ipv6_alone_gets_networks_of_ipv6_alone(seed: FakeCluster, cloud: FakeCluster) -> None:
    actuator = InfrastructureActuator(seed, OneCloud(cloud))
    status = await actuator.reconcile(ipv6_alone("2001:2:0:8::/64"))

    both = (await actuator.reconcile(dual_stack("2001:2:0:8::/64")))["networking"]
    assert status["networking"] == {name: networks[1:] for name, networks in both.items()}
    assert status["nodesCIDR"] == "2001:2:0:8::/64"


async def test_a_shoot_with_ipv6_alone_may_have_no_more_nodes_than_networks(
    seed: FakeCluster, cloud: FakeCluster
) -> None:
    """A node without a network of pods would never be ready."""
    actuator = InfrastructureActuator(seed, OneCloud(cloud))
    await actuator.reconcile(ipv6_alone("2001:2:0:8::/64", 256))
    with pytest.raises(ApplicationError, match="257 nodes, but the IPv6 network of pods has room for 256") as refused:
        await actuator.reconcile(ipv6_alone("2001:2:0:8::/64", 257))

    assert refused.value.non_retryable


def test_two_shoots_have_no_ipv6_network_in_common() -> None:
    networks = [IPv6Network(each) for uid in ("one", "two") for each in ipv6_networks(uid)]

    assert not any(one.overlaps(other) for one, other in itertools.combinations(networks, 2))


@pytest.mark.parametrize("wanted", [dual_stack, ipv6_alone])
async def test_a_cloud_without_ipv6_refuses_a_shoot_with_ipv6(
    seed: FakeCluster, cloud: FakeCluster, wanted: Callable[[str], Extension]
) -> None:
    with pytest.raises(ApplicationError, match="only: its CloudProfile has no") as refused:
        await InfrastructureActuator(seed, OneCloud(cloud)).reconcile(wanted(""))

    assert (refused.value.type, refused.value.non_retryable) == ("ERR_CONFIGURATION_PROBLEM", True)
    assert not cloud.objects


@pytest.mark.parametrize(
    ("error", "code", "final"),
    [
        (Unauthorized(401, "Unauthorized", "x"), "ERR_INFRA_UNAUTHENTICATED", True),
        (Forbidden(403, "Forbidden", "x", "user may not"), "ERR_INFRA_UNAUTHORIZED", True),
        (Forbidden(403, "Forbidden", "x", "it is being terminated"), "ERR_RETRYABLE_INFRA_DEPENDENCIES", False),
        (Unreachable(0, "timeout", "x"), "ERR_RETRYABLE_INFRA_DEPENDENCIES", False),
    ],
)
async def test_the_answer_of_the_cloud_selects_the_error_code(
    seed: FakeCluster, cloud: FakeCluster, error: Any, code: str, final: bool
) -> None:
    cloud.refuse("apply", NAMESPACE, error)
    with pytest.raises(ApplicationError) as refused:
        await InfrastructureActuator(seed, OneCloud(cloud)).reconcile(infrastructure())

    assert (refused.value.type, refused.value.non_retryable) == (code, final)


@pytest.mark.parametrize(
    "kubeconfig",
    [
        "not: [yaml",
        "just text",
        {**KUBECONFIG, "users": [{"name": "u", "user": {"tokenFile": "/etc/shadow"}}]},
        {**KUBECONFIG, "users": [{"name": "u", "user": {"client-certificate": "/etc/shadow"}}]},
        {**KUBECONFIG, "users": [{"name": "u", "user": {"exec": {"command": "sh"}}}]},
        {**KUBECONFIG, "clusters": [{"name": "c", "cluster": {"server": "https://x", "proxy-url": "http://y"}}]},
    ],
    ids=["yaml", "text", "token-file", "certificate-file", "exec", "proxy"],
)
async def test_a_users_kubeconfig_may_not_name_our_files_programs_or_proxies(
    seed: FakeCluster, cloud: FakeCluster, kubeconfig: Any
) -> None:
    await give_credentials(seed, kubeconfig)
    with pytest.raises(ApplicationError, match="Secret shoot--dev--one/cloudprovider") as refused:
        await InfrastructureActuator(seed, OneCloud(cloud)).reconcile(infrastructure())

    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"
    assert not cloud.objects


async def test_an_unknown_field_of_the_provider_config_is_refused(seed: FakeCluster, cloud: FakeCluster) -> None:
    config = {
        "apiVersion": "local.provider.extensions.gardener.cloud/v1alpha1",
        "kind": "InfrastructureConfig",
        "zones": 3,
    }
    with pytest.raises(ApplicationError, match="zones") as refused:
        await InfrastructureActuator(seed, OneCloud(cloud)).reconcile(infrastructure(providerConfig=config))

    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"


async def test_credentials_that_never_were_of_use_do_not_stop_a_deletion(seed: FakeCluster, cloud: FakeCluster) -> None:
    """A Shoot with wrong credentials has nothing in the cloud, and must be deletable."""
    actuator = InfrastructureActuator(seed, OneCloud(cloud))
    cloud.refuse("get", NAMESPACE, Unauthorized(401, "Unauthorized", "x"))

    assert await actuator.delete_namespace(infrastructure())
    with pytest.raises(ApplicationError):
        await actuator.delete_namespace(infrastructure({"providerStatus": {"namespace": CLOUD_NAMESPACE}}))


async def test_without_credentials_a_deletion_skips_the_cloud(seed: FakeCluster, cloud: FakeCluster) -> None:
    await seed.delete(SECRET, "cloudprovider", CONTROL_PLANE)

    assert await InfrastructureActuator(seed, OneCloud(cloud)).delete_namespace(infrastructure())


def network(**spec: Any) -> Extension:
    found = {
        "metadata": {"name": "one", "namespace": CONTROL_PLANE, "uid": "u"},
        "spec": {"type": "flannel", "podCIDR": "100.112.0.0/16", "serviceCIDR": "100.68.0.0/16", **spec},
    }
    return Extension(NETWORK, found, CLUSTER)


async def internal_record(seed: FakeCluster) -> None:
    await seed.create(
        {
            "apiVersion": "extensions.gardener.cloud/v1alpha1",
            "kind": "DNSRecord",
            "metadata": {"name": "one-internal", "namespace": CONTROL_PLANE},
            "spec": {"name": "api.one.dev.internal.garden.test"},
        }
    )


async def test_flannel_reaches_the_api_server_by_its_internal_name(seed: FakeCluster) -> None:
    await internal_record(seed)
    caches = Caches(seed)
    status = await FlannelActuator(seed, caches).reconcile(network())

    assert status == {"ipFamilies": ["IPv4"]}
    (resource,) = seed.of(MANAGED_RESOURCE)
    secret = seed.objects[SECRET, CONTROL_PLANE, resource["spec"]["secretRefs"][0]["name"]]
    objects = [json.loads(base64.b64decode(each)) for each in secret["data"].values()]
    (daemon,) = (each for each in objects if _is_flannel(each))
    (container,) = daemon["spec"]["template"]["spec"]["containers"]
    assert {"name": "KUBERNETES_SERVICE_HOST", "value": "api.one.dev.internal.garden.test"} in container["env"]
    assert "class" not in resource["spec"]


def _is_flannel(obj: dict[str, Any]) -> bool:
    return (obj["kind"], obj["metadata"]["name"]) == ("DaemonSet", "kube-flannel")


async def test_a_sleeping_shoot_has_no_name_and_keeps_the_network_it_had(seed: FakeCluster) -> None:
    shoot = CLUSTER["spec"]["shoot"]
    asleep = {**shoot, "spec": {**shoot["spec"], "hibernation": {"enabled": True}}}
    sleeping = Extension(NETWORK, network().object, {"spec": {**CLUSTER["spec"], "shoot": asleep}})
    actuator = FlannelActuator(seed, Caches(seed))

    assert await actuator.reconcile(sleeping) == {"ipFamilies": ["IPv4"]}
    assert seed.of(MANAGED_RESOURCE) == []
    with pytest.raises(ApplicationError, match="does not exist yet"):
        await actuator.reconcile(network())


async def test_flannel_gives_ipv6_alone(seed: FakeCluster) -> None:
    await internal_record(seed)
    cluster = copy.deepcopy(CLUSTER)
    cluster["spec"]["shoot"]["status"] = {"networking": {"pods": ["fd12:3456:789a::/56"]}}
    wanted = network(ipFamilies=["IPv6"], podCIDR="fd12:3456:789a::/56", serviceCIDR="fd12:3456:789a:100::/112")
    status = await FlannelActuator(seed, Caches(seed)).reconcile(Extension(NETWORK, wanted.object, cluster))

    assert status == {"ipFamilies": ["IPv6"]}
    (resource,) = seed.of(MANAGED_RESOURCE)
    secret = seed.objects[SECRET, CONTROL_PLANE, resource["spec"]["secretRefs"][0]["name"]]
    objects = [json.loads(base64.b64decode(each)) for each in secret["data"].values()]
    (config,) = (each for each in objects if each["metadata"]["name"] == "kube-flannel-config")
    assert json.loads(config["data"]["net-conf.json"]) == {
        "EnableIPv4": False,
        "EnableIPv6": True,
        "IPv6Network": "fd12:3456:789a::/56",
        "Backend": {"Type": "host-gw"},
    }
    (daemon,) = filter(_is_flannel, objects)
    arguments = daemon["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [each for each in arguments if "iface" in each] == ["--iface-regex=^$(HOST_ADDRESS)$"]


async def test_other_ip_families_are_refused(seed: FakeCluster) -> None:
    with pytest.raises(ApplicationError, match="only IPv4, both, or IPv6 are possible") as refused:
        await FlannelActuator(seed, Caches(seed)).reconcile(network(ipFamilies=["IPv6", "IPv4"]))

    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"


@pytest.mark.parametrize(("verb", "keeps"), [("delete", False), ("migrate", True)])
async def test_a_migrated_shoot_keeps_its_network(seed: FakeCluster, verb: str, keeps: bool) -> None:
    await internal_record(seed)
    caches = Caches(seed)
    actuator = FlannelActuator(seed, caches)
    await actuator.reconcile(network())
    name = seed.of(MANAGED_RESOURCE)[0]["metadata"]["name"]
    await seed.patch(MANAGED_RESOURCE, name, CONTROL_PLANE, {"metadata": {"finalizers": ["resource-manager"]}})
    work = asyncio.create_task(getattr(actuator, verb)(network()))
    await seed.until(lambda: seed.of(MANAGED_RESOURCE)[0]["metadata"].get("deletionTimestamp"))

    assert seed.of(MANAGED_RESOURCE)[0]["spec"]["keepObjects"] is keeps
    assert not work.done()
    await seed.patch(MANAGED_RESOURCE, name, CONTROL_PLANE, {"metadata": {"finalizers": []}})
    await work
    await caches.close()
    assert not [each for each in seed.of(SECRET) if each["metadata"]["name"].startswith("managedresource-")]


def test_the_network_of_a_node_is_known_before_the_node_says_it_is_ready() -> None:
    """Kubelet takes a node for Ready once a CNI configuration lies there."""
    daemon = manifests("100.112.0.0/16", "api.test")[-1]["spec"]["template"]["spec"]
    (install,) = daemon["initContainers"]
    script = daemon["containers"][0]["lifecycle"]["postStart"]["exec"]["command"][-1]

    assert "net.d" not in " ".join(install["command"])
    assert script.index("subnet.env") < script.index("cni-conf.json")
