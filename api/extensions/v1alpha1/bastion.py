"""Bastion: a host in the Shoot's cloud that lets SSH through to its nodes, from where its owner says."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.bastions.v1alpha1.bastion import BastionIngress, BastionIngressPolicy
from api.extensions.v1alpha1.base import ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import IMMUTABLE, Column, Definition, KubeObject


class BastionSpec(ExtensionSpec):
    user_data: Annotated[str, IMMUTABLE]
    """What the host runs when it starts, in base64: it makes a user with the owner's key.

    No ``Bytes``, whose rules the API server can evaluate only for base64 without ``+`` and ``/``.
    """
    ingress: Annotated[list[BastionIngressPolicy], Field(min_length=1)]
    """From where port 22 is reached."""


class BastionStatus(ExtensionStatus):
    ingress: BastionIngress | None = None


class Bastion(KubeObject):
    definition: ClassVar[Definition] = extension_kind(
        "bastions",
        columns=(Column("IP", ".status.ingress.ip"), Column("Hostname", ".status.ingress.hostname")),
    )

    spec: BastionSpec
    status: BastionStatus | None = None
