"""A Plant names a kubeconfig that is safe to use, and shows what its cluster tells."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, Usage
from api.core.v1beta1.plant import Plant
from api.decisions.plants import UNKNOWN, Nodes, quoted, version_of
from api.validation.plants import check_plant, parse_plant_kubeconfig

PLANT: dict[str, Any] = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "Plant",
    "metadata": {"name": "crazy", "namespace": "garden-local", "generation": 1, "uid": "1"},
    "spec": {
        "secretRef": {"name": "crazy-kubeconfig"},
        "endpoints": [{"name": "page", "purpose": "management", "url": "https://console.example.org/clusters?id=1"}],
    },
}
_KEYS: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": datetime.now(UTC), "validity": timedelta(days=1)}
CA = crypto.self_signed_ca("ca", **_KEYS)
CLIENT = crypto.signed("client", ca=CA, usage=Usage.CLIENT, **_KEYS)


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def kubeconfig(server: Any = "https://cluster.example.org:6443", user: Any = None, **cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "plant",
        "contexts": [{"name": "plant", "context": {"cluster": "plant", "user": "plant"}}],
        "clusters": [{"name": "plant", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "plant", "user": {"token": "secret"} if user is None else user}],
    }


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("javascript:alert(1)", "spec.endpoints[0].url: Invalid value"),
        ("https://", "must be a URL with http or https and a host"),
        ("https://[a", "is not a URL"),
        ("https://me:secret@console.example.org", "spec.endpoints[0].url: Forbidden: must not contain a user name"),
    ],
)
def test_an_endpoint_is_a_page_that_a_person_can_open(url: str, fault: str):
    plant = json.loads(json.dumps(PLANT))
    plant["spec"]["endpoints"][0]["url"] = url
    faults = str(check_plant(Plant.of(plant)))
    assert fault in faults
    assert "me:secret" not in faults
    assert not check_plant(Plant.of(PLANT))


@pytest.mark.parametrize(
    "user",
    [{"token": "t"}, {"client-certificate-data": encoded(CLIENT.certificate), "client-key-data": encoded(CLIENT.key)}],
)
def test_a_kubeconfig_with_credentials_is_accepted(user: Any):
    parsed, faults = parse_plant_kubeconfig(json.dumps(kubeconfig(user=user)))
    assert not faults
    assert parsed is not None
    assert parsed["users"][0]["user"] == user


ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGj\n-----END ENCRYPTED PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (kubeconfig(user={"exec": {"command": "sh"}}), "exec: Forbidden: runs a program"),
        (kubeconfig(user={"auth-provider": {"name": "oidc"}}), "auth-provider: Forbidden: runs a program"),
        (kubeconfig(user={"tokenFile": "/var/run/secrets/token"}), "tokenFile: Forbidden: names a file"),
        (kubeconfig(user={"client-key": "/etc/key"}), "client-key: Forbidden: names a file"),
        (kubeconfig(**{"certificate-authority": "/etc/passwd"}), "certificate-authority: Forbidden: names a file"),
        (kubeconfig(user=None, **{"insecure-skip-tls-verify": True}), "the server must be verified"),
        (kubeconfig(**{"proxy-url": "http://proxy.example.org"}), "connections through a proxy are not supported"),
        (kubeconfig("http://cluster.example.org"), "must be an https URL"),
        (kubeconfig("https://127.0.0.1:6443"), "is an address of the machine itself"),
        (kubeconfig("https://169.254.169.254"), "link-local address, at which clouds serve credentials"),
        (kubeconfig("https://temporal"), "has no domain, so it may name a Service"),
        (kubeconfig("https://kubernetes.default.svc"), "is a name inside"),
        (kubeconfig("https://2130706433"), "is a number, but no IP address"),
        (kubeconfig(user={"username": "a", "password": "b"}), "a user name and a password are not supported"),
        (kubeconfig(user={}), "needs a token or client-certificate-data"),
        (
            kubeconfig(
                user={"client-certificate-data": encoded(CLIENT.certificate), "client-key-data": encoded(ENCRYPTED)}
            ),
            "client-key-data is no private key in PEM format, or needs a password",
        ),
        ({**kubeconfig(), "current-context": "other"}, "current-context: Required value"),
        ([], "is not a mapping"),
    ],
)
def test_a_kubeconfig_that_would_use_more_than_the_cluster_is_refused(config: Any, fault: str):
    parsed, faults = parse_plant_kubeconfig(json.dumps(config))
    assert parsed is None
    assert fault in str(faults)
    assert "secret" not in str(faults).replace("run/secrets", "")


def node(name: str = "a", status: str = "True", provider_id: str = "aws:///x/y", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": provider_id},
        "status": {"conditions": [{"type": "Ready", "status": status, "message": "kubelet stopped"}]},
    }


def test_facts_of_the_cluster_are_those_of_its_nodes():
    nodes = Nodes()
    nodes.add(node(provider_id=""))
    nodes.add(node(provider_id="gce://project/zone/b", **{"topology.kubernetes.io/region": "europe-west1"}))
    assert (nodes.provider, nodes.region) == ("gce", "europe-west1")
    assert (nodes.finding().status, nodes.finding().reason) == ("True", "EveryNodeReady")


def test_a_node_that_is_not_ready_is_named():
    nodes = Nodes()
    for each in (node(), node("b", "False"), node("c", "Unknown")):
        nodes.add(each)
    found = nodes.finding()
    assert (found.status, found.reason) == ("False", "NodeUnhealthy")
    assert found.message == "node b is not ready: kubelet stopped; 2 of 3 nodes are not ready"


@pytest.mark.parametrize("odd", ["x" * 64, "a b", "<script>", "-a", ""])
def test_a_fact_of_another_form_is_not_shown(odd: str):
    """The texts of a foreign cluster get into tables, logs and pages."""
    nodes = Nodes()
    nodes.add(node(provider_id=f"{odd}://x", **{"topology.kubernetes.io/region": odd}))
    assert (nodes.provider, nodes.region) == (UNKNOWN, UNKNOWN)
    assert version_of({"gitVersion": odd}) == UNKNOWN


@pytest.mark.parametrize("answer", [None, [], "v1.31.1", {"gitVersion": 3}, {}])
def test_a_version_of_another_form_is_not_shown(answer: Any):
    assert version_of(answer) == UNKNOWN
    assert version_of({"gitVersion": "v1.31.1-gke.5+a"}) == "v1.31.1-gke.5+a"


def test_quoted_texts_have_no_control_characters_and_end():
    assert quoted("a\nb\x1b[31m\u202e") == "a b [31m "
    assert quoted("x" * 10_000) == "x" * 300 + "…"
