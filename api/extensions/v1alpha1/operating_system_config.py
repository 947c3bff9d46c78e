"""OperatingSystemConfig: files and systemd units of a worker pool's machines."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from api.extensions.v1alpha1.base import STATUS, TYPE, ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import (
    IMMUTABLE,
    Column,
    Definition,
    KubeModel,
    KubeObject,
    RawValue,
    SecretReference,
    Timestamp,
    map_list,
)


class DropIn(KubeModel):
    name: str
    content: str


class Unit(KubeModel):
    """A systemd unit; it restarts when one of ``file_paths`` changes."""

    name: str
    command: Literal["start", "restart", "stop"] | None = None
    enable: bool | None = None
    content: str | None = None
    drop_ins: Annotated[list[DropIn], map_list("name")] | None = None
    file_paths: list[str] | None = None


class FileContentSecretRef(KubeModel):
    name: str
    data_key: str


class FileContentInline(KubeModel):
    encoding: Literal["", "b64"] = ""
    data: str


class FileContentImageRef(KubeModel):
    image: str
    file_path_in_image: str


class FileContent(KubeModel):
    """Exactly one of the three sources."""

    # No CEL expression: for a list of files without a limit, it would exceed what the API server allows.
    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [each]} for each in ("secretRef", "inline", "imageRef")]}
    )

    secret_ref: FileContentSecretRef | None = None
    inline: FileContentInline | None = None
    image_ref: FileContentImageRef | None = None
    transmit_unencoded: bool | None = None


class File(KubeModel):
    path: str
    permissions: int | None = Field(default=0o644, ge=0)
    content: FileContent
    host_name: str | None = None
    """Name of the only node that gets the file (in-place updates)."""


class RegistryHost(KubeModel):
    url: str
    capabilities: list[Literal["pull", "resolve", "push"]] | None = None
    ca_certs: list[str] | None = None
    override_path: bool | None = None


class RegistryConfig(KubeModel):
    upstream: str
    server: str | None = None
    hosts: list[RegistryHost] | None = None
    readiness_probe: bool | None = None


class PluginConfig(KubeModel):
    op: Literal["add", "remove"] = "add"
    path: list[str]
    values: RawValue | None = None


class ContainerdConfig(KubeModel):
    registries: list[RegistryConfig] | None = None
    sandbox_image: str
    plugins: list[PluginConfig] | None = None


class CRIConfig(KubeModel):
    name: Literal["containerd"]
    cgroup_driver: Literal["cgroupfs", "systemd"] | None = None
    containerd: ContainerdConfig | None = None


class Rotation(KubeModel):
    last_initiation_time: Timestamp | None = None


class CredentialsRotation(KubeModel):
    certificate_authorities: Rotation | None = None
    service_account_key: Rotation | None = None


class InPlaceUpdates(KubeModel):
    operating_system_version: str
    kubelet: str
    credentials_rotation: CredentialsRotation | None = None


class OperatingSystemConfigSpec(ExtensionSpec):
    purpose: Annotated[Literal["provision", "reconcile"], IMMUTABLE]
    """``provision``: first boot, as user data. ``reconcile``: applied by the node agent."""
    cri_config: CRIConfig | None = None
    units: Annotated[list[Unit], map_list("name")] | None = None
    files: list[File] | None = None
    in_place_updates: InPlaceUpdates | None = None


class CloudConfig(KubeModel):
    secret_ref: SecretReference


class OSUpdate(KubeModel):
    command: str
    args: list[str] | None = None


class InPlaceUpdatesStatus(KubeModel):
    os_update: OSUpdate | None = None


class OperatingSystemConfigStatus(ExtensionStatus):
    extension_units: list[Unit] | None = None
    extension_files: list[File] | None = None
    cloud_config: CloudConfig | None = None
    """Purpose ``provision``: Secret with the user data under ``cloud_config``."""
    in_place_updates: InPlaceUpdatesStatus | None = None


class OperatingSystemConfig(KubeObject):
    definition: ClassVar[Definition] = extension_kind(
        "operatingsystemconfigs", "osc", columns=(TYPE, Column("Purpose", ".spec.purpose"), STATUS)
    )

    spec: OperatingSystemConfigSpec
    status: OperatingSystemConfigStatus | None = None
