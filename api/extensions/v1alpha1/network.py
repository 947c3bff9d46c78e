"""Network: the pod network of a Shoot."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from api.extensions.v1alpha1.base import STATUS, TYPE, ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import IMMUTABLE, Column, Definition, KubeObject

IPFamily = Literal["IPv4", "IPv6"]


class NetworkSpec(ExtensionSpec):
    pod_cidr: Annotated[str, IMMUTABLE]
    service_cidr: Annotated[str, IMMUTABLE]
    ip_families: list[IPFamily] | None = None
    """IP families of the pod network; families can be added, but not removed."""


class NetworkStatus(ExtensionStatus):
    ip_families: list[IPFamily] | None = None


class Network(KubeObject):
    definition: ClassVar[Definition] = extension_kind(
        "networks",
        columns=(TYPE, Column("Pod CIDR", ".spec.podCIDR"), Column("Service CIDR", ".spec.serviceCIDR"), STATUS),
    )

    spec: NetworkSpec
    status: NetworkStatus | None = None
