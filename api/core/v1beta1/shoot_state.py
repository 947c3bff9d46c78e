"""ShootState: data that another seed needs to take over a Shoot. It has the Shoot's name and namespace."""

from __future__ import annotations

from typing import ClassVar

from api.constants import CORE
from api.meta import (
    AGE,
    Definition,
    KubeModel,
    KubeObject,
    NamedResourceReference,
    Raw,
    RawValue,
)


class GardenerResourceData(KubeModel):
    name: str
    type: str
    """``secret`` or ``machine-state``."""
    data: RawValue
    labels: dict[str, str] | None = None


class ExtensionResourceState(KubeModel):
    kind: str
    name: str | None = None
    purpose: str | None = None
    state: RawValue | None = None
    resources: list[NamedResourceReference] | None = None


class ResourceData(KubeModel):
    api_version: str
    kind: str
    name: str
    data: Raw


class ShootStateSpec(KubeModel):
    gardener: list[GardenerResourceData] | None = None
    extensions: list[ExtensionResourceState] | None = None
    resources: list[ResourceData] | None = None


class ShootState(KubeObject):
    definition: ClassVar[Definition] = Definition(CORE, "v1beta1", "shootstates", columns=(AGE,), status=False)

    spec: ShootStateSpec | None = None
