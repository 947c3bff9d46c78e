"""Configuration of a gardenlet."""

from datetime import timedelta
from typing import Any

from activities.secrets.crypto import KeyAlgorithm
from api.model import ApiModel
from workers.leader import LeaderElectionConfig
from workers.runtime import ClientConnection, HealthConfig, TemporalConnection


class SeedConfig(ApiModel):
    """The Seed that the gardenlet registers: metadata and spec of ``core.gardener.cloud/v1beta1``."""

    metadata: dict[str, Any]
    spec: dict[str, Any]


class ShootCareConfig(ApiModel):
    sync_period: timedelta = timedelta(minutes=1)
    """Conditions are looked at this often, and at once when something they depend on changes."""


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
    vpn: VpnConfig = VpnConfig()
    secrets: SecretsConfig = SecretsConfig()
    max_concurrent_activities: int = 200
    identity: str = "gardenlet"
