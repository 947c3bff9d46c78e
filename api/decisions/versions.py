"""Versions: order, completion of partial ones, and their stage in a cloud profile's lifecycle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import total_ordering
from typing import Any, TypeVar

from api.core.v1beta1.cloud_profile import (
    Classification,
    CloudProfile,
    ExpirableVersion,
    MachineImageVersion,
    MachineType,
)
from api.times import parse_time

V = TypeVar("V", bound=ExpirableVersion)

Capabilities = Mapping[str, frozenset[str]]
"""Values of each capability that a machine offers."""
ARCHITECTURE = "architecture"
"""The capability that each profile with capabilities defines."""

_FULL = re.compile(r"^v?(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?$")
_PARTIAL = re.compile(r"^(\d+)?(?:\.(\d+))?$")
_CONSTRAINT = re.compile(r"^(>=|<=|>|<|=|!=|~|\^)?\s*v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(-[0-9A-Za-z.-]+)?$")


@total_ordering
class Version:
    """A semantic version; a pre-release comes before its release."""

    def __init__(self, text: str) -> None:
        """Parse a version.

        Raises:
            ValueError: the text is not a semantic version.
        """
        match = _FULL.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not a version like 1.37.1")
        self.major, self.minor, self.patch = (int(part) for part in match.group(1, 2, 3))
        self._key = (self.major, self.minor, self.patch, *_pre_release(match.group(4)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: Version) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _pre_release(text: str | None) -> tuple[int, tuple[tuple[int, int, str], ...]]:
    if text is None:
        return (1, ())
    parts = (((0, int(part), "") if part.isdigit() else (1, 0, part)) for part in text.split("."))
    return (0, tuple(parts))


def is_version(text: str) -> bool:
    return _FULL.match(text) is not None


def is_partial(text: str) -> bool:
    """Whether parts are missing: ``""``, ``1`` or ``1.37``."""
    return _PARTIAL.match(text) is not None


def satisfies(version: str, constraint: str | None) -> bool:
    """Whether a version meets all of a constraint like ``>= 1.26, < 1.38``. Unreadable constraints are not met."""
    wanted = Version(version)
    for part in re.split(r"\s*,\s*|\s+(?=[<>=!~^])", (constraint or "").strip()):
        if not part:
            continue
        match = _CONSTRAINT.match(part)
        if match is None or not _meets(wanted, match.group(1) or "=", match.group(2, 3, 4)):
            return False
    return True


def is_constraint(text: str | None) -> bool:
    """Whether a constraint can be read; no constraint can."""
    parts = re.split(r"\s*,\s*|\s+(?=[<>=!~^])", (text or "").strip())
    return all(not part or _CONSTRAINT.match(part) for part in parts)


def _meets(version: Version, operator: str, parts: tuple[str | None, ...]) -> bool:
    given = [int(part) for part in parts if part is not None]
    numbers = (version.major, version.minor, version.patch)
    bound = tuple(given + [0] * (3 - len(given)))
    same = numbers[: len(given)] == tuple(given)
    return {
        ">=": numbers >= bound,
        "<=": numbers <= bound or same,
        ">": numbers > bound and not same,
        "<": numbers < bound,
        "=": same,
        "!=": not same,
        "~": numbers >= bound and numbers[: min(len(given), 2)] == tuple(given[:2]),
        "^": numbers >= bound and numbers[0] == given[0],
    }[operator]


def minors_between(lower: str, upper: str) -> int | None:
    """Number of minor versions that ``upper`` is ahead of ``lower``; None if their majors differ."""
    low, high = Version(lower), Version(upper)
    return high.minor - low.minor if low.major == high.major else None


def stage(version: ExpirableVersion, now: datetime) -> Classification:
    """Lifecycle stage of a version; an unclassified one counts as supported."""
    if version.lifecycle:
        begun = [each for each in version.lifecycle if each.start_time is None or parse_time(each.start_time) <= now]
        return begun[-1].classification if begun else "unavailable"
    expires = expiration(version)
    if expires and expires <= now:
        return "expired"
    return version.classification or "supported"


def expiration(version: ExpirableVersion) -> datetime | None:
    """Expiration time of a version, past or future; None if it has none."""
    if version.lifecycle:
        ends = [each.start_time for each in version.lifecycle if each.classification == "expired" and each.start_time]
        return parse_time(ends[0]) if ends else None
    return parse_time(version.expiration_date) if version.expiration_date else None


def current_stages(profile: CloudProfile, now: datetime) -> dict[str, Any]:
    """``CloudProfile.status``: the present stage of each version of Kubernetes and of each machine image."""

    def stages(versions: Iterable[ExpirableVersion]) -> list[dict[str, str]]:
        return [{"version": each.version, "classification": stage(each, now)} for each in versions]

    return {
        "kubernetes": {"versions": stages(profile.spec.kubernetes.versions)},
        "machineImages": [
            {"name": each.name, "versions": stages(each.versions)} for each in profile.spec.machine_images
        ],
    }


def next_stage(profile: CloudProfile, now: datetime) -> datetime | None:
    """Time of the next change of a version's stage; None if all versions stay as they are."""
    versions = [*profile.spec.kubernetes.versions, *(v for i in profile.spec.machine_images for v in i.versions)]
    starts = [each.start_time for version in versions for each in version.lifecycle or () if each.start_time]
    starts += [each.expiration_date for each in versions if each.expiration_date]
    return min((time for time in map(parse_time, starts) if time > now), default=None)


def find(versions: Iterable[V], wanted: str) -> V | None:
    return next((each for each in versions if each.version == wanted), None)


def complete(wanted: str, versions: Iterable[ExpirableVersion], now: datetime) -> str | None:
    """Highest supported version that starts with ``wanted``; a full version is its own completion.

    None if there is none, or if ``wanted`` is no beginning of a version.
    """
    if is_version(wanted):
        return wanted
    if not is_partial(wanted):
        return None
    prefix = [int(part) for part in wanted.split(".") if part]
    fitting = [
        each.version
        for each in versions
        if stage(each, now) == "supported" and [*map(int, each.version.split(".")[: len(prefix)])] == prefix
    ]
    return max(fitting, key=Version, default=None)


def complete_image(
    profile: CloudProfile,
    name: str | None,
    version: str | None,
    *,
    architecture: str,
    cri: str,
    kubelet: str,
    now: datetime,
    machine_type: str = "",
    in_place: bool = False,
) -> tuple[str, str] | None:
    """Name and version of the latest machine image that fits; None if there is none.

    Without a name the profile's first image with a fitting version is taken. A full version stands as it is.
    ``in_place``: only versions that can be updated in place fit.
    """
    capabilities = capabilities_of(profile, machine_type, architecture)
    for image in profile.spec.machine_images:
        if name and image.name != name:
            continue
        if version and is_version(version):
            return image.name, version
        fitting: Sequence[str] = [
            each.version
            for each in image.versions
            if stage(each, now) in ("supported", "deprecated")
            and _starts_with(each.version, version or "")
            and image_fits(each, architecture=architecture, cri=cri, kubelet=kubelet, capabilities=capabilities)
            and (not in_place or bool(each.in_place_updates and each.in_place_updates.supported))
        ]
        if fitting:
            return image.name, max(fitting, key=Version)
    return None


def _starts_with(version: str, prefix: str) -> bool:
    return not prefix or version == prefix or version.startswith(f"{prefix}.")


def capabilities_of(profile: CloudProfile, machine_type: str, pool_architecture: str) -> Capabilities:
    """Values of each capability that a machine of a type offers; empty if the profile defines no capabilities.

    A type that does not name a capability offers all its values.
    """
    kind = next((each for each in profile.spec.machine_types if each.name == machine_type), None)
    given = (kind.capabilities if kind else None) or {}
    defined = {each.name: frozenset(each.values) for each in profile.spec.machine_capabilities or ()}
    offered = {name: frozenset(given.get(name) or values) for name, values in defined.items()}
    return offered | {ARCHITECTURE: frozenset({pool_architecture})} if defined else {}


def architecture_of(profile: CloudProfile, kind: MachineType) -> str:
    """Architecture of a machine type: its capability if the profile defines capabilities, its field otherwise."""
    for each in profile.spec.machine_capabilities or ():
        if each.name == ARCHITECTURE:
            return ((kind.capabilities or {}).get(ARCHITECTURE) or each.values or [kind.architecture])[0]
    return kind.architecture


def image_fits(
    image: MachineImageVersion, *, architecture: str, cri: str, kubelet: str, capabilities: Capabilities | None = None
) -> bool:
    """Whether machines of this architecture, runtime and kubelet version can use an image.

    ``capabilities``: what the machines offer, see ``capabilities_of``. One flavor of the image must have a common value
    with them for each capability; the flavors say the architecture then.
    """
    fits_machine = _has_flavor(image, capabilities) if capabilities else architecture in image.architectures
    return (
        fits_machine
        and any(each.name == cri for each in image.cri)
        and (not is_version(kubelet) or satisfies(kubelet, image.kubelet_version_constraint))
    )


def _has_flavor(image: MachineImageVersion, offered: Capabilities) -> bool:
    """Whether a flavor of the image runs on machines with these capabilities. An image without flavors has all."""
    return not image.capability_flavors or any(
        all(values & frozenset(flavor.get(name) or values) for name, values in offered.items())
        for flavor in image.capability_flavors
    )
