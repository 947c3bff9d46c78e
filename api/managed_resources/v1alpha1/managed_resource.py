"""ManagedResource: objects in a Secret that the resource manager keeps in a cluster."""

from __future__ import annotations

from typing import ClassVar

from api.constants import RESOURCES
from api.meta import (
    AGE,
    Column,
    Conditions,
    Definition,
    KubeModel,
    KubeObject,
    LocalObjectReference,
    ObjectReference,
)


class GroupKind(KubeModel):
    group: str = ""
    kind: str


class ManagedResourceSpec(KubeModel):
    class_: str | None = None
    """Cluster of the objects: ``seed`` is the seed, unset is the shoot."""
    secret_refs: list[LocalObjectReference]
    inject_labels: dict[str, str] | None = None
    force_overwrite_labels: bool | None = None
    force_overwrite_annotations: bool | None = None
    keep_objects: bool | None = None
    equivalences: list[list[GroupKind]] | None = None
    delete_persistent_volume_claims: bool | None = None


class ManagedObject(ObjectReference):
    """An applied object, with its labels and annotations in the manifest."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class ManagedResourceStatus(KubeModel):
    observed_generation: int | None = None
    secrets_data_checksum: str | None = None
    resources: list[ManagedObject] | None = None
    conditions: Conditions | None = None


def _condition(name: str) -> Column:
    return Column(name.removeprefix("Resources"), f'.status.conditions[?(@.type=="{name}")].status')


class ManagedResource(KubeObject):
    definition: ClassVar[Definition] = Definition(
        RESOURCES,
        "v1alpha1",
        "managedresources",
        ("mr",),
        columns=(
            Column("Class", ".spec.class"),
            _condition("ResourcesApplied"),
            _condition("ResourcesHealthy"),
            _condition("ResourcesProgressing"),
            AGE,
        ),
    )

    spec: ManagedResourceSpec
    status: ManagedResourceStatus | None = None
