"""Machine: one virtual machine, which is or becomes a node."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from api.constants import MACHINE
from api.meta import AGE, Column, Conditions, Definition, Duration, KubeModel, KubeObject, Raw, Timestamp, not_offered

PRESERVES_NONE = not_offered("failed machines are deleted, and cannot be preserved", unless="self == 0")
MIN_READY_SECONDS = not_offered(
    "a machine counts as available once its node is Ready; Gardener's extensions write 500, which has no effect either",
    unless="self == 0 || self == 500",
)


class ClassSpec(KubeModel):
    api_group: Annotated[
        str | None, not_offered("classes are of this group", unless=f"self == '' || self == '{MACHINE}'")
    ] = None
    kind: Literal["MachineClass"] = "MachineClass"
    name: str


class MachineTemplateNode(KubeModel):
    """Labels, annotations and taints of the node."""

    metadata: Raw | None = None
    spec: Raw | None = None


class MachineConfiguration(KubeModel):
    """Timeouts for the creation, the drain and the health check of a machine."""

    drain_timeout: Duration | None = None
    health_timeout: Duration | None = None
    creation_timeout: Duration | None = None
    in_place_update_timeout: Duration | None = None
    machine_preserve_timeout: Annotated[
        Duration | None, not_offered("failed machines are deleted, and cannot be preserved")
    ] = None
    disable_health_timeout: bool | None = None
    max_evict_retries: int | None = None
    node_conditions: str | None = None


class MachineSpec(MachineConfiguration):
    class_: ClassSpec
    provider_id: str | None = None
    node_template: MachineTemplateNode | None = None


class MachineTemplateSpec(KubeModel):
    metadata: Raw | None = None
    spec: Annotated[
        MachineSpec,
        not_offered(
            "each machine gets a providerID of its own", unless="!has(self.providerID) || size(self.providerID) == 0"
        ),
    ]


class CurrentStatus(KubeModel):
    phase: str | None = None
    """Pending, Available, Running, Terminating, Unknown, Failed, CrashLoopBackOff, or of an in-place update."""
    last_update_time: Timestamp | None = None
    timeout_active: bool | None = None
    preserve_expiry_time: Timestamp | None = None


class MachineLastOperation(KubeModel):
    description: str | None = None
    error_code: str | None = None
    last_update_time: Timestamp | None = None
    state: str | None = None
    type: str | None = None


class MachineAddress(KubeModel):
    type: str
    address: str


class MachineStatus(KubeModel):
    addresses: list[MachineAddress] | None = None
    conditions: Conditions | None = None
    """Conditions of the node."""
    current_status: CurrentStatus | None = None
    last_known_state: str | None = None
    last_operation: MachineLastOperation | None = None
    node: str | None = None


class MachineSummary(KubeModel):
    """A failed machine in the status of its set or deployment."""

    name: str | None = None
    provider_id: str | None = None
    last_operation: MachineLastOperation | None = None
    owner_ref: str | None = None


class Machine(KubeObject):
    definition: ClassVar[Definition] = Definition(
        MACHINE,
        "v1alpha1",
        "machines",
        ("mc",),
        columns=(
            Column("Status", ".status.currentStatus.phase"),
            AGE,
            Column("Node", ".metadata.labels.node"),
            Column("ProviderID", ".spec.providerID", wide=True),
        ),
    )

    spec: MachineSpec
    status: MachineStatus | None = None
