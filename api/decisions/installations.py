"""Decides which ControllerInstallations a seed has: which registered extensions it needs, and what to change.

Source: spec/extensions.md 1.8, spec/api-core.md 12 "ControllerRegistration". The names of the labels are Gardener's
(pkg/controllermanager/controller/controllerregistration).
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from api import resources
from api.constants import (
    CONTROLLER_INSTALLATION_REQUIRED,
    DEPLOYMENT_HASH,
    POD_SECURITY_ENFORCE,
    REGISTRATION_SPEC_HASH,
    SEED_NAME_PREFIX,
    SEED_SPEC_HASH,
)
from api.core.v1beta1.controller_registration import ControllerRegistration
from api.decisions.conditions import Finding, find_condition
from api.decisions.controller_deployments import CONFIG, TYPE
from api.decisions.registrations import (
    Pair,
    Registrations,
    contested,
    models,
    required_pairs,
    required_pairs_of_seed,
)
from api.labels import matches
from api.resources import Object, ObjectView

_HASH = 16
"""Number of characters of a hash in a label."""


@dataclass(frozen=True)
class Facts:
    """Objects of the garden on which the installations of one seed depend."""

    seed: ObjectView
    registrations: Iterable[ObjectView] = ()
    """All ControllerRegistrations."""
    deployments: Mapping[str, ObjectView] | None = None
    """ControllerDeployments by name; at least those that the registrations name."""
    installations: Iterable[ObjectView] = ()
    """ControllerInstallations of the seed."""
    shoots: Iterable[ObjectView] = ()
    """Shoots whose control planes are on the seed, or move to it or away from it."""
    buckets: Iterable[ObjectView] = ()
    """BackupBuckets of the seed."""
    entry_buckets: Iterable[ObjectView] = ()
    """BackupBuckets that the BackupEntries of the seed name."""


@dataclass(frozen=True)
class Plan:
    """Changes that give a seed the installations that it needs, and no others."""

    create: tuple[Object, ...] = ()
    change: tuple[tuple[ObjectView, Object], ...] = ()
    """Installations, each with a merge patch."""
    delete: tuple[ObjectView, ...] = ()
    faults: tuple[str, ...] = ()
    """Needs of the seed that no installation serves, each with what an operator can do."""


def plan(facts: Facts) -> Plan:
    """Work out the changes.

    - A registration without a ControllerDeployment has no installation: an operator runs its controller.
    - A registration in deletion gets no new installation. An installation of it stays while the seed needs it.
    - A registration that is primary beside an older one gets no new installation, either: two controllers would write
      the same extension objects.
    - An installation whose condition Required is True stays, because extension objects of its kinds exist in the seed.
    - An installation in deletion is replaced once it is gone.
    """
    registrations = {each.metadata.name: each for each in models(facts.registrations)}
    needed, faults = _needed(facts, list(registrations.values()))
    existing = _by_registration(facts.installations)
    conflicts = conflicts_of(registrations.values())
    create: list[Object] = []
    change: list[tuple[ObjectView, Object]] = []
    for name in sorted(needed):
        registration = registrations[name]
        if registration.metadata.deletion_timestamp is not None:
            continue
        deployment_name = _deployment_of(registration)
        deployment = (facts.deployments or {}).get(deployment_name or "")
        if deployment is None:
            faults.append(
                f"ControllerRegistration {name} names ControllerDeployment {deployment_name}, which does not exist: "
                "create it, or change spec.deployment.deploymentRefs"
            )
            continue
        stored = next(each for each in facts.registrations if each["metadata"]["name"] == name)
        wanted = _installation(facts.seed, stored, deployment)
        if not existing[name] and name in conflicts:
            faults.append(conflicts[name])
        elif not existing[name]:
            create.append(wanted)
        elif not _is_deleting(existing[name][0]) and (patch := _patch(existing[name][0], wanted)):
            change.append((existing[name][0], patch))
    delete = [
        each
        for name, found in existing.items()
        for position, each in enumerate(found)
        if not _is_deleting(each) and (position > 0 or not (name in needed or is_required(each)))
    ]
    return Plan(tuple(create), tuple(change), tuple(delete), tuple(faults))


def conflicts_of(registrations: Registrations) -> dict[str, str]:
    """Registrations that are primary beside an older one, each with what an operator can do."""
    return {
        name: "; ".join(
            f"ControllerRegistration {name} is primary for {kind} of type {type_}, and the older "
            f"ControllerRegistration {first} is, too: {name} is not installed. Delete one of them, and create it again "
            "with primary: false"
            for (kind, type_), first in sorted(older.items())
        )
        for name, older in contested(registrations).items()
    }


def is_required(installation: ObjectView) -> bool:
    """Whether extension objects in the seed need the installation, or may need it.

    The gardenlet writes condition Required. An installation that the gardenlet has begun to install counts as required
    until the gardenlet has said that it is not.
    """
    conditions = (installation.get("status") or {}).get("conditions") or ()
    status = find_condition(installation, CONTROLLER_INSTALLATION_REQUIRED).get("status")
    return status == "True" or (status is None and bool(conditions))


def required(pairs: Iterable[Pair]) -> Finding:
    """Condition Required of an installation; ``pairs``: kinds and types for which the seed has extension objects."""
    if found := sorted(f"{kind}/{type_}" for kind, type_ in pairs):
        message = f"extension objects still exist in the seed: {', '.join(found)}"
        return Finding(CONTROLLER_INSTALLATION_REQUIRED, "True", "ExtensionObjectsExist", message)
    message = "no extension objects exist in the seed having the kinds and types that the extension serves"
    return Finding(CONTROLLER_INSTALLATION_REQUIRED, "False", "NoExtensionObjects", message)


def deploys(registration: ObjectView) -> bool:
    """Whether a ControllerRegistration names a ControllerDeployment, so that seeds get installations of it."""
    deployment = (registration.get("spec") or {}).get("deployment") or {}
    return bool(deployment.get("deploymentRefs"))


def needed_pairs(facts: Facts, registrations: Registrations) -> set[Pair]:
    """Kinds and types of the extension objects that a seed has or will have.

    A Seed in deletion needs nothing for itself: its flow deletes its own extension objects, and condition Required
    keeps their extensions until then.
    """
    pairs = set() if _is_deleting(facts.seed) else required_pairs_of_seed(facts.seed, registrations)
    pairs |= {("BackupBucket", each["spec"]["provider"]["type"]) for each in facts.buckets}
    pairs |= {("BackupEntry", each["spec"]["provider"]["type"]) for each in facts.entry_buckets}
    for shoot in facts.shoots:
        pairs |= required_pairs(shoot, facts.seed, registrations)
    return pairs


def _needed(facts: Facts, registrations: list[ControllerRegistration]) -> tuple[set[str], list[str]]:
    """Names of the registrations that the seed needs and that have a deployment, and faults."""
    pairs = needed_pairs(facts, registrations)
    names, served = set(), set()
    labels = facts.seed["metadata"].get("labels") or {}
    for registration in registrations:
        offered = {(each.kind, each.type) for each in registration.spec.resources or ()}
        deployment = registration.spec.deployment
        if not matches(deployment.seed_selector if deployment else None, labels):
            continue
        served |= offered
        if _deployment_of(registration) is None:
            continue
        if offered & pairs or _by_policy(registration, facts):
            names.add(registration.metadata.name)
    faults = [
        f"no ControllerRegistration offers {kind} of type {type_}: register an extension that does"
        for kind, type_ in sorted(pairs - served)
    ]
    return names, faults


def _by_policy(registration: ControllerRegistration, facts: Facts) -> bool:
    if registration.metadata.deletion_timestamp is not None or registration.spec.deployment is None:
        return False
    policy = registration.spec.deployment.policy
    if policy == "Always":
        return not _is_deleting(facts.seed)
    return policy == "AlwaysExceptNoShoots" and any(True for _ in facts.shoots)


def _deployment_of(registration: ControllerRegistration) -> str | None:
    deployment = registration.spec.deployment
    return next((each.name for each in (deployment.deployment_refs if deployment else None) or ()), None)


def _by_registration(installations: Iterable[ObjectView]) -> defaultdict[str, list[ObjectView]]:
    """Installations by registration, the oldest first."""
    found: defaultdict[str, list[ObjectView]] = defaultdict(list)
    ordered = sorted(installations, key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]))
    for each in ordered:
        found[each["spec"]["registrationRef"]["name"]].append(each)
    return found


def _installation(seed: ObjectView, registration: ObjectView, deployment: ObjectView) -> Object:
    annotations = deployment["metadata"].get("annotations") or {}
    content = {key: deployment.get(key) for key in ("helm", "injectGardenKubeconfig", "resources")}
    content |= {key: annotations.get(key) for key in (TYPE, CONFIG)}
    enforced = (registration["metadata"].get("annotations") or {}).get(POD_SECURITY_ENFORCE)
    spec: Object = {
        "registrationRef": _reference(registration),
        "seedRef": _reference(seed),
        "deploymentRef": _reference(deployment),
    }
    if deployment.get("resources"):
        spec["resourceRefs"] = deployment["resources"]
    return {
        "apiVersion": resources.CONTROLLER_INSTALLATION.api_version,
        "kind": resources.CONTROLLER_INSTALLATION.kind,
        "metadata": {
            "generateName": f"{registration['metadata']['name']}-",
            "labels": {
                f"{SEED_NAME_PREFIX}{seed['metadata']['name']}": "true",
                SEED_SPEC_HASH: _hash(seed["spec"]),
                REGISTRATION_SPEC_HASH: _hash(registration["spec"]),
                DEPLOYMENT_HASH: _hash(content),
            },
            "annotations": {POD_SECURITY_ENFORCE: enforced} if enforced else {},
        },
        "spec": spec,
    }


def _reference(obj: ObjectView) -> dict[str, str]:
    metadata = obj["metadata"]
    return {"name": metadata["name"], "resourceVersion": metadata["resourceVersion"]}


def _patch(existing: ObjectView, wanted: ObjectView) -> Object | None:
    """Merge patch; None if nothing that the installation depends on has changed.

    The resource versions in the spec change only with the hashes: statuses and finalizers of the Seed, the registration
    and the deployment change, too, and each change of an installation's spec makes the gardenlet install it again.
    """
    metadata = existing["metadata"]
    labels = dict(wanted["metadata"]["labels"])
    enforced = {POD_SECURITY_ENFORCE: wanted["metadata"]["annotations"].get(POD_SECURITY_ENFORCE)}
    same = (
        labels.items() <= (metadata.get("labels") or {}).items()
        and (metadata.get("annotations") or {}).get(POD_SECURITY_ENFORCE) == enforced[POD_SECURITY_ENFORCE]
        and (existing["spec"].get("deploymentRef") or {}).get("name") == wanted["spec"]["deploymentRef"]["name"]
        and existing["spec"].get("resourceRefs") == wanted["spec"].get("resourceRefs")
    )
    if same:
        return None
    spec = {"resourceRefs": None, **wanted["spec"]}
    return {"metadata": {"labels": labels, "annotations": enforced}, "spec": spec}


def _is_deleting(obj: ObjectView) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_HASH]
