"""Base of all extension kinds. Source: spec/api-extensions.md 1."""

from __future__ import annotations

from typing import Annotated, Literal

from api.constants import EXTENSIONS
from api.meta import (
    AGE,
    IMMUTABLE,
    Column,
    Conditions,
    CrossVersionObjectReference,
    Definition,
    KubeModel,
    LastError,
    LastOperation,
    Raw,
    RawValue,
)

TYPE = Column("Type", ".spec.type")
REGION = Column("Region", ".spec.region")
STATUS = Column("Status", ".status.lastOperation.state")
STATE = Column("State", ".status.lastOperation.state")


def extension_kind(
    plural: str,
    *short_names: str,
    columns: tuple[Column, ...] = (TYPE, STATUS),
    namespaced: bool = True,
    status: bool = True,
) -> Definition:
    """Definition of a kind of this group; the Age column is added."""
    return Definition(
        EXTENSIONS,
        "v1alpha1",
        plural,
        short_names,
        namespaced=namespaced,
        columns=(*columns, AGE),
        status=status,
    )


class ExtensionSpec(KubeModel):
    """``type`` (and ``class``) select the responsible controller."""

    type: Annotated[str, IMMUTABLE]
    class_: Annotated[Literal["shoot", "seed", "garden"] | None, IMMUTABLE] = None
    """Unset means ``shoot``."""
    provider_config: Raw | None = None


class ResourceReference(KubeModel):
    """Object that the state or configuration needs, migrated along with it."""

    name: str
    resource_ref: CrossVersionObjectReference


class ExtensionStatus(KubeModel):
    observed_generation: int | None = None
    last_operation: LastOperation | None = None
    last_error: LastError | None = None
    conditions: Conditions | None = None
    provider_status: Raw | None = None
    state: RawValue | None = None
    """Opaque state of the controller. The ShootState keeps it for the controller in the next seed."""
    resources: list[ResourceReference] | None = None
    """Secrets and ConfigMaps for the ShootState, named ``<kind in lower case>-<name of this object>[-suffix]``."""
