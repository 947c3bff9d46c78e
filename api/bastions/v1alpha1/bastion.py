"""Bastion: a temporary host for SSH access to the nodes of a Shoot, requested by a user."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.constants import OPERATIONS
from api.meta import (
    AGE,
    IMMUTABLE,
    IMMUTABLE_ONCE_SET,
    Column,
    Conditions,
    Definition,
    KubeModel,
    KubeObject,
    LocalObjectReference,
    Timestamp,
)


class IPBlock(KubeModel):
    cidr: str
    except_: list[str] | None = None


class BastionIngressPolicy(KubeModel):
    """Source of connections to port 22 that are allowed."""

    ip_block: IPBlock


class BastionIngress(KubeModel):
    """Address of the host: an IP address, a name, or both."""

    ip: str | None = None
    hostname: str | None = None


class BastionSpec(KubeModel):
    shoot_ref: Annotated[LocalObjectReference, IMMUTABLE]
    """The Shoot, in the namespace of the Bastion."""
    seed_name: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    """Set by admission from the Shoot."""
    provider_type: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    """Set by admission from the Shoot."""
    ssh_public_key: Annotated[str, IMMUTABLE]
    """Public key of the user, as a line of ``authorized_keys``."""
    ingress: Annotated[list[BastionIngressPolicy], Field(min_length=1)]


class BastionStatus(KubeModel):
    ingress: BastionIngress | None = None
    conditions: Conditions | None = None
    last_heartbeat_timestamp: Timestamp | None = None
    """Time at which a user last requested to keep the Bastion."""
    expiration_timestamp: Timestamp | None = None
    """Time at which the Bastion is deleted, unless a user requests to keep it."""
    observed_generation: int | None = None


class Bastion(KubeObject):
    definition: ClassVar[Definition] = Definition(
        OPERATIONS,
        "v1alpha1",
        "bastions",
        columns=(
            Column("Shoot", ".spec.shootRef.name"),
            Column("Seed", ".spec.seedName"),
            Column("IP", ".status.ingress.ip"),
            Column("Heartbeat", ".status.lastHeartbeatTimestamp", "date"),
            Column("Expires", ".status.expirationTimestamp", "date"),
            AGE,
        ),
        selectable=(".spec.seedName", ".spec.shootRef.name"),
    )

    spec: BastionSpec
    status: BastionStatus | None = None
