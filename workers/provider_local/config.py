"""Configuration of provider-local, one process per seed, in the seed's network."""

from pathlib import Path

from pydantic import Field

from api.model import ApiModel
from workers.leader import LeaderElectionConfig
from workers.runtime import HealthConfig
from workers.temporal import TemporalConnection
from workers.tracing import TracingConfig


class ProviderLocalConfig(ApiModel):
    """Content of ``config.yaml``."""

    seed_name: str
    seed_kubeconfig: Path | None = None
    """Unset: in-cluster."""
    temporal: TemporalConnection
    """Its long operations run as workflows on the task queue ``provider-local-<seed name>``."""
    load_balancer_ip: str
    """Address that the gateway's Service of type LoadBalancer gets: the seed node's."""
    heartbeat_namespace: str = "garden"
    """Where the Lease ``gardener-extension-heartbeat`` is renewed."""
    tracing: TracingConfig | None = None
    health: HealthConfig = Field(default=HealthConfig())
    leader_election: LeaderElectionConfig = Field(default=LeaderElectionConfig())
