"""Decisions about one extension controller in one seed: its Helm values, its objects, its access to the garden, and the
conditions of its ControllerInstallation.

Source: spec/extensions.md 1.8, spec/api-core.md 7.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from api.constants import GARDEN_NAMESPACE, POD_SECURITY_ENFORCE, ROLE, ROLE_EXTENSION
from api.decisions.conditions import Finding, find_condition
from api.names import seed_namespace
from api.resources import Object, ObjectView

VALID, INSTALLED, HEALTHY, PROGRESSING = "Valid", "Installed", "Healthy", "Progressing"
FINALIZER = "core.gardener.cloud/controllerinstallation"
INSTALLATION_LABEL = "controllerinstallation-name"
"""Label of the ManagedResource: name of its ControllerInstallation."""
REGISTRATION_LABEL = "controllerregistration.core.gardener.cloud/name"
"""Label of the extension's namespace: name of its ControllerRegistration."""
INJECT_LABEL = "extensions.gardener.cloud/inject-garden-kubeconfig"
"""Label of a pod template; with value ``false`` it gets no access to the garden."""
ACCESS_SECRET = "garden-access-extension"
"""Secret of the extension's namespace with the token for the garden."""
HOOK = "helm.sh/hook"
_GENERIC = "generic-garden-kubeconfig"
_VOLUME, _MOUNT = "garden-kubeconfig", "/var/run/secrets/gardener.cloud/garden/generic-kubeconfig"
KUBECONFIG_PATH = f"{_MOUNT}/kubeconfig"
_TOKEN_VOLUME_PREFIX = "kube-api-access-"
_TOKEN_VOLUME = f"{_TOKEN_VOLUME_PREFIX}gardener"
_TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SECONDS = 12 * 60 * 60
_TOKEN_SECONDS_ANNOTATION = "projected-token-mount.resources.gardener.cloud/expiration-seconds"
_SKIP_TOKEN_LABEL = "projected-token-mount.resources.gardener.cloud/skip"
_ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"), ("spec", "template")
    ),
    "Pod": (),
}
"""Path of the pod template in each kind that has one."""


def namespace_of(installation: str) -> str:
    """Namespace of the extension in the seed."""
    return f"extension-{installation}"


def account_of(installation: str) -> str:
    """Name of the extension's ServiceAccount in namespace ``seed-<seed>`` of the garden."""
    return f"extension-{installation}"


def namespace(installation: ObjectView) -> Object:
    """The extension's namespace in the seed.

    An extension may need any right on the node, for example to load a kernel module. So only an annotation limits its
    pods.
    """
    metadata = installation["metadata"]
    labels = {ROLE: ROLE_EXTENSION, REGISTRATION_LABEL: installation["spec"]["registrationRef"]["name"]}
    if level := (metadata.get("annotations") or {}).get(POD_SECURITY_ENFORCE):
        labels[_ENFORCE_LABEL] = level
    name = namespace_of(metadata["name"])
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def values(
    own: ObjectView,
    seed: ObjectView,
    *,
    version: str,
    garden_identity: str,
    generic_kubeconfig: str,
    feature_gates: Mapping[str, bool],
) -> Object:
    """Values for an extension's chart: its own ones, and those of Gardener in ``gardener``.

    ``own``: ``helm.values`` of the ControllerDeployment. ``generic_kubeconfig``: name of the Secret with the kubeconfig
    for the garden.
    """
    metadata, spec, status = seed["metadata"], seed["spec"], seed.get("status") or {}
    networks, volumes = spec.get("networks") or {}, spec.get("volume") or {}
    providers = volumes.get("providers") or []
    facts = {
        "version": version,
        "garden": {"clusterIdentity": garden_identity, "genericKubeconfigSecretName": generic_kubeconfig},
        "seed": {
            "name": metadata["name"],
            "clusterIdentity": status.get("clusterIdentity") or "",
            "annotations": metadata.get("annotations") or {},
            "labels": metadata.get("labels") or {},
            "provider": spec["provider"]["type"],
            "region": spec["provider"]["region"],
            "volumeProvider": providers[0]["name"] if providers else "",
            "volumeProviders": providers,
            "ingressDomain": (spec.get("ingress") or {}).get("domain") or "",
            "protected": any(each.get("key") == "seed.gardener.cloud/protected" for each in spec.get("taints") or ()),
            "visible": ((spec.get("settings") or {}).get("scheduling") or {}).get("visible", True),
            "taints": spec.get("taints") or [],
            "networks": networks,
            "blockCIDRs": networks.get("blockCIDRs") or [],
            "spec": spec,
        },
        "gardenlet": {"featureGates": dict(feature_gates)},
    }
    return {**own, "gardener": facts}


def generic_kubeconfig(installation: str, server: str, authority: str) -> Object:
    """Secret with a kubeconfig for the garden that reads its token from a file beside it.

    The name contains a digest of the content, so that pods are replaced when the garden's address or CA changes.
    """
    cluster = {"server": server}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "garden",
        "contexts": [{"name": "garden", "context": {"cluster": "garden", "user": "extension"}}],
        "clusters": [{"name": "garden", "cluster": cluster}],
        "users": [{"name": "extension", "user": {"tokenFile": f"{_MOUNT}/token"}}],
    }
    content = json.dumps(config, sort_keys=True).encode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": f"{_GENERIC}-{hashlib.sha256(content).hexdigest()[:8]}",
            "namespace": namespace_of(installation),
        },
        "type": "Opaque",
        "data": {"kubeconfig": base64.b64encode(content).decode()},
    }


def with_garden_access(obj: ObjectView, generic: str, seed: str) -> Object:
    """The object with access to the garden in each container of its pods.

    ``generic``: name of the Secret with the kubeconfig. Containers find it by ``GARDEN_KUBECONFIG``, and the name of
    the seed by ``SEED_NAME``. Containers that have ``GARDEN_KUBECONFIG`` already keep theirs.
    """
    found = copy.deepcopy(dict(obj))
    template = _pod_template(found)
    if template is None or _labels(template).get(INJECT_LABEL) == "false":
        return found
    pod = template["spec"]
    for container in [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]:
        variables = container.setdefault("env", None) or []
        names = {each["name"] for each in variables}
        if "GARDEN_KUBECONFIG" in names:
            continue
        added = {"GARDEN_KUBECONFIG": KUBECONFIG_PATH, "SEED_NAME": seed}
        container["env"] = [*variables, *({"name": k, "value": v} for k, v in added.items() if k not in names)]
        mount = {"name": _VOLUME, "mountPath": _MOUNT, "readOnly": True}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    volume = {
        "name": _VOLUME,
        "projected": {
            "defaultMode": 0o440,
            "sources": [
                {"secret": {"name": generic, "items": [{"key": "kubeconfig", "path": "kubeconfig"}]}},
                {"secret": {"name": ACCESS_SECRET, "items": [{"key": "token", "path": "token"}]}},
            ],
        },
    }
    pod["volumes"] = [*(each for each in pod.get("volumes") or () if each["name"] != _VOLUME), volume]
    return found


def with_api_access(obj: ObjectView, without: Container[tuple[str, str]]) -> Object:
    """The object with a token of its ServiceAccount in each container of its pods, if the ServiceAccount mounts none.

    ``without``: namespaces and names of the ServiceAccounts that mount none. Gardener's resource manager adds the token
    to each new pod, and charts of extensions rely on that. Source: spec/resource-manager.md, "Projected token".
    """
    found = copy.deepcopy(dict(obj))
    template = _pod_template(found)
    if template is None or _SKIP_TOKEN_LABEL in _labels(template):
        return found
    pod = template["spec"]
    volumes = pod.get("volumes") or ()
    account = (found["metadata"].get("namespace", ""), pod.get("serviceAccountName") or "")
    if account not in without or pod.get("automountServiceAccountToken") is False:
        return found
    if any(each["name"].startswith(_TOKEN_VOLUME_PREFIX) for each in volumes):
        return found
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    seconds = int(annotations.get(_TOKEN_SECONDS_ANNOTATION) or _TOKEN_SECONDS)
    mount = {"name": _TOKEN_VOLUME, "mountPath": _TOKEN_MOUNT, "readOnly": True}
    for container in [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]:
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    volume = {
        "name": _TOKEN_VOLUME,
        "projected": {
            "defaultMode": 0o644,
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": seconds}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [namespace]}},
            ],
        },
    }
    pod["volumes"] = [*volumes, volume]
    return found


def accounts_without_token(objects: Iterable[ObjectView]) -> set[tuple[str, str]]:
    """Namespaces and names of the ServiceAccounts whose pods get no token by themselves."""
    return {
        (each["metadata"].get("namespace", ""), each["metadata"]["name"])
        for each in objects
        if each["kind"] == "ServiceAccount" and each.get("automountServiceAccountToken") is False
    }


def _pod_template(obj: Object) -> Any:
    """Pod template of an object, or the object itself if it is a Pod; None if it has none."""
    path = _TEMPLATES.get(str(obj.get("kind")))
    template: Any = obj if path is not None else None
    for step in path or ():
        template = (template or {}).get(step)
    return template if template and template.get("spec") else None


def _labels(obj: ObjectView) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("labels") or {}


def hooks(objects: Iterable[ObjectView]) -> Iterator[ObjectView]:
    """Objects that Helm creates at one moment of an installation, and not as part of the release."""
    return (each for each in objects if HOOK in (each["metadata"].get("annotations") or {}))


def state_of(managed_resource: ObjectView, secrets: str) -> list[Finding]:
    """Conditions Installed, Healthy and Progressing by the state of the ManagedResource.

    ``secrets``: checksum that the ManagedResource's status has once the newest manifests are applied.
    """
    status = managed_resource.get("status") or {}
    observed = status.get("observedGeneration") == managed_resource["metadata"].get("generation")
    newest = observed and status.get("secretsDataChecksum") == secrets
    applied, healthy, progressing = (
        find_condition(managed_resource, f"Resources{each}") for each in ("Applied", "Healthy", "Progressing")
    )
    return [
        Finding(INSTALLED, "True", "InstallationSuccessful", "The controller was installed in the seed cluster.")
        if newest and applied.get("status") == "True"
        else Finding(INSTALLED, "False", "InstallationPending", _said(applied, "The manifests are not applied yet.")),
        Finding(HEALTHY, "True", "ControllerHealthy", "The controller in the seed cluster is healthy.")
        if observed and healthy.get("status") == "True"
        else Finding(HEALTHY, "False", "ControllerNotHealthy", _said(healthy, "Its health is not known yet.")),
        Finding(PROGRESSING, "False", "ControllerRolledOut", "The controller is rolled out.")
        if newest and progressing.get("status") == "False"
        else Finding(PROGRESSING, "True", "ControllerNotRolledOut", _said(progressing, "The rollout has not begun.")),
    ]


def not_installed(reason: str, why: str) -> list[Finding]:
    """Conditions of an extension of which nothing is in the seed."""
    return [
        Finding(INSTALLED, "False", reason, why),
        Finding(HEALTHY, "False", "ControllerNotHealthy", why),
        Finding(PROGRESSING, "False", "ControllerNotRolledOut", why),
    ]


def _said(condition: Mapping[str, Any], otherwise: str) -> str:
    """Message of a ManagedResource's condition that is not as it should be."""
    bad = condition.get("status") not in (None, "False" if condition.get("type") == "ResourcesProgressing" else "True")
    message = condition.get("message") if bad else ""
    return message or otherwise


def access_secret(installation: str, seed: str) -> Object:
    """Secret for the token of the extension's ServiceAccount in the garden, which the token requestor keeps valid."""
    group = "resources.gardener.cloud"
    account = {"name": account_of(installation), "namespace": seed_namespace(seed)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": ACCESS_SECRET,
            "namespace": namespace_of(installation),
            "labels": {f"{group}/purpose": "token-requestor", f"{group}/class": GARDEN_NAMESPACE},
            "annotations": {f"serviceaccount.{group}/{key}": value for key, value in account.items()},
        },
        "type": "Opaque",
    }
