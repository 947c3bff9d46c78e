"""SelfHostedShootExposure: the address at which clients reach the API server of a self-hosted Shoot. Source: GEP-36."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.extensions.v1alpha1.base import STATUS, TYPE, ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import Column, Definition, KubeModel, KubeObject, ObjectReference, map_list, rules


class NodeAddress(KubeModel):
    """An address in the status of a Node."""

    type: str
    """For example ``InternalIP`` or ``Hostname``."""
    address: Annotated[str, Field(min_length=1, max_length=253)]


class ControlPlaneEndpoint(KubeModel):
    """A node of the control plane whose API server is healthy."""

    node_name: Annotated[str, Field(min_length=1, max_length=253)]
    addresses: Annotated[list[NodeAddress], Field(min_length=1, max_length=16)]


class SelfHostedShootExposureSpec(ExtensionSpec):
    credentials_ref: ObjectReference | None = None
    """Secret in the namespace of this object; absent if Gardener does not manage the infrastructure."""
    port: int = Field(ge=1, le=65535)
    """Port at which the API servers listen, and at which clients reach them."""
    endpoints: Annotated[list[ControlPlaneEndpoint], Field(max_length=100), map_list("nodeName")]
    """The healthy nodes of the control plane. They follow the nodes, unless the ControllerRegistration has
    ``continuousEndpointUpdate: false``."""


class ExposureIngress(KubeModel):
    """Address of the exposure: an IP address or a name."""

    model_config = rules(("has(self.ip) != has(self.hostname)", "ingress: exactly one of ip and hostname is set"))

    ip: str | None = None
    hostname: str | None = None


class SelfHostedShootExposureStatus(ExtensionStatus):
    ingress: list[ExposureIngress] | None = None
    """The addresses, which become the values of the DNSRecord of the API server."""


class SelfHostedShootExposure(KubeObject):
    definition: ClassVar[Definition] = extension_kind(
        "selfhostedshootexposures",
        "exp",
        columns=(
            TYPE,
            Column("IP", ".status.ingress[0].ip"),
            Column("Hostname", ".status.ingress[0].hostname"),
            STATUS,
        ),
    )

    spec: SelfHostedShootExposureSpec
    status: SelfHostedShootExposureStatus | None = None
