"""Components of a Shoot with IPv6 alone."""

import asyncio
import copy
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.components import (
    apiserver_proxy,
    controller_manager,
    coredns,
    kube_proxy,
    vpn_shoot,
)
from activities.components import operating_system_config as config
from activities.components.operating_system_config import NodeConfig
from activities.seed.facts import Networks
from api.decisions import dual_stack
from tests.unit.components.test_dual_stack import NAMESPACE, SHOOT, TASK, World, world
from tests.unit.components.test_tunnel import served

__all__ = ["world"]

NETWORKING = {
    "nodes": ["2001:2:0:8::/64"],
    "pods": ["fd12:3456:789a::/56"],
    "services": ["fd12:3456:789a:100::/112"],
}
DNS = "fd12:3456:789a:100::a"
GATEWAY = "api.a.dev.internal.example.org"


def shoot(**systems: Any) -> dict[str, Any]:
    made = copy.deepcopy(SHOOT)
    made["spec"] |= {"networking": {"ipFamilies": ["IPv6"]}, "systemComponents": systems}
    made["status"] = {"networking": NETWORKING}
    return made


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


async def test_it_begins_no_change_and_has_no_constraint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHOOT, "spec", shoot()["spec"])
    world.ran_with(NETWORKING)
    begun = await world.activities.begin_dual_stack_migration(TASK)
    checked = await world.activities.check_node_pod_cidrs(TASK)

    assert world.constraints() == {}
    assert (begun.note, checked.note) == ("", "no change of IP families")
    networks = await world.networks()
    assert (networks.pods, networks.services, networks.nodes) == tuple(
        tuple(NETWORKING[each]) for each in ("pods", "services", "nodes")
    )
    assert networks.pods_of_new_nodes == networks.pods


async def test_its_components_wait_until_the_infrastructure_has_named_the_networks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHOOT, "spec", shoot()["spec"])
    world.ran_with({})
    view = await world.clusters.cluster(NAMESPACE)

    with pytest.raises(ApplicationError, match="the Infrastructure must report those of IPv6 first") as error:
        Networks.of(view)
    assert not error.value.non_retryable


@pytest.mark.parametrize(
    ("families", "has", "alone", "two"),
    [
        (None, False, False, False),
        (["IPv4"], False, False, False),
        (["IPv4", "IPv6"], True, False, True),
        (["IPv6"], True, True, False),
    ],
)
def test_families_of_a_shoot(families: list[str] | None, has: bool, alone: bool, two: bool) -> None:
    made = {"spec": {"networking": {"ipFamilies": families} if families else None}}

    assert [f(made) for f in (dual_stack.has_ipv6, dual_stack.is_ipv6_alone, dual_stack.is_wanted)] == [has, alone, two]


def test_each_node_gets_a_network_of_ipv6() -> None:
    secrets = controller_manager.Secrets("kubeconfig", "ca", "client", "server", "key", "kubelet")
    wanted = controller_manager.ControllerManager(
        NAMESPACE, "1.37.1", 1, NETWORKING["pods"], NETWORKING["services"], secrets
    )
    (container,) = of_kind(controller_manager.objects(wanted), "Deployment")["spec"]["template"]["spec"]["containers"]

    assert [each for each in container["command"] if "cidr" in each or "range" in each] == [
        "--allocate-node-cidrs=true",
        "--cluster-cidr=fd12:3456:789a::/56",
        "--node-cidr-mask-size-ipv6=64",
        "--service-cluster-ip-range=fd12:3456:789a:100::/112",
    ]


def test_the_kubelet_uses_the_dns_and_the_address_of_ipv6() -> None:
    pool = {"name": "w", "machine": {"type": "small", "image": {"name": "local", "version": "1.0.0"}}}
    node = NodeConfig(shoot(), pool, "https://api.example.org", "ca", "kubelet ca")
    (script,) = (each for each in config.provision(node)["files"] if each["path"].endswith("find-node-addresses"))
    (unit,) = (each["content"] for each in config.provision(node)["units"] if each["name"] == "kubelet.service")
    (settings,) = (each for each in config.reconcile(node)["files"] if each["path"].endswith("99-k8s-general.conf"))

    assert config.kubelet_configuration(node)["clusterDNS"] == [DNS]
    assert 'NODE_ADDRESSES=--node-ip=$ipv6"' in script["content"]["inline"]["data"]
    assert "    $NODE_ADDRESSES \\\n" in unit
    assert "net.ipv6.conf.all.forwarding = 1\n" in settings["content"]["inline"]["data"]


def test_with_ipvs_pods_ask_the_dns_server_of_their_node() -> None:
    made = shoot(nodeLocalDNS={"enabled": True})
    made["spec"]["kubernetes"]["kubeProxy"] = {"mode": "IPVS"}
    pool = {"name": "w", "machine": {"type": "small", "image": {"name": "local", "version": "1.0.0"}}}

    assert NodeConfig(made, pool, "https://api.example.org", "ca", "ca").cluster_dns == "fd30:1319:f1e:230b::1"


def test_service_kube_dns_has_the_tenth_address_and_no_policy_of_families() -> None:
    wanted = coredns.CoreDns(NETWORKING["services"][0], GATEWAY, families=dual_stack.dns_families(shoot()))
    service = of_kind(coredns.objects(wanted), "Service")["spec"]

    assert service["clusterIP"] == DNS
    assert "ipFamilyPolicy" not in service


def test_kube_proxy_listens_at_addresses_of_ipv6() -> None:
    """The kubelet probes it at the address of its node."""
    wanted = kube_proxy.KubeProxy(GATEWAY, b"ca", NETWORKING["pods"], [("w", "1.37.1")])
    made = json.loads(of_kind(kube_proxy.objects(wanted), "ConfigMap")["data"]["config.yaml"])

    assert [made[each] for each in ("bindAddress", "healthzBindAddress", "metricsBindAddress", "clusterCIDR")] == [
        "::",
        "[::]:10256",
        "[::]:10249",
        "fd12:3456:789a::/56",
    ]


def test_pods_reach_their_api_server_by_ipv6() -> None:
    objects = apiserver_proxy.objects(apiserver_proxy.ApiServerProxy(NAMESPACE, GATEWAY, ipv6=True))
    envoy = json.loads(of_kind(objects, "ConfigMap")["data"]["envoy.json"])["static_resources"]
    piece = of_kind(objects, "EndpointSlice")
    pod = of_kind(objects, "DaemonSet")["spec"]["template"]["spec"]

    address = "fd30:1319:f1e:230c::1"
    assert of_kind(objects, "Endpoints")["subsets"][0]["addresses"] == [{"ip": address}]
    assert (piece["addressType"], piece["endpoints"][0]["addresses"]) == ("IPv6", [address])
    assert pod["initContainers"][0]["command"] == ["ip", "address", "replace", f"{address}/128", "dev", "lo"]
    assert envoy["listeners"][1]["address"]["socket_address"]["address"] == address
    assert envoy["clusters"][1]["dns_lookup_family"] == "V6_ONLY"


def vpn(*, ipv6: bool) -> vpn_shoot.VpnShoot:
    certificate = {"tls.crt": b"", "tls.key": b""}
    return vpn_shoot.VpnShoot(NAMESPACE, GATEWAY, certificate, b"", b"", ipv6=ipv6)


def test_the_tunnels_client_follows_the_address_of_the_gateway_of_ipv6() -> None:
    """Its pod has no address of IPv4 but that of the tunnel."""
    made = of_kind(vpn_shoot.objects(vpn(ipv6=True)), "ConfigMap")["data"]
    envoy = json.loads(made["envoy.json"])["static_resources"]
    addresses = {each["name"]: each["address"]["socket_address"]["address"] for each in envoy["listeners"]}

    assert 'getent ahostsv6 "$GATEWAY"' in made["start.sh"]
    assert 'getent ahostsv4 "$GATEWAY"' in of_kind(vpn_shoot.objects(vpn(ipv6=False)), "ConfigMap")["data"]["start.sh"]
    assert addresses == {"metrics": "::", "connect": "0.0.0.0", "dial": "127.0.0.1"}
    assert envoy["clusters"][2]["dns_lookup_family"] == "V6_ONLY"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("ipv6", "answer"), [(True, b"200"), (False, b"503")])
async def test_the_real_proxy_connects_the_api_server_to_addresses_of_ipv6(
    tmp_path: Path, ipv6: bool, answer: bytes
) -> None:
    wanted = vpn_shoot.proxy_config(vpn(ipv6=ipv6))
    wanted["static_resources"]["listeners"] = wanted["static_resources"]["listeners"][:2]

    async def kubelet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"kubelet")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(kubelet, "::1", 0, family=socket.AF_INET6)
    async with server, served(wanted, tmp_path) as port:
        host = wanted["static_resources"]["listeners"][1]["address"]["socket_address"]["address"]
        target = f"[::1]:{server.sockets[0].getsockname()[1]}"
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        status, body = (await asyncio.wait_for(reader.read(), 20) if ipv6 else await reader.read(300)).split(b"\r\n", 1)
        writer.close()

    assert status.split()[1] == answer
    assert body.endswith(b"kubelet") is ipv6
