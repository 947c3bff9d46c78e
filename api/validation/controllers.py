"""Validation of ControllerRegistrations, ControllerDeployments and ControllerInstallations.

Source: spec/api-core.md 7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from api.constants import POD_SECURITY_ENFORCE
from api.core.v1beta1.controller_installation import ControllerInstallation
from api.core.v1beta1.controller_registration import ControllerRegistration, ControllerResource
from api.decisions.controller_deployments import CUSTOM, HELM, REFERABLE, TYPE, Unconvertible, converted, misfit
from api.durations import parse_duration
from api.resources import CONTROLLER_DEPLOYMENT, CONTROLLER_DEPLOYMENT_V1BETA1, ObjectView
from api.validation.field import Faults, Path
from api.validation.garden import check_selector

KINDS = (
    "BackupBucket",
    "BackupEntry",
    "Bastion",
    "ContainerRuntime",
    "ControlPlane",
    "DNSRecord",
    "Extension",
    "Infrastructure",
    "Network",
    "OperatingSystemConfig",
    "SelfHostedShootExposure",
    "Worker",
)
"""Kinds of extension objects."""
_DELETION_PHASES = ("BeforeKubeAPIServer", "AfterKubeAPIServer")
_LEVELS = ("privileged", "baseline", "restricted")
_LONGEST_NAME = 47
"""Longest name of a registration with a deployment: ``extension-<name>-<5 characters>`` is the name of a namespace."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def check_controller_registration(registration: ControllerRegistration) -> Faults:
    """Faults of a ControllerRegistration that show without other objects."""
    faults, spec = Faults(), Path("spec")
    entries = registration.spec.resources or []
    faults.duplicates(spec / "resources", [(each.kind, each.type) for each in entries])
    for index, each in enumerate(entries):
        _check_resource(each, spec / "resources" @ index, faults)
    deployment, path = registration.spec.deployment, spec / "deployment"
    if deployment is not None and deployment.seed_selector is not None:
        if primary := next((each for each in entries if each.primary), None):
            faults.forbidden(
                path / "seedSelector",
                f"excludes a primary resource, like {primary.kind} of type {primary.type}: a Shoot on another seed "
                "would have no controller. Set primary: false, or remove the selector",
            )
        check_selector(deployment.seed_selector, path / "seedSelector", faults)
    references = (deployment.deployment_refs if deployment else None) or []
    for index, reference in enumerate(references):
        if not reference.name:
            faults.required(path / "deploymentRefs" @ index / "name", "must be the name of a ControllerDeployment")
    name = registration.metadata.name
    if references and (len(name) > _LONGEST_NAME or not _NAME.fullmatch(name)):
        faults.invalid(
            Path("metadata.name"),
            name,
            f"must have at most {_LONGEST_NAME} letters, digits and hyphens: the extension's namespaces in seeds are "
            "extension-<name>-<suffix>",
        )
    level = registration.metadata.annotations.get(POD_SECURITY_ENFORCE)
    if level is not None and level not in _LEVELS:
        faults.unsupported(Path("metadata.annotations") @ POD_SECURITY_ENFORCE, level, _LEVELS)
    return faults


def _check_resource(resource: ControllerResource, path: Path, faults: Faults) -> None:
    if resource.kind not in KINDS:
        faults.unsupported(path / "kind", resource.kind, KINDS)
    if not resource.type:
        faults.required(path / "type", "must be the type of the extension objects that the controller serves")
    extension = resource.kind == "Extension"
    settings = {
        "reconcileTimeout": resource.reconcile_timeout,
        "lifecycle": resource.lifecycle,
        "autoEnable": resource.auto_enable,
        "clusterCompatibility": resource.cluster_compatibility,
        "workerlessSupported": resource.workerless_supported,
    }
    for name, value in settings.items():
        if value and not extension:
            faults.forbidden(path / name, f"is for kind Extension only, not for {resource.kind}")
        elif value and not resource.primary:
            faults.forbidden(path / name, "is for the primary resource only: set it in the registration that has it")
    if resource.continuous_endpoint_update is not None and resource.kind != "SelfHostedShootExposure":
        faults.forbidden(path / "continuousEndpointUpdate", "is for kind SelfHostedShootExposure only")
    if resource.reconcile_timeout and not _is_positive(resource.reconcile_timeout):
        faults.invalid(path / "reconcileTimeout", resource.reconcile_timeout, "must be longer than 0s, like 3m")
    if resource.lifecycle is not None:
        for name in ("delete", "migrate"):
            phase = getattr(resource.lifecycle, name)
            if phase not in _DELETION_PHASES:
                faults.unsupported(path / "lifecycle" / name, phase, _DELETION_PHASES)
    compatible = resource.cluster_compatibility or ["shoot"]
    faults.duplicates(path / "clusterCompatibility", compatible)
    faults.duplicates(path / "autoEnable", resource.auto_enable or [])
    for index, each in enumerate(resource.auto_enable or ()):
        if each not in compatible:
            faults.forbidden(
                path / "autoEnable" @ index, f"clusterCompatibility does not hold {each}: add it, or remove it here"
            )


def _is_positive(duration: str) -> bool:
    try:
        return parse_duration(duration).total_seconds() > 0
    except ValueError:
        return False


def check_primary(registration: ControllerRegistration, others: Iterable[ObjectView]) -> Faults:
    """Kinds and types for which another ControllerRegistration is primary already."""
    faults = Faults()
    taken = {
        (each["kind"], each["type"]): other["metadata"]["name"]
        for other in others
        if other["metadata"]["name"] != registration.metadata.name
        for each in (other.get("spec") or {}).get("resources") or ()
        if each.get("primary", True)
    }
    for index, each in enumerate(registration.spec.resources or ()):
        if each.primary and (other := taken.get((each.kind, each.type))):
            faults.forbidden(
                Path("spec.resources") @ index / "primary",
                f"ControllerRegistration {other} is primary for {each.kind} of type {each.type}: set primary: false "
                "here, or delete the other registration",
            )
    return faults


def check_controller_installation(
    installation: ControllerInstallation, old: ControllerInstallation | None = None
) -> Faults:
    """Faults of a ControllerInstallation that show without other objects."""
    faults, spec, new = Faults(), Path("spec"), installation.spec
    if not new.registration_ref.name:
        faults.required(spec / "registrationRef.name", "must be the name of a ControllerRegistration")
    if new.shoot_ref is not None:
        faults.forbidden(spec / "shootRef", "is for self-hosted Shoots, which this version does not have: use seedRef")
    if new.seed_ref is None or not new.seed_ref.name:
        faults.required(spec / "seedRef.name", "must be the name of a Seed")
    if new.deployment_ref is not None and not new.deployment_ref.name:
        faults.required(spec / "deploymentRef.name", "must be the name of a ControllerDeployment")
    if old is not None:
        faults.fixed(spec / "registrationRef.name", old.spec.registration_ref.name, new.registration_ref.name)
        if old.spec.seed_ref is not None and new.seed_ref is not None:
            faults.fixed(spec / "seedRef.name", old.spec.seed_ref.name, new.seed_ref.name)
    return faults


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
    if repository is not None:
        check_oci_repository(repository, path / "ociRepository", faults)


def check_oci_repository(repository: ObjectView, path: Path, faults: Faults) -> None:
    """Faults of the place of a chart in a registry: it must name one chart in one version."""
    ref, tag, digest = repository.get("ref"), repository.get("tag"), repository.get("digest")
    if (not ref) == (not repository.get("repository")):
        faults.required(path, "must have either ref or repository")
    elif ref and (tag or digest):
        faults.forbidden(path / "ref", "excludes tag and digest: ref holds one of them itself")
    elif not ref and (not tag) == (not digest):
        faults.required(path, "repository needs either tag or digest")
    elif ref and not _REFERENCE.fullmatch(ref):
        faults.invalid(path / "ref", ref, "must be like registry.example.org/chart:v1, with a tag or a digest")
    elif ref and not _VERSIONED.search(ref):
        faults.invalid(path / "ref", ref, "must name a tag or a digest: add :<tag> or @sha256:<digest>")


_REFERENCE = re.compile(
    r"(?:oci://)?[A-Za-z0-9.:-]+(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_VERSIONED = re.compile(r"(?::[^/:@]+|@sha256:[0-9a-f]{64})$")
