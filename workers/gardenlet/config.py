"""Configuration of a gardenlet."""

from datetime import timedelta
from typing import Any

from pydantic import Field

from activities.components.etcd import DELTA_SNAPSHOT_PERIOD
from activities.secrets.crypto import KeyAlgorithm
from api.model import ApiModel
from workers.etcd.manifests import TAKEOVER_TOLERANCE
from workers.leader import LeaderElectionConfig
from workers.runtime import ClientConnection, HealthConfig, TemporalConnection
from workers.tracing import TracingConfig


class SeedConfig(ApiModel):
    """The Seed that the gardenlet registers: metadata and spec of ``core.gardener.cloud/v1beta1``."""

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


class VpnConfig(ApiModel):
    network: str = "192.168.123.0/24"
    """Range of the tunnels; must not meet any network of a shoot or seed."""


class SecretsConfig(ApiModel):
    """Of the secrets manager."""

    key_algorithm: KeyAlgorithm = KeyAlgorithm.P256
    """Of new keys that name none themselves; existing ones stay as they are until they are rotated."""


class GardenletConfig(ApiModel):
    garden_client_connection: ClientConnection
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
    vpn: VpnConfig = VpnConfig()
    secrets: SecretsConfig = SecretsConfig()
    max_concurrent_activities: int = 200
    identity: str = "gardenlet"
