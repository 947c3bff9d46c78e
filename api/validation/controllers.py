"""Validation of ControllerDeployments. Source: spec/api-core.md 7."""

from __future__ import annotations

import re

from api.decisions.controller_deployments import CUSTOM, HELM, REFERABLE, TYPE, Unconvertible, converted, misfit
from api.resources import CONTROLLER_DEPLOYMENT, CONTROLLER_DEPLOYMENT_V1BETA1, ObjectView
from api.validation.field import Faults, Path


def check_controller_deployment(obj: ObjectView) -> Faults:
    """Faults of a ControllerDeployment in either version, with the names of the fields of that version."""
    faults = Faults()
    if obj["apiVersion"] == CONTROLLER_DEPLOYMENT_V1BETA1.api_version:
        old = obj.get("type")
        path, chart, helm = Path("providerConfig"), "chart", obj.get("providerConfig")
        if old == HELM and (why := misfit(helm)):
            faults.invalid(path, None, why)
            return faults
        if old not in (HELM, CUSTOM):
            faults.unsupported(Path("type"), old, (HELM, CUSTOM))
        helm = helm if old == HELM else None
    else:
        path, chart, helm = Path("helm"), "rawChart", obj.get("helm")
        kept = (obj["metadata"].get("annotations") or {}).get(TYPE)
        if helm is None and kept is None:
            faults.required(path, "must say which chart to deploy")
        elif kept == HELM:
            faults.forbidden(Path("metadata.annotations") @ TYPE, f"must not be {HELM}: use field helm")
    if not faults:
        [other] = _VERSIONS - {obj["apiVersion"]}
        try:
            converted(obj, other)
        except Unconvertible as error:
            field, _, why = str(error).partition(": ")
            faults.forbidden(Path(field), why)
    if helm is not None:
        _check_helm(helm, path, chart, faults)
    names = [each["name"] for each in obj.get("resources") or ()]
    faults.duplicates(Path("resources"), names, "name")
    for index, each in enumerate(obj.get("resources") or ()):
        if each["resourceRef"]["kind"] not in REFERABLE:
            path = Path("resources") @ index / "resourceRef.kind"
            faults.unsupported(path, each["resourceRef"]["kind"], sorted(REFERABLE))
    for index, name in enumerate(names):
        if not name.isascii() or not name.isalnum():
            faults.invalid(
                Path("resources") @ index / "name",
                name,
                "must have letters and digits alone: templates of values name it",
            )
    return faults


_VERSIONS = {CONTROLLER_DEPLOYMENT.api_version, CONTROLLER_DEPLOYMENT_V1BETA1.api_version}


def _check_helm(helm: ObjectView, path: Path, chart: str, faults: Faults) -> None:
    repository = helm.get("ociRepository")
    if (repository is None) == (not helm.get(chart)):
        faults.required(path, f"must have either {chart} or ociRepository")
    if repository is None:
        return
    path /= "ociRepository"
    ref, tag, digest = repository.get("ref"), repository.get("tag"), repository.get("digest")
    if (not ref) == (not repository.get("repository")):
        faults.required(path, "must have either ref or repository")
    elif ref and (tag or digest):
        faults.forbidden(path / "ref", "excludes tag and digest: ref holds one of them itself")
    elif not ref and (not tag) == (not digest):
        faults.required(path, "repository needs either tag or digest")
    elif ref and not _REFERENCE.fullmatch(ref):
        faults.invalid(path / "ref", ref, "must be like registry.example.org/chart:v1, with a tag or a digest")


_REFERENCE = re.compile(
    r"(?:oci://)?[A-Za-z0-9.:-]+(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
