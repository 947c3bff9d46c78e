"""Decoding, labelling and ordering of manifests."""

import base64

import brotli
import pytest

from api import compression
from workers.resource_manager.manifests import Equivalences, Reference, decode, finish, in_order


def secret(**data):
    encoded = {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return {"metadata": {"name": "s"}, "data": encoded}


@pytest.mark.row(
    "ManagedResource", "secretRefs in their order, keys sorted, each a stream of documents; empty ones are skipped"
)
def test_keys_are_read_in_order_and_streams_document_by_document():
    objects, faults = decode(
        secret(
            b_yaml="apiVersion: v1\nkind: B\nmetadata: {name: b}\n",
            a_yaml="---\n---\napiVersion: v1\nkind: A\nmetadata: {name: a}\n---\n"
            '{"apiVersion": "v1", "kind": "A2", "metadata": {"name": "a2"}}\n---\n',
        )
    )

    assert [obj["kind"] for obj in objects] == ["A", "A2", "B"]
    assert faults == []


def test_a_date_stays_the_string_it_is_for_kubernetes():
    (obj,), _ = decode(secret(a="apiVersion: v1\nkind: A\nmetadata: {name: a, annotations: {since: 2026-01-01}}"))

    assert obj["metadata"]["annotations"]["since"] == "2026-01-01"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: {b", "key a of Secret s is not YAML at line"),
        ("just text", "document 0 in key a of Secret s has no apiVersion and kind"),
        ("apiVersion: v1\nkind: A\n", "document 0 in key a of Secret s, a A, has no name"),
        ('{"apiVersion": "v1", "kind": "A", "metadata": {}}', "a A, has no name"),
    ],
)
def test_an_invalid_manifest_is_located_and_not_quoted(text, fault):
    objects, faults = decode(secret(a=text))

    assert objects == []
    assert fault in faults[0]


MANIFEST = b'{"apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}}'


def compressed(data: bytes):
    return {"metadata": {"name": "s"}, "data": {"a.yaml.br": base64.b64encode(data).decode()}}


@pytest.mark.row("ManagedResource", "keys that end with .br are decompressed")
def test_compressed_data_is_read():
    (found,), faults = decode(compressed(brotli.compress(MANIFEST)))

    assert (found["kind"], faults) == ("A", [])


@pytest.mark.row("hostile", "compressed data that is cut short, is none, or stands for more than 32 MiB")
@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (brotli.compress(MANIFEST)[:-3], "was cut short"),
        (MANIFEST, "is not Brotli data"),
        (brotli.compress(b" " * (compression.LIMIT + 1), quality=1), "unpacks to more than 32 MiB"),
    ],
)
def test_faulty_compressed_data_is_located(data, fault):
    objects, faults = decode(compressed(data))

    assert objects == []
    assert [fault in each and "key a.yaml.br of Secret s" in each for each in faults] == [True], faults


def test_brotli_data_without_brotli_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "brotli", None)
    _, faults = decode({"metadata": {"name": "s"}, "data": {"a.yaml.br": "AAAA"}})

    assert "Python package brotli is not installed" in faults[0]


def deployment(**spec):
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "resourceVersion": "7"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}}, **spec},
        "status": {"replicas": 3},
    }


@pytest.mark.row("ManagedResource", "injectLabels: object and pod template, not selectors")
def test_labels_are_injected_into_pods_and_not_into_selectors():
    """A selector is immutable, and pods without the label would be cleaned away with the user's."""
    done = finish(deployment(), inject_labels={"x": "y"}, origin="ns/one", managed_by="gardener")

    managed = {"x": "y", "resources.gardener.cloud/managed-by": "gardener"}
    assert done["spec"]["template"]["metadata"]["labels"] == {"a": "b", **managed}
    assert done["spec"]["selector"] == {"matchLabels": {"a": "b"}}
    assert done["metadata"]["labels"] == managed


@pytest.mark.row("ManagedResource", "injectLabels: all templates of an object, volumeClaimTemplates too")
@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("CronJob", {"jobTemplate": {"spec": {"template": {"spec": {}}}}}),
        ("StatefulSet", {"template": {"spec": {}}, "volumeClaimTemplates": [{"metadata": {"name": "data"}}]}),
    ],
)
def test_labels_reach_every_template(kind, spec):
    obj = {"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    done = finish(obj, inject_labels={"x": "y"}, origin="o", managed_by="m")

    assert str(done["spec"]).count("'x': 'y'") == (2 if kind == "StatefulSet" else 1)


@pytest.mark.parametrize(("kind", "labelled"), [("Deployment", True), ("DaemonSet", False), ("Job", False)])
def test_webhooks_know_pods_of_deployments_by_a_label(kind, labelled):
    """It would replace all pods of a DaemonSet once, and the template of a Job cannot change."""
    obj = {"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "x"}, "spec": {"template": {"spec": {}}}}
    done = finish(obj, inject_labels={}, origin="o", managed_by="m")

    labels = (done["spec"]["template"].get("metadata") or {}).get("labels") or {}
    assert labels == ({"resources.gardener.cloud/managed-by": "m"} if labelled else {})


def test_fields_that_are_no_desired_state_are_not_applied():
    original = deployment()
    done = finish(original, inject_labels={}, origin="o", managed_by="m")

    assert "status" not in done
    assert "resourceVersion" not in done["metadata"]
    assert original == deployment()


@pytest.mark.row("ManagedResource", "order of applying: by kind as Helm, unknown kinds last")
def test_dependencies_are_applied_first_and_unknown_kinds_last():
    kinds = ["Zebra", "Deployment", "Aardvark", "Service", "CustomResourceDefinition", "Namespace", "ConfigMap"]
    objects = [{"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}} for kind in kinds]
    objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})

    order = [[(obj["kind"], obj["metadata"]["name"]) for obj in group] for group in in_order(objects)]

    assert order == [
        [("Namespace", "x")],
        [("ConfigMap", "a"), ("ConfigMap", "x")],
        [("CustomResourceDefinition", "x")],
        [("Service", "x")],
        [("Deployment", "x")],
        [("Aardvark", "x")],
        [("Zebra", "x")],
    ]


def reference(group, kind):
    return Reference(group, kind, "ns", "x", f"{group}/v1")


@pytest.mark.row("ManagedResource", "equivalences that are built in: a kind that moved to another group")
def test_a_kind_that_moved_to_another_group_is_the_same_object():
    """Else moving a manifest from one group to the other would delete and recreate what runs."""
    same = Equivalences()

    assert same.identity(reference("extensions", "Deployment")) == same.identity(reference("apps", "Deployment"))
    assert same.identity(reference("apps", "Deployment")) != same.identity(reference("apps", "DaemonSet"))
    assert same.identity(reference("extensions", "Ingress")) == same.identity(reference("networking.k8s.io", "Ingress"))


@pytest.mark.row("ManagedResource", "equivalences of the ManagedResource")
def test_further_equivalences_join_those_built_in():
    same = Equivalences([[{"group": "own.example", "kind": "App"}, {"group": "apps", "kind": "Deployment"}]])

    identities = {
        same.identity(reference(group, kind))
        for group, kind in [("own.example", "App"), ("apps", "Deployment"), ("extensions", "Deployment")]
    }
    assert len(identities) == 1


def test_the_version_of_a_group_does_not_make_another_object():
    same = Equivalences()
    old = Reference("policy", "PodDisruptionBudget", "ns", "x", "policy/v1beta1")
    new = Reference("policy", "PodDisruptionBudget", "ns", "x", "policy/v1")

    assert same.identity(old) == same.identity(new)
