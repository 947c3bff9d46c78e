"""Parts that manifests of all components share: metadata, pods, volumes, access to the shoot's API."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from activities.components import priority
from api import high_availability
from api.labels import ZONE
from api.quantities import is_less

Manifest = dict[str, Any]
Labels = Mapping[str, str]

NON_ROOT = 65532
"""User and group of every container that needs no root, as in distroless images."""

_VERSIONED = re.compile("-[0-9a-f]{8}$")
"""End of the name of an object that is named after its content."""
VERSIONED_LABEL = "resources.gardener.cloud/garbage-collectable-reference"
REFERENCE_PREFIX = "reference.resources.gardener.cloud"

KUBECONFIG_DIR = "/var/run/secrets/gardener.cloud/shoot/generic-kubeconfig"
KUBECONFIG_PATH = f"{KUBECONFIG_DIR}/kubeconfig"
"""Path of the generic kubeconfig in a control-plane pod; the token file is in the same directory."""

_CONTROL_PLANE_ROLE = {"gardener.cloud/role": "controlplane"}


def metadata(
    name: str,
    namespace: str | None = None,
    *,
    labels: Labels | None = None,
    annotations: Labels | None = None,
) -> Manifest:
    made: Manifest = {"name": name}
    if namespace:
        made["namespace"] = namespace
    if labels:
        made["labels"] = dict(labels)
    if annotations:
        made["annotations"] = dict(annotations)
    return made


def deployment(
    name: str,
    namespace: str,
    *,
    select: Labels,
    pod: Manifest,
    replicas: int,
    labels: Labels | None = None,
    pod_labels: Labels | None = None,
    annotations: Labels | None = None,
    recreate: bool = False,
) -> Manifest:
    """A Deployment that never has fewer pods than wanted during a rollout, unless ``recreate``.

    The annotations are set on the object and on its pod template, so that a changed checksum rolls the pods. The
    versioned objects that the pods use are named there, too.
    """
    strategy: Manifest = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    made = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(
            name,
            namespace,
            # Replicas, zones and spreading are in the manifest: no webhook changes them.
            labels={**select, **(labels or {}), high_availability.SKIP: "true"},
            annotations=annotations,
        ),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": dict(select)},
            "strategy": {"type": "Recreate"} if recreate else strategy,
            "template": {
                "metadata": {
                    "labels": {**select, **(labels or {}), **(pod_labels or {})},
                    **({"annotations": dict(annotations)} if annotations else {}),
                },
                "spec": pod,
            },
        },
    }
    return with_references(made)


def daemon_set(
    name: str,
    namespace: str,
    *,
    select: Labels,
    labels: Labels,
    annotations: Labels | None = None,
    pod: Manifest,
    max_unavailable: int | str = 1,
) -> Manifest:
    """A DaemonSet with one pod on each node, whatever the node's state, in the node's network.

    ``labels`` include those of ``select``. The annotations are set on the pod template, so that a changed checksum
    rolls the pods. The versioned objects that the pods use are named there, too.
    """
    made = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(name, namespace, labels=labels),
        "spec": {
            "selector": {"matchLabels": dict(select)},
            "revisionHistoryLimit": 2,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": max_unavailable}},
            "template": {
                "metadata": {"labels": dict(labels), "annotations": dict(annotations or {})},
                "spec": {
                    "hostNetwork": True,
                    "dnsPolicy": "Default",
                    "priorityClassName": "system-node-critical",
                    "tolerations": fail_safe_tolerations(),
                    "terminationGracePeriodSeconds": 5,
                    **pod,
                },
            },
        },
    }
    return with_references(made)


def control_plane_labels(app: str, role: str = "") -> dict[str, str]:
    """Labels that select the pods of one control-plane component."""
    return {"app": app, **({"role": role} if role else {})}


def control_plane_deployment(name: str, namespace: str, *, pod: Manifest, **rest: Any) -> Manifest:
    """A Deployment whose pods have the PriorityClass of the component. Raises KeyError for an unknown component."""
    pod = {"priorityClassName": priority.class_of(name), **pod}
    return deployment(name, namespace, labels=_CONTROL_PLANE_ROLE, pod=pod, **rest)


def service(
    name: str,
    namespace: str,
    *,
    select: Labels,
    ports: Mapping[str, int | tuple[int, int | str]],
    labels: Labels | None = None,
    **spec: Any,
) -> Manifest:
    """A Service; ``ports`` by name: a number, or the number and the pods' port."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name, namespace, labels={**select, **(labels or {})}),
        "spec": {
            "type": "ClusterIP",
            "selector": dict(select),
            "ports": [
                {
                    "name": port_name,
                    "protocol": "TCP",
                    "port": port if isinstance(port, int) else port[0],
                    "targetPort": port if isinstance(port, int) else port[1],
                }
                for port_name, port in ports.items()
            ],
            **spec,
        },
    }


def pod_disruption_budget(name: str, namespace: str, select: Labels) -> Manifest:
    """A PodDisruptionBudget that allows one missing pod at a time. Unhealthy pods may always be evicted."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(name, namespace, labels=select),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": dict(select)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def service_account(name: str, namespace: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(name, namespace),
        "automountServiceAccountToken": False,
    }


def cluster_role(name: str, rules: Sequence[Manifest], *, labels: Labels | None = None) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": metadata(name, labels=labels),
        "rules": list(rules),
    }


def role(name: str, namespace: str, rules: Sequence[Manifest]) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(name, namespace),
        "rules": list(rules),
    }


def rule(groups: str, resource_names: str, verbs: str, names: Sequence[str] = ()) -> Manifest:
    """A rule of a Role. Lists are texts of words separated by spaces; the core group is ``core``."""
    made: Manifest = {
        "apiGroups": ["" if group == "core" else group for group in groups.split()],
        "resources": resource_names.split(),
        "verbs": verbs.split(),
    }
    if names:
        made["resourceNames"] = list(names)
    return made


def binding(
    name: str,
    subjects: Sequence[Manifest],
    *,
    cluster_role: str = "",
    role: str = "",
    namespace: str | None = None,
) -> Manifest:
    """A RoleBinding in ``namespace``, or a ClusterRoleBinding without a namespace."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": metadata(name, namespace),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole" if cluster_role else "Role",
            "name": cluster_role or role,
        },
        "subjects": list(subjects),
    }


def account(name: str, namespace: str = "kube-system") -> Manifest:
    """A ServiceAccount as subject of a binding."""
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def user(name: str) -> Manifest:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}


def group(name: str) -> Manifest:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}


# Containers


def container(
    name: str,
    image: str,
    command: Sequence[str],
    *,
    cpu: str,
    memory: str,
    mounts: Mapping[str, str] | None = None,
    writable: Mapping[str, str] | None = None,
    ports: Mapping[str, int] | None = None,
    security: Manifest | None = None,
    **rest: Any,
) -> Manifest:
    """A container; ``mounts`` and ``writable`` map a volume's name to its path."""
    made: Manifest = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "resources": {"requests": {"cpu": cpu, "memory": memory}},
        "securityContext": security if security is not None else restricted(),
        **rest,
    }
    if ports:
        made["ports"] = [
            {"name": port_name, "containerPort": port, "protocol": "TCP"} for port_name, port in ports.items()
        ]
    volume_mounts = [
        {"name": volume, "mountPath": path, "readOnly": True} for volume, path in (mounts or {}).items()
    ] + [{"name": volume, "mountPath": path} for volume, path in (writable or {}).items()]
    if volume_mounts:
        made["volumeMounts"] = volume_mounts
    return made


def at_least(requests: Mapping[str, str], autoscaling: Mapping[str, Any] | None) -> dict[str, str]:
    """Requests of a container, raised to ``minAllowed`` of a Shoot's ``autoscaling``."""
    wanted = (autoscaling or {}).get("minAllowed") or {}
    return {
        name: str(wanted[name]) if name in wanted and is_less(amount, wanted[name]) else amount
        for name, amount in requests.items()
    }


def restricted() -> Manifest:
    """Security context with the fewest rights that a container can have."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def non_root_pod(**rest: Any) -> Manifest:
    """Security context of a pod whose containers run without root, as user ``NON_ROOT`` by default."""
    return {
        "runAsNonRoot": True,
        "runAsUser": NON_ROOT,
        "runAsGroup": NON_ROOT,
        "fsGroup": NON_ROOT,
        "seccompProfile": {"type": "RuntimeDefault"},
        **rest,
    }


def http_probe(
    path: str,
    port: int | str,
    *,
    scheme: str = "HTTPS",
    period: int = 10,
    failures: int = 3,
    delay: int = 0,
    timeout: int = 5,
    host: str = "",
) -> Manifest:
    get: Manifest = {"path": path, "port": port, "scheme": scheme}
    if host:
        get["host"] = host
    made: Manifest = {
        "httpGet": get,
        "periodSeconds": period,
        "failureThreshold": failures,
        "successThreshold": 1,
        "timeoutSeconds": timeout,
    }
    if delay:
        made["initialDelaySeconds"] = delay
    return made


def probes(
    path: str, port: int | str, *, alive: str = "", scheme: str = "HTTPS", host: str = "", every: int = 5
) -> dict[str, Any]:
    """Startup, readiness and liveness probe of a container.

    The startup probe asks each second, so the container is ready at once, and lets it start for ten minutes. The other
    two are rarer, because each probe is a new connection, and often a handshake of TLS.

    ``every``: seconds between two readiness probes. ``alive``: path of the liveness probe, if it has its own.
    """
    asked: dict[str, Any] = {"scheme": scheme, "host": host}
    return {
        "startupProbe": http_probe(path, port, period=1, failures=600, **asked),
        "readinessProbe": http_probe(path, port, period=every, failures=2, **asked),
        "livenessProbe": http_probe(alive or path, port, period=max(every, 10), timeout=15, **asked),
    }


def command_probe(command: Sequence[str], *, period: int, failures: int) -> Manifest:
    """Probe by a command in the container. Only one that runs seldom, or until the container has started, is cheap.

    The runtime of the node starts four processes for it. They take about 50 ms of CPU time, and seconds on a busy seed.
    """
    return {
        "exec": {"command": list(command)},
        "periodSeconds": period,
        "failureThreshold": failures,
        "successThreshold": 1,
        "timeoutSeconds": 10,
    }


def spread_over_hosts(select: Labels) -> list[Manifest]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(select)},
        }
    ]


def spread(select: Labels, failure_tolerance: str | None) -> list[Manifest]:
    """Constraints that spread pods over hosts, and with failure tolerance ``zone`` over zones, too.

    With any failure tolerance, the constraints are strict. Pods are spread evenly over the existing hosts: a seed with
    one node takes all pods. Source: spec/resource-manager.md 7.
    """
    constraints = spread_over_hosts(select)
    if failure_tolerance is not None:
        keys = ["kubernetes.io/hostname", *([ZONE] if failure_tolerance == "zone" else [])]
        constraints = [{**constraints[0], "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"} for key in keys]
    return constraints


# Volumes


def secret_volume(name: str, secret: str, *keys: str, optional: bool = False) -> Manifest:
    """A volume with keys of one Secret (all keys if none is named) that only the pod's group can read."""
    source: Manifest = {"secretName": secret, "defaultMode": 0o640, **({"optional": True} if optional else {})}
    if keys:
        source["items"] = [{"key": key, "path": key} for key in keys]
    return {"name": name, "secret": source}


def config_map_volume(name: str, config_map: str, *, mode: int = 0o644) -> Manifest:
    return {"name": name, "configMap": {"name": config_map, "defaultMode": mode}}


def projected_volume(name: str, *sources: Manifest) -> Manifest:
    return {"name": name, "projected": {"defaultMode": 0o640, "sources": list(sources)}}


def secret_source(secret: str, **paths: str) -> Manifest:
    """A Secret in a projected volume. ``paths`` maps file names, with ``_`` for ``.``, to keys.

    For example ``ca_crt="bundle.crt"``.
    """
    return {
        "secret": {
            "name": secret,
            "items": [{"key": key, "path": path.replace("_", ".")} for path, key in paths.items()],
        }
    }


def empty_dir(name: str, *, memory: bool = False) -> Manifest:
    return {"name": name, "emptyDir": {"medium": "Memory"} if memory else {}}


# Access to the shoot's API


def shoot_access_name(component: str) -> str:
    return f"shoot-access-{component}"


def shoot_access(component: str, namespace: str, *, service_account: str = "") -> Manifest:
    """Secret in which the resource manager keeps a valid token of the shoot's ServiceAccount."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(
            shoot_access_name(component),
            namespace,
            labels={
                "resources.gardener.cloud/purpose": "token-requestor",
                "resources.gardener.cloud/class": "shoot",
            },
            annotations={
                "serviceaccount.resources.gardener.cloud/name": service_account or component,
                "serviceaccount.resources.gardener.cloud/namespace": "kube-system",
            },
        ),
        "type": "Opaque",
    }


def shoot_access_volume(component: str, generic_kubeconfig: str) -> Manifest:
    """The generic kubeconfig and the component's token, for a mount at ``KUBECONFIG_DIR``."""
    return projected_volume(
        "kubeconfig",
        secret_source(generic_kubeconfig, kubeconfig="kubeconfig"),
        secret_source(shoot_access_name(component), token="token"),
    )


# Configuration whose change rolls the pods that mount it


def checksum(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def versioned_config_map(name: str, namespace: str, data: Labels, *, labels: Labels) -> Manifest:
    """An immutable ConfigMap named after its content, so that pods of an older revision keep their configuration."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(
            f"{name}-{checksum(dict(data))[:8]}", namespace, labels={**labels, VERSIONED_LABEL: "true"}
        ),
        "immutable": True,
        "data": dict(data),
    }


def versioned_secret(name: str, namespace: str, data: Labels, *, labels: Labels) -> Manifest:
    """An immutable Secret named after its content, as ``versioned_config_map`` makes ConfigMaps."""
    made = secret(f"{name}-{checksum(dict(data))[:8]}", namespace, data, labels={**labels, VERSIONED_LABEL: "true"})
    return {**made, "immutable": True}


def secret(name: str, namespace: str, data: Labels, *, labels: Labels) -> Manifest:
    """A Secret with these texts."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(name, namespace, labels=labels),
        "type": "Opaque",
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
    }


def with_references(workload: Manifest) -> Manifest:
    """The workload with annotations that name the versioned objects its pods use, for the garbage collector.

    The annotations are on the object and on its pod template. They name each ConfigMap and Secret with the hash of its
    content at the end of its name, in volumes, variables and pull secrets.
    """
    template = workload["spec"]["template"]
    found = {
        f"{REFERENCE_PREFIX}/{kind}-{checksum(name)[:8]}": name
        for kind, name in sorted(_used_by(template["spec"]))
        if _VERSIONED.search(name)
    }
    if not found:
        return workload
    return {
        **workload,
        "metadata": _annotated(workload["metadata"], found),
        "spec": {**workload["spec"], "template": {**template, "metadata": _annotated(template["metadata"], found)}},
    }


def _annotated(meta: Manifest, annotations: Mapping[str, str]) -> Manifest:
    return {**meta, "annotations": {**annotations, **(meta.get("annotations") or {})}}


def _used_by(pod: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Kind, in lower case, and name of each ConfigMap and Secret that a pod mounts, reads or pulls images with."""
    parts: list[tuple[str, Mapping[str, Any] | None, str]] = [
        ("secret", each, "name") for each in pod.get("imagePullSecrets") or ()
    ]
    for volume in pod.get("volumes") or ():
        for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
            # A volume names its Secret by secretName, a source of a projected volume by name.
            parts.append(("secret", source.get("secret"), "secretName" if source is volume else "name"))
            parts.append(("configmap", source.get("configMap"), "name"))
    for container in (*pod.get("containers", ()), *pod.get("initContainers", ())):
        for each in container.get("envFrom") or ():
            parts += [("secret", each.get("secretRef"), "name"), ("configmap", each.get("configMapRef"), "name")]
        for each in container.get("env") or ():
            source = each.get("valueFrom") or {}
            parts.append(("secret", source.get("secretKeyRef"), "name"))
            parts.append(("configmap", source.get("configMapKeyRef"), "name"))
    return {(kind, name) for kind, part, key in parts if part and (name := part.get(key))}


def to_json(value: Any) -> str:
    """JSON for configuration files: all YAML parsers read JSON, and equal content gives equal bytes."""
    return json.dumps(value, sort_keys=True, indent=1)


def tolerating(objects: Sequence[Mapping[str, Any]], taints: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The objects, with tolerations of these taints in Deployments: there may be no node without them."""
    unique = tolerations_of(taints)
    return [_with_tolerations(each, unique) if each["kind"] == "Deployment" and unique else each for each in objects]


def tolerations_of(taints: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Tolerations of these taints, each once."""
    added = [
        {"key": taint["key"], "operator": "Equal", "value": taint.get("value") or "", "effect": taint["effect"]}
        for taint in taints
    ]
    return [each for index, each in enumerate(added) if each not in added[:index]]


def _with_tolerations(deployment: Mapping[str, Any], added: Sequence[Manifest]) -> Manifest:
    spec = deployment["spec"]
    template = spec["template"]
    pod = template["spec"]
    pod = {**pod, "tolerations": [*(pod.get("tolerations") or ()), *added]}
    return {**deployment, "spec": {**spec, "template": {**template, "spec": pod}}}


def fail_safe_tolerations() -> list[Manifest]:
    """Tolerations of pods that must run on every node, whatever its state."""
    return [{"effect": "NoSchedule", "operator": "Exists"}, {"effect": "NoExecute", "operator": "Exists"}]
