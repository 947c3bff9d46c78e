"""ControlPlane: the provider's part of a control plane, such as cloud controllers and storage drivers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from api.extensions.v1alpha1.base import ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import IMMUTABLE, Definition, KubeObject, Raw, SecretReference


class ControlPlaneSpec(ExtensionSpec):
    region: Annotated[str, IMMUTABLE]
    secret_ref: SecretReference
    infrastructure_provider_status: Raw | None = None


class ControlPlane(KubeObject):
    definition: ClassVar[Definition] = extension_kind("controlplanes", "cp")

    spec: ControlPlaneSpec
    status: ExtensionStatus | None = None
