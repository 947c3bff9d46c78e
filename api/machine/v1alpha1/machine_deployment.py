"""MachineDeployment: a worker pool in one zone, rolled over sets of machines."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import MACHINE
from api.machine.v1alpha1.machine import MIN_READY_SECONDS, PRESERVES_NONE, MachineSummary, MachineTemplateSpec
from api.meta import (
    AGE,
    LABELS_ALONE,
    Column,
    Conditions,
    Definition,
    IntOrString,
    KubeModel,
    KubeObject,
    LabelSelector,
    not_offered,
)


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
    selector: Annotated[LabelSelector | None, LABELS_ALONE] = None
    template: MachineTemplateSpec
    strategy: MachineDeploymentStrategy | None = None
    min_ready_seconds: Annotated[int | None, MIN_READY_SECONDS] = None
    revision_history_limit: Annotated[
        int | None, not_offered("an old MachineSet is deleted once it has no machines", unless="self == 0")
    ] = None
    paused: bool | None = None
    progress_deadline_seconds: Annotated[
        int | None, not_offered("a rollout has no deadline: the status of each Machine says what it waits for")
    ] = None
    rollback_to: Annotated[
        RollbackConfig | None, not_offered("no old template is kept: set the template to the earlier class")
    ] = None
    auto_preserve_failed_machine_max: Annotated[int | None, PRESERVES_NONE] = None


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
