"""The object that the resource manager writes in place of a live one.

The manifest decides everything except metadata and status. So a field that others added goes again. This module holds
the exceptions: values that the cluster itself allocates or that autoscalers set.
Source: spec/resource-manager.md 3, table "Merge of desired over live".
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from kube.client import Object
from workers.lib import resource_names as names
from workers.lib.resource_names import annotation
from workers.resource_manager.manifests import pod_templates

_SCALED = frozenset({"Deployment", "StatefulSet"})
_WORKLOADS = frozenset({"apps", "extensions"})
_RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
_LOAD_BALANCER = "loadbalancer.openstack.org"
_FILLED_BY_CLUSTER = frozenset({"PersistentVolume", "PersistentVolumeClaim", "Pod", "Node"})
"""Kinds of the core group whose spec the cluster completes, for example by a volume's or a node's name."""
_TOKEN_KEYS = ("token", "bundle.crt", "kubeconfig")
"""Keys that the token requestor writes into a Secret."""


@dataclass(frozen=True)
class Applied:
    """Labels and annotations as the resource manager wrote them last, from the status of the ManagedResource."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def merge(
    desired: Object,
    live: Mapping[str, Any],
    applied: Applied,
    *,
    force_labels: bool = False,
    force_annotations: bool = False,
    autoscaled: bool = False,
) -> Object:
    """The object to replace the live object with. ``autoscaled``: a HorizontalPodAutoscaler scales the object."""
    wanted = deepcopy(desired)
    wanted["metadata"] = _metadata(desired, live, applied, force_labels, force_annotations)
    wanted.pop("status", None)
    if "status" in live:
        wanted["status"] = live["status"]
    group, kind = str(desired["apiVersion"]).rpartition("/")[0], desired["kind"]
    if group in _WORKLOADS and kind in _SCALED:
        _keep_replicas(wanted, live, autoscaled)
    _keep_in_templates(wanted, live)
    if group in _WORKLOADS and kind == "StatefulSet":
        # Immutable: the API server would refuse a change each time.
        _keep(wanted, live, "spec", "volumeClaimTemplates")
    elif group == "batch" and kind == "Job":
        _keep_of_job(wanted, live)
    elif group == "rbac.authorization.k8s.io" and kind == "ClusterRole" and wanted.get("aggregationRule"):
        _keep(wanted, live, "rules")
    elif not group:
        _keep_of_core(wanted, live)
    _keep_bundles(wanted, live)
    return wanted


def _metadata(
    desired: Mapping[str, Any], live: Mapping[str, Any], applied: Applied, force_labels: bool, force_annotations: bool
) -> Object:
    metadata = {key: value for key, value in live["metadata"].items() if key not in ("managedFields", "labels")}
    for part in ("annotations", "ownerReferences"):
        metadata.pop(part, None)
    given, found = desired["metadata"], live["metadata"]
    labels = _merged(given.get("labels"), found.get("labels"), applied.labels, force=force_labels)
    annotations = _merged(
        given.get("annotations"),
        {
            key: value
            for key, value in (found.get("annotations") or {}).items()
            if not key.startswith(names.REFERENCE_PREFIX)
        },
        applied.annotations,
        force=force_annotations,
        keep=_LOAD_BALANCER if (desired["apiVersion"], desired["kind"]) == ("v1", "Service") else "",
    )
    for part, value in (
        ("labels", labels),
        ("annotations", annotations),
        ("ownerReferences", given.get("ownerReferences")),
    ):
        if value:
            metadata[part] = deepcopy(value)
    return metadata


def _merged(
    desired: Mapping[str, str] | None,
    live: Mapping[str, str] | None,
    applied: Mapping[str, str],
    *,
    force: bool,
    keep: str = "",
) -> dict[str, str]:
    """Desired keys, and those live keys that others set or changed. ``keep``: prefix of keys that stay in any case."""
    found, wanted = live or {}, desired or {}
    stays = {
        key: value
        for key, value in found.items()
        if (keep and key.startswith(keep)) or (not force and applied.get(key) != value)
    }
    return {**stays, **wanted}


def _keep(wanted: Object, live: Mapping[str, Any], *path: str) -> None:
    """Copy one field of the live object, or remove it from the wanted object if the live object lacks it."""
    *parents, name = path
    inner, found = wanted, live
    for parent in parents:
        found = found.get(parent) or {}
        inner = inner.setdefault(parent, {})
    if found.get(name):
        inner[name] = deepcopy(found[name])
    else:
        inner.pop(name, None)


def _keep_replicas(wanted: Object, live: Mapping[str, Any], autoscaled: bool) -> None:
    spec, replicas = wanted.setdefault("spec", {}), (live.get("spec") or {}).get("replicas")
    keep = autoscaled or spec.get("replicas") is None or annotation(wanted, names.PRESERVE_REPLICAS) == "true"
    if keep and replicas is not None:
        spec["replicas"] = replicas


def _keep_in_templates(wanted: Object, live: Mapping[str, Any]) -> None:
    preserve = annotation(wanted, names.PRESERVE_RESOURCES) == "true"
    for template, found in zip(pod_templates(wanted), pod_templates(live), strict=False):
        restarted = ((found.get("metadata") or {}).get("annotations") or {}).get(_RESTARTED_AT)
        if restarted:
            metadata = template.setdefault("metadata", {})
            metadata["annotations"] = {_RESTARTED_AT: restarted, **(metadata.get("annotations") or {})}
        if preserve:
            _keep_resources(template, found)


def _keep_resources(template: Object, found: Mapping[str, Any]) -> None:
    """Copy the live cpu and memory of each container, as an autoscaler has set them; not of init containers."""
    living = {container["name"]: container.get("resources") or {} for container in found["spec"]["containers"]}
    for container in template["spec"]["containers"]:
        for part in ("requests", "limits"):
            for quantity in ("cpu", "memory"):
                value = (living.get(container["name"], {}).get(part) or {}).get(quantity)
                if value is not None:
                    resources = container["resources"] = container.get("resources") or {}
                    resources[part] = {**(resources.get(part) or {}), quantity: value}


def _keep_of_job(wanted: Object, live: Mapping[str, Any]) -> None:
    _keep(wanted, live, "spec", "selector")
    for template, found in zip(pod_templates(wanted), pod_templates(live), strict=False):
        metadata = template.setdefault("metadata", {})
        metadata["labels"] = {**((found.get("metadata") or {}).get("labels") or {}), **(metadata.get("labels") or {})}


def _keep_of_core(wanted: Object, live: Mapping[str, Any]) -> None:
    kind = wanted["kind"]
    if kind == "Service":
        _keep_of_service(wanted, live)
    elif kind == "ServiceAccount":
        for part in ("secrets", "imagePullSecrets"):
            entries = {each["name"]: each for each in [*(live.get(part) or ()), *(wanted.get(part) or ())]}
            if entries:
                wanted[part] = list(entries.values())
    elif kind in _FILLED_BY_CLUSTER:
        wanted["spec"] = _over(live.get("spec") or {}, wanted.get("spec") or {})
    elif kind == "Secret":
        _keep_of_secret(wanted, live)


def _keep_of_secret(wanted: Object, live: Mapping[str, Any]) -> None:
    """Keep what token controllers write: of Kubernetes for a ServiceAccount's Secret, and the token requestor."""
    data = live.get("data") or {}
    purpose = (wanted["metadata"].get("labels") or {}).get(names.PURPOSE)
    if wanted.get("type") == "kubernetes.io/service-account-token":
        kept = dict(data)
    elif purpose == names.PURPOSE_TOKEN_REQUESTOR:
        kept = {key: data[key] for key in _TOKEN_KEYS if key in data}
    else:
        return
    if kept:
        wanted["data"] = {**(wanted.get("data") or {}), **kept}


def _keep_of_service(wanted: Object, live: Mapping[str, Any]) -> None:
    spec, found = wanted.setdefault("spec", {}), live.get("spec") or {}
    kind = spec["type"] = spec.get("type") or "ClusterIP"
    if kind == "ExternalName":
        return
    if kind in ("LoadBalancer", "NodePort"):
        _keep_node_ports(spec.get("ports") or (), found.get("ports") or ())
        if not spec.get("loadBalancerIP"):
            _keep(wanted, live, "spec", "loadBalancerIP")
    if spec.get("clusterIP") != "None" and found.get("type") != "ExternalName":
        for name in ("clusterIP", "clusterIPs"):
            _keep(wanted, live, "spec", name)
    if kind == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local" and not spec.get("healthCheckNodePort"):
        _keep(wanted, live, "spec", "healthCheckNodePort")


def _keep_node_ports(wanted: Iterable[Object], live: Iterable[Mapping[str, Any]]) -> None:
    """Keep the node port of each port with the same number and protocol, or else with the same name."""
    free = [port for port in live if port.get("nodePort")]
    open_ports = [port for port in wanted if not port.get("nodePort")]

    def take(port: Object, found: Mapping[str, Any]) -> None:
        free.remove(found)
        open_ports.remove(port)
        port["nodePort"] = found["nodePort"]

    def end(port: Mapping[str, Any]) -> tuple[object, str]:
        return port.get("port"), port.get("protocol") or "TCP"

    for same in (end, lambda port: port.get("name")):
        for port in list(open_ports):
            match = next((found for found in free if same(port) and same(found) == same(port)), None)
            if match is not None:
                take(port, match)
    for port in open_ports:
        port.pop("nodePort", None)


def _keep_bundles(wanted: Object, live: Mapping[str, Any]) -> None:
    """Keep an injected CA bundle where the manifest names none: without it the API server calls no webhook."""
    kind = wanted["kind"]
    if kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        living = {each.get("name"): each for each in live.get("webhooks") or ()}
        for each in wanted.get("webhooks") or ():
            _keep_bundle(each.get("clientConfig"), (living.get(each.get("name")) or {}).get("clientConfig"))
    elif kind == "CustomResourceDefinition":
        client, found = (
            (((obj.get("spec") or {}).get("conversion") or {}).get("webhook") or {}).get("clientConfig")
            for obj in (wanted, live)
        )
        _keep_bundle(client, found)
    elif kind == "APIService":
        spec = wanted.get("spec") or {}
        if not spec.get("insecureSkipTLSVerify"):
            _keep_bundle(spec, live.get("spec"))


def _keep_bundle(wanted: Object | None, live: Mapping[str, Any] | None) -> None:
    bundle = (live or {}).get("caBundle")
    if wanted and bundle and not wanted.get("caBundle"):
        wanted["caBundle"] = bundle


def _over(live: Any, desired: Any) -> Any:
    """Desired values over live values. Items of a list are the same if they have the same name."""
    if isinstance(live, Mapping) and isinstance(desired, Mapping):
        return {**live, **{key: _over(live.get(key), value) for key, value in desired.items()}}
    if isinstance(live, list) and isinstance(desired, list) and _are_named(live) and _are_named(desired):
        items = {each["name"]: each for each in live}
        return list({**items, **{each["name"]: _over(items.get(each["name"]), each) for each in desired}}.values())
    return deepcopy(desired)


def _are_named(items: list[Any]) -> bool:
    return all(isinstance(item, Mapping) and "name" in item for item in items)
