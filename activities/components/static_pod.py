"""Static pods of a node of a self-hosted Shoot, made from the same manifests as control planes in a seed.

A kubelet runs a static pod before there is an API server, so the pod cannot use ConfigMaps and Secrets. Their content
becomes files of the node, which the pod mounts at the same paths. The pod shares the network of its node.
"""

import base64
import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from activities.components.base import Manifest, to_json
from api.constants import SELF_HOSTED_NAMESPACE

MANIFESTS = "/etc/kubernetes/manifests"
"""Directory in which the kubelet looks for static pods."""
FILES = "/var/lib/static-pods"
_READABLE, _PRIVATE = 0o644, 0o600

Content = Mapping[str, Mapping[str, bytes]]
"""Data of Secrets, by name."""


@dataclass(frozen=True)
class StaticPod:
    manifest: Manifest
    files: Mapping[str, bytes] = field(repr=False)
    """Content of the files that its volumes have, by path."""

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def path(self) -> str:
        """Path of the manifest, which is to be written last."""
        return f"{MANIFESTS}/{self.name}.yaml"

    @property
    def text(self) -> bytes:
        return to_json(self.manifest).encode()


def of_deployment(objects: Iterable[Manifest], secrets: Content, *, restarts: bool = True) -> StaticPod:
    """The pod of the Deployment among ``objects``; its ConfigMaps and Secrets are among them, or are in ``secrets``.

    ``restarts``: see ``static_pod``.

    Raises KeyError for a volume whose content is in neither.
    """
    objects = list(objects)
    [workload] = [each for each in objects if each["kind"] == "Deployment"]
    data = {**secrets, **{each["metadata"]["name"]: _data(each) for each in objects if each["kind"] in _KINDS}}
    # No process renews tokens here: the kubeconfigs beside them have client certificates.
    tokens = {each["metadata"]["name"] for each in objects if _is_token(each)}
    data = {name: content for name, content in data.items() if name not in tokens}
    template = workload["spec"]["template"]
    labels = template["metadata"].get("labels") or {}
    return static_pod(workload["metadata"]["name"], labels, template["spec"], data, tokens, restarts=restarts)


_KINDS = ("ConfigMap", "Secret")


def _is_token(found: Manifest) -> bool:
    labels = found["metadata"].get("labels") or {}
    return labels.get("resources.gardener.cloud/purpose") == "token-requestor"


def _data(found: Manifest) -> dict[str, bytes]:
    plain = {key: text.encode() for key, text in (found.get("data") or {}).items()}
    if found["kind"] == "ConfigMap":
        return plain
    return {key: base64.b64decode(text) for key, text in plain.items()}


def static_pod(
    name: str,
    labels: Mapping[str, str],
    spec: Manifest,
    data: Content,
    without: Collection[str] = (),
    *,
    restarts: bool = True,
) -> StaticPod:
    """A static pod; ``spec`` is that of a pod in a seed.

    ``without``: names of Secrets that the pod does not get. ``restarts``: whether it starts again if its files change.
    """
    files: dict[str, bytes] = {}
    volumes = []
    for volume in spec["volumes"]:
        sources = list(_sources(volume))
        if not sources:
            volumes.append(volume)
            continue
        directory = f"{FILES}/{name}/{volume['name']}"
        for source, items in sources:
            if source in without:
                continue
            content = data[source]
            for key, path in (items or {each: each for each in content}).items():
                files[f"{directory}/{path}"] = content[key]
        volumes.append({"name": volume["name"], "hostPath": {"path": directory, "type": "Directory"}})
    dropped = ("topologySpreadConstraints", "serviceAccountName", "volumes", "affinity", "priorityClassName")
    pod = {
        **{key: value for key, value in spec.items() if key not in dropped},
        "hostNetwork": True,
        "dnsPolicy": "Default",
        "priorityClassName": "system-node-critical",
        # Files of the node have no group that a pod could get, so the pod reads them as root, without further rights.
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(each) for each in spec["containers"]],
        "volumes": volumes,
    }
    metadata: Manifest = {"name": name, "namespace": SELF_HOSTED_NAMESPACE, "labels": dict(labels)}
    if restarts:
        digests = "".join(f"{path} {hashlib.sha256(content).hexdigest()}\n" for path, content in sorted(files.items()))
        metadata["annotations"] = {"checksum/files": hashlib.sha256(digests.encode()).hexdigest()}
    return StaticPod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}, files)


def _sources(volume: Manifest) -> Iterable[tuple[str, Mapping[str, str]]]:
    """Name of each ConfigMap and Secret of a volume, and the file of each key; no keys: all keys are files."""
    for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
        for kind, key in (("secret", "secretName"), ("configMap", "name")):
            if part := source.get(kind):
                name = part.get(key) or part["name"]
                yield name, {each["key"]: each["path"] for each in part.get("items") or ()}


def _container(container: Manifest) -> Manifest:
    """The container, which may bind ports below 1024: in the network of its node, no sysctl of the pod allows that."""
    context = container.get("securityContext") or {}
    added = {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}
    return {**container, "securityContext": {**context, "capabilities": added}}
