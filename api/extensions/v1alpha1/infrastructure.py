"""Infrastructure: networks and other resources in the cloud that a Shoot's machines need."""

from __future__ import annotations

from typing import Annotated, ClassVar

from api.extensions.v1alpha1.base import REGION, STATUS, TYPE, ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import IMMUTABLE, Bytes, Definition, KubeModel, KubeObject, SecretReference


class InfrastructureSpec(ExtensionSpec):
    region: Annotated[str, IMMUTABLE]
    secret_ref: SecretReference
    ssh_public_key: Bytes | None = None


class InfrastructureNetworking(KubeModel):
    pods: list[str] | None = None
    nodes: list[str] | None = None
    services: list[str] | None = None


class InfrastructureStatus(ExtensionStatus):
    nodes_cidr: str | None = None
    """Network of the nodes; default of ``spec.networking.nodes`` of the Shoot."""
    egress_cidrs: list[str] | None = None
    networking: InfrastructureNetworking | None = None


class Infrastructure(KubeObject):
    definition: ClassVar[Definition] = extension_kind("infrastructures", "infra", columns=(TYPE, REGION, STATUS))

    spec: InfrastructureSpec
    status: InfrastructureStatus | None = None
