"""CloudProfile: Kubernetes versions, machine types, machine images and regions that a cloud offers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import CORE
from api.meta import (
    AGE,
    AccessRestriction,
    Column,
    Definition,
    Duration,
    KubeModel,
    KubeObject,
    Quantity,
    Raw,
    SeedSelector,
    Timestamp,
    map_list,
)

Classification = Literal["unavailable", "preview", "supported", "deprecated", "expired"]


class LifecycleStage(KubeModel):
    classification: Classification
    start_time: Timestamp | None = None
    """Start of the stage; optional for the first stage only."""


class ExpirableVersion(KubeModel):
    """Either ``classification`` and ``expirationDate``, or ``lifecycle``."""

    version: str
    classification: Literal["preview", "supported", "deprecated"] | None = None
    expiration_date: Timestamp | None = None
    lifecycle: list[LifecycleStage] | None = None


class KubernetesSettings(KubeModel):
    versions: Annotated[list[ExpirableVersion], map_list("version")]


class ContainerRuntime(KubeModel):
    type: str
    provider_config: Raw | None = None


class CRI(KubeModel):
    name: str
    container_runtimes: list[ContainerRuntime] | None = None


class ImageInPlaceUpdates(KubeModel):
    supported: bool
    min_version_for_update: str | None = None


class MachineImageVersion(ExpirableVersion):
    cri: list[CRI] = Field(default=[{"name": "containerd"}], validate_default=True)
    architectures: list[str] = Field(default=["amd64"])
    kubelet_version_constraint: str | None = None
    in_place_updates: ImageInPlaceUpdates | None = None
    capability_flavors: list[dict[str, list[str]]] | None = None
    """Each entry has values of capabilities by the capability's name."""


class MachineImage(KubeModel):
    name: str
    update_strategy: Literal["patch", "minor", "major"] = "major"
    versions: Annotated[list[MachineImageVersion], map_list("version")]


class MachineTypeStorage(KubeModel):
    class_: str
    type: str
    size: Quantity | None = None
    min_size: Quantity | None = None


class MachineTypeControllerManager(KubeModel):
    machine_creation_timeout: Duration | None = None


class MachineType(KubeModel):
    name: str
    cpu: Quantity
    gpu: Quantity
    memory: Quantity
    usable: bool = True
    architecture: str = "amd64"
    storage: MachineTypeStorage | None = None
    capabilities: dict[str, list[str]] | None = None
    machine_controller_manager: MachineTypeControllerManager | None = None


class VolumeType(KubeModel):
    name: str
    class_: str
    usable: bool = True
    min_size: Quantity | None = None


class AvailabilityZone(KubeModel):
    name: str
    unavailable_machine_types: list[str] | None = None
    unavailable_volume_types: list[str] | None = None


class Region(KubeModel):
    name: str
    zones: Annotated[list[AvailabilityZone] | None, map_list("name")] = None
    labels: dict[str, str] | None = None
    access_restrictions: list[AccessRestriction] | None = None


class BastionMachineImage(KubeModel):
    name: str
    version: str | None = None


class BastionMachineType(KubeModel):
    name: str


class BastionSettings(KubeModel):
    machine_image: BastionMachineImage | None = None
    machine_type: BastionMachineType | None = None


class Limits(KubeModel):
    max_nodes_total: int | None = Field(default=None, ge=1)
    """Maximum number of nodes of a Shoot; it must not decrease."""


class MachineCapability(KubeModel):
    name: str
    values: list[str]


class ProfileControlPlane(KubeModel):
    allow_zone_pinning: bool | None = None


class CloudProfileSpec(KubeModel):
    type: str
    kubernetes: KubernetesSettings
    machine_images: Annotated[list[MachineImage], map_list("name")]
    machine_types: Annotated[list[MachineType], map_list("name")]
    volume_types: Annotated[list[VolumeType] | None, map_list("name")] = None
    regions: Annotated[list[Region], map_list("name")]
    seed_selector: SeedSelector | None = None
    ca_bundle: str | None = None
    provider_config: Raw | None = None
    bastion: BastionSettings | None = None
    limits: Limits | None = None
    machine_capabilities: list[MachineCapability] | None = None
    control_plane: ProfileControlPlane | None = None


class VersionStatus(KubeModel):
    version: str
    classification: Classification


class MachineImageStatus(KubeModel):
    name: str
    versions: list[VersionStatus] | None = None


class KubernetesStatus(KubeModel):
    versions: list[VersionStatus] | None = None


class CloudProfileStatus(KubeModel):
    """Current stage of each version."""

    kubernetes: KubernetesStatus | None = None
    machine_images: list[MachineImageStatus] | None = None


class CloudProfile(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "cloudprofiles",
        ("cprofile", "cpfl"),
        namespaced=False,
        columns=(Column("Provider", ".spec.type"), AGE),
    )

    spec: CloudProfileSpec
    status: CloudProfileStatus | None = None
