"""CustomResourceDefinitions, generated from the models: structural schemas, columns, immutability rules."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from api.constants import DELETION_PROTECTED
from api.descriptions import describe_fields
from api.meta import Column, KubeObject

_KINDS = {
    "garden": (
        "core.v1beta1.cloud_profile:CloudProfile",
        "core.v1beta1.namespaced_cloud_profile:NamespacedCloudProfile",
        "core.v1beta1.seed:Seed",
        "core.v1beta1.project:Project",
        "core.v1beta1.shoot:Shoot",
        "core.v1beta1.shoot_state:ShootState",
        "core.v1beta1.secret_binding:SecretBinding",
        "core.v1beta1.quota:Quota",
        "core.v1beta1.exposure_class:ExposureClass",
        "core.v1beta1.internal_secret:InternalSecret",
        "core.v1beta1.backup_bucket:BackupBucket",
        "core.v1beta1.backup_entry:BackupEntry",
        "core.v1beta1.plant:Plant",
        "core.v1beta1.controller_registration:ControllerRegistration",
        "core.v1.controller_deployment:ControllerDeployment",
        "core.v1beta1.controller_deployment:ControllerDeployment",
        "core.v1beta1.controller_installation:ControllerInstallation",
        "security.v1alpha1.credentials_binding:CredentialsBinding",
        "security.v1alpha1.workload_identity:WorkloadIdentity",
        "bastions.v1alpha1.bastion:Bastion",
        "seedmanagement.v1alpha1.managed_seed:ManagedSeed",
        "seedmanagement.v1alpha1.managed_seed_set:ManagedSeedSet",
        "seedmanagement.v1alpha1.gardenlet:Gardenlet",
        "seedmanagement.v1alpha1.seed_autoscaler:SeedAutoscaler",
    ),
    "seed": (
        "extensions.v1alpha1.backup_bucket:BackupBucket",
        "extensions.v1alpha1.backup_entry:BackupEntry",
        "extensions.v1alpha1.bastion:Bastion",
        "extensions.v1alpha1.cluster:Cluster",
        "extensions.v1alpha1.container_runtime:ContainerRuntime",
        "extensions.v1alpha1.control_plane:ControlPlane",
        "extensions.v1alpha1.dns_record:DNSRecord",
        "extensions.v1alpha1.extension:Extension",
        "extensions.v1alpha1.infrastructure:Infrastructure",
        "extensions.v1alpha1.network:Network",
        "extensions.v1alpha1.operating_system_config:OperatingSystemConfig",
        "extensions.v1alpha1.self_hosted_shoot_exposure:SelfHostedShootExposure",
        "extensions.v1alpha1.worker:Worker",
        "managed_resources.v1alpha1.managed_resource:ManagedResource",
        "druid.v1alpha1.etcd:Etcd",
        "druid.v1alpha1.etcd_copy_backups_task:EtcdCopyBackupsTask",
        "machine.v1alpha1.machine:Machine",
        "machine.v1alpha1.machine_class:MachineClass",
        "machine.v1alpha1.machine_deployment:MachineDeployment",
        "machine.v1alpha1.machine_set:MachineSet",
    ),
    "autoscaled shoot": (
        "autoscaling.v1.vertical_pod_autoscaler:VerticalPodAutoscaler",
        "autoscaling.v1.vertical_pod_autoscaler_checkpoint:VerticalPodAutoscalerCheckpoint",
    ),
}
Side = Literal["garden", "seed", "autoscaled shoot"]


def kinds(side: Side) -> list[type[KubeObject]]:
    """The models of all kinds served in the garden, in a seed, or in a shoot with a vertical pod autoscaler."""
    models = []
    for entry in _KINDS[side]:
        module, name = entry.split(":")
        models.append(getattr(importlib.import_module(f"api.{module}"), name))
    return models


def crds(side: Side) -> list[dict[str, Any]]:
    """CustomResourceDefinitions to apply in the garden, in a seed, or in a shoot: those of kinds with one version."""
    return [crd(*versions) for versions in _by_kind(side) if len(versions) == 1]


def converted_crds(side: Side, client_config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """CustomResourceDefinitions of the kinds with several versions, which a webhook converts.

    ``client_config``: how the API server calls the webhook. Without a webhook such a kind must not be served: the API
    server would store an object of one version as if it were of the other one, and drop the fields that differ.
    """
    conversion = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": dict(client_config), "conversionReviewVersions": ["v1"]},
    }
    several = [crd(*versions) for versions in _by_kind(side) if len(versions) > 1]
    return [{**each, "spec": {**each["spec"], "conversion": conversion}} for each in several]


def _by_kind(side: Side) -> list[list[type[KubeObject]]]:
    """The models of each kind: one for each of its versions."""
    found: dict[tuple[str, str], list[type[KubeObject]]] = {}
    for model in kinds(side):
        found.setdefault((model.definition.group, model.definition.plural), []).append(model)
    return list(found.values())


@cache
def crd(*models: type[KubeObject]) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind, with a version for each of ``models``. Treat the result as read-only."""
    served = models[0].definition
    kind = models[0].__name__
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{served.plural}.{served.group}",
            **({"labels": {DELETION_PROTECTED: "true"}} if served.protected else {}),
            **({"annotations": dict(served.annotations)} if served.annotations else {}),
        },
        "spec": {
            "group": served.group,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": served.plural,
                "singular": kind.lower(),
                "shortNames": list(served.short_names),
            },
            "scope": "Namespaced" if served.namespaced else "Cluster",
            "versions": [_version(model, stored=model.definition.stored or len(models) == 1) for model in models],
        },
    }


def _version(model: type[KubeObject], *, stored: bool) -> dict[str, Any]:
    served = model.definition
    subresources: dict[str, Any] = {"status": {}} if served.status else {}
    if served.scale:
        spec_path, status_path, selector_path = served.scale
        subresources["scale"] = {
            "specReplicasPath": spec_path,
            "statusReplicasPath": status_path,
            **({"labelSelectorPath": selector_path} if selector_path else {}),
        }
    version: dict[str, Any] = {
        "name": served.version,
        "served": True,
        "storage": stored,
        "schema": {"openAPIV3Schema": schema(model)},
        "additionalPrinterColumns": [_column(column) for column in served.columns],
    }
    if subresources:
        version["subresources"] = subresources
    if served.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in served.selectable]
    return version


def schema(model: type[KubeObject]) -> dict[str, Any]:
    """Structural OpenAPI v3 schema of ``model``."""
    document = model.model_json_schema(by_alias=True, mode="validation")
    describe_fields(model, document)
    structural = _structural(document, document.get("$defs", {}))
    # The API server has its own schema of metadata, and allows only a type here.
    structural["properties"]["metadata"] = {"type": "object"}
    for name in ("apiVersion", "kind"):
        structural["properties"][name] = {"type": "string"}
    return structural


def _column(column: Column) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**entry, "priority": 1} if column.wide else entry


_DROPPED = frozenset({"$defs", "$ref", "title", "anyOf", "allOf", "const", "discriminator"})


def _structural(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """Convert a pydantic JSON schema node to a structural schema of Kubernetes, with ``$ref`` and ``null`` resolved."""
    if "$ref" in node:
        # Keys next to the reference (default, markers) belong to the field, so they win.
        node = {**defs[node["$ref"].rsplit("/", 1)[1]], **node}
        return _structural({key: value for key, value in node.items() if key != "$ref"}, defs)
    if "anyOf" in node:
        choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
        if len(choices) != 1:
            raise ValueError(f"a structural schema cannot offer a choice of types: {node}")
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _structural({**choices[0], **rest}, defs)
    result = {key: value for key, value in node.items() if key not in _DROPPED}
    if "const" in node:
        result["enum"] = [node["const"]]
    if result.get("default", ...) in (None, "", [], {}):
        del result["default"]
    if "items" in result:
        result["items"] = _structural(result["items"], defs)
    if "properties" in result:
        # The API server prunes unknown fields, or refuses them with fieldValidation=Strict, as for built-in kinds.
        result.pop("additionalProperties", None)
        _resolve_properties(result, defs)
    elif isinstance(result.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(result["additionalProperties"], defs)
    return result


def _resolve_properties(result: dict[str, Any], defs: dict[str, Any]) -> None:
    """Resolve the fields of an object; immutable fields become CEL rules of the object."""
    required = set(result.get("required", ()))
    rules = list(result.get("x-kubernetes-validations", ()))
    properties = {}
    for name, node in result["properties"].items():
        field = _structural(node, defs)
        if immutable := field.pop("x-immutable", None):
            rules.append(_immutable(name, always=immutable == "always", required=name in required))
        properties[name] = field
    result["properties"] = properties
    if rules:
        result["x-kubernetes-validations"] = rules


_CEL_RESERVED = frozenset({"namespace", "package", "import", "as", "in", "for", "if", "else", "const"})


def _immutable(name: str, *, always: bool, required: bool) -> dict[str, Any]:
    field = f"__{name}__" if name in _CEL_RESERVED else name
    same = f"self.{field} == oldSelf.{field}"
    if required:
        rule = same
    elif always:
        rule = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same})"
    else:
        rule = f"!has(oldSelf.{field}) || (has(self.{field}) && {same})"
    return {"rule": rule, "message": "field is immutable", "fieldPath": f".{name}", "reason": "FieldValueInvalid"}
