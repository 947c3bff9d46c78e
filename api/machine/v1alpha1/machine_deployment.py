"""MachineDeployment: a worker pool in one zone, rolled over sets of machines."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from api.constants import MACHINE
from api.machine.v1alpha1.machine import MachineSummary, MachineTemplateSpec
from api.meta import AGE, Column, Conditions, Definition, IntOrString, KubeModel, KubeObject, LabelSelector


class RollingUpdate(KubeModel):
    max_surge: IntOrString | None = None
    max_unavailable: IntOrString | None = None


class InPlaceUpdate(RollingUpdate):
    orchestration_type: Literal["Auto", "Manual"] | None = None


class MachineDeploymentStrategy(KubeModel):
    type: Literal["RollingUpdate", "InPlaceUpdate", "Recreate"] | None = None
    rolling_update: RollingUpdate | None = None
    in_place_update: InPlaceUpdate | None = None


class RollbackConfig(KubeModel):
    revision: int | None = None


class MachineDeploymentSpec(KubeModel):
    replicas: int | None = Field(default=None, ge=0)
    selector: LabelSelector | None = None
    template: MachineTemplateSpec
    strategy: MachineDeploymentStrategy | None = None
    min_ready_seconds: int | None = None
    revision_history_limit: int | None = None
    paused: bool | None = None
    progress_deadline_seconds: int | None = None
    rollback_to: RollbackConfig | None = None
    auto_preserve_failed_machine_max: int | None = None


class MachineDeploymentStatus(KubeModel):
    observed_generation: int | None = None
    replicas: int | None = None
    updated_replicas: int | None = None
    ready_replicas: int | None = None
    available_replicas: int | None = None
    unavailable_replicas: int | None = None
    conditions: Conditions | None = None
    collision_count: int | None = None
    failed_machines: list[MachineSummary] | None = None


class MachineDeployment(KubeObject):
    definition: ClassVar[Definition] = Definition(
        MACHINE,
        "v1alpha1",
        "machinedeployments",
        ("mcd",),
        columns=(
            Column("Ready", ".status.readyReplicas", "integer"),
            Column("Desired", ".spec.replicas", "integer"),
            Column("Up-to-date", ".status.updatedReplicas", "integer"),
            Column("Available", ".status.availableReplicas", "integer"),
            AGE,
        ),
        scale=(".spec.replicas", ".status.replicas", ""),
    )

    spec: MachineDeploymentSpec
    status: MachineDeploymentStatus | None = None
