"""Configuration of a gardenlet."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from activities.components.etcd import DELTA_SNAPSHOT_PERIOD
from activities.components.gateway import OWN, Place
from activities.secrets.crypto import KeyAlgorithm
from activities.seed.handlers import ExposureClassHandler, check_distinct
from activities.seed.node_logs import NodeLogs
from activities.seed.retention import Retention
from api.constants import (
    PURPOSE_TESTING,
    SEED_BACKUP_BUCKETS_READY,
    SEED_EXTENSIONS_READY,
    SEED_SYSTEM_COMPONENTS_HEALTHY,
)
from api.meta import Quantity
from api.model import ApiModel
from api.quantities import parse_quantity
from workers.etcd.manifests import TAKEOVER_TOLERANCE
from workers.gardenlet import feature_gates
from workers.lib.leader import Duration, LeaderElectionConfig
from workers.lib.runtime import ClientConnection, HealthConfig
from workers.lib.temporal import TemporalConnection
from workers.lib.tracing import TracingConfig


class SecretReference(ApiModel):
    name: str
    namespace: str


class KubeconfigValidity(ApiModel):
    """Validity and renewal of the client certificate for the garden."""

    validity: Duration | None = Field(default=None, ge=timedelta(minutes=10))
    """Validity to request; None: the garden decides."""
    auto_rotation_jitter_percentage_min: int = Field(default=70, ge=1, le=100)
    auto_rotation_jitter_percentage_max: int = Field(default=90, ge=1, le=100)
    """The certificate is renewed at a time between these two percentages of its validity, so that not all gardenlets
    request theirs at once."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.auto_rotation_jitter_percentage_min > self.auto_rotation_jitter_percentage_max:
            raise ValueError("autoRotationJitterPercentageMin is greater than autoRotationJitterPercentageMax")
        return self


class GardenConnection(ClientConnection):
    """Access to the garden: either a kubeconfig file that its writer renews, or a Secret that the gardenlet renews."""

    bootstrap_kubeconfig: Path | None = None
    """File with the address of the garden and the bootstrap token with which the first certificate is requested."""
    kubeconfig_secret: SecretReference | None = None
    """Secret of the seed in which the gardenlet keeps its access; it creates the Secret itself. See
    ``workers.gardenlet.garden_access``."""
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
    """Period of the checks. A Shoot is also checked at once when an object changes that its conditions depend on."""
    condition_thresholds: tuple[ConditionThreshold, ...] = (
        ConditionThreshold(type="APIServerAvailable", duration=timedelta(minutes=1)),
        ConditionThreshold(type="ControlPlaneHealthy", duration=timedelta(minutes=1)),
        ConditionThreshold(type="ObservabilityComponentsHealthy", duration=timedelta(minutes=1)),
        ConditionThreshold(type="SystemComponentsHealthy", duration=timedelta(minutes=1)),
        ConditionThreshold(type="EveryNodeReady", duration=timedelta(minutes=5)),
    )
    """A condition without a threshold becomes False at once. Source: spec/flows.md 10."""
    stale_extension_health_checks_threshold: timedelta = timedelta(minutes=5)
    """Conditions that an extension reports become Unknown once its last heartbeat is older than this."""
    managed_resource_progressing_threshold: timedelta = timedelta(hours=1)
    """A rollout that takes longer counts as stuck."""
    webhook_remediator_enabled: bool = False
    """Whether to change webhooks of Shoot owners that can keep their clusters from working."""


class SeedCareConfig(ApiModel):
    sync_period: timedelta = timedelta(seconds=30)
    """Period of the checks. The seed is also checked when an object changes on which its conditions depend."""
    condition_thresholds: tuple[ConditionThreshold, ...] = (
        ConditionThreshold(type=SEED_SYSTEM_COMPONENTS_HEALTHY, duration=timedelta(minutes=1)),
        ConditionThreshold(type=SEED_BACKUP_BUCKETS_READY, duration=timedelta(minutes=1)),
        ConditionThreshold(type=SEED_EXTENSIONS_READY, duration=timedelta(minutes=1)),
    )
    """A condition without a threshold becomes False at once."""


class WatchdogConfig(ApiModel):
    """Configuration of the dependency watchdog. A Seed switches its parts by ``spec.settings.dependencyWatchdog``."""

    enabled: bool = True
    probe_interval: timedelta = timedelta(seconds=10)
    expired_leases: float = Field(default=0.6, gt=0, le=1)
    """Fraction of node leases that must have expired before controllers of the shoot are stopped."""
    failures: int = Field(default=3, ge=1)
    """Number of probes in a row that must have the same result before the watchdog acts."""


class ShootStateConfig(ApiModel):
    sync_period: timedelta = timedelta(hours=6)
    """Period in which the ShootState of each Shoot is written to the garden; it is also written when it changes.
    Source: spec/flows.md 7."""


class EtcdConfig(ApiModel):
    delta_snapshot_period: timedelta = Field(default=DELTA_SNAPSHOT_PERIOD, ge=timedelta(seconds=1))
    """Period of delta snapshots. If the seed is lost, changes since the last delta snapshot are lost."""
    takeover_tolerance: timedelta = Field(default=TAKEOVER_TOLERANCE, ge=timedelta(seconds=5))
    """How long an etcd serves while it cannot read in its bucket whether another seed has taken over; then it stops.
    The etcd that takes over waits for the same time, so all seeds must have the same value."""
    image_digest: str = ""
    """Digest of the content of our image, where the image has the same tag in all versions, as on a landscape. With
    another digest, a reconciliation replaces the pods of etcds, as it does with another tag."""


class BackupEntryConfig(ApiModel):
    deletion_grace_period_hours: int = Field(default=0, ge=0)
    """Hours for which backups are kept after their Shoot is deleted."""
    deletion_grace_period_shoot_purposes: tuple[str, ...] = ()
    """Purposes of the Shoots whose backups are kept; none: of all Shoots."""

    @property
    def retention(self) -> Retention:
        purposes = frozenset(self.deletion_grace_period_shoot_purposes)
        return Retention(timedelta(hours=self.deletion_grace_period_hours), purposes)


class NetworkPoliciesConfig(ApiModel):
    """NetworkPolicies in the namespaces of the seed: of control planes, of extensions, of gateways, and ``garden``."""

    enabled: bool = False
    """Whether pods of these namespaces are closed: they may open and accept only the connections that their labels
    allow. The seed's network must enforce NetworkPolicies. Reconcile all Shoots of the seed with this version before:
    their pods get their labels then."""


class ShootNodeLoggingConfig(ApiModel):
    shoot_purposes: tuple[Literal["evaluation", "testing", "development", "production", "infrastructure"], ...] = ()
    """Purposes of the Shoots whose nodes send their logs to a store in the seed; none: no Shoot's. Shoots of purpose
    ``testing`` have no observability, and so no store."""

    @model_validator(mode="after")
    def _have_observability(self) -> Self:
        if PURPOSE_TESTING in self.shoot_purposes:
            raise ValueError(
                "shootPurposes: Shoots of purpose testing have no observability, and so no store of logs: leave it out"
            )
        return self


class LoggingConfig(ApiModel):
    """Logs of Shoots that are stored in the seed. Fields have Gardener's names and meanings."""

    enabled: bool = False
    """Whether logs are stored at all."""
    shoot_node_logging: ShootNodeLoggingConfig = ShootNodeLoggingConfig()

    @model_validator(mode="before")
    @classmethod
    def _has_known_parts(cls, given: Any) -> Any:
        """Refuse Gardener's other parts with the reason, unless they are switched off, as they are here in any case."""
        if not isinstance(given, Mapping):
            return given
        for name, because in _OTHER_LOGGING.items():
            part = given.get(name)
            if part is not None and not (isinstance(part, Mapping) and part.get("enabled") is False):
                raise ValueError(f"{name} is not possible, leave it out or set {name}.enabled to false: {because}")
        return {name: value for name, value in given.items() if name not in _OTHER_LOGGING}

    @property
    def node_logs(self) -> NodeLogs:
        return NodeLogs(frozenset(self.shoot_node_logging.shoot_purposes if self.enabled else ()))


_OTHER_LOGGING = {
    "vali": "this version stores logs in VictoriaLogs",
    "shootEventLogging": "this version stores logs of nodes, and no events of Shoots",
}
"""Parts of Gardener's configuration that this version lacks."""


class VpnConfig(ApiModel):
    network: str = "192.168.123.0/24"
    """Address range of the VPN tunnels; it must not overlap with any network of a shoot or seed."""


class SecretsConfig(ApiModel):
    """Configuration of the secrets manager."""

    key_algorithm: KeyAlgorithm = KeyAlgorithm.P256
    """Algorithm of new keys for which no other algorithm is set. Existing keys stay as they are until they are
    rotated."""


class ResourcesConfig(ApiModel):
    """Capacity of the seed, which the gardenlet writes into the Seed's status and the scheduler reads."""

    capacity: Mapping[str, Quantity] = Field(default_factory=dict)
    """Amount of each resource; ``shoots`` is the number of Shoots. A resource without an amount has no limit."""
    reserved: Mapping[str, Quantity] = Field(default_factory=dict)
    """Part of the capacity that the scheduler does not use."""

    @model_validator(mode="after")
    def _reserved_is_part_of_capacity(self) -> Self:
        for name, amount in self.reserved.items():
            if name not in self.capacity or parse_quantity(amount) > parse_quantity(self.capacity[name]):
                raise ValueError(f"resources.reserved.{name} is {amount}, more than resources.capacity.{name}")
        return self

    @property
    def allocatable(self) -> dict[str, str]:
        """The capacity less the reserved part."""
        left = {
            name: parse_quantity(amount) - parse_quantity(self.reserved.get(name, 0))
            for name, amount in self.capacity.items()
        }
        return {name: f"{amount.normalize():f}" for name, amount in left.items()}


class GardenletConfig(ApiModel):
    garden_client_connection: GardenConnection
    seed_client_connection: ClientConnection = ClientConnection()
    seed_config: SeedConfig
    temporal: TemporalConnection
    resources: ResourcesConfig = ResourcesConfig()
    health: HealthConfig = HealthConfig()
    leader_election: LeaderElectionConfig = LeaderElectionConfig()
    shoot_care: ShootCareConfig = ShootCareConfig()
    seed_care: SeedCareConfig = SeedCareConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    tracing: TracingConfig | None = None
    shoot_state: ShootStateConfig = ShootStateConfig()
    etcd: EtcdConfig = EtcdConfig()
    backup_entry: BackupEntryConfig = BackupEntryConfig()
    vpn: VpnConfig = VpnConfig()
    network_policies: NetworkPoliciesConfig = NetworkPoliciesConfig()
    logging: LoggingConfig = LoggingConfig()
    secrets: SecretsConfig = SecretsConfig()
    exposure_class_handlers: tuple[ExposureClassHandler, ...] = ()
    """Handlers of ExposureClasses that the seed serves, each by a gateway of its own."""
    feature_gates: Mapping[str, bool] = Field(default_factory=dict)
    """Gardener's feature gates by name; see ``workers.gardenlet.feature_gates``."""
    log_level: Literal["debug", "info", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    max_concurrent_activities: int = 200
    identity: str = "gardenlet"

    @property
    def gateways(self) -> tuple[Place, ...]:
        """All gateways of the seed."""
        return (OWN, *(each.place for each in self.exposure_class_handlers))

    @model_validator(mode="after")
    def _handlers_are_distinct(self) -> Self:
        check_distinct(self.exposure_class_handlers)
        return self

    @model_validator(mode="after")
    def _has_known_gates(self) -> Self:
        if found := feature_gates.faults(self.feature_gates):
            raise ValueError("; ".join(found))
        return self
