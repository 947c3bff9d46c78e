"""NamespacedCloudProfile: a project's additions to a CloudProfile, for Shoots of the same namespace."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import CORE
from api.core.v1beta1.cloud_profile import (
    CRI,
    CloudProfileSpec,
    ExpirableVersion,
    ImageInPlaceUpdates,
    Limits,
    MachineType,
    VolumeType,
)
from api.meta import AGE, IMMUTABLE, Column, Definition, KubeModel, KubeObject, Raw, map_list


class ParentReference(KubeModel):
    kind: Literal["CloudProfile"] = "CloudProfile"
    name: str = Field(min_length=1)


class NamespacedKubernetesSettings(KubeModel):
    versions: Annotated[list[ExpirableVersion] | None, map_list("version")] = None
    """Versions of the parent that expire at another time; each sets ``expirationDate`` alone."""


class NamespacedMachineImageVersion(ExpirableVersion):
    """A new version, with the defaults of a CloudProfile, or a version of the parent with another expirationDate."""

    cri: list[CRI] | None = None
    architectures: list[str] | None = None
    kubelet_version_constraint: str | None = None
    in_place_updates: ImageInPlaceUpdates | None = None
    capability_flavors: list[dict[str, list[str]]] | None = None


class NamespacedMachineImage(KubeModel):
    name: str
    update_strategy: Literal["patch", "minor", "major"] | None = None
    """Replaces the parent's strategy for this image."""
    versions: Annotated[list[NamespacedMachineImageVersion] | None, map_list("version")] = None


class NamespacedCloudProfileSpec(KubeModel):
    parent: Annotated[ParentReference, IMMUTABLE]
    kubernetes: NamespacedKubernetesSettings | None = None
    machine_images: Annotated[list[NamespacedMachineImage] | None, map_list("name")] = None
    machine_types: Annotated[list[MachineType] | None, map_list("name")] = None
    """Types that the parent does not have."""
    volume_types: Annotated[list[VolumeType] | None, map_list("name")] = None
    """Types that the parent does not have."""
    ca_bundle: str | None = None
    """PEM certificates that nodes trust in addition to those of the parent."""
    provider_config: Raw | None = None
    """Replaces the parent's as a whole."""
    limits: Limits | None = None
    """Replaces the parent's; a higher limit than the parent's needs the verb ``raise-spec-limits``."""


class NamespacedCloudProfileStatus(KubeModel):
    cloud_profile_spec: CloudProfileSpec | None = None
    """The parent's spec with the additions of this profile."""
    observed_generation: int | None = None


class NamespacedCloudProfile(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "namespacedcloudprofiles",
        ("nsprofile", "nscpfl"),
        columns=(
            Column("Parent Name", ".spec.parent.name"),
            Column("Parent Kind", ".spec.parent.kind"),
            AGE,
        ),
        selectable=(".spec.parent.name",),
    )

    spec: NamespacedCloudProfileSpec
    status: NamespacedCloudProfileStatus | None = None
