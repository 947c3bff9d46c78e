"""Rules for every pod that we run in a control plane or a shoot."""

import base64
import json
import os
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from activities.components import (
    apiserver,
    apiserver_proxy,
    base,
    cluster_autoscaler,
    controller_manager,
    coredns,
    exporters,
    gardener_access,
    gateway,
    kube_proxy,
    kube_state_metrics,
    machine_controller_manager,
    metrics_server,
    node_local_dns,
    node_problem_detector,
    priority,
    resource_manager,
    scheduler,
    shoot_system,
    victoria_logs,
    vpa,
    vpn_seed_server,
    vpn_shoot,
)
from activities.components.managed_resource import managed_resource
from activities.components.monitoring import Served
from activities.seed.facts import taints_of_system_pools
from api import high_availability
from api.core.v1beta1.shoot import ClusterAutoscaler, NodeLocalDNS, VerticalPodAutoscaler
from tests.unit.components.test_apiserver import server
from workers.resource_manager.config import HighAvailabilityConfig
from workers.resource_manager.webhooks.high_availability import Place, make_available

NAMESPACE = "shoot--dev--a"
KEY = b"-----BEGIN EC PRIVATE KEY-----\nSENTINEL\n"
PAIR = {"tls.crt": b"certificate", "tls.key": KEY}

CONTROLLER_SECRETS = controller_manager.Secrets(
    generic_kubeconfig="generic",
    ca_bundle="ca-bundle",
    client_ca="ca-client",
    server="server",
    service_account_key="sa-key",
    kubelet_ca="ca-kubelet",
)
VPN_SERVER = vpn_seed_server.VpnSeedServer(
    namespace=NAMESPACE,
    network="198.19.255.0/24",
    server="vpn-seed-server-1",
    ca_bundle="ca-vpn-bundle",
    tls_auth="tls-auth-1",
)
VPN_SERVERS = [replace(VPN_SERVER, index=index, servers=2, failure_tolerance="zone") for index in (0, 1)]
VPN_SHOOT = vpn_shoot.VpnShoot(
    control_plane=NAMESPACE,
    gateway_host="api.a.dev.internal.example.org",
    certificate=PAIR,
    ca_bundle=b"ca",
    tls_auth=b"static key",
)
OF_TWO_SERVERS = replace(VPN_SHOOT, servers=("vpn-seed-server", "vpn-seed-server-1"))
AUTOSCALER = vpa.Autoscaler(
    namespace=NAMESPACE,
    generic_kubeconfig="generic",
    server="vpa-admission-controller-server-1",
    settings=VerticalPodAutoscaler(enabled=True),
)

IN_THE_SEED = {
    "kube-apiserver": apiserver.objects(server(vpn_servers=vpn_seed_server.NAMES)),
    "kube-controller-manager": controller_manager.objects(
        controller_manager.ControllerManager(
            NAMESPACE, "1.37.1", 1, ["100.112.0.0/16"], ["100.68.0.0/16"], CONTROLLER_SECRETS
        )
    ),
    "kube-scheduler": scheduler.objects(
        scheduler.Scheduler(NAMESPACE, "1.37.1", 1, "generic", "ca-client-bundle", "server")
    ),
    "gardener-resource-manager": resource_manager.objects(
        resource_manager.ResourceManager(NAMESPACE, "generic", server="server", api_server="api.example.org")
    ),
    "machine-controller-manager": machine_controller_manager.objects(
        machine_controller_manager.MachineControllerManager(NAMESPACE, "generic")
    ),
    "vpn-seed-server": vpn_seed_server.objects(VPN_SERVER),
    "vpn-seed-server-1": vpn_seed_server.objects(VPN_SERVERS[1]),
    **{program[-1]["metadata"]["name"]: program for program in vpa.programs(AUTOSCALER)},
    "cluster-autoscaler": cluster_autoscaler.objects(
        cluster_autoscaler.Autoscaler(NAMESPACE, "generic", ClusterAutoscaler(), [])
    ),
    "kube-state-metrics": kube_state_metrics.objects(kube_state_metrics.KubeStateMetrics(NAMESPACE, "generic")),
    "control plane's blackbox-exporter": exporters.control_plane_blackbox_exporter(NAMESPACE, "ca-bundle"),
    "victoria-logs": victoria_logs.objects(
        victoria_logs.VictoriaLogs(
            Served(victoria_logs.NAME, NAMESPACE, victoria_logs.PORT, "v.example.org", "tls", {}),
            user="admin",
            password=b"SENTINEL",
            client_ca="ca-client-bundle",
        )
    ),
    "resource manager of the seed": resource_manager.seed_objects(2),
    "gateway": gateway.objects(internal_domain="internal.example.org"),
}
IN_THE_SHOOT = {
    "vpn-shoot": vpn_shoot.objects(VPN_SHOOT),
    "apiserver-proxy": apiserver_proxy.objects(
        apiserver_proxy.ApiServerProxy(NAMESPACE, "api.a.dev.internal.example.org")
    ),
    "kube-proxy": kube_proxy.objects(
        kube_proxy.KubeProxy("api.example.org", b"ca", ["100.112.0.0/16"], [("a", "1.37.1"), ("b", "1.36.3")])
    ),
    "coredns": coredns.objects(coredns.CoreDns("100.68.0.0/16", "api.example.org")),
    "metrics-server": metrics_server.objects(
        metrics_server.MetricsServer("api.example.org", PAIR, b"metrics ca", b"kubelet ca")
    ),
    "node-local-dns": node_local_dns.objects(node_local_dns.Server(NodeLocalDNS(enabled=True), "100.68.0.10")),
    "node-problem-detector": node_problem_detector.objects("api.example.org"),
    "node-exporter": exporters.node_exporter(),
    "blackbox-exporter": exporters.blackbox_exporter(),
}


def workloads(objects):
    return [item for item in objects if item["kind"] in ("Deployment", "DaemonSet")]


def containers(workload):
    pod = workload["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.mark.parametrize("name", IN_THE_SEED)
def test_no_pod_of_a_control_plane_is_privileged(name):
    """A seed hosts many owners' control planes: none may own its node. The VPN gets only two capabilities."""
    for workload in workloads(IN_THE_SEED[name]):
        pod = workload["spec"]["template"]["spec"]
        assert not any(pod.get(part) for part in ("hostNetwork", "hostPID", "hostIPC"))
        assert not any("hostPath" in volume for volume in pod.get("volumes", []))
        assert pod["securityContext"]["runAsNonRoot"] is True
        for each in containers(workload):
            security = each["securityContext"]
            assert not security.get("privileged")
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"]["drop"] == ["ALL"]
            allowed = {"NET_ADMIN", "MKNOD"} if each["name"] == "openvpn" else set()
            assert set(security["capabilities"].get("add", [])) == allowed


@pytest.mark.parametrize(
    "objects", [IN_THE_SEED["vpn-seed-server"], IN_THE_SHOOT["vpn-shoot"]], ids=["server", "shoot"]
)
def test_one_end_of_the_tunnel_takes_over_from_the_other(objects):
    """Without any of them, the API server would be refused what it wants of the cluster, and so `kubectl logs`."""
    assert not any("publishNotReadyAddresses" in item["spec"] for item in objects if item["kind"] == "Service")
    (workload,) = workloads(objects)
    assert workload["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = workload["spec"]["template"]["spec"]
    (tunnel,) = pod["containers"]
    # Open requests continue for a while, and the proxy that they pass ends last.
    assert 0 < int(tunnel["lifecycle"]["preStop"]["exec"]["command"][4]) < pod["terminationGracePeriodSeconds"]
    assert pod["initContainers"][-1]["restartPolicy"] == "Always"


def test_the_vpn_shoot_has_two_replicas_and_a_proxy_for_the_tunnel_only():
    (workload,) = workloads(IN_THE_SHOOT["vpn-shoot"])
    assert workload["spec"]["replicas"] == 2
    firewall, _ = workload["spec"]["template"]["spec"]["initContainers"]
    assert "-p tcp --dport 9444 ! -i tun0 -j REJECT" in firewall["command"][-1]
    for each in containers(workload):
        security = each["securityContext"]
        assert not security.get("privileged")
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize("name", IN_THE_SHOOT)
def test_no_component_in_a_shoot_accepts_connections_from_outside(name):
    """The tunnel is dialled from inside, so no cluster pays for an address, and none offers a port to the internet."""
    services = [item["spec"] for item in IN_THE_SHOOT[name] if item["kind"] == "Service"]
    assert {each.get("type", "ClusterIP") for each in services} <= {"ClusterIP"}
    assert not any(each.get("externalIPs") for each in services)
    if name == "vpn-shoot":
        for each in workloads(IN_THE_SHOOT[name]):
            assert not each["spec"]["template"]["spec"].get("hostNetwork")
            assert not any("hostPort" in port for one in containers(each) for port in one.get("ports", []))


def test_the_tunnel_is_dialed_again_when_the_gateways_address_changes(tmp_path):
    """A seed that is cut off from the garden may hold on to it, when the control plane is in another one."""
    (config,) = (each for each in IN_THE_SHOOT["vpn-shoot"] if each["kind"] == "ConfigMap")
    start = config["data"]["start.sh"]
    loop = start[start.index("addresses()") : start.index("follow &")]
    answers = ["198.18.2.2  STREAM", "", "198.18.2.2  STREAM", *["198.18.3.2  STREAM"] * 3]
    (tmp_path / "answers").write_text("\n".join(answers) + "\n")
    played = """set -eu
    getent() { head -n 1 answers; }
    sleep() { sed -i 1d answers; [ -s answers ]; }
    kill() { echo "$@" >> signals; }
    """
    subprocess.run(
        ["sh", "-c", f"{played}\n{loop}\nfollow"], cwd=tmp_path, env={"GATEWAY": "api", **os.environ}, check=True
    )
    assert (tmp_path / "signals").read_text().splitlines() == ["-USR1 1"]


@pytest.mark.parametrize("name", IN_THE_SEED)
def test_every_pod_in_the_seed_has_a_priority_class_of_the_seed(name):
    """A pod of an unknown class is not created; a pod without a class is evicted for any other one."""
    known = {each["metadata"]["name"] for each in priority.objects()} - {priority.RESERVE}
    for workload in workloads(IN_THE_SEED[name]):
        assert workload["spec"]["template"]["spec"].get("priorityClassName") in known


def test_the_api_server_and_its_etcd_are_the_last_pods_of_a_control_plane_to_be_evicted():
    value = {each["metadata"]["name"]: each["value"] for each in priority.objects()}
    classes = {name: priority.class_of(name) for name in ("etcd", "kube-apiserver", "kube-controller-manager")}
    assert value[classes["etcd"]] == value[classes["kube-apiserver"]] > value[classes["kube-controller-manager"]]
    assert max(value.values()) == value[priority.SYSTEM_CRITICAL]
    assert value[priority.RESERVE] < 0, "a pod without a class has priority 0"


@pytest.mark.parametrize("name", [*IN_THE_SEED, *IN_THE_SHOOT])
def test_every_container_has_resource_requests_and_probes(name):
    found = workloads({**IN_THE_SEED, **IN_THE_SHOOT}[name])
    assert found
    for workload in found:
        for each in containers(workload):
            assert set(each["resources"]["requests"]) == {"cpu", "memory"}, each["name"]
        for each in workload["spec"]["template"]["spec"]["containers"]:
            assert each.keys() & {"readinessProbe", "startupProbe"}, each["name"]


@pytest.mark.parametrize("name", [*IN_THE_SEED, *IN_THE_SHOOT])
def test_every_mounted_volume_exists(name):
    for workload in workloads({**IN_THE_SEED, **IN_THE_SHOOT}[name]):
        volumes = {volume["name"] for volume in workload["spec"]["template"]["spec"].get("volumes", [])}
        mounted = {mount["name"] for each in containers(workload) for mount in each.get("volumeMounts", [])}
        assert mounted == volumes


@pytest.mark.parametrize("name", [*IN_THE_SEED, *IN_THE_SHOOT])
def test_selectors_match_their_own_pods(name):
    objects = {**IN_THE_SEED, **IN_THE_SHOOT}[name]
    # The nodes' DNS has a Service for the servers that it asks.
    found = workloads([*objects, *(IN_THE_SHOOT["coredns"] if name == "node-local-dns" else [])])
    labels = [workload["spec"]["template"]["metadata"]["labels"] for workload in found]
    for item in objects:
        selector = item.get("spec", {}).get("selector")
        if item["kind"] in ("Deployment", "DaemonSet", "PodDisruptionBudget"):
            selector = selector["matchLabels"]
        if item["kind"] in ("Service", "Deployment", "DaemonSet", "PodDisruptionBudget"):
            assert any(selector.items() <= each.items() for each in labels), item["metadata"]["name"]


@pytest.mark.parametrize("name", IN_THE_SHOOT)
def test_no_key_lies_in_anything_but_a_secret(name):
    for item in IN_THE_SHOOT[name]:
        if item["kind"] != "Secret":
            text = json.dumps(item)
            assert "SENTINEL" not in text
            assert base64.b64encode(KEY).decode() not in text


def test_private_keys_are_not_part_of_logged_texts():
    assert "SENTINEL" not in repr(VPN_SHOOT)


# Tunnel


def test_the_server_routes_nothing_and_gives_out_the_addresses_that_its_proxy_knows():
    files = next(item["data"] for item in IN_THE_SEED["vpn-seed-server"] if "openvpn.conf" in item.get("data", {}))
    lines = files["openvpn.conf"].splitlines()

    assert not any(line.startswith(("route ", "iroute ")) for line in lines)
    assert "server 198.19.255.0 255.255.255.0 nopool" in lines
    assert "ifconfig-pool 198.19.255.2 198.19.255.7 255.255.255.0" in lines
    (cluster,) = (
        each
        for each in vpn_seed_server.proxy_config("198.19.255.0/24")["static_resources"]["clusters"]
        if each["name"] == "shoot"
    )
    known = [
        (each["priority"], host["endpoint"]["address"]["socket_address"]["address"])
        for each in cluster["load_assignment"]["endpoints"]
        for host in each["lb_endpoints"]
    ]
    assert known == [(number, f"198.19.255.{number + 2}") for number in range(6)]


def test_the_tunnels_ends_know_each_other_by_the_authority_of_their_own_control_plane():
    """The gateway forwards each client to the server that it names, so a stranger reaches the server's port."""
    server, client = (
        next(item["data"]["openvpn.conf"] for item in objects if "openvpn.conf" in item.get("data", {})).splitlines()
        for objects in (IN_THE_SEED["vpn-seed-server"], IN_THE_SHOOT["vpn-shoot"])
    )

    assert {"remote-cert-tls client", "verify-x509-name vpn-shoot-client name-prefix"} <= set(server)
    assert {"remote-cert-tls server", "verify-x509-name vpn-seed-server name"} <= set(client)
    for lines in (server, client):
        assert len([line for line in lines if line.startswith("ca ")]) == 1
        assert any(line.startswith("tls-auth ") for line in lines), "strangers get no answer at all"
        assert not any(line.startswith("verify-client-cert") for line in lines)


def test_the_client_names_its_server_to_the_gateway():
    files = next(item["data"] for item in IN_THE_SHOOT["vpn-shoot"] if item["kind"] == "ConfigMap")
    (dial,) = (
        each for each in json.loads(files["envoy.json"])["static_resources"]["listeners"] if each["name"] == "dial"
    )

    assert dial["address"] == {"socket_address": {"address": "127.0.0.1", "port_value": 1194}}
    tunnel = dial["filter_chains"][0]["filters"][0]["typed_config"]["tunneling_config"]
    destination = "outbound|1194||vpn-seed-server.shoot--dev--a.svc.cluster.local"
    assert tunnel["headers_to_add"] == [{"header": {"key": "Reversed-VPN", "value": destination}}]
    assert "remote 127.0.0.1 1194" in files["openvpn.conf"]
    assert "verify-x509-name vpn-seed-server name" in files["openvpn.conf"]


def openvpn_files(objects):
    return next(item["data"] for item in objects if "openvpn.conf" in item.get("data", {}))


def test_two_servers_have_one_half_of_the_network_each():
    """A client has a tunnel to each server, and its answers take the tunnel by their address."""
    servers = [openvpn_files(vpn_seed_server.objects(each))["openvpn.conf"].splitlines() for each in VPN_SERVERS]
    assert "server 198.19.255.0 255.255.255.128 nopool" in servers[0]
    assert "ifconfig-pool 198.19.255.2 198.19.255.7 255.255.255.128" in servers[0]
    assert "server 198.19.255.128 255.255.255.128 nopool" in servers[1]
    assert "ifconfig-pool 198.19.255.130 198.19.255.135 255.255.255.128" in servers[1]


def test_pods_of_two_servers_are_apart_and_belong_to_their_own_services():
    for one, other in zip(VPN_SERVERS, reversed(VPN_SERVERS), strict=True):
        objects = vpn_seed_server.objects(one)
        (workload,) = workloads(objects)
        template = workload["spec"]["template"]
        (service,) = (item for item in objects if item["kind"] == "Service")
        assert service["metadata"]["name"] == workload["metadata"]["name"] == one.name
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        constraints = template["spec"]["topologySpreadConstraints"]
        assert {(each["topologyKey"], each["whenUnsatisfiable"]) for each in constraints} == {
            ("kubernetes.io/hostname", "DoNotSchedule"),
            ("topology.kubernetes.io/zone", "DoNotSchedule"),
        }
        (counted,) = {json.dumps(each["labelSelector"]["matchLabels"]) for each in constraints}
        assert json.loads(counted).items() <= template["metadata"]["labels"].items()
        (peer,) = workloads(vpn_seed_server.objects(other))
        terms = template["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        for each in terms:
            avoided = each["podAffinityTerm"]["labelSelector"]["matchLabels"].items()
            assert avoided <= peer["spec"]["template"]["metadata"]["labels"].items()
            assert not avoided <= template["metadata"]["labels"].items()


def test_each_client_pod_has_a_tunnel_to_both_servers():
    objects = vpn_shoot.objects(OF_TWO_SERVERS)
    (workload,) = workloads(objects)
    pod = workload["spec"]["template"]["spec"]
    files = next(item["data"] for item in objects if item["kind"] == "ConfigMap")
    listeners = json.loads(files["envoy.json"])["static_resources"]["listeners"]
    dialled = {}
    for each in listeners:
        if each["name"].startswith("dial"):
            tunnel = each["filter_chains"][0]["filters"][0]["typed_config"]["tunneling_config"]
            dialled[each["address"]["socket_address"]["port_value"]] = tunnel["headers_to_add"][0]["header"]["value"]
    for index, container in enumerate(pod["containers"]):
        script = files[container["command"][-1].rpartition("/")[2]]
        config = files[script.split("/etc/openvpn/")[-1].strip()].splitlines()
        assert f"dev tun{index}" in config
        (port,) = [int(line.split()[-1]) for line in config if line.startswith("remote ")]
        assert dialled[port] == f"outbound|1194||{OF_TWO_SERVERS.servers[index]}.shoot--dev--a.svc.cluster.local"
        up, down = (next(each.split()[-1] for each in config if each.startswith(f"{when} ")) for when in ("up", "down"))
        connected = files[up.rpartition("/")[2]].split()[-1]
        assert files[down.rpartition("/")[2]].split()[-1] == connected
        assert f"rm -f {connected}\n" in script
        assert connected in pod["containers"][0]["readinessProbe"]["exec"]["command"], "one tunnel is enough"
    assert len(pod["containers"]) == 2
    assert not any("@" in text for name, text in files.items() if name not in ("envoy.json", "drain.py"))
    assert "-p tcp --dport 9444 ! -i tun+ -j REJECT" in pod["initContainers"][0]["command"][-1]


@pytest.mark.parametrize(
    ("vpn", "nodes", "wanted"),
    [(OF_TWO_SERVERS, 2, "DoNotSchedule"), (OF_TWO_SERVERS, 1, "ScheduleAnyway"), (VPN_SHOOT, 2, None)],
    ids=["two servers, two nodes", "two servers, one node", "one server"],
)
def test_with_two_servers_each_client_pod_needs_a_node_of_its_own(vpn, nodes, wanted):
    """The webhook leaves workloads with label ``skip`` as they are, so their constraints are those of the manifest."""
    (workload,) = workloads(vpn_shoot.objects(vpn))
    of_webhook = high_availability.SKIP not in workload["metadata"]["labels"]
    assert of_webhook == (wanted is not None)
    if of_webhook:
        make_available(workload, Place(zones=("0",)), HighAvailabilityConfig(), limit=None, nodes=nodes)
        (constraint,) = workload["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == ("kubernetes.io/hostname", wanted)


# Busy machines


def test_a_probe_by_a_command_waits_for_a_busy_machine():
    """A command in a container takes seconds there, and the kubelet's own limit is one second.

    And it takes much CPU time: it runs each second only until the container has started.
    """
    probes = [
        (name, probe)
        for objects in (*IN_THE_SEED.values(), *IN_THE_SHOOT.values(), vpn_shoot.objects(OF_TWO_SERVERS))
        for workload in workloads(objects)
        for container in workload["spec"]["template"]["spec"]["containers"]
        for name, probe in container.items()
        if name.endswith("Probe") and "exec" in probe
    ]
    assert probes
    assert all(probe["timeoutSeconds"] >= 10 for _, probe in probes)
    assert all(probe["periodSeconds"] >= 10 for name, probe in probes if name != "startupProbe")


def test_an_api_server_that_starts_slowly_is_not_killed():
    (workload,) = workloads(IN_THE_SEED["kube-apiserver"])
    (container, *_) = workload["spec"]["template"]["spec"]["containers"]
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] > 300


# System components


def test_each_pool_runs_the_kube_proxy_of_its_own_version():
    """In the middle of a pool's upgrade old and new nodes stand side by side."""
    found = {item["metadata"]["name"]: item for item in workloads(IN_THE_SHOOT["kube-proxy"])}

    assert set(found) == {"kube-proxy-a-v1.37.1", "kube-proxy-b-v1.36.3"}
    pod = found["kube-proxy-b-v1.36.3"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.k8s.io/kube-proxy:v1.36.3"
    assert pod["nodeSelector"] == {
        "worker.gardener.cloud/pool": "b",
        "worker.gardener.cloud/kubernetes-version": "1.36.3",
    }


def test_cluster_dns_is_the_tenth_address_of_the_services():
    assert coredns.cluster_dns_address("100.68.0.0/16") == "100.68.0.10"


def test_owners_are_admins_and_viewers_see_no_secrets():
    objects = {item["metadata"]["name"]: item for item in shoot_system.objects(workers=True)}
    admins = objects["gardener.cloud:system:admins"]
    rules = objects["gardener.cloud:system:read-only"]["rules"]

    assert {each["name"] for each in admins["subjects"]} == {
        "gardener.cloud:system:admins",
        "gardener.cloud:project:admins",
    }
    assert admins["roleRef"]["name"] == "cluster-admin"
    core = [each for each in rules if "" in each["apiGroups"]]
    assert core
    assert all("secrets" not in each["resources"] and "*" not in each["resources"] for each in core)
    assert {verb for each in rules for verb in each["verbs"]} == {"get", "list", "watch"}


@pytest.mark.parametrize(
    ("encrypted", "hidden", "shown"),
    [
        ("configmaps", {"configmaps"}, {"pods", "services"}),
        ("deployments.apps", {"deployments.apps", "deployments/scale.apps"}, {"statefulsets.apps", "jobs.batch"}),
        ("leases.coordination.k8s.io", {"leases.coordination.k8s.io"}, {"deployments.apps", "pods"}),
    ],
)
def test_viewers_see_no_encrypted_resource(encrypted, hidden, shown):
    """An owner encrypts what must stay secret; a viewer must not read it through the API server."""
    objects = {each["metadata"]["name"]: each for each in shoot_system.objects(workers=True, encrypted=[encrypted])}
    rules = objects["gardener.cloud:system:read-only"]["rules"]

    def readable(name):
        resource, _, group = name.partition(".")
        return any(group in each["apiGroups"] and {resource, "*"} & set(each["resources"]) for each in rules)

    assert not any(map(readable, hidden))
    assert all(map(readable, shown))


# Access


def access(host="api.example.org"):
    return gardener_access.objects(NAMESPACE, servers={"gardener": host}, ca_bundle=b"ca")[0]


def with_token(secret, token):
    kubeconfig = json.loads(base64.b64decode(secret["data"]["kubeconfig"]))
    kubeconfig["users"][0]["user"] = {"token": token}
    return {**secret, "data": {"kubeconfig": base64.b64encode(json.dumps(kubeconfig).encode()).decode()}}


def test_a_token_survives_the_next_reconciliation():
    """The resource manager writes the token into the very key in which we write the server."""
    assert gardener_access.with_user(access(), with_token(access(), "t1")) is None

    moved = gardener_access.with_user(access("api.new.example.org"), with_token(access(), "t1"))
    assert moved
    kubeconfig = json.loads(base64.b64decode(moved["data"]["kubeconfig"]))
    assert kubeconfig["clusters"][0]["cluster"]["server"] == "https://api.new.example.org"
    assert kubeconfig["users"][0]["user"] == {"token": "t1"}


def test_a_secret_without_kubeconfig_gets_one():
    live = {**access(), "data": {}}
    assert gardener_access.with_user(access(), live) == access()


# ManagedResources


def test_objects_of_a_managed_resource_arrive_as_they_are():
    objects = [
        base.cluster_role("system:x", [base.rule("core apps", "pods", "get")]),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}, "data": {"k": "ü"}},
    ]
    secret, resource = managed_resource("x", NAMESPACE, objects, labels={"a": "b"}, keep=True)

    decoded = [json.loads(base64.b64decode(value)) for value in secret["data"].values()]
    assert sorted(decoded, key=str) == sorted(objects, key=str)
    assert set(secret["data"]) == {"clusterrole____system_x.yaml", "configmap__n__c.yaml"}
    assert resource["spec"]["secretRefs"] == [{"name": secret["metadata"]["name"]}]
    assert resource["spec"]["keepObjects"] is True
    assert "class" not in resource["spec"]
    assert resource["metadata"]["labels"] == {"origin": "gardener", "a": "b"}


def test_objects_for_the_seed_carry_its_class():
    _, resource = managed_resource("x", "garden", [], clazz="seed")
    assert resource["spec"]["class"] == "seed"


def test_an_override_of_the_owner_comes_before_the_default_upstream():
    """CoreDNS asks the upstreams of a block in their order: a later one for a zone would never be asked."""
    made = coredns.objects(coredns.CoreDns("100.68.0.0/16", "api.example.org"))
    corefile = next(each for each in made if each["kind"] == "ConfigMap")["data"]["Corefile"]
    assert corefile.index("import custom/*.override") < corefile.index("forward . /etc/resolv.conf")


def test_system_components_tolerate_the_taints_of_pools_on_which_they_may_run():
    """A cluster whose pools are all tainted would have no CoreDNS and no tunnel, and its creation would never end."""
    db = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
    pools: list[dict[str, Any]] = [
        {"name": "a", "taints": [db, {"key": "soft", "effect": "PreferNoSchedule"}]},
        {"name": "b", "taints": [db, {"key": "gpu", "effect": "NoExecute"}]},
        {"name": "c", "taints": [{"key": "own", "effect": "NoSchedule"}], "systemComponents": {"allow": False}},
    ]
    made = base.tolerating(coredns.objects(coredns.CoreDns("100.68.0.0/16", "a")), taints_of_system_pools(pools))
    pod = next(each for each in made if each["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert pod["tolerations"] == [
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "dedicated", "operator": "Equal", "value": "db", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Equal", "value": "", "effect": "NoExecute"},
    ]
    untouched = coredns.objects(coredns.CoreDns("100.68.0.0/16", "a"))
    assert base.tolerating(untouched, []) == untouched
