"""Rules of a CloudProfile's parts: names, amounts, lifecycles, capabilities, and what Shoots use. Source:
spec/api-core.md 2."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from api.core.v1beta1.cloud_profile import (
    CloudProfile,
    CloudProfileSpec,
    ExpirableVersion,
    MachineCapability,
    MachineImage,
    MachineImageVersion,
)
from api.core.v1beta1.shoot import Shoot, Worker
from api.decisions.versions import ARCHITECTURE, Version, is_constraint, is_version
from api.quantities import parse_quantity
from api.validation.certificates import check_ca_bundle
from api.validation.field import Faults, Path

SPEC = Path("spec")

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Names of machine types, volume types and zones become values of labels of nodes."""
_ARCHITECTURES = ("amd64", "arm64")
_STAGES = ("unavailable", "preview", "supported", "deprecated", "expired")
_RESERVED_PREFIX = "gardener-"


def check_parts(spec: CloudProfileSpec, faults: Faults) -> None:
    """Report faults of single parts of a CloudProfile's spec."""
    check_ca_bundle(spec.ca_bundle, SPEC / "caBundle", faults)
    _check_types(spec, faults)
    _check_regions(spec, faults)
    _check_bastion(spec, faults)
    for index, image in enumerate(spec.machine_images):
        for number, version in enumerate(image.versions):
            _check_image_version(version, SPEC / "machineImages" @ index / "versions" @ number, faults)
    _check_capabilities(spec, faults)


def check_lifecycle(version: ExpirableVersion, path: Path, faults: Faults) -> None:
    """Report stages of a lifecycle that are out of order, or occur twice."""
    stages = [_STAGES.index(each.classification) for each in version.lifecycle or []]
    if stages != sorted(set(stages)):
        names = [each.classification for each in version.lifecycle or []]
        faults.invalid(path / "lifecycle", names, f"stages must be in the order {', '.join(_STAGES)}")


def _check_types(spec: CloudProfileSpec, faults: Faults) -> None:
    for index, kind in enumerate(spec.machine_types):
        path = SPEC / "machineTypes" @ index
        _check_name(kind.name, path / "name", faults)
        if kind.architecture not in _ARCHITECTURES:
            faults.unsupported(path / "architecture", kind.architecture, _ARCHITECTURES)
        for name in ("cpu", "gpu", "memory"):
            _check_amount(getattr(kind, name), path / name, faults)
        for name, size in (("size", "size"), ("min_size", "minSize")):
            if kind.storage:
                _check_amount(getattr(kind.storage, name), path / "storage" / size, faults)
    for index, volume in enumerate(spec.volume_types or []):
        _check_name(volume.name, SPEC / "volumeTypes" @ index / "name", faults)
        _check_amount(volume.min_size, SPEC / "volumeTypes" @ index / "minSize", faults)


def _check_name(name: str, path: Path, faults: Faults) -> None:
    if not _LABEL_VALUE.fullmatch(name):
        faults.invalid(path, name, "must be a label value: letters, digits, '-', '_' and '.', at most 63 characters")


def _check_amount(amount: str | int | float | None, path: Path, faults: Faults) -> None:
    try:
        if amount is not None and parse_quantity(amount) < 0:
            faults.invalid(path, amount, "must not be negative")
    except ValueError as error:
        faults.invalid(path, amount, str(error))


def _check_regions(spec: CloudProfileSpec, faults: Faults) -> None:
    for index, region in enumerate(spec.regions):
        path = SPEC / "regions" @ index
        _check_name(region.name, path / "name", faults)
        for number, zone in enumerate(region.zones or []):
            _check_name(zone.name, path / "zones" @ number / "name", faults)
        restrictions = [each.name for each in region.access_restrictions or []]
        faults.duplicates(path / "accessRestrictions", restrictions, "name")


def _check_bastion(spec: CloudProfileSpec, faults: Faults) -> None:
    """Report a machine type or an image for bastions that the CloudProfile does not offer."""
    bastion, path = spec.bastion, SPEC / "bastion"
    if bastion is None:
        return
    if bastion.machine_type is None and bastion.machine_image is None:
        faults.required(path, "must name a machineType or a machineImage")
    if bastion.machine_type is not None:
        types = [each.name for each in spec.machine_types]
        if bastion.machine_type.name not in types:
            faults.unsupported(path / "machineType" / "name", bastion.machine_type.name, types)
    wanted = bastion.machine_image
    if wanted is None:
        return
    image = next((each for each in spec.machine_images if each.name == wanted.name), None)
    if image is None:
        faults.unsupported(path / "machineImage" / "name", wanted.name, [each.name for each in spec.machine_images])
    elif wanted.version and wanted.version not in (versions := [each.version for each in image.versions]):
        faults.unsupported(path / "machineImage" / "version", wanted.version, versions)


def _check_image_version(version: MachineImageVersion, path: Path, faults: Faults) -> None:
    for index, architecture in enumerate(version.architectures):
        if architecture not in _ARCHITECTURES:
            faults.unsupported(path / "architectures" @ index, architecture, _ARCHITECTURES)
    if not version.architectures:
        faults.required(path / "architectures", "must have at least one entry")
    if not version.cri:
        faults.required(path / "cri", "must have at least one entry")
    faults.duplicates(path / "cri", [each.name for each in version.cri], "name")
    for index, cri in enumerate(version.cri):
        types = [each.type for each in cri.container_runtimes or []]
        faults.duplicates(path / "cri" @ index / "containerRuntimes", types, "type")
    if not is_constraint(version.kubelet_version_constraint):
        detail = "must be a constraint like '>= 1.33, < 1.38'"
        faults.invalid(path / "kubeletVersionConstraint", version.kubelet_version_constraint, detail)
    least = version.in_place_updates.min_version_for_update if version.in_place_updates else None
    if least and not is_version(least):
        faults.invalid(path / "inPlaceUpdates" / "minVersionForUpdate", least, "must be a version like 1.2.3")
    elif least and is_version(version.version) and Version(least) > Version(version.version):
        detail = f"must not be newer than the version itself, {version.version}"
        faults.invalid(path / "inPlaceUpdates" / "minVersionForUpdate", least, detail)


# Capabilities


def _check_capabilities(spec: CloudProfileSpec, faults: Faults) -> None:
    defined: dict[str, Sequence[str]] = {}
    for index, each in enumerate(spec.machine_capabilities or []):
        _check_definition(each, SPEC / "machineCapabilities" @ index, faults)
        defined[each.name] = each.values
    for index, kind in enumerate(spec.machine_types):
        path = SPEC / "machineTypes" @ index / "capabilities"
        _check_values(kind.capabilities, defined, path, faults)
        given = (kind.capabilities or {}).get(ARCHITECTURE)
        if defined.get(ARCHITECTURE) and len(given or defined[ARCHITECTURE]) != 1:
            faults.invalid(path / ARCHITECTURE, given, "a machine has one architecture: name it")
    for index, image in enumerate(spec.machine_images):
        _check_flavors(image, defined, SPEC / "machineImages" @ index / "versions", faults)


def _check_definition(capability: MachineCapability, path: Path, faults: Faults) -> None:
    if capability.name.startswith(_RESERVED_PREFIX):
        faults.invalid(path / "name", capability.name, f"the prefix {_RESERVED_PREFIX} is reserved")
    if not capability.values:
        faults.required(path / "values", "must have at least one entry")
    faults.duplicates(path / "values", capability.values)
    if capability.name == ARCHITECTURE and not set(capability.values) <= set(_ARCHITECTURES):
        faults.unsupported(path / "values", capability.values, _ARCHITECTURES)


def _check_flavors(image: MachineImage, defined: Mapping[str, Sequence[str]], path: Path, faults: Faults) -> None:
    for number, version in enumerate(image.versions):
        here = path @ number / "capabilityFlavors"
        several = len(defined.get(ARCHITECTURE, ())) > 1
        for index, flavor in enumerate(version.capability_flavors or []):
            _check_values(flavor, defined, here @ index, faults)
            given = flavor.get(ARCHITECTURE)
            if defined.get(ARCHITECTURE) and len(given or defined[ARCHITECTURE]) != 1:
                faults.invalid(here @ index / ARCHITECTURE, given, "a flavor has one architecture")
        if several and not version.capability_flavors:
            faults.required(here, "must have a flavor for each architecture of the version")
        faults.duplicates(here, version.capability_flavors or [])


def _check_values(
    given: Mapping[str, Collection[str]] | None, defined: Mapping[str, Sequence[str]], path: Path, faults: Faults
) -> None:
    for name, values in (given or {}).items():
        if name not in defined:
            faults.unsupported(path, name, defined, f"spec.machineCapabilities defines {', '.join(defined) or 'none'}")
        elif not values:
            faults.required(path / name, "must have at least one value")
        elif not set(values) <= set(defined[name]):
            faults.unsupported(path / name, list(values), defined[name])


# What Shoots use


def used_and_gone(shoot: Shoot, old: CloudProfile, new: CloudProfile) -> Iterator[tuple[Path, str]]:
    """Entries of a profile that a Shoot uses and that the newer profile lacks: the field of the profile, and a text."""
    before, after = old.spec, new.spec
    spec = shoot.spec
    for version in dict.fromkeys([spec.kubernetes.version, *map(_kubelet, spec.provider.workers or [])]):
        if version in _gone(before.kubernetes.versions, after.kubernetes.versions, "version"):
            yield SPEC / "kubernetes" / "versions", version
    if spec.region in _gone(before.regions, after.regions, "name"):
        yield SPEC / "regions", f"region {spec.region}"
    for pool in spec.provider.workers or []:
        yield from _of_pool(pool, spec.region, before, after)


def _kubelet(pool: Worker) -> str:
    return (pool.kubernetes.version if pool.kubernetes else None) or ""


def _of_pool(
    pool: Worker, region: str, before: CloudProfileSpec, after: CloudProfileSpec
) -> Iterator[tuple[Path, str]]:
    if pool.machine.type in _gone(before.machine_types, after.machine_types, "name"):
        yield SPEC / "machineTypes", pool.machine.type
    for volume in [*([pool.volume] if pool.volume else []), *(pool.data_volumes or [])]:
        if volume.type in _gone(before.volume_types or (), after.volume_types or (), "name"):
            yield SPEC / "volumeTypes", f"volume type {volume.type}"
    image = pool.machine.image
    if image and (image.name, image.version) in _images(before) - _images(after):
        yield SPEC / "machineImages", f"{image.name} {image.version}"
    for zone in pool.zones or []:
        if zone in _zones(before, region) - _zones(after, region) and _zones(after, region):
            yield SPEC / "regions", f"zone {zone} of region {region}"
    kinds = {each.name: each for each in before.machine_types}
    kind = kinds.get(pool.machine.type)
    offered = {each.name: set(each.values) for each in after.machine_capabilities or []}
    for capability in before.machine_capabilities or []:
        needed = set((kind.capabilities or {}).get(capability.name) or ()) if kind else set()
        if missing := needed - offered.get(capability.name, set()):
            yield SPEC / "machineCapabilities", f"{capability.name} {', '.join(sorted(missing))}"


def _images(spec: CloudProfileSpec) -> set[tuple[str, str | None]]:
    return {(image.name, version.version) for image in spec.machine_images for version in image.versions}


def _zones(spec: CloudProfileSpec, region: str) -> set[str]:
    return {zone.name for each in spec.regions if each.name == region for zone in each.zones or []}


def _gone(old: Sequence[object], new: Sequence[object], key: str) -> set[str]:
    return {getattr(each, key) for each in old} - {getattr(each, key) for each in new}
