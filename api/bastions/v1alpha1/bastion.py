"""Bastion: what its owner wants in order to get into the nodes of a Shoot by SSH, for as long as it is needed."""

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
    """From where port 22 is reached."""

    ip_block: IPBlock


class BastionIngress(KubeModel):
    """Where it is reached: by an address, by a name, or by both."""

    ip: str | None = None
    hostname: str | None = None


class BastionSpec(KubeModel):
    shoot_ref: Annotated[LocalObjectReference, IMMUTABLE]
    """Of the same namespace."""
    seed_name: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    """Filled in from the Shoot."""
    provider_type: Annotated[str | None, IMMUTABLE_ONCE_SET] = None
    """Filled in from the Shoot."""
    ssh_public_key: Annotated[str, IMMUTABLE]
    """A line of ``authorized_keys``."""
    ingress: Annotated[list[BastionIngressPolicy], Field(min_length=1)]


class BastionStatus(KubeModel):
    ingress: BastionIngress | None = None
    conditions: Conditions | None = None
    last_heartbeat_timestamp: Timestamp | None = None
    """When somebody last said that it is needed."""
    expiration_timestamp: Timestamp | None = None
    """When it goes unless somebody says so again."""
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
