"""Validation of WorkloadIdentities, and of references to them. Source: spec/api-core.md 9, 10.1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from api import resources
from api.decisions.credentials import Credentials, binding_of
from api.decisions.workload_identity import is_identity, longest_name
from api.resources import ObjectView
from api.security.v1alpha1.workload_identity import WorkloadIdentity
from api.validation.field import Faults, Path
from api.validation.references import references_in

_SPEC = Path("spec")


def check_workload_identity(identity: WorkloadIdentity, old: WorkloadIdentity | None) -> Faults:
    """All faults that the schema does not find."""
    faults = Faults()
    spec, metadata = identity.spec, identity.metadata
    faults.duplicates(_SPEC / "audiences", spec.audiences)
    for index, audience in enumerate(spec.audiences):
        if not audience.strip() or not audience.isprintable():
            faults.invalid(_SPEC / "audiences" @ index, audience, "must be text without control characters")
    if old is not None:
        faults.fixed(_SPEC / "targetSystem" / "type", old.spec.target_system.type, spec.target_system.type)
    elif len(metadata.name) > (longest := longest_name(metadata.namespace)):
        faults.invalid(
            Path("metadata") / "name",
            metadata.name,
            f"must have at most {longest} characters in namespace {metadata.namespace}: claim sub of the tokens holds "
            "both names and a uid, and has at most 255",
        )
    return faults


def check_target_type(path: Path, identity: ObjectView, types: Iterable[str]) -> Faults:
    """Fault of a reference to a WorkloadIdentity for another provider type than those of its user."""
    faults = Faults()
    target, wanted = identity["spec"]["targetSystem"]["type"], list(types)
    if wanted != [target]:
        faults.forbidden(
            path,
            f"the WorkloadIdentity is for provider type {target} (spec.targetSystem.type), this is for "
            f"{', '.join(wanted) or 'none'}: name another one",
        )
    return faults


def check_no_identity(path: Path, reference: Mapping[str, str | None] | None, what: str) -> Faults:
    """Fault of a reference to a WorkloadIdentity where no process of a seed uses its tokens."""
    faults = Faults()
    if (reference or {}).get("kind") == resources.WORKLOAD_IDENTITY.kind:
        faults.forbidden(path, f"{what} with tokens of a WorkloadIdentity are not supported: name a Secret")
    return faults


def names(reference: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> bool:
    """Whether a reference to credentials names this WorkloadIdentity."""
    place = ((reference or {}).get("namespace"), (reference or {}).get("name"))
    return is_identity(reference) and place == (metadata["namespace"], metadata["name"])


def shoot_refers(shoot: ObjectView, binding: ObjectView | None, metadata: Mapping[str, Any]) -> bool:
    """Whether a Shoot uses a WorkloadIdentity: by its binding, its DNS providers or its resources."""
    own = Credentials(
        resources.WORKLOAD_IDENTITY.api_version,
        resources.WORKLOAD_IDENTITY.kind,
        metadata["namespace"],
        metadata["name"],
    )
    bound = binding_of(shoot)
    if binding is not None and bound is not None and bound[0].credentials(binding) == own:
        return True
    return any(
        (each.resource, each.namespace, each.name) == (resources.WORKLOAD_IDENTITY, own.namespace, own.name)
        for each in references_in(shoot)
    )


def seed_refers(seed: ObjectView, metadata: Mapping[str, Any]) -> bool:
    """Whether a Seed uses a WorkloadIdentity for its backups or its DNS."""
    dns = seed["spec"].get("dns") or {}
    parts = [seed["spec"].get("backup"), dns.get("provider"), dns.get("internal"), *(dns.get("defaults") or ())]
    return any(names((each or {}).get("credentialsRef"), metadata) for each in parts)
