"""Decisions about one extension controller in one seed: its Helm values, its objects, its access to the garden, and the
conditions of its ControllerInstallation.

Source: spec/extensions.md 1.8, spec/api-core.md 7.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from api.constants import GARDEN_NAMESPACE, POD_SECURITY_ENFORCE, ROLE, ROLE_EXTENSION, SEED_NAMESPACE_PREFIX
from api.decisions.conditions import Finding, find_condition
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
    path = _TEMPLATES.get(str(obj.get("kind")))
    if path is None:
        return found
    template: Any = found
    for step in path:
        template = (template or {}).get(step)
    if not template or not template.get("spec"):
        return found
    if ((template.get("metadata") or {}).get("labels") or {}).get(INJECT_LABEL) == "false":
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
    account = {"name": account_of(installation), "namespace": f"{SEED_NAMESPACE_PREFIX}{seed}"}
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
