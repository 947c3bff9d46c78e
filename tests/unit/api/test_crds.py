"""The CustomResourceDefinitions: users' tools read them before any code of ours runs."""

from collections.abc import Iterator
from typing import Any

import pytest

from api.access import CONVERTED
from api.crds import Side, converted_crds, crds, kinds
from api.meta import camel
from api.policies import deletion_protection
from api.resources import resource_of

ALL = [(side, model) for side in ("garden", "seed") for model in kinds(side)]


def nodes(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema node, with its path."""
    if not isinstance(node, dict):
        return
    yield path, node
    for name, child in (node.get("properties") or {}).items():
        yield from nodes(child, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        yield from nodes(node.get(name), f"{path}.{name}")


def schema_of(plural: str, side: Side = "garden") -> dict[str, Any]:
    found = next(each for each in crds(side) if each["spec"]["names"]["plural"] == plural)
    return found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("side", ["garden", "seed", "autoscaled shoot"])
def test_schemas_are_structural(side):
    """The API server takes no others."""
    for definition in crds(side):
        root = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for path, node in nodes(root):
            where = f"{definition['metadata']['name']} {path}"
            assert not {"$ref", "anyOf", "allOf", "$defs", "const", "title", "x-immutable"} & node.keys(), where
            free = node.get("x-kubernetes-preserve-unknown-fields") or node.get("x-kubernetes-int-or-string")
            assert "type" in node or free, where
            assert not ("properties" in node and "additionalProperties" in node), where


@pytest.mark.parametrize(("side", "model"), ALL, ids=lambda each: getattr(each, "__name__", each))
def test_a_kind_is_served_at_the_path_of_its_resource(side, model):
    served = model.definition
    resource = resource_of(f"{served.group}/{served.version}", model.__name__)
    assert (resource.plural, resource.namespaced) == (served.plural, served.namespaced)


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("kube_api_server", "kubeAPIServer"),
        ("node_cidr_mask_size_ipv6", "nodeCIDRMaskSizeIPv6"),
        ("cpu_cfs_quota", "cpuCFSQuota"),
        ("image_gc_high_threshold_percent", "imageGCHighThresholdPercent"),
        ("pod_cidr", "podCIDR"),
        ("task_id", "taskID"),
        ("core_dns", "coreDNS"),
        ("class_", "class"),
        ("ca_bundle", "caBundle"),
        ("scale_down_gpu_utilization_threshold", "scaleDownGpuUtilizationThreshold"),
        ("kube_max_pd_vols", "kubeMaxPDVols"),
        ("event_ttl", "eventTTL"),
    ],
)
def test_fields_are_called_as_gardener_calls_them(name, wire):
    assert camel(name) == wire


def test_immutability_becomes_a_rule_of_the_parent():
    """A rule at the field itself would not run when the field is removed."""
    rules = {
        each["fieldPath"]: each["rule"]
        for each in schema_of("shoots")["properties"]["spec"]["x-kubernetes-validations"]
    }
    assert rules[".region"] == "self.region == oldSelf.region"
    networking = schema_of("shoots")["properties"]["spec"]["properties"]["networking"]
    rules = {each["fieldPath"]: each["rule"] for each in networking["x-kubernetes-validations"]}
    assert rules[".pods"] == "!has(oldSelf.pods) || (has(self.pods) && self.pods == oldSelf.pods)"
    project = schema_of("projects")["properties"]["spec"]["x-kubernetes-validations"]
    assert any("__namespace__" in each["rule"] for each in project), "namespace is a reserved word of CEL"


def test_raw_sections_are_kept_whole():
    raw = schema_of("shoots")["properties"]["spec"]["properties"]["provider"]["properties"]["infrastructureConfig"]
    assert raw == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def test_pools_are_merged_by_name():
    """So server-side apply merges them, and the API server refuses two of one name."""
    pools = schema_of("shoots")["properties"]["spec"]["properties"]["provider"]["properties"]["workers"]
    assert (pools["x-kubernetes-list-type"], pools["x-kubernetes-list-map-keys"]) == ("map", ["name"])


def test_static_defaults_are_the_api_servers():
    pool = schema_of("shoots")["properties"]["spec"]["properties"]["provider"]["properties"]["workers"]["items"]
    assert pool["properties"]["updateStrategy"]["default"] == "AutoRollingUpdate"
    record = schema_of("dnsrecords", "seed")["properties"]["spec"]["properties"]
    assert record["ttl"]["default"] == 120
    assert record["recordType"]["enum"] == ["A", "AAAA", "CNAME", "TXT"]


def test_a_model_keeps_unknown_fields():
    """A newer writer's field must survive our reading and writing."""
    shoot = next(model for side, model in ALL if model.__name__ == "Shoot")
    wire = {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "Shoot",
        "metadata": {"name": "x", "managedFields": [{"manager": "m"}]},
        "spec": {
            "region": "r",
            "brandNew": {"a": None},
            "provider": {"type": "t", "infrastructureConfig": {"deep": [None, {"x": None}]}},
        },
    }
    assert shoot.of(wire).to_wire() == wire


def test_kubectl_explain_says_what_a_field_means():
    spec = schema_of("dnsrecords", "seed")["properties"]["spec"]["properties"]
    assert spec["ttl"]["description"] == "Time to live, in seconds."
    assert spec["class"]["description"] == "Unset means ``shoot``.", "texts of a base class count, too"
    assert schema_of("shoots")["description"].startswith("Shoot: desired and present state")


def test_extension_objects_need_a_confirmation_before_their_deletion():
    """Deleting an Infrastructure by mistake would delete a cluster's network."""
    policies = {
        each["metadata"]["name"]: each["spec"]
        for each in deletion_protection("seed")
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    rules = policies["deletion-confirmation-objects.gardener.cloud"]["matchConstraints"]["resourceRules"]
    protected = {each["apiGroups"][0]: each["resources"] for each in rules}
    assert "infrastructures" in protected["extensions.gardener.cloud"]
    assert "clusters" not in protected["extensions.gardener.cloud"], "flows drop it without a word"
    assert protected["druid.gardener.cloud"] == ["etcds"]
    assert all(each["metadata"]["labels"]["gardener.cloud/deletion-protected"] == "true" for each in crds("garden"))


def test_a_kind_with_several_versions_is_served_only_together_with_its_webhook():
    """Without a conversion, the API server would drop the fields of one version from an object of the other one."""
    assert "controllerdeployments" not in {each["spec"]["names"]["plural"] for each in crds("garden")}
    config = {"url": "https://admission:9443/convert", "caBundle": "Q0E="}
    [made] = converted_crds("garden", config)
    assert made["metadata"]["name"] in CONVERTED
    assert made["spec"]["conversion"] == {
        "strategy": "Webhook",
        "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]},
    }
    assert [(each["name"], each["storage"]) for each in made["spec"]["versions"]] == [("v1", True), ("v1beta1", False)]
