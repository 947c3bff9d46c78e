"""A seed whose namespaces are closed: what its pods connect to is allowed, and what tenants could abuse is not.

The pods and Services are those of the real manifests. The policies are those that the gardenlet and the resource
manager make of them.
"""

import json
from typing import Any

import pytest

from activities.components import alertmanager, apiserver, etcd, gateway, network_policies, prometheus
from activities.components.monitoring import Served
from api.decisions.alerting import Smarthost
from tests.charts.test_rendering import rendered
from tests.network_policies import Cluster, Pod
from tests.unit.components.test_manifests import IN_THE_SEED, NAMESPACE
from workers.etcd import manifests
from workers.oidc_service import manifests as oidc
from workers.resource_manager.network_policies import policies

OTHER = "shoot--dev--b"
NODE, SERVICE, TEMPORAL, METADATA = "198.18.1.1", "100.64.0.10", "198.18.0.2", "169.254.169.254"
PUBLIC, PRIVATE, API = "203.0.113.9", "10.11.12.13", "198.18.1.1"
NETWORKS = network_policies.Networks(
    own=["198.18.1.0/24", "100.96.0.0/16", "100.64.0.0/24"], blocked=[f"{TEMPORAL}/32"], api_servers=[(API, 6443)]
)
ROLES = {NAMESPACE: "shoot", OTHER: "shoot", "garden": "garden", gateway.NAMESPACE: "istio-ingress",
         "extension-local": "extension", "kube-system": "", "temporal": ""}  # fmt: skip


def an_etcd(role, replicas):
    values = etcd.EtcdValues(
        role=role,
        namespace=NAMESPACE,
        replicas=replicas,
        ca_bundle="ca",
        server_certificate="server",
        client_certificate="client",
        backup=etcd.Backup("local", "bucket", "entry") if role == "main" else None,
        peer_ca_bundle="peer-ca",
        peer_certificate="peer" if replicas > 1 else "",
    )
    made = etcd.etcd(values)
    return manifests.objects({**made, "metadata": {**made["metadata"], "uid": "u"}}, {})


def served(name, port):
    return Served(name, NAMESPACE, port, f"{name}.example.org", "tls", {"admin": "hash"})


def chart(name, namespace):
    found = rendered(name)
    for each in found:
        each["metadata"]["namespace"] = namespace
    return found


PROMETHEUS = prometheus.Prometheus(
    served(prometheus.NAME, prometheus.PORT), "generic", "ca", "api.example.org", alerted="password"
)
OF_THE_SEED = ("resource manager of the seed", "gateway")
CONTROL_PLANE = [
    *(each for name, found in IN_THE_SEED.items() if name not in OF_THE_SEED for each in found),
    apiserver.service(NAMESPACE),
    *an_etcd("main", 3),
    *an_etcd("events", 1),
    *prometheus.objects(PROMETHEUS),
    *alertmanager.objects(
        alertmanager.Alertmanager(
            served(alertmanager.NAME, alertmanager.PORT),
            ["a@example.org"],
            Smarthost(address="mail.example.org:25", sender="a@example.org"),
        )
    ),
    *oidc.objects(oidc.Authenticator(NAMESPACE, "generic", replicas=1, blocked_networks=[])),
]  # fmt: skip
OBJECTS = [
    *CONTROL_PLANE,
    *json.loads(json.dumps(CONTROL_PLANE).replace(NAMESPACE, OTHER)),
    *IN_THE_SEED["resource manager of the seed"],
    *IN_THE_SEED["gateway"],
    *chart("gardenlet", "garden"),
    *chart("provider-local", "extension-local"),
]


def the_pods():
    found: dict[tuple[str, str], Pod] = {}
    for each in OBJECTS:
        if each["kind"] not in ("Deployment", "StatefulSet"):
            continue
        template, metadata = each["spec"]["template"], each["metadata"]
        containers = [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]
        ports = {port["name"]: port["containerPort"] for one in containers for port in one.get("ports", ())}
        address = f"100.96.{len(found) // 250}.{len(found) % 250 + 1}"
        labels = template["metadata"]["labels"]
        found[metadata["namespace"], metadata["name"]] = Pod(
            metadata["namespace"], metadata["name"], labels, address, ports
        )
    for namespace, name, labels in (("kube-system", "coredns", {"k8s-app": "kube-dns"}), ("temporal", "temporal", {})):
        found[namespace, name] = Pod(namespace, name, labels, f"100.96.9.{len(found)}", {})
    return found


PODS = the_pods()


def the_cluster():
    namespaces: list[dict[str, Any]] = [
        {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, "gardener.cloud/role": role}}}
        for name, role in ROLES.items()
    ]

    def has_label(namespace, label):
        return any(pod.namespace == namespace and pod.labels.get(label) == "allowed" for pod in PODS.values())

    made = [each for each in OBJECTS if each["kind"] == "NetworkPolicy"]
    closed = [each for each in namespaces if network_policies.is_closed(each)]
    for each in closed:
        made += network_policies.policies(each, NETWORKS, ["10.250.0.0/16"])
    for each in OBJECTS:
        if each["kind"] == "Service" and each["spec"].get("selector"):
            found = policies(each, namespaces, has_label)
            assert not found.faults
            made += found.policies.values()
    return Cluster(tuple(made), {each["metadata"]["name"]: each["metadata"]["labels"] for each in namespaces})


CLUSTER = the_cluster()


def at(name):
    """``<namespace>/<pod>``, a pod of the control plane, or an address."""
    if name[0].isdigit():
        return name
    namespace, _, pod = name.rpartition("/")
    return PODS[namespace or NAMESPACE, pod]


GATEWAY = f"{gateway.NAMESPACE}/{gateway.NAME}"
GARDENLET, PROVIDER = "garden/gardenlet", "extension-local/gardener-extension-provider-local"
CLIENTS_OF_API = ["kube-controller-manager", "kube-scheduler", "gardener-resource-manager", "cluster-autoscaler",
                  "machine-controller-manager", "kube-state-metrics", "prometheus-shoot", "vpa-recommender",
                  "vpa-updater", "vpa-admission-controller", "oidc-webhook-authenticator", GATEWAY, GARDENLET,
                  PROVIDER]  # fmt: skip
CLIENTS_OF_SEED = ["gardener-resource-manager", "machine-controller-manager", "cluster-autoscaler", "prometheus-shoot",
                   "garden/gardener-resource-manager", GATEWAY, GARDENLET, PROVIDER]  # fmt: skip


def scraped():
    """Pods and ports of the jobs of Prometheus that scrape pods of the control plane."""
    found = set()
    for job in prometheus.configuration(PROMETHEUS)["scrape_configs"]:
        for each in job.get("kubernetes_sd_configs", ()):
            if each["role"] == "pod":
                labels = dict(part.split("=") for part in each["selectors"][0]["label"].split(","))
                [port] = [rule["replacement"].rpartition(":")[2] for rule in job["relabel_configs"]
                          if rule.get("target_label") == "__address__"]  # fmt: skip
                names = [name for (namespace, name), pod in PODS.items()
                         if namespace == NAMESPACE and labels.items() <= pod.labels.items()]  # fmt: skip
                assert names, job["job_name"]
                found |= {(name, int(port)) for name in names}
    return sorted(found)


ALLOWED = [
    *((client, "kube-apiserver", 443) for client in CLIENTS_OF_API),
    *((client, API, 6443) for client in CLIENTS_OF_SEED),
    *(("prometheus-shoot", name, port) for name, port in scraped()),
    ("prometheus-shoot", "vpn-seed-server", 15000),
    ("prometheus-shoot", "blackbox-exporter", 9115),
    ("prometheus-shoot", "alertmanager-shoot", 9093),
    ("blackbox-exporter", GATEWAY, 9443),
    ("blackbox-exporter", PUBLIC, 443),
    ("blackbox-exporter", PRIVATE, 443),
    ("kube-apiserver", "etcd-main", 2379),
    ("kube-apiserver", "etcd-events", 2379),
    ("kube-apiserver", "vpn-seed-server", 9443),
    ("kube-apiserver", "vpn-seed-server-1", 9443),
    ("kube-apiserver", "vpa-admission-controller", 10250),
    ("kube-apiserver", "oidc-webhook-authenticator", 10443),
    ("kube-apiserver", PUBLIC, 443),
    ("etcd-main", "etcd-main", 2380),
    ("etcd-main", "etcd-main", 2379),
    ("etcd-main", "etcd-main", 9095),
    ("etcd-main", PUBLIC, 443),
    ("etcd-main", PRIVATE, 9001),
    ("alertmanager-shoot", PUBLIC, 25),
    ("machine-controller-manager", PRIVATE, 443),
    ("oidc-webhook-authenticator", PUBLIC, 443),
    (GATEWAY, "vpn-seed-server", 1194),
    (GATEWAY, "vpn-seed-server-1", 1194),
    (GATEWAY, "prometheus-shoot", 9090),
    (GATEWAY, "alertmanager-shoot", 9093),
    (GATEWAY, "victoria-logs", 9428),
    (GATEWAY, f"{OTHER}/kube-apiserver", 443),
    (GATEWAY, PUBLIC, 443),
    (GARDENLET, "etcd-main", 2379),
    (GARDENLET, "etcd-main", 8080),
    (GARDENLET, "etcd-main", 9095),
    (GARDENLET, "etcd-events", 2381),
    *((PUBLIC, GATEWAY, port) for port in (9443, 8132, 8443)),
]


@pytest.mark.parametrize(("source", "target", "port"), ALLOWED, ids=str)
def test_what_components_need_is_allowed(source, target, port):
    assert CLUSTER.allows_egress(at(source), at(target), port), f"egress of {source}"
    assert CLUSTER.allows_ingress(at(source), at(target), port), f"ingress of {target}"


@pytest.mark.parametrize(("namespace", "name"), [key for key in PODS if key[0] not in ("kube-system", "temporal")])
def test_all_pods_that_connect_by_names_reach_the_dns(namespace, name):
    of_control_planes = ("vpn-seed-server", "vpn-seed-server-1", "etcd-events", "victoria-logs")
    alone = of_control_planes if namespace in (NAMESPACE, OTHER) else ()
    found = {CLUSTER.allows(PODS[namespace, name], at("kube-system/coredns"), 53, each) for each in ("UDP", "TCP")}
    assert found == {name not in alone or name == "etcd-events"}


def test_labels_of_all_pods_are_short_enough():
    for pod in PODS.values():
        for label in pod.labels:
            assert len(label.rpartition("/")[2]) <= 63


def test_only_the_gardenlets_controller_of_etcds_reaches_etcds_of_control_planes():
    assert not CLUSTER.allows(at("garden/gardener-resource-manager"), at("etcd-main"), 2379)
    assert not CLUSTER.allows(at(PROVIDER), at("etcd-main"), 2379)
    assert not CLUSTER.allows(at("prometheus-shoot"), at("etcd-main"), 2379)


def test_without_the_label_the_same_connection_is_refused():
    """The simulation itself refuses."""
    server = at("kube-apiserver")
    bare = Pod(server.namespace, "bare", {}, "100.96.8.1", {})
    assert not CLUSTER.allows(bare, at("etcd-main"), 2379)
    assert not CLUSTER.allows_egress(bare, PUBLIC, 443)
    assert not CLUSTER.allows_ingress(bare, at("etcd-main"), 2379)
