"""Bastion: a host in the Shoot's cloud that forwards SSH connections from given addresses to the nodes."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.bastions.v1alpha1.bastion import BastionIngress, BastionIngressPolicy
from api.extensions.v1alpha1.base import ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import IMMUTABLE, Column, Definition, KubeObject


class BastionSpec(ExtensionSpec):
    user_data: Annotated[str, IMMUTABLE]
    """Script that the host runs when it starts, in base64: it creates a user with the owner's key.

    Its schema has no format ``byte``: the API server could evaluate rules only for base64 without ``+`` and ``/``.
    """
    ingress: Annotated[list[BastionIngressPolicy], Field(min_length=1)]
    """Sources of connections to port 22 that are allowed."""


class BastionStatus(ExtensionStatus):
    ingress: BastionIngress | None = None


class Bastion(KubeObject):
    definition: ClassVar[Definition] = extension_kind(
        "bastions",
        columns=(Column("IP", ".status.ingress.ip"), Column("Hostname", ".status.ingress.hostname")),
    )

    spec: BastionSpec
    status: BastionStatus | None = None
