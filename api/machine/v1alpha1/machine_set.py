"""MachineSet: equal machines of one class."""

from __future__ import annotations

from typing import Annotated, ClassVar

from api.constants import MACHINE
from api.machine.v1alpha1.machine import (
    MIN_READY_SECONDS,
    PRESERVES_NONE,
    ClassSpec,
    MachineLastOperation,
    MachineSummary,
    MachineTemplateSpec,
)
from api.meta import (
    AGE,
    LABELS_ALONE,
    Column,
    Conditions,
    Definition,
    KubeModel,
    KubeObject,
    LabelSelector,
    not_offered,
)


class MachineSetSpec(KubeModel):
    replicas: int | None = None
    selector: Annotated[LabelSelector | None, LABELS_ALONE] = None
    machine_class: Annotated[ClassSpec | None, not_offered("the class is that of the template")] = None
    template: MachineTemplateSpec
    min_ready_seconds: Annotated[int | None, MIN_READY_SECONDS] = None
    auto_preserve_failed_machine_max: Annotated[int | None, PRESERVES_NONE] = None


class MachineSetStatus(KubeModel):
    observed_generation: int | None = None
    replicas: int | None = None
    fully_labeled_replicas: int | None = None
    ready_replicas: int | None = None
    available_replicas: int | None = None
    conditions: Conditions | None = None
    last_operation: MachineLastOperation | None = None
    failed_machines: list[MachineSummary] | None = None
    preserved_failed_replicas: int | None = None


class MachineSet(KubeObject):
    definition: ClassVar[Definition] = Definition(
        MACHINE,
        "v1alpha1",
        "machinesets",
        ("mcs",),
        columns=(
            Column("Desired", ".spec.replicas", "integer"),
            Column("Current", ".status.replicas", "integer"),
            Column("Ready", ".status.readyReplicas", "integer"),
            AGE,
        ),
        scale=(".spec.replicas", ".status.replicas", ""),
    )

    spec: MachineSetSpec
    status: MachineSetStatus | None = None
