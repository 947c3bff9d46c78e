"""Objects from the data of Secrets: decoding, normalizing, order of application."""

import base64
import importlib
import json
import re
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


_SEPARATOR = re.compile(rb"^---(?=[ \t\r]*(?:#.*)?$)", re.MULTILINE)
"""Line between two documents of a stream. Each document is read by itself, so that a bad one spares the others."""
_MOST_VALUES = 1_000_000
"""Values in one document. An object of 1.5 MB, the most that etcd takes, has fewer."""


_DEEPEST = 200
"""Maps and lists inside one another. Kinds of Kubernetes have up to 30, schemas of definitions some more."""


class DecodingError(ValueError):
    """A document is no Kubernetes object. The text names the document and does not quote it: it may be a Secret."""


def decode(secret: Mapping[str, Any]) -> tuple[list[Object], list[str]]:
    """Objects in a Secret's data, in the order of its keys, and errors for documents that could not be decoded.

    A document that cannot be decoded takes none of the others with it.
    """
    objects: list[Object] = []
    faults: list[str] = []
    for key in sorted(secret.get("data") or {}):
        where = f"key {key} of Secret {secret['metadata']['name']}"
        try:
            data = base64.b64decode(secret["data"][key])
            if key.endswith(".br"):
                data = _brotli(data, where)
            documents = _documents(data, where)
        except DecodingError as error:
            faults.append(str(error))
            continue
        for number, document in enumerate(documents):
            if isinstance(document, DecodingError):
                faults.append(str(document))
            elif document:
                found, wrong = _objects_in(document, f"document {number} in {where}")
                objects += found
                faults += wrong
    return objects, faults


def _objects_in(document: Any, where: str) -> tuple[list[Object], list[str]]:
    """The object that a document holds, or the items of its list."""
    if not _is_list(document):
        try:
            return [_checked(document, where)], []
        except DecodingError as error:
            return [], [str(error)]
    kind = str(document["kind"]).removesuffix("List")
    # Items of a typed list, such as a SecretList, need no kind of their own.
    defaults = {"apiVersion": document["apiVersion"], "kind": kind} if kind else {}
    objects, faults = [], []
    for number, item in enumerate(document["items"]):
        try:
            objects.append(
                _checked({**defaults, **item} if isinstance(item, dict) else item, f"item {number} of {where}")
            )
        except DecodingError as error:
            faults.append(str(error))
    return objects, faults


def _is_list(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and str(document.get("kind")).endswith("List")
        and bool(document.get("apiVersion"))
        and isinstance(document.get("items"), list)
    )


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
    """The documents of a stream; a DecodingError stands for each one that could not be read."""
    # Our own manifests are JSON, ten times faster to read than YAML.
    if data.lstrip()[:1] == b"{":
        try:
            return _json_documents(data.decode())
        except (ValueError, RecursionError):
            pass  # flow-style YAML
    parts = _SEPARATOR.split(data)
    starts = [0]
    for part in parts[:-1]:
        starts.append(starts[-1] + part.count(b"\n"))
    return [each for part, start in zip(parts, starts, strict=True) for each in _yaml_documents(part, start, where)]


def _json_documents(text: str) -> list[Any]:
    documents, decoder, position = [], json.JSONDecoder(), 0
    while position < len(text):
        document, position = decoder.raw_decode(text, position)
        documents.append(document)
        position += len(text[position:]) - len(text[position:].lstrip())
    return documents


def _yaml_documents(data: bytes, start: int, where: str) -> list[Any]:
    """``start``: number of lines of the stream before this part."""
    try:
        _check_depth(data)
        documents = list(yaml.load_all(data, Loader=_Loader))
        for document in documents:
            _check_size(document)
        # As JSON: keys become strings, and an alias a value of its own.
        documents = [json.loads(json.dumps(document, allow_nan=False)) for document in documents]
    except _Unbounded as error:
        return [DecodingError(f"{where} has {error} in the document after line {start}")]
    except (yaml.YAMLError, TypeError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = start + 1 + (mark.line if mark else 0)
        return [DecodingError(f"{where} is not YAML at line {line}")]
    return documents or [None]


class _Unbounded(ValueError):
    """A document is deeper or, by its aliases, larger than any object."""


def _check_depth(data: bytes) -> None:
    """Raises _Unbounded if maps and lists are nested too deeply. The loader of libyaml would end the process."""
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise _Unbounded(f"more than {_DEEPEST} maps and lists inside one another")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_size(document: Any) -> None:
    """Raises _Unbounded if aliases make a document larger than any object, or refer to what contains them."""
    sizes: dict[int, int] = {}

    def size(value: Any) -> int:
        if not isinstance(value, dict | list):
            return 1
        known = sizes.get(id(value))
        if known == 0:
            raise _Unbounded("an alias that contains itself")
        if known is None:
            sizes[id(value)] = 0
            known = 1 + sum(map(size, value.values() if isinstance(value, dict) else value))
            if known > _MOST_VALUES:
                raise _Unbounded(f"aliases that stand for more than {_MOST_VALUES} values")
            sizes[id(value)] = known
        return known

    size(document)


def _checked(document: Any, where: str) -> Object:
    if not isinstance(document, dict) or not document.get("apiVersion") or not document.get("kind"):
        raise DecodingError(f"{where} has no apiVersion and kind")
    kind, metadata = document["kind"], document.get("metadata")
    if not isinstance(kind, str) or not isinstance(document["apiVersion"], str):
        raise DecodingError(f"{where} has an apiVersion or a kind that is no string")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise DecodingError(f"{where}, a {kind}, has no name")
    for part in ("name", "namespace"):
        if not isinstance(metadata.get(part) or "", str):
            raise DecodingError(f"{where}, a {kind}, has a {part} that is no string")
    for part in ("labels", "annotations"):
        values = metadata.get(part) or {}
        if not isinstance(values, dict) or not all(isinstance(each, str) for pair in values.items() for each in pair):
            raise DecodingError(f"{where}, the {kind} {metadata['name']}, has {part} that are no strings")
    for path in (("spec",), ("spec", "template"), ("spec", "template", "metadata"), ("spec", "template", "spec")):
        inner: Any = document
        for step in path:
            inner = (inner or {}).get(step)
            if inner is not None and not isinstance(inner, dict):
                if kind in WITH_PODS:
                    raise DecodingError(
                        f"{where}, the {kind} {metadata['name']}, has a {'.'.join(path)} that is no map"
                    )
                break
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


_FOR_WEBHOOKS = ("Deployment", "StatefulSet", "CronJob")
"""Kinds whose pods get the label of managed objects. No webhook that asks for it is for pods of DaemonSets, which the
label would replace once; the template of a Job cannot change."""


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
    # Webhooks know pods of ManagedResources by this label.
    for_pods = {**inject_labels, names.MANAGED_BY: managed_by} if wanted["kind"] in _FOR_WEBHOOKS else inject_labels
    for template in pod_templates(wanted) if for_pods else ():
        inner = template.setdefault("metadata", {})
        inner["labels"] = {**(inner.get("labels") or {}), **for_pods}
    if inject_labels:
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
