"""What flows, the lifecycle and the garden's activities say to each other about an operation."""

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from api.model import ApiModel
from api.operations import OperationType, ShootRef, ShootTask, TaskResult
from api.repair import Repair
from api.rotation import ActiveRotation, Kind, Phase

# A flow's outcome and progress.


class TaskState(StrEnum):
    """Where one task of a flow is."""

    WAITING = "Waiting"
    """For its predecessors."""
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
        """Whether what comes after it may run."""
        return self in (TaskState.FINISHED, TaskState.KEPT, TaskState.SKIPPED)


class FinishedTask(ApiModel):
    """A task that needs not run again while its digest is the same."""

    name: str
    digest: str
    """Of its inputs, without times."""
    result: TaskResult = TaskResult()
    attempt: int
    trigger: str
    """RFC 3339 start of the attempt in which it ran; what waits for its effect waits for this one."""


class FailedTask(ApiModel):
    """A task that ended for good."""

    name: str
    message: str
    type: str = ""
    """Type of the ApplicationError: one of ``api.errors.ErrorCode``, or a name of ours."""
    codes: tuple[str, ...] = ()
    at: datetime
    attempt: int


class FlowOutcome(ApiModel):
    """How a flow ended; what the next attempt of the same generation starts with."""

    finished: tuple[FinishedTask, ...] = ()
    failed: tuple[FailedTask, ...] = ()
    canceled: bool = False
    repairs: tuple[Repair, ...] = ()
    """What people did to it, in order."""


class Attempt(ApiModel):
    """One run of a flow among those of the same generation."""

    number: int = 1
    trigger: str = ""
    """RFC 3339 start."""
    deadline: datetime | None = None
    """Until when transient errors are retried; None: for ever (UTC)."""
    kept: FlowOutcome = FlowOutcome()
    """How the attempt before ended."""
    paused: Repair | None = None
    """Who wants no task to start now."""


class TaskProgress(ApiModel):
    name: str
    title: str
    state: TaskState
    after: tuple[str, ...] = ()
    note: str = ""
    """Why skipped, kept from which attempt, the result's note, or the error."""
    queue: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    unanswered_since: datetime | None = None
    """Since when nobody takes the task from its queue."""


class FlowProgress(ApiModel):
    """Answer of the ``progress`` query."""

    operation: str = ""
    attempt: int = 1
    percent: int = 0
    ended: bool = False
    paused: Repair | None = None
    tasks: tuple[TaskProgress, ...] = ()
    failed: tuple[FailedTask, ...] = ()


# What the lifecycle sees and asks for.


class LastOperation(ApiModel):
    type: OperationType
    state: str
    updated: datetime | None = None


class ShootView(ApiModel):
    """Everything that the decision looks at, and no more: histories stay small and tell no secrets."""

    generation: int
    deleting: bool = False
    finalizer: bool = True
    uid_recorded: bool = False
    """``status.uid`` is set: something of the cluster may exist."""
    spec_seed: str | None = None
    status_seed: str | None = None
    observed_generation: int = 0
    last_operation: LastOperation | None = None
    gardener_version: str = ""
    """That of the last operation."""
    our_version: str = ""
    operations: tuple[str, ...] = ()
    """Values of the annotation ``gardener.cloud/operation``."""
    repairs: tuple[Repair, ...] = ()
    """What annotations ask for."""
    asked_by: str = ""
    """Who wrote the annotations that repair or retry."""
    ignored: bool = False
    rate_limited: bool = False
    """The last operation met a rate limit of the cloud, by the codes of its errors."""
    uid: str = ""
    force_delete: bool = False
    """Its owner gives up what the cloud holds; irreversible."""
    hibernation_switched: bool = False
    """The spec wants the cluster asleep while it is awake, or the other way round."""
    confined: bool = False
    """``spec.maintenance.confineSpecUpdateRollout``."""
    in_window_only: bool = False
    """Regular operations wait for the maintenance window: confined, or configured so for all Shoots."""
    window: tuple[str, str] | None = None
    """Begin and end of ``spec.maintenance.timeWindow``."""
    sync_period: timedelta = timedelta(hours=1)
    bastions: tuple[str, ...] = ()
    """Of this Shoot and its seed; looked for only where they are in the way."""
    source_lost: bool = False
    """An operator says that the seed which the control plane leaves takes no part any more."""
    prepared_at: str = ""
    """Seed that has begun to take the control plane over, while it moves: from then on the move can only go on."""
    migration_fault: str = ""
    """Why the control plane cannot move now."""
    emergency_stop: bool = False
    """The responsible Seed is annotated so that nothing is done on it."""
    seed_exists: bool = True
    seed_fault: str = ""
    """Why the responsible Seed takes no operation now."""

    @property
    def version_changed(self) -> bool:
        """Whether the last operation was run by other code than ours."""
        return self.last_operation is not None and self.gardener_version != self.our_version


class ShootRules(ApiModel):
    """When Shoots are reconciled; configuration, named as Gardener's ``controllers.shoot``."""

    sync_period: timedelta = Field(default=timedelta(hours=1), gt=timedelta())
    respect_sync_period_overwrite: bool = False
    """``shoot.gardener.cloud/ignore`` and ``.../sync-period`` count in all namespaces, not only in ``garden``."""
    reconcile_in_maintenance_only: bool = False


class ShootFacts(ApiModel):
    """What of a Shoot decides which tasks a flow has; of the generation the operation works on."""

    workerless: bool = False
    hibernated: bool = False
    backup: bool = True
    """The seed has a backup bucket."""
    skip_readiness: bool = False
    skip_cleanup: bool = False
    extensions: dict[str, str] = Field(default_factory=dict)
    """Phases (``api.registrations.Phase``) in which the Shoot has Extensions, and a version of what it wants there."""
    extension_minutes: float = 3
    """The longest that one of them may take."""
    tasks: tuple[str, ...] = ()
    """Values of the annotation ``shoot.gardener.cloud/tasks`` that this operation answers."""
    container_runtimes: bool = False
    """A pool has one beside containerd."""
    managed_issuer: bool = False
    """The public keys of its tokens are published in the garden."""
    ssh_access: bool = True
    """Its nodes are to be reached by SSH."""
    failure_tolerance: bool = False
    """The control plane is to survive the loss of a node or zone."""
    credentials: str = ""
    """Version of the cloud credentials' Secret: new credentials make their copy, and what uses it, run again."""
    rotations: tuple[ActiveRotation, ...] = ()

    def phase(self, kind: Kind) -> Phase:
        """How far a rotation under way is."""
        return next((each.phase for each in self.rotations if each.kind is kind), Phase.NONE)


class Survey(ApiModel):
    """What is there in the seed when a deletion or migration starts. Source: spec/flows.md 3."""

    namespace: bool
    """NS: exists and is not terminating."""
    cluster: bool
    """CL: namespace, Deployment of the API server, and Infrastructure unless workerless."""
    control_plane: bool
    """CPN: ControlPlane exists, is not deleting, and the Infrastructure has a provider status."""
    controller_manager: bool
    """Deployment of the kube-controller-manager exists."""
    api_server: bool = False
    """Namespace and Deployment of the API server exist, whatever else does."""
    backups: bool = False
    """SNAP: the namespace exists, and the backups are this seed's still. Source: spec/flows.md 5."""
    foreign: bool = False
    """The namespace exists, and belongs to another Shoot."""


class StartOperation(ApiModel):
    """Ask to record the start of an operation in the Shoot."""

    shoot: ShootRef
    operation: OperationType
    attempt: int
    consume: tuple[str, ...] = ()
    """Values of the operation annotation that this operation answers."""
    asked_by: str = ""
    """Who wrote them, as far as it is known."""


class StartedOperation(ApiModel):
    """What an operation's flow starts with."""

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
    """Seeds whose gardenlets may have written the ShootState of a control plane that moves, as the lifecycle remembers
    them. Empty in flows that began when all seeds had one key: those reseal nothing."""


class FinishOperation(ApiModel):
    """Ask to record the end of an operation in the Shoot."""

    task: ShootTask
    attempt: int
    state: str
    """Succeeded, Error or Failed."""
    description: str
    tasks: tuple[str, ...] = ()
    """What the annotation ``shoot.gardener.cloud/tasks`` asked for and a success has done."""
    failed: tuple[FailedTask, ...] = ()
    hibernated: bool = False
    """Whether the Shoot sleeps now, if the operation succeeded."""
    workflow_id: str = ""
    """Of the attempt; empty in histories of before."""


class Refusal(ApiModel):
    """Ask to say in the Shoot why nothing is done now."""

    shoot: ShootRef
    state: str = ""
    """Pending or Error for lastOperation; empty to leave it as it is."""
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
    """Ask to tell in the Shoot's Events of an intervention, and to take its annotation away."""

    shoot: ShootRef
    repair: Repair
    refused: str = ""
    """Why it was not accepted."""


class EditFlow(ApiModel):
    """Ask a running flow to do something else with one of its tasks."""

    flow: FlowId
    repair: Repair


class ReportProgress(ApiModel):
    """Ask to keep the Shoot's status in step with a running flow."""

    task: ShootTask
    seconds: float = Field(default=5, gt=0)
    """Between two writes. Source: ``progressReportPeriod``, spec/flows.md 1.4."""
