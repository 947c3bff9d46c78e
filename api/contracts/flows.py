"""Data that flows, the lifecycle and the garden's activities exchange about an operation."""

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from api.contracts.operations import OperationType, SeedTask, ShootRef, ShootTask, TaskResult
from api.contracts.repair import Repair
from api.contracts.rotation import ActiveRotation, Kind, Phase
from api.model import ApiModel

# A flow's outcome and progress.


class TaskState(StrEnum):
    """State of one task of a flow."""

    WAITING = "Waiting"
    """Waits for its predecessors."""
    RUNNING = "Running"
    FINISHED = "Finished"
    KEPT = "Kept"
    """Finished in an earlier attempt with the same inputs."""
    SKIPPED = "Skipped"
    FAILED = "Failed"
    BLOCKED = "Blocked"
    """Will not run: a predecessor failed."""
    CANCELED = "Canceled"

    @property
    def done(self) -> bool:
        """Whether the successors of the task may run."""
        return self in (TaskState.FINISHED, TaskState.KEPT, TaskState.SKIPPED)


class FinishedTask(ApiModel):
    """A task that need not run again while its digest is the same."""

    name: str
    digest: str
    """Digest of its inputs, without times."""
    result: TaskResult = TaskResult()
    attempt: int
    trigger: str
    """RFC 3339 start of the attempt in which it ran. A task that waits for its effect waits for this timestamp."""


class FailedTask(ApiModel):
    """A task that failed with an error that is not retried."""

    name: str
    message: str
    type: str = ""
    """Type of the ApplicationError: one of ``api.errors.ErrorCode``, or a type that our activities define."""
    codes: tuple[str, ...] = ()
    at: datetime
    attempt: int


class FlowOutcome(ApiModel):
    """Result of a flow; the next attempt of the same generation starts with it."""

    finished: tuple[FinishedTask, ...] = ()
    failed: tuple[FailedTask, ...] = ()
    canceled: bool = False
    repairs: tuple[Repair, ...] = ()
    """Interventions of operators, in their order."""


class Attempt(ApiModel):
    """One run of a flow among those of the same generation."""

    number: int = 1
    trigger: str = ""
    """Start of the attempt, RFC 3339."""
    deadline: datetime | None = None
    """Time up to which transient errors are retried (UTC); None: without limit."""
    kept: FlowOutcome = FlowOutcome()
    """Outcome of the attempt before."""
    paused: Repair | None = None
    """The intervention that pauses the flow from its start; None if it is not paused."""


class TaskProgress(ApiModel):
    name: str
    title: str
    state: TaskState
    after: tuple[str, ...] = ()
    note: str = ""
    """Reason of a skip, the attempt that a task is kept from, the note in its result, or its error."""
    queue: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    unanswered_since: datetime | None = None
    """Time since which no worker has taken the task from its queue."""


class FlowProgress(ApiModel):
    """Answer of the ``progress`` query."""

    operation: str = ""
    attempt: int = 1
    percent: int = 0
    ended: bool = False
    paused: Repair | None = None
    tasks: tuple[TaskProgress, ...] = ()
    failed: tuple[FailedTask, ...] = ()


# Inputs and results of the lifecycle's activities.


class LastOperation(ApiModel):
    type: OperationType
    state: str
    updated: datetime | None = None


class ShootView(ApiModel):
    """All facts of a Shoot that the decision needs, and no others: histories stay small and hold no secrets."""

    generation: int
    deleting: bool = False
    finalizer: bool = True
    uid_recorded: bool = False
    """``status.uid`` is set: objects of the cluster may exist."""
    spec_seed: str | None = None
    status_seed: str | None = None
    observed_generation: int = 0
    last_operation: LastOperation | None = None
    gardener_version: str = ""
    """Version of our code that ran the last operation."""
    our_version: str = ""
    operations: tuple[str, ...] = ()
    """Values of the annotation ``gardener.cloud/operation``."""
    repairs: tuple[Repair, ...] = ()
    """Interventions that annotations request."""
    asked_by: str = ""
    """Name of the user who wrote the annotations that repair or retry."""
    ignored: bool = False
    rate_limited: bool = False
    """The error codes of the last operation contain a rate limit of the cloud."""
    uid: str = ""
    force_delete: bool = False
    """The owner requests a deletion that leaves resources in the cloud; irreversible."""
    hibernation_switched: bool = False
    """``spec.hibernation.enabled`` differs from ``status.hibernated``."""
    confined: bool = False
    """``spec.maintenance.confineSpecUpdateRollout``."""
    in_window_only: bool = False
    """Regular operations wait for the maintenance window: confined, or configured so for all Shoots."""
    window: tuple[str, str] | None = None
    """Begin and end of ``spec.maintenance.timeWindow``."""
    sync_period: timedelta = timedelta(hours=1)
    bastions: tuple[str, ...] = ()
    """Names of the Shoot's Bastions on its seed; read only if the Shoot is deleted or moves, which they prevent."""
    source_lost: bool = False
    """An operator has declared by annotation that the source seed of the move is lost."""
    prepared_at: str = ""
    """Destination seed that the backups are handed over to: from then on the move cannot be aborted. Else empty."""
    migration_fault: str = ""
    """Reason for which the control plane cannot move now; empty if it can."""
    emergency_stop: bool = False
    """An annotation of the responsible Seed stops all operations there."""
    seed_exists: bool = True
    seed_fault: str = ""
    """Reason for which the responsible Seed cannot run an operation now; empty if it can."""
    in_place_pending: bool = True
    """The status names pools whose in-place update is pending. An earlier version of our code did not read this."""

    @property
    def version_changed(self) -> bool:
        """Whether another version of our code ran the last operation."""
        return self.last_operation is not None and self.gardener_version != self.our_version


class ShootRules(ApiModel):
    """Configuration of when Shoots are reconciled; fields have the names of Gardener's ``controllers.shoot``."""

    sync_period: timedelta = Field(default=timedelta(hours=1), gt=timedelta())
    respect_sync_period_overwrite: bool = False
    """Annotations ``shoot.gardener.cloud/ignore`` and ``…/sync-period`` have effect in all namespaces; else in
    ``garden`` only."""
    reconcile_in_maintenance_only: bool = False


class ShootFacts(ApiModel):
    """Facts that decide which tasks a flow has, of the generation that the operation reconciles."""

    workerless: bool = False
    hibernated: bool = False
    waking: bool = False
    """The Shoot was hibernated before, and is not to be so any more."""
    backup: bool = True
    """The seed has a backup bucket."""
    skip_readiness: bool = False
    skip_cleanup: bool = False
    extensions: dict[str, str] = Field(default_factory=dict)
    """Phases (``registrations.Phase``) in which the Shoot has Extensions, each with a digest of the Extensions."""
    extension_minutes: float = 3
    """Longest timeout of these Extensions, in minutes."""
    tasks: tuple[str, ...] = ()
    """Values of the annotation ``shoot.gardener.cloud/tasks`` that this operation answers."""
    container_runtimes: bool = False
    """A worker pool has a container runtime in addition to containerd."""
    managed_issuer: bool = False
    """The garden publishes the public keys of the Shoot's service account tokens."""
    ssh_access: bool = True
    """SSH access to the nodes is enabled."""
    failure_tolerance: bool = False
    """The control plane must survive the loss of a node or zone."""
    live: bool = False
    """The control plane moves while it serves: etcd has members in both seeds for a while."""
    fell_back: bool = False
    """The same was begun, and failed or lost its source: what it has left is removed first."""
    dual_stack: bool = False
    """The Shoot has networks of IPv6, or is to get them: the Infrastructure names them."""
    credentials: str = ""
    """Version of the Secret with the cloud's credentials. Tasks that use the Secret run again if it changes."""
    rotations: tuple[ActiveRotation, ...] = ()

    def phase(self, kind: Kind) -> Phase:
        """Phase of a rotation that is in progress; ``Phase.NONE`` if there is none."""
        return next((each.phase for each in self.rotations if each.kind is kind), Phase.NONE)


class Survey(ApiModel):
    """Objects that exist in the seed when a deletion or migration starts. Source: spec/flows.md 3."""

    namespace: bool
    """NS: exists and is not terminating."""
    cluster: bool
    """CL: namespace, Deployment of the API server, and Infrastructure unless workerless."""
    control_plane: bool
    """CPN: ControlPlane exists, is not deleting, and the Infrastructure has a provider status."""
    controller_manager: bool
    """Deployment of the kube-controller-manager exists."""
    api_server: bool = False
    """Namespace and Deployment of the API server exist."""
    backups: bool = False
    """SNAP: the namespace exists, and the BackupEntry still names this seed. Source: spec/flows.md 5."""
    foreign: bool = False
    """The namespace exists, and belongs to another Shoot."""


class StartOperation(ApiModel):
    """Input of ``start_operation``, which records the start of an operation in the Shoot."""

    shoot: ShootRef
    operation: OperationType
    attempt: int
    consume: tuple[str, ...] = ()
    """Values of the operation annotation that this operation answers."""
    asked_by: str = ""
    """Name of the user who wrote these values; empty if unknown."""


class StartedOperation(ApiModel):
    """Result of ``start_operation``: task and facts that the flow starts with."""

    task: ShootTask
    facts: ShootFacts
    started: datetime
    retry_cycle_start: datetime


class FlowInput(ApiModel):
    """Input of a flow, for example ReconcileShoot, MigrateShoot and DeleteShoot."""

    task: ShootTask
    facts: ShootFacts
    attempt: Attempt = Attempt()
    source_entry: bool = True
    """For ForgetShoot: the garden has a BackupEntry ``source-…`` of the seed that is cleaned up, and the destination
    deletes it last."""
    sources: tuple[str, ...] = ()
    """Seeds whose gardenlets may have written the ShootState of a control plane that moves, as the lifecycle recorded
    them. Empty in flows that started when all seeds had one key: these do not encrypt the ShootState again."""


class FinishOperation(ApiModel):
    """Input of ``finish_operation``, which records the end of an operation in the Shoot."""

    task: ShootTask
    attempt: int
    state: str
    """Succeeded, Error or Failed."""
    description: str
    tasks: tuple[str, ...] = ()
    """Values of the annotation ``shoot.gardener.cloud/tasks`` that a successful operation has executed."""
    failed: tuple[FailedTask, ...] = ()
    hibernated: bool = False
    """Whether the Shoot is hibernated now, if the operation succeeded."""
    workflow_id: str = ""
    """Workflow id of the attempt; empty in histories of earlier versions."""
    live: bool = False
    """The control plane moved while it served."""
    falls_back: bool = False
    """It cannot: the next attempt moves it as without that."""


class Refusal(ApiModel):
    """Input of ``refuse_operation``, which records in the Shoot why no operation starts."""

    shoot: ShootRef
    state: str = ""
    """State for lastOperation, Pending or Error; empty to leave lastOperation as it is."""
    description: str
    consume: tuple[str, ...] = ()
    """Values of the operation annotation that have no effect in this state."""
    event: str = ""
    """Reason of a warning Event with the description; empty for none."""


class FlowId(ApiModel):
    """One run of a flow."""

    workflow_id: str
    run_id: str


class RecordRepair(ApiModel):
    """Input of ``record_repair``, which records an intervention in an Event of the Shoot and removes its annotation."""

    shoot: ShootRef
    repair: Repair
    refused: str = ""
    """Reason for which the intervention was refused; empty if it was accepted."""


class EditFlow(ApiModel):
    """Input of ``edit_flow``, which makes a running flow skip a task or take its result from the operator."""

    flow: FlowId
    repair: Repair


class ReportProgress(ApiModel):
    """Input of ``report_progress``, which writes the progress of a running flow into the Shoot's status."""

    task: ShootTask
    seconds: float = Field(default=5, gt=0)
    """Time between two writes. Source: ``progressReportPeriod``, spec/flows.md 1.4."""


class SeedFlowInput(ApiModel):
    """Input of the flows of a Seed: BootstrapSeed and DeleteSeed."""

    task: SeedTask
    attempt: Attempt = Attempt()


class ReportSeedProgress(ApiModel):
    """Input of ``report_seed_progress``, which writes the progress of a running flow into the Seed's status."""

    task: SeedTask
    seconds: float = Field(default=5, gt=0)
    """Time between two writes."""


class SeedFailure(ApiModel):
    """Input of ``record_seed_failure``, which records a failed operation in the Seed."""

    task: SeedTask
    attempt: int
    failed: tuple[FailedTask, ...] = ()
