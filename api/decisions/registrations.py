"""Evaluates ControllerRegistrations for a Shoot or a Seed: extensions, their phases, and the controllers they need.

Source: spec/extensions.md 1.8, spec/flows.md 1.5.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from api.core.v1beta1.controller_registration import (
    ControllerRegistration,
    ControllerResource,
    ControllerResourceLifecycle,
)
from api.durations import parse_duration

Pair = tuple[str, str]
"""Kind and type of extension objects."""
Registrations = Iterable[Mapping[str, Any] | ControllerRegistration]
"""ControllerRegistrations as they are stored, or as models: a caller that needs them often makes the models once."""

_TIMEOUT = timedelta(minutes=3)
"""Default of ``reconcileTimeout``."""


class Phase(StrEnum):
    """Part of a flow in which an Extension is deployed or deleted."""

    BEFORE_API_SERVER = "BeforeKubeAPIServer"
    AFTER_API_SERVER = "AfterKubeAPIServer"
    AFTER_WORKER = "AfterWorker"


@dataclass(frozen=True)
class WantedExtension:
    """One Extension object of a Shoot."""

    type: str
    provider_config: Any
    phase: Phase
    timeout: timedelta


def wanted_extensions(
    shoot: Mapping[str, Any], registrations: Registrations, phase: Phase | None = None
) -> list[WantedExtension]:
    """Extensions of a Shoot that its spec or a registration enables, of one phase of the reconciliation or of all.

    ``autoEnable`` enables an extension without an entry in ``spec.extensions``; ``disabled`` in an entry disables it.
    """
    entries = {each["type"]: each for each in shoot["spec"].get("extensions") or ()}
    workerless = not shoot["spec"]["provider"].get("workers")
    wanted = []
    for resource in of_kind_extension(registrations):
        entry = entries.get(resource.type)
        on = "shoot" in (resource.auto_enable or ()) if entry is None else not entry.get("disabled")
        if not on or (workerless and not resource.workerless_supported):
            continue
        if "shoot" not in compatible_clusters(resource):
            continue
        own_phase = Phase(_lifecycle(resource).reconcile)
        if phase is None or own_phase is phase:
            timeout = parse_duration(resource.reconcile_timeout) if resource.reconcile_timeout else _TIMEOUT
            wanted.append(WantedExtension(resource.type, (entry or {}).get("providerConfig"), own_phase, timeout))
    return sorted(wanted, key=lambda each: each.type)


def wanted_extensions_of_seed(seed: Mapping[str, Any], registrations: Registrations) -> list[WantedExtension]:
    """Extensions of a Seed that its spec or a registration enables.

    ``autoEnable`` with ``seed`` enables an extension without an entry in ``spec.extensions``; ``disabled`` in an entry
    disables it. An entry of a type without registration is wanted, too: its Extension shows that it has no controller.
    """
    entries = {each["type"]: each for each in seed["spec"].get("extensions") or ()}
    offered = {each.type: each for each in of_kind_extension(registrations) if "seed" in compatible_clusters(each)}
    enabled = {type_ for type_, resource in offered.items() if "seed" in (resource.auto_enable or ())}
    wanted = []
    for type_ in sorted(enabled | entries.keys()):
        entry, resource = entries.get(type_) or {}, offered.get(type_)
        if entry.get("disabled"):
            continue
        timeout = parse_duration(resource.reconcile_timeout) if resource and resource.reconcile_timeout else _TIMEOUT
        wanted.append(WantedExtension(type_, entry.get("providerConfig"), Phase.AFTER_API_SERVER, timeout))
    return wanted


def compatible_clusters(resource: ControllerResource) -> Collection[str]:
    """Kinds of clusters that an extension supports: by default Shoots alone."""
    return resource.cluster_compatibility or ("shoot",)


def deletion_phases(registrations: Registrations) -> dict[str, Phase]:
    """Phase of the deletion, by type of Extension: before or after the API server. Most types need it to clean up."""
    after = Phase.AFTER_API_SERVER
    return {
        each.type: after if _lifecycle(each).delete == after else Phase.BEFORE_API_SERVER
        for each in of_kind_extension(registrations)
    }


def versions_by_phase(wanted: Iterable[WantedExtension]) -> dict[str, str]:
    """Digest of the Extensions of each phase that has some: if it changes, the tasks of the phase run again."""
    found: dict[str, list[Any]] = {}
    for each in wanted:
        found.setdefault(each.phase, []).append([each.type, each.provider_config, each.timeout.total_seconds()])
    return {
        phase: hashlib.sha256(json.dumps(of_phase, sort_keys=True).encode()).hexdigest()[:12]
        for phase, of_phase in found.items()
    }


def required_pairs(shoot: Mapping[str, Any], seed: Mapping[str, Any], registrations: Registrations) -> set[Pair]:
    """Kinds and types of the extension objects that flows of a Shoot create."""
    spec = shoot["spec"]
    pairs = {("Extension", each.type) for each in wanted_extensions(shoot, registrations)}
    pairs |= {("Extension", each["type"]) for each in spec.get("extensions") or () if not each.get("disabled")}
    dns = seed["spec"].get("dns") or {}
    if internal := dns.get("internal"):
        pairs.add(("DNSRecord", internal["type"]))
    domain = (spec.get("dns") or {}).get("domain") or ""
    for default in dns.get("defaults") or ():
        if domain.endswith("." + default["domain"]):
            pairs.add(("DNSRecord", default["type"]))
    for provider in (spec.get("dns") or {}).get("providers") or ():
        if provider.get("type") not in (None, "unmanaged"):
            pairs.add(("DNSRecord", provider["type"]))
    if backup := seed["spec"].get("backup"):
        pairs.add(("BackupEntry", backup["provider"]))
    pools = spec["provider"].get("workers") or ()
    if not pools:
        return pairs
    pairs |= {(kind, spec["provider"]["type"]) for kind in ("ControlPlane", "Infrastructure", "Worker")}
    if network := (spec.get("networking") or {}).get("type"):
        pairs.add(("Network", network))
    for pool in pools:
        if image := (pool["machine"].get("image") or {}).get("name"):
            pairs.add(("OperatingSystemConfig", image))
        pairs |= {("ContainerRuntime", each["type"]) for each in (pool.get("cri") or {}).get("containerRuntimes") or ()}
    return pairs


def required_pairs_of_seed(seed: Mapping[str, Any], registrations: Registrations) -> set[Pair]:
    """Kinds and types of the extension objects that a Seed itself needs: for its DNS names, its backups, its provider
    and its extensions.

    ``autoEnable`` with ``seed`` enables an extension without an entry in ``spec.extensions``; ``disabled`` in an entry
    disables it.
    """
    spec = seed["spec"]
    pairs = {("ControlPlane", spec["provider"]["type"])}
    dns = spec.get("dns") or {}
    pairs |= {("DNSRecord", each["type"]) for each in (dns.get("internal"), dns.get("provider")) if each}
    if backup := spec.get("backup"):
        pairs.add(("BackupBucket", backup["provider"]))
    return pairs | {("Extension", each.type) for each in wanted_extensions_of_seed(seed, registrations)}


def responsible(registrations: Registrations) -> dict[Pair, str]:
    """Name of the registration whose controller is primary for each kind and type: the oldest, if several are."""
    return {pair: names[0] for pair, names in _primary(registrations).items()}


def contested(registrations: Registrations) -> dict[str, dict[Pair, str]]:
    """Registrations that are primary beside an older one, with that older one by kind and type.

    Admission refuses a second primary registration. Two that are written at the same moment may both pass.
    """
    found: dict[str, dict[Pair, str]] = {}
    for pair, (first, *others) in _primary(registrations).items():
        for each in others:
            found.setdefault(each, {})[pair] = first
    return found


def _primary(registrations: Registrations) -> dict[Pair, list[str]]:
    """Names of the primary registrations of each kind and type, the oldest first; by name, if they are equally old."""
    found: dict[Pair, list[str]] = {}
    ordered = sorted(
        _not_deleted(registrations), key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.name)
    )
    for registration in ordered:
        for resource in registration.spec.resources or ():
            if resource.primary:
                found.setdefault((resource.kind, resource.type), []).append(registration.metadata.name)
    return found


def of_kind_extension(registrations: Registrations) -> list[ControllerResource]:
    return [
        resource
        for registration in _not_deleted(registrations)
        for resource in registration.spec.resources or ()
        if resource.kind == "Extension" and resource.primary
    ]


def models(registrations: Registrations) -> list[ControllerRegistration]:
    """Models of ControllerRegistrations."""
    return [
        each if isinstance(each, ControllerRegistration) else ControllerRegistration.of(dict(each))
        for each in registrations
    ]


def _not_deleted(registrations: Registrations) -> list[ControllerRegistration]:
    found = models(registrations)
    return [each for each in found if each.metadata.deletion_timestamp is None]


def _lifecycle(resource: ControllerResource) -> ControllerResourceLifecycle:
    return resource.lifecycle or ControllerResourceLifecycle()
