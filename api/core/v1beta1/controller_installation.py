"""ControllerInstallation: one extension controller that is installed in one seed."""

from __future__ import annotations

from typing import ClassVar

from api.constants import CORE
from api.meta import (
    AGE,
    Column,
    Conditions,
    Definition,
    KubeModel,
    KubeObject,
    NamedResourceReference,
    ObjectReference,
    Raw,
)


class ControllerInstallationSpec(KubeModel):
    registration_ref: ObjectReference
    seed_ref: ObjectReference | None = None
    shoot_ref: ObjectReference | None = None
    deployment_ref: ObjectReference | None = None
    resource_refs: list[NamedResourceReference] | None = None


class ControllerInstallationStatus(KubeModel):
    conditions: Conditions | None = None
    """Conditions Valid, Installed, Healthy, Progressing and Required."""
    provider_status: Raw | None = None


def _condition(name: str) -> Column:
    return Column(name, f'.status.conditions[?(@.type=="{name}")].status')


class ControllerInstallation(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "controllerinstallations",
        ("ctrlinst",),
        namespaced=False,
        columns=(
            Column("Registration", ".spec.registrationRef.name"),
            Column("Seed", ".spec.seedRef.name"),
            *(_condition(name) for name in ("Valid", "Installed", "Healthy", "Progressing")),
            AGE,
        ),
        selectable=(
            ".spec.registrationRef.name",
            ".spec.seedRef.name",
            ".spec.shootRef.name",
            ".spec.shootRef.namespace",
        ),
    )

    spec: ControllerInstallationSpec
    status: ControllerInstallationStatus | None = None
