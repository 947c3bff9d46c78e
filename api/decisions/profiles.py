"""Cloud profiles of Shoots: a CloudProfile, or a NamespacedCloudProfile merged with its parent.

All processes that read the profile of a Shoot call ``profile_of``. It merges at each reading, and does not read
``NamespacedCloudProfile.status``: the status is for users, may be older than the parent, and a user with the right to
write a status cannot widen a profile by it. Source: spec/api-core.md 2.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from api import resources
from api.constants import APPROVED_TYPES
from api.resources import Object, Resource

Find = Callable[[Resource, str, str | None], Awaitable[Object | None]]
"""Reads one object of the garden; None if it does not exist."""

_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
"""Names that objects can have. Another text, such as ``../x``, would be the path of another object."""
_COUNTED = {"machineTypes": ("cpu", "gpu", "memory", "storage"), "volumeTypes": ("class",)}
"""Fields of types that Quotas count."""
_OF_VERSION = ("version", "expirationDate")
_DEFAULTS: Object = {"cri": [{"name": "containerd"}], "architectures": ["amd64"]}
"""Defaults of an image version, which the API server sets in a CloudProfile."""


@dataclass(frozen=True)
class ProfileReference:
    """Names the cloud profile of a Shoot."""

    resource: Resource
    namespace: str | None
    """The Shoot's own namespace for a NamespacedCloudProfile, None for a CloudProfile."""
    name: str

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.resource.kind} {where}{self.name}"


def profile_reference(shoot: Mapping[str, Any]) -> ProfileReference | None:
    """The cloud profile that a Shoot names; None if it names none, or by a text that is no name."""
    spec = shoot["spec"]
    named = spec.get("cloudProfile") or {"name": spec.get("cloudProfileName")}
    name = named.get("name") or ""
    if not _NAME.fullmatch(name):
        return None
    if named.get("kind", "CloudProfile") == "CloudProfile":
        return ProfileReference(resources.CLOUD_PROFILE, None, name)
    return ProfileReference(resources.NAMESPACED_CLOUD_PROFILE, shoot["metadata"].get("namespace") or "", name)


async def profile_of(shoot: Mapping[str, Any], find: Find) -> Object | None:
    """The cloud profile of a Shoot, as a CloudProfile; None if it, or its parent, does not exist."""
    reference = profile_reference(shoot)
    if reference is None:
        return None
    found = await find(reference.resource, reference.name, reference.namespace)
    if found is None or reference.namespace is None:
        return found
    parent = await find(resources.CLOUD_PROFILE, parent_of(found), None)
    return merged(parent, found) if parent is not None else None


async def root_of(reference: ProfileReference | None, find: Find) -> str | None:
    """Name of the CloudProfile at the root: the profile itself, or the parent of a NamespacedCloudProfile."""
    if reference is None or reference.namespace is None:
        return reference.name if reference else None
    found = await find(reference.resource, reference.name, reference.namespace)
    return parent_of(found) if found is not None else None


def parent_of(profile: Mapping[str, Any]) -> str:
    """Name of the CloudProfile that a NamespacedCloudProfile extends."""
    return str(profile["spec"]["parent"]["name"])


def types_digest(profile: Mapping[str, Any]) -> str | None:
    """Digest of the machine types and volume types that a NamespacedCloudProfile adds; None if it adds none."""
    added = {field: profile["spec"].get(field) or [] for field in _COUNTED}
    if not any(added.values()):
        return None
    return hashlib.sha256(json.dumps(added, sort_keys=True).encode()).hexdigest()[:32]


async def unapproved_types(shoot: Mapping[str, Any], find: Find) -> set[str]:
    """Machine types and volume types of a Shoot whose amounts the project has chosen and no operator has approved."""
    reference = profile_reference(shoot)
    if reference is None or reference.namespace is None:
        return set()
    found = await find(reference.resource, reference.name, reference.namespace)
    if found is None or types_digest(found) == approved_types(found):
        return set()
    added = {each["name"] for field in _COUNTED for each in found["spec"].get(field) or ()}
    return added & used_types(shoot)


def approved_types(profile: Mapping[str, Any]) -> str | None:
    """Digest of the types that an operator has approved."""
    digest: str | None = (profile["metadata"].get("annotations") or {}).get(APPROVED_TYPES)
    return digest


def recounted_types(new: Mapping[str, Any], old: Mapping[str, Any]) -> set[str]:
    """Machine types and volume types of a NamespacedCloudProfile that a change lets Quotas count by other amounts."""

    def counts(profile: Mapping[str, Any]) -> dict[str, Any]:
        return {
            each["name"]: [each.get(name) for name in names]
            for field, names in _COUNTED.items()
            for each in profile["spec"].get(field) or ()
        }

    before, after = counts(old), counts(new)
    return {name for name, amounts in after.items() if name in before and before[name] != amounts}


def used_types(shoot: Mapping[str, Any]) -> set[str]:
    """Names of the machine types and volume types of a Shoot."""
    pools = (shoot["spec"].get("provider") or {}).get("workers") or ()
    volumes = [each for pool in pools for each in (pool.get("volume"), *(pool.get("dataVolumes") or ())) if each]
    return {pool["machine"]["type"] for pool in pools} | {each["type"] for each in volumes if each.get("type")}


def merged(parent: Mapping[str, Any], own: Mapping[str, Any]) -> Object:
    """A NamespacedCloudProfile as a CloudProfile with its own name: the parent's spec, extended by its own.

    A machine or volume type that the parent got later under the same name stays the project's, so that no node of the
    project changes by it. An expirationDate for a version that the parent does not have any more has no effect.
    """
    spec, added = deepcopy(dict(parent["spec"])), deepcopy(dict(own["spec"]))
    dates = (added.get("kubernetes") or {}).get("versions") or ()
    kubernetes = spec["kubernetes"]
    kubernetes["versions"] = _merged(kubernetes["versions"], dates, "version", _expiring, extend=False)
    spec["machineImages"] = _images(spec["machineImages"], added.get("machineImages") or ())
    for field in ("machineTypes", "volumeTypes"):
        if added.get(field):
            spec[field] = _merged(spec.get(field) or (), added[field], "name", lambda _, its: its)
    if added.get("caBundle"):
        spec["caBundle"] = "\n".join(each.strip() for each in (spec.get("caBundle"), added["caBundle"]) if each) + "\n"
    if added.get("providerConfig"):
        spec["providerConfig"] = added["providerConfig"]
    if limit := (added.get("limits") or {}).get("maxNodesTotal"):
        spec["limits"] = {**(spec.get("limits") or {}), "maxNodesTotal": limit}
    return {
        "apiVersion": resources.CLOUD_PROFILE.api_version,
        "kind": resources.CLOUD_PROFILE.kind,
        "metadata": own["metadata"],
        "spec": spec,
    }


def _merged(
    base: Iterable[Object],
    added: Iterable[Object],
    key: str,
    both: Callable[[Object, Object], Object],
    *,
    extend: bool = True,
) -> list[Object]:
    """The entries of a list of the parent, in its order, then new entries. ``both`` merges two entries of one key."""
    result = {each[key]: each for each in base}
    for each in added:
        if each[key] in result:
            result[each[key]] = both(result[each[key]], each)
        elif extend:
            result[each[key]] = each
    return list(result.values())


def _expiring(version: Object, override: Object) -> Object:
    """A version of the parent that expires when the override says."""
    date = override.get("expirationDate")
    if date is None:
        return version
    if not version.get("lifecycle"):
        return {**version, "expirationDate": date}
    stages = [each for each in version["lifecycle"] if each["classification"] != "expired"]
    return {**version, "lifecycle": [*stages, {"classification": "expired", "startTime": date}]}


def _images(base: Iterable[Object], added: Iterable[Object]) -> list[Object]:
    """The parent's images with the project's versions, then images of the project alone."""
    result = {each["name"]: each for each in base}
    for each in added:
        image = result.get(each["name"], {"name": each["name"], "updateStrategy": "major", "versions": []})
        strategy = each.get("updateStrategy") or image.get("updateStrategy")
        versions = _merged(image["versions"], _new_versions(image, each), "version", _image_version)
        result[each["name"]] = {**image, "versions": versions, **({"updateStrategy": strategy} if strategy else {})}
    return [each for each in result.values() if each["versions"]]


def _new_versions(image: Object, added: Object) -> list[Object]:
    """Versions of an image that the project adds or overrides.

    An override of a version that the parent does not have any more has no effect: it would offer the version again.
    """
    known = {each["version"] for each in image["versions"]}
    return [
        each if is_override(each) else {**_DEFAULTS, **each}
        for each in added.get("versions") or ()
        if each["version"] in known or not is_override(each)
    ]


def _image_version(version: Object, added: Object) -> Object:
    """A version that the parent got after the project's profile had it stays the project's."""
    return _expiring(version, added) if is_override(added) else added


def is_override(version: Mapping[str, Any]) -> bool:
    """Whether the entry of a version says no more than when the version expires."""
    return all(value is None for name, value in version.items() if name not in _OF_VERSION)
