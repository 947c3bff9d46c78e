"""Rotation of a Shoot's credentials: inputs and results of its workflow and activities."""

from enum import StrEnum

from pydantic import Field

from api.contracts.operations import ShootRef
from api.model import ApiModel


class Kind(StrEnum):
    """Kind of credentials; values are the names of the fields in the status."""

    CERTIFICATE_AUTHORITIES = "certificateAuthorities"
    SERVICE_ACCOUNT_KEY = "serviceAccountKey"
    ETCD_ENCRYPTION_KEY = "etcdEncryptionKey"
    SSH_KEYPAIR = "sshKeypair"
    OBSERVABILITY = "observability"

    @property
    def words(self) -> str:
        """Name of the kind in messages."""
        return _TITLES[self]


class Phase(StrEnum):
    """Phase of a rotation in two steps."""

    NONE = ""
    PREPARING = "Preparing"
    PREPARING_WITHOUT_WORKERS_ROLLOUT = "PreparingWithoutWorkersRollout"
    WAITING_FOR_WORKERS_ROLLOUT = "WaitingForWorkersRollout"
    PREPARED = "Prepared"
    COMPLETING = "Completing"
    COMPLETED = "Completed"

    @property
    def idle(self) -> bool:
        """Whether a rotation may start."""
        return self in (Phase.NONE, Phase.COMPLETED)

    @property
    def in_progress(self) -> bool:
        """Whether a reconcile must succeed before the rotation can advance."""
        return self.preparing or self is Phase.COMPLETING

    @property
    def preparing(self) -> bool:
        """Whether new credentials are being created and distributed."""
        return self in (Phase.PREPARING, Phase.PREPARING_WITHOUT_WORKERS_ROLLOUT)


_TITLES = {
    Kind.CERTIFICATE_AUTHORITIES: "certificate authorities",
    Kind.SERVICE_ACCOUNT_KEY: "service account key",
    Kind.ETCD_ENCRYPTION_KEY: "etcd encryption key",
    Kind.SSH_KEYPAIR: "SSH key pair",
    Kind.OBSERVABILITY: "observability passwords",
}


class ActiveRotation(ApiModel):
    """A rotation in two steps, as in a Shoot's status."""

    kind: Kind
    phase: Phase
    initiated: str
    """Start of the rotation, RFC 3339, in seconds."""
    initiation_finished: str = ""
    automatic: bool = False
    """The rotation is completed automatically after a successful preparation."""
    pending_pools: tuple[str, ...] = ()
    """Worker pools whose machines are older than the start of the rotation."""


class RotationInput(ApiModel):
    """One rotation of one Shoot's credentials, from its start to its end."""

    shoot: ShootRef
    kind: Kind
    initiated: str
    """Start of the rotation, RFC 3339, in seconds; it identifies the rotation among those of its kind."""
    seen: Phase = Phase.NONE
    """Phase that the workflow read last."""
    seen_in: str = ""
    """Seed of the control plane at that time."""
    seen_turn: bool = True
    """``owners_turn`` at that time."""


class RotationView(ApiModel):
    """Facts of a Shoot that the workflow of a rotation needs."""

    seed: str = ""
    technical_id: str = ""
    rotation: ActiveRotation | None = None
    """None if the rotation has ended, another one has started, or the Shoot is deleted."""
    owners_turn: bool = True
    """The workflow must not request the next step: a reconcile is in progress, a user must request it, or users must
    update nodes in place."""


class User(ApiModel):
    """A client that uses the old credentials."""

    who: str
    """Kind and name of the client: ``node machine-1``."""
    why: str
    remedy: str

    def __str__(self) -> str:
        return " ".join((self.who, self.why))


class Survey(ApiModel):
    """Clients that still use the old credentials, as far as they can be found."""

    users: tuple[User, ...] = ()

    def __str__(self) -> str:
        shown = "; ".join(map(str, self.users[:_SHOWN]))
        more = len(self.users) - _SHOWN
        return f"{shown}; and {more} more" if more > 0 else shown


class SurveyRequest(ApiModel):
    """Input of ``find_users_of_old_credentials``."""

    shoot: ShootRef
    technical_id: str
    seed: str
    kind: Kind


class SurveyReport(ApiModel):
    """Input of ``report_survey``, which writes the clients with old credentials into the Shoot's constraints."""

    shoot: ShootRef
    kind: Kind
    survey: Survey


class RotationStep(ApiModel):
    """Input of ``request_rotation_step``, which requests the next operation of a rotation."""

    shoot: ShootRef
    kind: Kind
    phase: Phase
    """Phase in which the operation is valid. In another phase it was requested before, and nothing is written."""
    operation: str
    forced: str = ""
    """Reason to drop old credentials although clients use them, with the name of the user; empty if not forced."""


class CompleteRotation(ApiModel):
    """Request of a user to complete a rotation."""

    by: str = ""
    force: bool = False
    reason: str = Field(default="", max_length=500)


_SHOWN = 10
