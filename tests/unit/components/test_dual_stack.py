"""A Shoot's change from IPv4 to both IP families, one reconciliation after another, between API servers in memory."""

import asyncio
import copy
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from activities.clusters import Clusters
from activities.components import controller_manager, coredns
from activities.components import operating_system_config as config
from activities.components.operating_system_config import NodeConfig
from activities.provider_local.network import manifests
from activities.seed.facts import Networks
from activities.shoot.dual_stack import DualStackActivities
from activities.shoot.system import ShootSystemActivities
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.decisions import dual_stack
from tests.unit.kube.api_server import ApiServer

NAMESPACE = "shoot--dev--a"
SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
CLUSTERS = "/apis/extensions.gardener.cloud/v1alpha1/clusters"
NETWORKS = "/apis/extensions.gardener.cloud/v1alpha1/networks"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-dev", name="a", uid="u-1"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=2,
    operation=OperationType.RECONCILE,
    trigger="2026-11-27T20:00:00Z",
)
IPV4 = {"nodes": ["198.18.8.0/22"], "pods": ["100.112.0.0/16"], "services": ["100.68.0.0/16"]}
BOTH = {
    "nodes": ["198.18.8.0/22", "2001:2:0:8::/64"],
    "pods": ["100.112.0.0/16", "fd12:3456:789a::/56"],
    "services": ["100.68.0.0/16", "fd12:3456:789a:100::/112"],
}
SHOOT: dict[str, Any] = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "Shoot",
    "metadata": {"name": "a", "namespace": "garden-dev", "uid": "u-1"},
    "spec": {
        "kubernetes": {"version": "1.37.1"},
        "networking": {
            "pods": "100.112.0.0/16",
            "services": "100.68.0.0/16",
            "ipFamilies": ["IPv4", "IPv6"],
        },
        "provider": {"type": "local", "workers": [{"name": "w"}]},
    },
}
OTHER = {"type": "HibernationPossible", "status": "True", "reason": "NoProblems", "message": "None."}


class World:
    def __init__(self, garden: ApiServer, seed: ApiServer, shoot: ApiServer, clusters: Clusters) -> None:
        self.garden, self.seed, self.shoot, self.clusters = garden, seed, shoot, clusters
        self.activities = DualStackActivities(clusters)
        self.system = ShootSystemActivities(clusters)

    def ran_with(self, networking: dict[str, list[str]]) -> None:
        """A Shoot whose last reconciliation recorded these networks."""
        live = {**SHOOT, "status": {"technicalID": NAMESPACE, "networking": networking, "constraints": [OTHER]}}
        self.garden.put(SHOOTS, copy.deepcopy(live))
        cluster = {
            "apiVersion": "extensions.gardener.cloud/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": NAMESPACE},
            "spec": {
                "shoot": copy.deepcopy(live),
                "seed": {"spec": {"dns": {"internal": {"domain": "internal.example.org"}}}},
                "cloudProfile": {"spec": {}},
            },
        }
        self.seed.put(CLUSTERS, cluster)

    def networks_are(self, networking: dict[str, list[str]]) -> None:
        for status in self.statuses():
            status["networking"] = networking

    def statuses(self) -> list[dict[str, Any]]:
        shoot, cluster = self.garden.find(SHOOTS, "a", "garden-dev"), self.seed.find(CLUSTERS, NAMESPACE)
        assert shoot
        assert cluster
        return [shoot["status"], cluster["spec"]["shoot"]["status"]]

    def constraints(self) -> dict[str, str]:
        """Those of the migration, which the Shoot and its Cluster object must have alike."""
        (garden, pinned) = ({each["type"]: each["status"] for each in one["constraints"]} for one in self.statuses())
        assert garden == pinned
        assert garden.pop("HibernationPossible") == "True"
        return garden

    async def networks(self) -> Networks:
        return Networks.of(await self.clusters.cluster(NAMESPACE))

    def network_reports(self, *families: str) -> None:
        network = {"metadata": {"name": "a", "namespace": NAMESPACE}, "status": {"ipFamilies": list(families)}}
        self.seed.put(NETWORKS, network)

    def node(self, name: str, *cidrs: str) -> None:
        self.shoot.put("/api/v1/nodes", {"metadata": {"name": name}, "spec": {"podCIDRs": list(cidrs)}})

    def dns_pod(self, name: str, *addresses: str) -> None:
        pod = {
            "metadata": {"name": name, "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
            "status": {"podIPs": [{"ip": each} for each in addresses]},
        }
        self.shoot.put("/api/v1/pods", pod)

    def dns_service(self, *addresses: str) -> None:
        service = {
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {"clusterIPs": list(addresses)},
        }
        self.shoot.put("/api/v1/services", service)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with ApiServer().running() as garden, ApiServer().running() as seed, ApiServer().running() as shoot:
        clusters = Clusters(garden.client(), seed.client(), "seed-1")

        of_shoot = shoot.client()

        async def client(_: str) -> Any:
            return of_shoot

        monkeypatch.setattr(clusters, "shoot", client)
        monkeypatch.setattr("activities.shoot.dual_stack.DNS_SECONDS", 0.1)
        try:
            yield World(garden, seed, shoot, clusters)
        finally:
            await clusters.close()
            await asyncio.gather(clusters.garden.close(), clusters.seed.close(), of_shoot.close())


async def test_a_new_shoot_uses_both_families_from_its_start(world: World) -> None:
    world.ran_with({})
    await world.activities.begin_dual_stack_migration(TASK)
    assert world.constraints() == {}

    world.networks_are(BOTH)
    await world.activities.begin_dual_stack_migration(TASK)
    await world.activities.check_node_pod_cidrs(TASK)
    assert world.constraints() == {}
    networks = await world.networks()
    assert (networks.pods, networks.services) == (tuple(BOTH["pods"]), tuple(BOTH["services"]))


async def test_the_change_to_both_families_takes_its_steps_in_order(world: World) -> None:
    """The API server, the pod network and the DNS must not use a family that a node or a pod does not have yet."""
    world.ran_with(IPV4)
    world.network_reports("IPv4")
    world.dns_pod("dns", "100.112.0.4")
    world.dns_service("100.68.0.10")

    # The first reconciliation: new nodes get both networks, all else uses IPv4.
    await world.activities.begin_dual_stack_migration(TASK)
    assert world.constraints() == {"DualStackNodesMigrationReady": "Progressing"}
    world.networks_are(BOTH)
    networks = await world.networks()
    assert networks.pods_of_new_nodes == tuple(BOTH["pods"])
    assert (networks.pods, networks.services) == (("100.112.0.0/16",), ("100.68.0.0/16",))
    world.node("old", "100.112.1.0/24")
    world.node("new", "100.112.2.0/24", "fd12:3456:789a:1::/64")
    await world.activities.check_node_pod_cidrs(TASK)
    assert world.constraints() == {"DualStackNodesMigrationReady": "Progressing"}
    (told,) = [each["message"] for each in world.statuses()[0]["constraints"] if each != OTHER][-1:]
    assert "no network of pods of IPv6: old." in told

    world.shoot.remove("/api/v1/nodes", "old")
    await world.activities.check_node_pod_cidrs(TASK)
    assert world.constraints() == {"DualStackNodesMigrationReady": "True"}

    # The second one: the API server and the pod network use both, CoreDNS stays as it is.
    await world.activities.begin_dual_stack_migration(TASK)
    networks = await world.networks()
    assert (networks.pods, networks.services) == (tuple(BOTH["pods"]), tuple(BOTH["services"]))
    assert await deployed_dns(world) == ({}, "")
    world.network_reports("IPv4", "IPv6")
    await world.activities.check_node_pod_cidrs(TASK)
    assert world.constraints() == {"DNSServiceMigrationReady": "Progressing"}

    # The third one: the pods of CoreDNS are replaced.
    await world.activities.begin_dual_stack_migration(TASK)
    assert await deployed_dns(world) == ({}, TASK.trigger)
    await world.activities.check_node_pod_cidrs(TASK)
    assert world.constraints() == {"DNSServiceMigrationReady": "Progressing"}
    world.shoot.remove("/api/v1/pods", "dns", "kube-system")
    world.dns_pod("dns-2", "100.112.2.4", "fd12:3456:789a:1::4")
    await world.activities.check_node_pod_cidrs(TASK)
    assert world.constraints() == {"DNSServiceMigrationReady": "True"}

    # The fourth one: the Service of the DNS has both.
    world.shoot.put(
        "/apis/apps/v1/deployments",
        {
            "metadata": {"name": "coredns", "namespace": "kube-system"},
            "spec": {"template": {"metadata": {"annotations": {"gardener.cloud/restarted-at": "earlier"}}}},
        },
    )
    assert await deployed_dns(world) == ({"ipFamilyPolicy": "PreferDualStack"}, "earlier")
    world.dns_service("100.68.0.10", "fd12:3456:789a:100::1234")
    await world.activities.check_node_pod_cidrs(TASK)
    assert world.constraints() == {}
    assert (await world.networks()).services == tuple(BOTH["services"])


async def deployed_dns(world: World) -> tuple[dict[str, Any], str]:
    """IP families of the Service that the activity would write, and the time of the pods' restart."""
    view = await world.clusters.cluster(NAMESPACE)
    restarted = await world.system._dns_restart(TASK, view)
    dns = coredns.CoreDns(
        "100.68.0.0/16", "api.example.org", families=dual_stack.dns_families(view.shoot), restarted_at=restarted
    )
    objects = {(each["kind"], each["metadata"]["name"]): each for each in coredns.objects(dns)}
    service, pods = objects["Service", "kube-dns"]["spec"], objects["Deployment", "coredns"]["spec"]["template"]
    families = {key: value for key, value in service.items() if key.startswith("ipFamil")}
    return families, pods["metadata"]["annotations"].get("gardener.cloud/restarted-at", "")


async def test_a_second_run_of_a_step_writes_nothing(world: World) -> None:
    world.ran_with(IPV4)
    await world.activities.begin_dual_stack_migration(TASK)
    before = [copy.deepcopy(each) for each in world.statuses()]
    await world.activities.begin_dual_stack_migration(TASK)

    assert world.statuses() == before


async def test_a_lost_write_to_the_cluster_object_is_made_up_by_the_second_run(world: World) -> None:
    world.ran_with(IPV4)
    await world.activities.begin_dual_stack_migration(TASK)
    world.statuses()[1]["constraints"] = [OTHER]
    await world.activities.begin_dual_stack_migration(TASK)

    assert world.constraints() == {"DualStackNodesMigrationReady": "Progressing"}


def test_a_sleeping_shoot_waits_for_nodes() -> None:
    found = dual_stack.nodes_finding([])

    assert (found.status, "No node has joined" in found.message) == ("Progressing", True)


def flags(pods: list[str]) -> list[str]:
    secrets = controller_manager.Secrets("kubeconfig", "ca", "client", "server", "key", "kubelet")
    wanted = controller_manager.ControllerManager(NAMESPACE, "1.37.1", 1, pods, ["100.68.0.0/16"], secrets)
    (deployment,) = (each for each in controller_manager.objects(wanted) if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return [each for each in container["command"] if "cidr" in each and "allocate" not in each]


def test_each_node_gets_a_network_of_each_family() -> None:
    assert flags(BOTH["pods"]) == [
        "--cluster-cidr=100.112.0.0/16,fd12:3456:789a::/56",
        "--node-cidr-mask-size-ipv4=24",
        "--node-cidr-mask-size-ipv6=64",
    ]
    assert flags(IPV4["pods"]) == ["--cluster-cidr=100.112.0.0/16", "--node-cidr-mask-size=24"]


def test_flannel_gets_the_network_of_ipv6_only_with_both_families() -> None:
    def made(*ipv6: str) -> tuple[dict[str, Any], list[str]]:
        objects = manifests("100.112.0.0/16", "api.example.org", *ipv6)
        (network,) = (each for each in objects if each["metadata"]["name"] == "kube-flannel-config")
        (daemon,) = (
            each for each in objects if (each["kind"], each["metadata"]["name"]) == ("DaemonSet", "kube-flannel")
        )
        return json.loads(network["data"]["net-conf.json"]), daemon["spec"]["template"]["spec"]["containers"][0]["args"]

    network, arguments = made()
    assert network == {"Network": "100.112.0.0/16", "EnableIPv4": True, "Backend": {"Type": "host-gw"}}
    both, more = made("fd12:3456:789a::/56")
    assert both == {**network, "EnableIPv6": True, "IPv6Network": "fd12:3456:789a::/56"}
    assert more == [*arguments, "--iface=$(HOST_ADDRESS)"]


def node(*families: str) -> NodeConfig:
    shoot = copy.deepcopy(SHOOT)
    shoot["spec"]["networking"]["ipFamilies"] = list(families)
    pool = {"name": "w", "machine": {"type": "small", "image": {"name": "local", "version": "1.0.0"}}}
    return NodeConfig(shoot, pool, "https://api.example.org", "ca", "kubelet ca")


def unit(of: NodeConfig) -> str:
    (found,) = (each["content"] for each in config.provision(of)["units"] if each["name"] == "kubelet.service")
    return str(found)


def test_a_change_of_families_replaces_the_machines() -> None:
    """A node keeps the networks of pods with which it joined."""
    keys = [node("IPv4").key, node("IPv4", "IPv6").key]

    assert keys[0] != keys[1]
    assert "NODE_ADDRESSES" not in unit(node("IPv4"))
    assert "    $NODE_ADDRESSES \\\n" in unit(node("IPv4", "IPv6"))


@pytest.mark.parametrize(
    ("addresses", "written"),
    [
        (
            {
                "-4": "2: eth0    inet 198.18.8.5/22 brd 198.18.11.255 scope global eth0\\       valid_lft forever",
                "-6": "2: eth0    inet6 2001:2:0:8::5/64 scope global nodad \\       valid_lft forever",
            },
            "NODE_ADDRESSES=--node-ip=198.18.8.5,2001:2:0:8::5\n",
        ),
        ({"-4": "2: eth0    inet 198.18.8.5/22 scope global eth0", "-6": ""}, None),
    ],
    ids=["both", "no IPv6"],
)
def test_the_kubelet_gets_both_addresses_of_its_machine(
    tmp_path: Path, addresses: dict[str, str], written: str | None
) -> None:
    """Without them it reports that of IPv4 alone. It must not start so: its node would not be replaced again."""
    (script,) = (
        each for each in config.provision(node("IPv4", "IPv6"))["files"] if each["path"].endswith("find-node-addresses")
    )
    found = tmp_path / "node_addresses"
    text = script["content"]["inline"]["data"].replace("/var/lib/kubelet/node_addresses", str(found))
    answers = "\n".join(f"'{family} -oneline address'*eth0*) echo '{line}';;" for family, line in addresses.items())
    tool = tmp_path / "ip"
    tool.write_text(
        "#!/bin/sh\ncase \"$*\" in\n'-4 -oneline route show default') echo 'default via 198.18.8.1 dev eth0 ';;\n"
        f"{answers}\nesac\n"
    )
    tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run(["sh", "-c", text], env=environment, capture_output=True, text=True, timeout=20)

    assert script["permissions"] == 0o755
    assert (found.read_text() if found.exists() else None) == written
    assert (ran.returncode, "none of IPv6" in ran.stderr) == ((0, False) if written else (1, True))
