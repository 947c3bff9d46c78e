"""NetworkPolicies that the resource manager makes for one Service: each row of the table in its specification."""

import json

import pytest

from kube.cache import Key
from workers.resource_manager.config import IngressControllerSelector
from workers.resource_manager.network_policies import labels_of, policies

NET = "networking.resources.gardener.cloud/"
RUNNING = {"app": "etcd"}


def service(ports=None, name="etcd", namespace="a", **annotations):
    found = {f"{NET}{key.replace('_', '-')}": value for key, value in annotations.items()}
    ports = [{"port": 443, "targetPort": 2379, "protocol": "TCP"}] if ports is None else ports
    return {
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "annotations": found},
        "spec": {"selector": RUNNING, "ports": ports},
    }


def namespace(name, *, ending=False, **labels):
    metadata = {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}
    return {"metadata": metadata | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if ending else {})}


def selecting(*names):
    return json.dumps([{"matchLabels": {"kubernetes.io/metadata.name": name}} for name in names])


NAMESPACES = [namespace("a"), namespace("b"), namespace("c")]
ALL = ("a", "b", "c")


def made(obj, *labels, namespaces=NAMESPACES, **rest):
    """Policies by namespace and name, if pods with these labels (``<namespace>/<name>``) exist."""
    wanted = {tuple(each.split("/")) for each in labels}
    return policies(obj, namespaces, lambda n, label: (n, label.removeprefix(NET)) in wanted, **rest)


def every(obj, **rest):
    """Policies if all labels are on pods."""
    return policies(obj, NAMESPACES, lambda *_: True, **rest)


def names(found):
    return sorted(f"{key.namespace}/{key.name}" for key in found.policies)


@pytest.mark.row("network policies", "each port: ingress-to-ID and egress-to-ID for pods with label to-ID")
def test_a_port_gets_two_policies_in_its_own_namespace():
    found = made(service(), "a/to-etcd-tcp-2379")

    label = f"{NET}to-etcd-tcp-2379"
    ours = {f"{NET}service-name": "etcd", f"{NET}service-namespace": "a"}
    clients, port = {"matchLabels": {label: "allowed"}}, {"port": 2379, "protocol": "TCP"}
    assert found.faults == []
    assert found.policies == {
        Key("a", "ingress-to-etcd-tcp-2379"): {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "name": "ingress-to-etcd-tcp-2379",
                "namespace": "a",
                "labels": ours,
                "annotations": {
                    "gardener.cloud/description": "Allows ingress TCP traffic to port 2379 for pods selected by the "
                    f"a/etcd service selector from pods running in namespace a labeled with map[{label}:allowed]."
                },
            },
            "spec": {
                "podSelector": {"matchLabels": {"app": "etcd"}},
                "ingress": [{"from": [{"podSelector": clients}], "ports": [port]}],
                "policyTypes": ["Ingress"],
            },
        },
        Key("a", "egress-to-etcd-tcp-2379"): {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "name": "egress-to-etcd-tcp-2379",
                "namespace": "a",
                "labels": ours,
                "annotations": {
                    "gardener.cloud/description": "Allows egress TCP traffic to port 2379 from pods running in "
                    f"namespace a labeled with map[{label}:allowed] to pods selected by the a/etcd service selector."
                },
            },
            "spec": {
                "podSelector": clients,
                "egress": [{"to": [{"podSelector": {"matchLabels": {"app": "etcd"}}}], "ports": [port]}],
                "policyTypes": ["Egress"],
            },
        },
    }


@pytest.mark.row("network policies", "only where a pod has the label")
def test_without_a_pod_that_has_the_label_no_policy_is_made():
    assert names(made(service())) == []
    assert names(made(service(), "b/to-etcd-tcp-2379")) == []


@pytest.mark.row("network policies", "ID: service, protocol and target port in lower case")
@pytest.mark.parametrize(
    ("port", "identity"),
    [
        ({"port": 8080}, "etcd-tcp-8080"),
        ({"port": 53, "protocol": "UDP", "targetPort": 8053}, "etcd-udp-8053"),
        ({"port": 80, "targetPort": "Metrics"}, "etcd-tcp-metrics"),
    ],
)
def test_the_identity_holds_protocol_and_port_of_the_pods_in_lower_case(port, identity):
    assert names(every(service([port]))) == [f"a/egress-to-{identity}", f"a/ingress-to-{identity}"]
    [rule] = every(service([port])).policies[Key("a", f"ingress-to-{identity}")]["spec"]["ingress"]
    wanted = {"port": port.get("targetPort", port["port"]), "protocol": port.get("protocol", "TCP")}
    assert rule["ports"] == [wanted]


def test_ports_with_the_same_target_share_their_policies():
    assert len(every(service([{"port": 1, "targetPort": 3}, {"port": 2, "targetPort": 3}])).policies) == 2


@pytest.mark.row("network policies", "namespace-selectors: a list of alternatives")
def test_namespace_selectors_are_alternatives():
    found = made(
        service(namespace_selectors=selecting("b", "c")),
        *(f"{each}/to-a-etcd-tcp-2379" for each in ALL),
        "a/to-etcd-tcp-2379",
    )

    assert names(found) == [
        "a/egress-to-etcd-tcp-2379",
        "a/ingress-to-etcd-tcp-2379",
        "a/ingress-to-etcd-tcp-2379-from-b",
        "a/ingress-to-etcd-tcp-2379-from-c",
        "b/egress-to-a-etcd-tcp-2379",
        "c/egress-to-a-etcd-tcp-2379",
    ]
    clients = {"matchLabels": {f"{NET}to-a-etcd-tcp-2379": "allowed"}}
    ingress = found.policies[Key("a", "ingress-to-etcd-tcp-2379-from-b")]["spec"]
    assert ingress["podSelector"] == {"matchLabels": RUNNING}
    assert ingress["ingress"][0]["from"] == [
        {"podSelector": clients, "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}}
    ]
    egress = found.policies[Key("b", "egress-to-a-etcd-tcp-2379")]["spec"]
    assert egress["podSelector"] == clients
    assert egress["egress"][0]["to"] == [
        {
            "podSelector": {"matchLabels": RUNNING},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "a"}},
        }
    ]


def test_expressions_select_namespaces_too():
    expression = {"key": "role", "operator": "In", "values": ["shoot"]}
    namespaces = [namespace("a"), namespace("s", role="shoot"), namespace("t", role="seed")]
    obj = service(namespace_selectors=json.dumps([{"matchExpressions": [expression]}]))
    found = policies(obj, namespaces, lambda *_: True)
    assert {key.namespace for key in found.policies} == {"a", "s"}


@pytest.mark.row("network policies", "pod-label-selector-namespace-alias: in labels of other namespaces alone")
def test_an_alias_replaces_the_namespace_in_labels_of_other_namespaces_only():
    obj = service(namespace_selectors=selecting("b"), pod_label_selector_namespace_alias="all-shoots")
    found = made(obj, "b/to-all-shoots-etcd-tcp-2379", "a/to-etcd-tcp-2379")

    assert names(found) == [
        "a/egress-to-etcd-tcp-2379",
        "a/ingress-to-etcd-tcp-2379",
        "a/ingress-to-etcd-tcp-2379-from-b",
        "b/egress-to-a-etcd-tcp-2379",
    ]
    assert names(made(obj, "b/to-a-etcd-tcp-2379", "a/to-all-shoots-etcd-tcp-2379")) == []


@pytest.mark.row("network policies", "from-ALIAS-allowed-ports: ports of a group, reached by its label")
def test_a_group_of_ports_is_reached_by_the_label_of_the_group():
    ports = json.dumps([{"port": 8080, "protocol": "TCP"}, {"port": "9090"}])
    obj = service([], from_all_scrape_targets_allowed_ports=ports, namespace_selectors=selecting("b"))
    found = made(obj, "a/to-all-scrape-targets", "b/to-a-all-scrape-targets", "b/to-all-scrape-targets")

    via = "via-all-scrape-targets"
    assert names(found) == [
        f"a/egress-to-etcd-tcp-8080-{via}",
        f"a/egress-to-etcd-tcp-9090-{via}",
        f"a/ingress-to-etcd-tcp-8080-{via}",
        f"a/ingress-to-etcd-tcp-8080-{via}-from-b",
        f"a/ingress-to-etcd-tcp-9090-{via}",
        f"a/ingress-to-etcd-tcp-9090-{via}-from-b",
        f"b/egress-to-a-etcd-tcp-8080-{via}",
        f"b/egress-to-a-etcd-tcp-9090-{via}",
    ]
    spec = found.policies[Key("a", f"ingress-to-etcd-tcp-9090-{via}")]["spec"]
    assert spec["ingress"][0]["ports"] == [{"port": 9090, "protocol": "TCP"}]
    assert spec["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {f"{NET}to-all-scrape-targets": "allowed"}}}]


def test_a_group_has_the_alias_of_its_namespace_in_labels_of_other_namespaces():
    obj = service(
        [],
        from_webhooks_allowed_ports='[{"port":9443}]',
        namespace_selectors=selecting("b"),
        pod_label_selector_namespace_alias="extensions",
    )
    assert names(made(obj, "b/to-extensions-webhooks")) == [
        "a/ingress-to-etcd-tcp-9443-via-webhooks-from-b",
        "b/egress-to-a-etcd-tcp-9443-via-webhooks",
    ]


EVERYWHERE = [
    {"namespaceSelector": {}, "podSelector": {}},
    {"ipBlock": {"cidr": "0.0.0.0/0"}},
    {"ipBlock": {"cidr": "::/0"}},
]


@pytest.mark.row("network policies", "from-world-to-ports: these ports for all clients")
def test_from_world_opens_ports_to_all_clients():
    found = made(service(from_world_to_ports='[{"port":"10250","protocol":"TCP"}]'))
    assert names(found) == ["a/ingress-to-etcd-from-world"]
    assert found.policies[Key("a", "ingress-to-etcd-from-world")]["spec"] == {
        "podSelector": {"matchLabels": RUNNING},
        "ingress": [{"from": EVERYWHERE, "ports": [{"port": 10250, "protocol": "TCP"}]}],
        "policyTypes": ["Ingress"],
    }


@pytest.mark.row("network policies", "from-world-to-ports: [] stands for all ports")
def test_from_world_without_ports_opens_all_ports():
    found = made(service(from_world_to_ports="[]"))
    assert found.policies[Key("a", "ingress-to-etcd-from-world")]["spec"]["ingress"] == [{"from": EVERYWHERE}]


def ingress(**port):
    backend = {"service": {"name": "etcd", "port": port}}
    rules = [{"http": {"paths": [{"backend": backend}]}}]
    return {"metadata": {"name": "i", "namespace": "a"}, "spec": {"rules": rules}}


def served_by(namespace):
    return IngressControllerSelector.model_validate(
        {"namespace": namespace, "podSelector": {"matchLabels": {"app": "nginx"}}}
    )


PORTS = [
    {"name": "client", "port": 443, "targetPort": 2379},
    {"name": "other", "port": 80, "targetPort": 8080},
]


@pytest.mark.row("network policies", "backends of Ingresses: target ports for the ingress controller")
@pytest.mark.parametrize("port", [{"number": 443}, {"name": "client"}])
def test_backends_of_ingresses_are_reached_by_the_ingress_controller_at_their_target_port(port):
    found = made(service(PORTS), ingresses=[ingress(**port)], controller=served_by("b"))

    suffix = "etcd-tcp-2379-from-ingress-controller"
    assert names(found) == [f"a/ingress-to-{suffix}", f"b/egress-to-a-{suffix}"]
    policy = found.policies[Key("a", f"ingress-to-{suffix}")]
    pods = {"matchLabels": {"app": "nginx"}}
    assert policy["spec"]["ingress"] == [
        {
            "from": [{"podSelector": pods, "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}}],
            "ports": [{"port": 2379, "protocol": "TCP"}],
        }
    ]
    assert policy["metadata"]["annotations"]["gardener.cloud/description"] == (
        "Allows ingress TCP traffic to port 2379 for pods selected by the a/etcd service selector from ingress "
        "controller pods running in the b namespace labeled with map[app:nginx]."
    )
    assert found.policies[Key("b", f"egress-to-a-{suffix}")]["spec"]["podSelector"] == pods


def test_an_ingress_controller_in_the_services_namespace_needs_no_namespace_in_names():
    found = made(service(PORTS), ingresses=[ingress(number=80)], controller=served_by("a"))
    suffix = "etcd-tcp-8080-from-ingress-controller"
    assert names(found) == [f"a/egress-to-{suffix}", f"a/ingress-to-{suffix}"]


def test_a_default_backend_is_a_backend():
    obj = {"metadata": {}, "spec": {"defaultBackend": {"service": {"name": "etcd", "port": {"number": 443}}}}}
    assert len(made(service(PORTS), ingresses=[obj], controller=served_by("b")).policies) == 2


def test_without_a_selector_of_the_controller_ingresses_open_nothing():
    assert names(made(service(PORTS), ingresses=[ingress(number=443)])) == []


@pytest.mark.row("network policies", "terminating namespaces are skipped")
def test_terminating_namespaces_are_skipped():
    obj = service(namespace_selectors=selecting("b", "c"))
    found = policies(obj, [namespace("a"), namespace("b", ending=True), namespace("c")], lambda *_: True)
    assert {key.namespace for key in found.policies} == {"a", "c"}
    assert not any(name.endswith("-from-b") for name in names(found))


@pytest.mark.row("network policies", "labels of more than 63 characters are cut, and end with a hash")
def test_long_labels_are_shortened_to_a_beginning_and_a_hash():
    long = "service-with-a-name-of-exactly-fifty-one-characters"
    obj = service([{"port": 8080}], name=long, namespace_selectors=selecting("b"))
    found = every(obj)

    label = f"{NET}to-a-{long}-tcp-8080"
    assert len(label.removeprefix(NET)) == 65
    [used] = found.policies[Key("b", f"egress-to-a-{long}-tcp-8080")]["spec"]["podSelector"]["matchLabels"]
    assert used.startswith(label[: len(NET) + 57])
    assert len(used.removeprefix(NET)) == 63
    assert used[-6] == "-"
    [warning] = found.shortened
    assert used.removeprefix(NET) in warning
    # A label of 63 characters is whole.
    whole = every(service([{"port": 8080}], name=long))
    assert whole.shortened == []
    assert Key("a", f"egress-to-{long}-tcp-8080") in whole.policies


@pytest.mark.parametrize(
    ("annotation", "value", "fault"),
    [
        ("namespace-selectors", "no json", "namespace-selectors: Invalid JSON"),
        ("namespace-selectors", '{"matchLabels":{}}', "namespace-selectors: Input should be a valid array"),
        ("namespace-selectors", '[{"matchlabels":{"a":"b"}}]', "unknown fields ['matchlabels']"),
        ("namespace-selectors", '[{"matchExpressions":[{"key":"a","operator":"Is"}]}]', "Is"),
        ("pod-label-selector-namespace-alias", "Not an alias", "no alias"),
        ("from-x-allowed-ports", "[{}]", "a port is missing"),
        ("from-x-allowed-ports", '[{"port":70000}]', "70000 is no port"),
        ("from-x-allowed-ports", '[{"port":"Not A Name"}]', "no name of a port"),
        ("from-x-allowed-ports", '[{"port":1,"protocol":"ICMP"}]', "protocol"),
        ("from-X_Y-allowed-ports", '[{"port":1}]', "no alias"),
        ("from-world-to-ports", "all", "from-world-to-ports: Invalid JSON"),
        ("from-world-to-ports", '[{"port":5,"endPort":4}]', "endPort 4 needs a lower port"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_a_fault_and_opens_nothing(annotation, value, fault):
    obj = service()
    obj["metadata"]["annotations"] = {NET + annotation: value}
    found = every(obj)
    assert any(fault in each for each in found.faults), found.faults
    assert names(found) == ["a/egress-to-etcd-tcp-2379", "a/ingress-to-etcd-tcp-2379"]


def test_labels_of_a_service_are_those_that_its_policies_select():
    """By these labels, events of pods find the Services."""
    obj = service(
        namespace_selectors=selecting("b"),
        pod_label_selector_namespace_alias="x",
        from_group_allowed_ports='[{"port":1}]',
    )
    found = {each.replace(NET, "") for each in labels_of(obj)}
    assert found == {"a/to-etcd-tcp-2379", "/to-x-etcd-tcp-2379", "a/to-group", "/to-x-group"}
    assert set(labels_of({**obj, "spec": {"ports": obj["spec"]["ports"]}})) == set()
