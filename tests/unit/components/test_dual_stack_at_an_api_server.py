"""The real API server and kube-controller-manager of a Shoot with IPv6, alone or as its second IP family."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from activities.components import apiserver, apiserver_proxy, controller_manager, coredns, node_local_dns
from api.core.v1beta1.shoot import NodeLocalDNS
from api.resources import ENDPOINT_SLICE, NODE, SERVICE
from kube.client import KubeClient
from tests import api_servers
from tests.api_servers import API_SERVER, free_port, process
from tests.unit.kube.waiting import until

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(240, func_only=True),
]
PODS = ("100.112.0.0/16", "fd12:3456:789a::/56")
SERVICES = ("100.68.0.0/16", "fd12:3456:789a:100::/112")


@contextlib.asynccontextmanager
async def api_server(command: Sequence[str], directory: Path, port: int, ranges: Sequence[str]) -> AsyncIterator[None]:
    async with process(directory, *command, "--service-cluster-ip-range", ",".join(ranges)):
        async with api_servers.client(port, "admin") as admin:
            await api_servers.ready(admin)
        yield


@contextlib.asynccontextmanager
async def allocating(
    directory: Path, port: int, pods: Sequence[str], services: Sequence[str] = SERVICES[:1]
) -> AsyncIterator[None]:
    """A kube-controller-manager that gives networks to nodes, with the flags that we give it for them."""
    secrets = controller_manager.Secrets("kubeconfig", "ca", "client", "server", "key", "kubelet")
    wanted = controller_manager.ControllerManager("shoot--dev--a", "1.37.1", 1, pods, services, secrets)
    (deployment,) = (each for each in controller_manager.objects(wanted) if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ours = [each for each in container["command"] if "cidr" in each or "cluster-ip-range" in each]
    (directory / "kubeconfig").write_text(json.dumps(api_servers.kubeconfig(port, "admin")))
    program = API_SERVER.with_name("kube-controller-manager")
    others = ("--kubeconfig=kubeconfig", "--controllers=node-ipam-controller", "--leader-elect=false")
    async with process(directory, program, *ours, *others, f"--secure-port={free_port()}", "--cert-dir=manager"):
        yield


async def node(admin: KubeClient, name: str) -> list[str]:
    """Networks of the pods of a node, which joins if it has not yet."""
    if await admin.find(NODE, name) is None:
        await admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    async def has() -> Any:
        return (await admin.get(NODE, name))["spec"].get("podCIDRs")

    found: list[str] = await until(has, 60)
    return found


async def dns(admin: KubeClient, *families: str, services: str = SERVICES[0]) -> list[str]:
    """Addresses of Service ``kube-dns`` with these families."""
    wanted = coredns.objects(coredns.CoreDns(services, "api.example.org", families=families))
    (service,) = (each for each in wanted if (each["kind"], each["metadata"]["name"]) == ("Service", "kube-dns"))
    addresses: list[str] = (await admin.apply(service, manager="test"))["spec"]["clusterIPs"]
    return addresses


async def test_nodes_and_services_get_the_second_family_and_keep_the_first(tmp_path: Path) -> None:
    port = free_port()
    etcd, command = api_servers.commands(tmp_path, port, 'admin,admin,admin,"system:masters"\n')
    async with process(tmp_path, *etcd), api_servers.client(port, "admin") as admin:
        async with api_server(command, tmp_path, port, SERVICES[:1]):
            async with allocating(tmp_path, port, PODS[:1]):
                assert len(await node(admin, "old")) == 1
            # New nodes get both while Services have IPv4 alone.
            async with allocating(tmp_path, port, PODS):
                old, new = [await node(admin, name) for name in ("old", "new")]
            assert (len(old), len(new)) == (1, 2)
            assert new[1].endswith("::/64")
            before = await dns(admin, "IPv4")
        async with api_server(command, tmp_path, port, SERVICES):

            async def both() -> list[str] | None:
                # The API server takes a moment to offer its second range.
                found = await dns(admin, "IPv4", "IPv6")
                return found if len(found) == 2 else None

            after = await until(both, 60)
            assert after[0] == before[0] == "100.68.0.10"
            assert after[1].startswith("fd12:3456:789a:100:")
            assert (await admin.get(SERVICE, "kubernetes", "default"))["spec"]["clusterIPs"] == ["100.68.0.1"]


async def test_nodes_services_and_the_endpoint_of_the_api_server_have_ipv6_alone(tmp_path: Path) -> None:
    """The API server refuses an advertised address of another family than its Services have."""
    port, services = free_port(), SERVICES[1:]
    etcd, command = api_servers.commands(tmp_path, port, 'admin,admin,admin,"system:masters"\n')
    command += ["--advertise-address", apiserver.advertise_address(services), "--endpoint-reconciler-type", "none"]
    async with (
        process(tmp_path, *etcd),
        api_servers.client(port, "admin") as admin,
        api_server(command, tmp_path, port, services),
        allocating(tmp_path, port, PODS[1:], services),
    ):
        (network,) = await node(admin, "one")
        assert network.startswith("fd12:3456:789a:")
        assert network.endswith("::/64")
        assert await dns(admin, "IPv6", services=services[0]) == ["fd12:3456:789a:100::a"]
        kubernetes = (await admin.get(SERVICE, "kubernetes", "default"))["spec"]
        assert (kubernetes["clusterIPs"], kubernetes["ipFamilies"]) == (["fd12:3456:789a:100::1"], ["IPv6"])
        proxy = apiserver_proxy.ApiServerProxy("shoot--dev--a", "api.example.org", ipv6=True)
        endpoint = [each for each in apiserver_proxy.objects(proxy) if each["kind"].startswith("Endpoint")]
        for each in endpoint:
            await admin.apply(each, manager="test")
        assert len(endpoint) == 2
        assert (await admin.get(ENDPOINT_SLICE, "kubernetes", "default"))["addressType"] == "IPv6"
        server = node_local_dns.Server(NodeLocalDNS(enabled=True), "fd12:3456:789a:100::a")
        for each in node_local_dns.objects(server):
            await admin.apply(each, manager="test")
        upstream = await admin.get(SERVICE, "kube-dns-upstream", "kube-system")
        assert ":" in upstream["spec"]["clusterIP"]
