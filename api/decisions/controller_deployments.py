"""Conversion of ControllerDeployments between their versions. Source: spec/api.md 2, spec/api-core.md 7.

v1beta1 has ``type`` and ``providerConfig``, v1 has ``helm``. v1 has no field for another type, or for a
``providerConfig`` of another shape: both are kept in annotations of the v1 object. So each conversion can be reversed
without a loss, and an object that an earlier version of this system stored can always be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from api.constants import CORE
from api.core.v1.controller_deployment import HelmControllerDeployment
from api.resources import (
    CONFIG_MAP,
    CONTROLLER_DEPLOYMENT,
    CONTROLLER_DEPLOYMENT_V1BETA1,
    SECRET,
    WORKLOAD_IDENTITY,
    Object,
    ObjectView,
    Resource,
)

_MIGRATION = "migration.controllerdeployment.gardener.cloud/"
TYPE, CONFIG = f"{_MIGRATION}type", f"{_MIGRATION}providerConfig"
"""Annotations of a v1 object with the fields of the v1beta1 object that v1 has no fields for."""
HELM = "helm"
CUSTOM = "custom"
_LARGEST_ANNOTATIONS = 256 * 1024
"""Maximum size of all annotations of an object, in bytes. The API server accepts no more."""
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


class Unconvertible(Exception):
    """The object cannot be converted. The text says why, and names the field."""


def converted(obj: ObjectView, api_version: str) -> Object:
    """The object in another version of its kind.

    Raises Unconvertible for other kinds and versions, and for an object that contradicts itself.
    """
    present = str(obj.get("apiVersion"))
    if obj.get("kind") != CONTROLLER_DEPLOYMENT.kind:
        raise Unconvertible(f"kind: {obj.get('kind')!r} has one version only")
    if present == api_version:
        return dict(obj)
    convert = _CONVERSIONS.get((present, api_version))
    if convert is None:
        raise Unconvertible(f"apiVersion: there is no conversion from {present} to {api_version}")
    return {**convert(obj), "apiVersion": api_version}


def _to_v1(obj: ObjectView) -> Object:
    annotations = _annotations(obj)
    for each in (TYPE, CONFIG):
        if each in annotations:
            raise Unconvertible(
                f"metadata.annotations[{each}]: is for objects of {CORE}/v1: use type and providerConfig"
            )
    rest = {key: value for key, value in obj.items() if key not in ("type", "providerConfig")}
    config = obj.get("providerConfig")
    if obj.get("type") == HELM and config is not None and not misfit(config):
        return {**rest, "helm": {_NEW.get(key, key): value for key, value in config.items()}}
    if not isinstance(obj.get("type"), str):
        raise Unconvertible("type: must be a string")
    kept = {TYPE: obj["type"]}
    if config is not None:
        kept[CONFIG] = json.dumps(config, separators=(",", ":"))
    annotations |= kept
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _LARGEST_ANNOTATIONS:
        raise Unconvertible(
            f"providerConfig: is too large for an annotation of {CORE}/v1 (256 KiB): make it smaller, or use {HELM}"
        )
    return {**rest, "metadata": {**obj.get("metadata", {}), "annotations": annotations}}


def _to_v1beta1(obj: ObjectView) -> Object:
    rest = {key: value for key, value in obj.items() if key != "helm"}
    helm, annotations = obj.get("helm"), _annotations(obj)
    if TYPE not in annotations:
        if CONFIG in annotations:
            raise Unconvertible(f"metadata.annotations[{CONFIG}]: needs annotation {TYPE}")
        if helm is None:
            raise Unconvertible(f"helm: is missing, and so is annotation {TYPE}: {CORE}/v1beta1 needs a type")
        if not isinstance(helm, dict):
            raise Unconvertible("helm: must be an object")
        config = {_OLD.get(key, key): value for key, value in helm.items()}
        if why := misfit(config):
            raise Unconvertible(f"helm: {why}")
        return {**rest, "type": HELM, "providerConfig": config}
    if helm is not None:
        raise Unconvertible(f"metadata.annotations[{TYPE}]: excludes helm: remove one of them")
    found: Object = {**rest, "type": annotations.pop(TYPE)}
    if (text := annotations.pop(CONFIG, None)) is not None:
        found["providerConfig"] = _config(text)
    if found["type"] == HELM and not misfit(found.get("providerConfig")):
        raise Unconvertible(f"metadata.annotations[{TYPE}]: must not be {HELM}: use field helm")
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if key != "annotations"}
    return {**found, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}}


def references(deployment: ObjectView) -> set[tuple[Resource, str]]:
    """Kinds and names of the objects in namespace ``garden`` that a ControllerDeployment in v1 names.

    Entries of ``resources`` of other kinds are left out: validation refuses them.
    """
    repository = (deployment.get("helm") or {}).get("ociRepository") or {}
    secrets = (repository.get(each) for each in ("pullSecretRef", "caBundleSecretRef"))
    named = [each["resourceRef"] for each in deployment.get("resources") or ()]
    return {(SECRET, each["name"]) for each in secrets if each} | {
        (REFERABLE[each["kind"]], each["name"]) for each in named if each["kind"] in REFERABLE
    }


REFERABLE = {each.kind: each for each in (SECRET, CONFIG_MAP, WORKLOAD_IDENTITY)}
_OLD = {"rawChart": "chart"}
_NEW = {old: new for new, old in _OLD.items()}
"""Names of fields that differ between ``helm`` of v1 and ``providerConfig`` of v1beta1."""
_CONVERSIONS: dict[tuple[str, str], Callable[[ObjectView], Object]] = {
    (CONTROLLER_DEPLOYMENT_V1BETA1.api_version, CONTROLLER_DEPLOYMENT.api_version): _to_v1,
    (CONTROLLER_DEPLOYMENT.api_version, CONTROLLER_DEPLOYMENT_V1BETA1.api_version): _to_v1beta1,
}


def _annotations(obj: ObjectView) -> dict[str, str]:
    metadata = obj.get("metadata") or {}
    annotations = (metadata.get("annotations") if isinstance(metadata, dict) else metadata) or {}
    if not isinstance(annotations, dict) or not all(isinstance(each, str) for each in annotations.values()):
        raise Unconvertible("metadata.annotations: must be a map of strings")
    return dict(annotations)


def _config(text: str) -> Object:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unconvertible(f"metadata.annotations[{CONFIG}]: is no JSON object")
    return found


def misfit(config: Any) -> str:
    """Why ``helm`` of v1 cannot hold the ``providerConfig`` of type helm; empty if it can."""
    if not isinstance(config, dict):
        return "must be an object with chart or ociRepository"
    unknown = sorted(config.keys() - {"chart", "values", "ociRepository"})
    if unknown:
        return f"{unknown[0]}: unknown field: chart, values and ociRepository are known"
    try:
        helm = HelmControllerDeployment.model_validate({_NEW.get(key, key): value for key, value in config.items()})
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(_OLD.get(str(each), str(each)) for each in fault['loc'])}: {fault['msg']}"
    if repository := helm.oci_repository:
        for part in (repository, repository.pull_secret_ref, repository.ca_bundle_secret_ref):
            if part is not None and part.model_extra:
                return f"ociRepository: unknown field {min(part.model_extra)}"
    if not _BASE64.fullmatch(helm.raw_chart or ""):
        return "chart: must be base64"
    # The API server keeps no null in a field of v1.
    if None in config.values() or None in (config.get("ociRepository") or {}).values():
        return "must not hold null"
    return ""
