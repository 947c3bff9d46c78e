"""Validation of NamespacedCloudProfiles: what a project may add to a CloudProfile. Source: spec/api-core.md 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from api.core.v1beta1.cloud_profile import CloudProfile, ExpirableVersion
from api.core.v1beta1.namespaced_cloud_profile import NamespacedCloudProfile, NamespacedMachineImage
from api.core.v1beta1.shoot import Shoot
from api.decisions.profiles import is_override, merged
from api.validation.certificates import check_ca_bundle
from api.validation.field import Faults, Path
from api.validation.garden import check_cloud_profile, check_cloud_profile_change

SPEC = Path("spec")

MODIFY_KUBERNETES = "modify-spec-kubernetes"
MODIFY_MACHINE_IMAGES = "modify-spec-machineimages"
MODIFY_PROVIDER_CONFIG = "modify-spec-providerconfig"
RAISE_LIMITS = "raise-spec-limits"
_VERBS = {
    "kubernetes": MODIFY_KUBERNETES,
    "machineImages": MODIFY_MACHINE_IMAGES,
    "providerConfig": MODIFY_PROVIDER_CONFIG,
}


def verbs_needed(
    new: Mapping[str, Any], old: Mapping[str, Any] | None, parent: Mapping[str, Any]
) -> list[tuple[Path, str]]:
    """Verbs that the author of a NamespacedCloudProfile needs, each with the field; objects are JSON."""
    before = old["spec"] if old is not None else {}
    needed = [
        (SPEC / field, verb)
        for field, verb in _VERBS.items()
        if (new["spec"].get(field) or None) != (before.get(field) or None)
    ]
    limit, had, bound = (_limit(each) for each in (new["spec"], before, parent["spec"]))
    if limit is not None and limit != had and bound is not None and limit > bound:
        needed.append((SPEC / "limits" / "maxNodesTotal", RAISE_LIMITS))
    return needed


def _limit(spec: Mapping[str, Any]) -> int | None:
    limit: int | None = (spec.get("limits") or {}).get("maxNodesTotal")
    return limit


def check_namespaced_profile(
    new: NamespacedCloudProfile, old: NamespacedCloudProfile | None, parent: CloudProfile, now: datetime
) -> Faults:
    """All faults of a new NamespacedCloudProfile, or of a change of its spec. Unchanged entries are not checked."""
    faults = Faults()
    check_ca_bundle(new.spec.ca_bundle, SPEC / "caBundle", faults)
    _check_kubernetes(new, old, parent, now, faults)
    _check_images(new, old, parent, now, faults)
    for field, wire in (("machine_types", "machineTypes"), ("volume_types", "volumeTypes")):
        known = {each.name: each for each in (getattr(old.spec, field) if old else None) or []}
        taken = {each.name for each in getattr(parent.spec, field) or []}
        for index, each in enumerate(getattr(new.spec, field) or []):
            if each.name in taken and known.get(each.name) != each:
                detail = f"CloudProfile {parent.metadata.name} has {each.name}, which a project cannot change"
                faults.forbidden(SPEC / wire @ index / "name", detail)
    if not faults:
        _check_result(new, parent, now, faults)
    return faults


def _check_result(new: NamespacedCloudProfile, parent: CloudProfile, now: datetime, faults: Faults) -> None:
    """Report faults of the merged profile, but not those of the parent alone, which a project cannot mend."""
    before = set(map(str, check_cloud_profile(parent, now).found))
    result = CloudProfile.of(merged(parent.to_wire(), new.to_wire()))
    faults.found += [each for each in check_cloud_profile(result, now).found if str(each) not in before]


def _check_kubernetes(
    new: NamespacedCloudProfile,
    old: NamespacedCloudProfile | None,
    parent: CloudProfile,
    now: datetime,
    faults: Faults,
) -> None:
    offered = {each.version for each in parent.spec.kubernetes.versions}
    known = {each.version: each for each in (old and old.spec.kubernetes and old.spec.kubernetes.versions) or []}
    for index, each in enumerate((new.spec.kubernetes and new.spec.kubernetes.versions) or []):
        if known.get(each.version) == each:
            continue
        path = SPEC / "kubernetes" / "versions" @ index
        if each.version not in offered:
            detail = (
                f"CloudProfile {parent.metadata.name} has no such version; a project can only change expirationDate"
            )
            faults.invalid(path / "version", each.version, detail)
        _check_override(each, path, now, faults)


def _check_override(version: ExpirableVersion, path: Path, now: datetime, faults: Faults) -> None:
    """Report an entry for a version of the parent that says anything else than a future expirationDate."""
    for name in ("classification", "lifecycle"):
        if getattr(version, name) is not None:
            faults.forbidden(path / name, "a project can only change expirationDate of a version of the parent")
    if version.expiration_date is None:
        faults.required(path / "expirationDate", "must say when the version expires for this project")
    elif datetime.fromisoformat(version.expiration_date) <= now:
        faults.invalid(path / "expirationDate", version.expiration_date, "must be in the future")


def _check_images(
    new: NamespacedCloudProfile,
    old: NamespacedCloudProfile | None,
    parent: CloudProfile,
    now: datetime,
    faults: Faults,
) -> None:
    offered = {image.name: {each.version for each in image.versions} for image in parent.spec.machine_images}
    known = {each.name: each for each in (old and old.spec.machine_images) or []}
    for index, image in enumerate(new.spec.machine_images or []):
        path = SPEC / "machineImages" @ index
        if not image.versions and (image.name not in offered or image.update_strategy is None):
            faults.required(path / "versions", "must have at least one version")
        _check_image(image, known.get(image.name), offered.get(image.name, set()), path, now, faults)


def _check_image(
    image: NamespacedMachineImage,
    old: NamespacedMachineImage | None,
    offered: set[str],
    path: Path,
    now: datetime,
    faults: Faults,
) -> None:
    known = {each.version: each for each in (old and old.versions) or []}
    for index, each in enumerate(image.versions or []):
        here = path / "versions" @ index
        if known.get(each.version) == each:
            continue
        override = is_override(each.to_wire())
        if each.version in offered:
            if not override:
                faults.forbidden(here, f"the parent has {image.name} {each.version}: only expirationDate can be set")
            _check_override(each, here, now, faults)
        elif not each.architectures and not each.capability_flavors:
            detail = f"the parent has no {image.name} {each.version}: a new version must name its architectures"
            faults.required(here / "architectures", detail)
        elif each.expiration_date and datetime.fromisoformat(each.expiration_date) <= now:
            faults.invalid(here / "expirationDate", each.expiration_date, "must be in the future")


def check_namespaced_profile_change(
    new: Mapping[str, Any],
    old: Mapping[str, Any],
    parent: Mapping[str, Any],
    shoots: Sequence[Shoot],
    now: datetime,
) -> Faults:
    """Faults of a change that takes something from the Shoots of the profile; profiles are JSON.

    The limit of nodes may decrease while no Shoot uses the profile.
    """
    if not shoots:
        return Faults()
    before, after = (CloudProfile.of(merged(parent, each)) for each in (old, new))
    return check_cloud_profile_change(after, before, shoots, now)


def check_children(
    new: CloudProfile, old: CloudProfile, children: Iterable[tuple[Mapping[str, Any], Sequence[Shoot]]], now: datetime
) -> Faults:
    """Faults of a change of a CloudProfile for the NamespacedCloudProfiles that extend it, each with its Shoots."""
    faults = Faults()
    had = {each.name for each in old.spec.machine_images}
    for child, shoots in children:
        own = f"NamespacedCloudProfile {child['metadata']['namespace']}/{child['metadata']['name']}"
        names = {each["name"] for each in child["spec"].get("machineImages") or ()}
        for index, image in enumerate(new.spec.machine_images):
            if image.name not in had and image.name in names:
                path = SPEC / "machineImages" @ index / "name"
                faults.forbidden(path, f"{image.name} is defined by {own}: choose another name, or remove it there")
        if shoots:
            before, after = (CloudProfile.of(merged(each.to_wire(), child)) for each in (old, new))
            faults.found += check_cloud_profile_change(after, before, shoots, now).found
    return faults
