"""Network: the pod network of a Shoot."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.extensions.v1alpha1.base import STATUS, TYPE, ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import CIDR, IMMUTABLE, Column, Definition, KubeObject, rules

IPFamily = Literal["IPv4", "IPv6"]


class NetworkSpec(ExtensionSpec):
    model_config = rules(
        (
            "!has(oldSelf.ipFamilies) || (has(self.ipFamilies)"
            " && oldSelf.ipFamilies.all(each, each in self.ipFamilies))",
            "ipFamilies: a family can be added, but not removed",
        )
    )

    pod_cidr: Annotated[str, IMMUTABLE, CIDR]
    service_cidr: Annotated[str, IMMUTABLE, CIDR]
    ip_families: Annotated[list[IPFamily], Field(max_length=2)] | None = None
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
