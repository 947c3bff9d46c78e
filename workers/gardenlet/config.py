"""Configuration of a gardenlet."""

from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from activities.components.etcd import DELTA_SNAPSHOT_PERIOD
from activities.secrets.crypto import KeyAlgorithm
from activities.seed.retention import Retention
from api.model import ApiModel
from workers.etcd.manifests import TAKEOVER_TOLERANCE
from workers.leader import Duration, LeaderElectionConfig
from workers.runtime import ClientConnection, HealthConfig
from workers.temporal import TemporalConnection
from workers.tracing import TracingConfig


class SecretReference(ApiModel):
    name: str
    namespace: str


class KubeconfigValidity(ApiModel):
    """Of the client certificate for the garden."""

    validity: Duration | None = Field(default=None, ge=timedelta(minutes=10))
    """None: as long as the garden gives it."""
    auto_rotation_jitter_percentage_min: int = Field(default=70, ge=1, le=100)
    auto_rotation_jitter_percentage_max: int = Field(default=90, ge=1, le=100)
    """It is renewed at some time between these parts of its validity, so that not all gardenlets ask at once."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.auto_rotation_jitter_percentage_min > self.auto_rotation_jitter_percentage_max:
            raise ValueError("autoRotationJitterPercentageMin is greater than autoRotationJitterPercentageMax")
        return self


class GardenConnection(ClientConnection):
    """Either a file whose writer renews it, or a Secret of the seed that the gardenlet keeps itself."""

    bootstrap_kubeconfig: Path | None = None
    """Where the garden is, and with what the first certificate is asked for: a bootstrap token."""
    kubeconfig_secret: SecretReference | None = None
    """See ``workers.gardenlet.garden_access``; made by the gardenlet."""
    kubeconfig_validity: KubeconfigValidity = KubeconfigValidity()

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.kubeconfig_secret is not None and self.kubeconfig is not None:
            raise ValueError("kubeconfig and kubeconfigSecret exclude each other")
        if self.kubeconfig_secret is None and self.bootstrap_kubeconfig is not None:
            raise ValueError("bootstrapKubeconfig needs kubeconfigSecret, where the access that it brings is kept")
        return self


class SeedConfig(ApiModel):
    """The Seed that the gardenlet registers: metadata and spec of ``core.gardener.cloud/v1beta1``.

    They are used once, when there is no Seed of this name. Later an operator changes the Seed itself.
    """

    metadata: dict[str, Any]
    spec: dict[str, Any]


class ConditionThreshold(ApiModel):
    """How long a condition stays Progressing before it becomes False."""

    type: str
    duration: timedelta


class ShootCareConfig(ApiModel):
    sync_period: timedelta = timedelta(minutes=1)
    """Conditions are looked at this often, and at once when something they depend on changes."""
    condition_thresholds: tuple[ConditionThreshold, ...] = (
        ConditionThreshold(type="APIServerAvailable", duration=timedelta(minutes=1)),
        ConditionThreshold(type="ControlPlaneHealthy", duration=timedelta(minutes=1)),
        ConditionThreshold(type="ObservabilityComponentsHealthy", duration=timedelta(minutes=1)),
        ConditionThreshold(type="SystemComponentsHealthy", duration=timedelta(minutes=1)),
        ConditionThreshold(type="EveryNodeReady", duration=timedelta(minutes=5)),
    )
    """A type without one becomes False at once. Source: spec/flows.md 10."""
    stale_extension_health_checks_threshold: timedelta = timedelta(minutes=5)
    """What an extension says is not believed once its heartbeat is older."""
    managed_resource_progressing_threshold: timedelta = timedelta(hours=1)
    """A rollout that takes longer counts as stuck."""
    webhook_remediator_enabled: bool = False
    """Change webhooks of owners that can keep their clusters from working."""


class WatchdogConfig(ApiModel):
    """Of the dependency watchdog."""

    enabled: bool = True
    probe_interval: timedelta = timedelta(seconds=10)
    expired_leases: float = Field(default=0.6, gt=0, le=1)
    """From this part of expired node leases on, controllers of the shoot are stopped."""
    failures: int = Field(default=3, ge=1)
    """So many probes in a row have to tell the same."""


class ShootStateConfig(ApiModel):
    sync_period: timedelta = timedelta(hours=6)
    """What another seed would need is kept in the garden this often, and when it changes. Source: spec/flows.md 7."""


class EtcdConfig(ApiModel):
    delta_snapshot_period: timedelta = Field(default=DELTA_SNAPSHOT_PERIOD, ge=timedelta(seconds=1))
    """Changes that are younger are lost with the seed."""
    takeover_tolerance: timedelta = Field(default=TAKEOVER_TOLERANCE, ge=timedelta(seconds=5))
    """An etcd stops that cannot read for so long whether another seed has taken over, and one that takes over waits for
    it. The same for all seeds."""


class BackupEntryConfig(ApiModel):
    deletion_grace_period_hours: int = Field(default=0, ge=0)
    """Backups are kept for so long after their Shoot is deleted."""
    deletion_grace_period_shoot_purposes: tuple[str, ...] = ()
    """Only those of Shoots with these purposes; none: of all."""

    @property
    def retention(self) -> Retention:
        purposes = frozenset(self.deletion_grace_period_shoot_purposes)
        return Retention(timedelta(hours=self.deletion_grace_period_hours), purposes)


class VpnConfig(ApiModel):
    network: str = "192.168.123.0/24"
    """Range of the tunnels; must not meet any network of a shoot or seed."""


class SecretsConfig(ApiModel):
    """Of the secrets manager."""

    key_algorithm: KeyAlgorithm = KeyAlgorithm.P256
    """Of new keys that name none themselves; existing ones stay as they are until they are rotated."""


class GardenletConfig(ApiModel):
    garden_client_connection: GardenConnection
    seed_client_connection: ClientConnection = ClientConnection()
    seed_config: SeedConfig
    temporal: TemporalConnection
    health: HealthConfig = HealthConfig()
    leader_election: LeaderElectionConfig = LeaderElectionConfig()
    shoot_care: ShootCareConfig = ShootCareConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    tracing: TracingConfig | None = None
    shoot_state: ShootStateConfig = ShootStateConfig()
    etcd: EtcdConfig = EtcdConfig()
    backup_entry: BackupEntryConfig = BackupEntryConfig()
    vpn: VpnConfig = VpnConfig()
    secrets: SecretsConfig = SecretsConfig()
    max_concurrent_activities: int = 200
    identity: str = "gardenlet"
