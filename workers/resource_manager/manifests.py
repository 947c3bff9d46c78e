"""Objects from the data of Secrets: decoding, normalizing, order of application."""

import base64
import importlib
import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

from api import compression
from api.labels import is_true
from kube.client import Object
from workers.lib import resource_names as names
from workers.lib.resource_names import annotation


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Kubernetes reads it: a date is a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


class DecodingError(ValueError):
    """A document is no Kubernetes object. The text names the document and does not quote it: it may be a Secret."""


def decode(secret: Mapping[str, Any]) -> tuple[list[Object], list[str]]:
    """Objects in a Secret's data, in the order of its keys, and errors for documents that could not be decoded."""
    objects: list[Object] = []
    faults: list[str] = []
    for key in sorted(secret.get("data") or {}):
        where = f"key {key} of Secret {secret['metadata']['name']}"
        try:
            data = base64.b64decode(secret["data"][key])
            if key.endswith(".br"):
                data = _brotli(data, where)
            for number, document in enumerate(_documents(data, where)):
                if document:
                    objects.append(_checked(document, f"document {number} in {where}"))
        except DecodingError as error:
            faults.append(str(error))
    return objects, faults


def _brotli(data: bytes, where: str) -> bytes:
    try:
        brotli = importlib.import_module("brotli")
    except ImportError:
        raise DecodingError(f"{where} is compressed, and Python package brotli is not installed") from None
    try:
        decompressor = brotli.Decompressor()
        # The buffer may end a little beyond its limit.
        content = bytes(decompressor.process(data, output_buffer_limit=compression.LIMIT + 1))
        if len(content) > compression.LIMIT:
            raise DecodingError(f"{where} {compression.TooLarge(compression.LIMIT)}")
        if not decompressor.is_finished():
            raise DecodingError(f"{where} was cut short")
        return content
    except brotli.error:
        raise DecodingError(f"{where} is not Brotli data") from None


def _documents(data: bytes, where: str) -> list[Any]:
    # Our own manifests are JSON, ten times faster to read than YAML.
    if data.lstrip()[:1] == b"{":
        try:
            return [json.loads(data)]
        except ValueError:
            pass  # several documents, or flow-style YAML
    try:
        return list(yaml.load_all(data, Loader=_Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise DecodingError(f"{where} is not YAML{line}") from None


def _checked(document: Any, where: str) -> Object:
    if not isinstance(document, dict) or not document.get("apiVersion") or not document.get("kind"):
        raise DecodingError(f"{where} has no apiVersion and kind")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise DecodingError(f"{where}, a {document['kind']}, has no name")
    return document


@dataclass(frozen=True, order=True)
class Reference:
    """Names an object by group, kind, namespace and name; ``api_version`` is the version in which it was written."""

    group: str
    kind: str
    namespace: str
    name: str
    api_version: str

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> "Reference":
        """Reference to an object, given the object or its entry of ``status.resources``."""
        metadata = obj.get("metadata") or obj
        api_version = str(obj["apiVersion"])
        return cls(
            api_version.rpartition("/")[0],
            str(obj["kind"]),
            str(metadata.get("namespace") or ""),
            str(metadata["name"]),
            api_version,
        )

    def __str__(self) -> str:
        return f"{self.kind} " + (f"{self.namespace}/{self.name}" if self.namespace else self.name)


_EQUIVALENT_BY_DEFAULT = (
    *((("extensions", kind), ("apps", kind)) for kind in ("Deployment", "DaemonSet", "ReplicaSet", "StatefulSet")),
    *((("extensions", kind), ("networking.k8s.io", kind)) for kind in ("Ingress", "NetworkPolicy")),
)


class Equivalences:
    """Kinds that stand for the same objects in two API groups, as kind Deployment once did."""

    def __init__(self, sets: Iterable[Iterable[Mapping[str, str]]] = ()) -> None:
        self._same: dict[tuple[str, str], tuple[str, str]] = {}
        given = ([(entry.get("group", ""), entry["kind"]) for entry in group] for group in sets)
        for group in (*_EQUIVALENT_BY_DEFAULT, *given):
            representative = min(self._same.get(kind, kind) for kind in group)
            merged = {self._same.get(kind, kind) for kind in group} | set(group)
            for kind in [*group, *(kind for kind, head in self._same.items() if head in merged)]:
                self._same[kind] = representative

    def identity(self, reference: Reference) -> tuple[tuple[str, str], str, str]:
        kind = (reference.group, reference.kind)
        return self._same.get(kind, kind), reference.namespace, reference.name


def finish(obj: Object, *, inject_labels: Mapping[str, str], origin: str, managed_by: str) -> Object:
    """The object as it is applied: with our labels and annotations, and without fields that are no desired state."""
    wanted = deepcopy(obj)
    wanted.pop("status", None)
    metadata = wanted["metadata"]
    for field in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"):
        metadata.pop(field, None)
    metadata["labels"] = {**(metadata.get("labels") or {}), **inject_labels, names.MANAGED_BY: managed_by}
    annotations = {**(metadata.get("annotations") or {}), names.ORIGIN: origin}
    if not truthy_annotation(wanted, names.IGNORE):
        annotations[names.DESCRIPTION] = names.DO_NOT_EDIT
    metadata["annotations"] = annotations
    if inject_labels:
        for template in pod_templates(wanted):
            inner = template.setdefault("metadata", {})
            inner["labels"] = {**(inner.get("labels") or {}), **inject_labels}
        for claim in (wanted.get("spec") or {}).get("volumeClaimTemplates") or ():
            inner = claim.setdefault("metadata", {})
            inner["labels"] = {**(inner.get("labels") or {}), **inject_labels}
    return wanted


def pod_templates(obj: Mapping[str, Any]) -> list[Object]:
    """The pod templates in an object of a workload kind."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return []
    if obj["kind"] == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    template = spec.get("template")
    if obj["kind"] in WITH_PODS and isinstance(template, dict):
        return [template]
    return []


WITH_PODS = frozenset(
    {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"}
)


def truthy_annotation(obj: Mapping[str, Any], key: str) -> bool:
    return is_true(annotation(obj, key))


# Helm's order of installation: objects that others need come first.
_ORDER = {
    kind: number
    for number, kind in enumerate(
        (
            "PriorityClass",
            "Namespace",
            "NetworkPolicy",
            "ResourceQuota",
            "LimitRange",
            "PodSecurityPolicy",
            "PodDisruptionBudget",
            "ServiceAccount",
            "Secret",
            "SecretList",
            "ConfigMap",
            "StorageClass",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "CustomResourceDefinition",
            "ClusterRole",
            "ClusterRoleList",
            "ClusterRoleBinding",
            "ClusterRoleBindingList",
            "Role",
            "RoleList",
            "RoleBinding",
            "RoleBindingList",
            "Service",
            "DaemonSet",
            "Pod",
            "ReplicationController",
            "ReplicaSet",
            "Deployment",
            "HorizontalPodAutoscaler",
            "StatefulSet",
            "Job",
            "CronJob",
            "IngressClass",
            "Ingress",
            "APIService",
        )
    )
}


def in_order(objects: Iterable[Object]) -> list[list[Object]]:
    """Objects in groups of one kind each, in the order of application. Within a group the order does not matter."""

    def rank(obj: Object) -> tuple[int, str, str]:
        return _ORDER.get(obj["kind"], len(_ORDER)), obj["kind"], obj["apiVersion"]

    groups: dict[tuple[int, str, str], list[Object]] = {}
    for obj in objects:
        groups.setdefault(rank(obj), []).append(obj)
    return [sorted(groups[key], key=lambda obj: str(obj["metadata"]["name"])) for key in sorted(groups)]
