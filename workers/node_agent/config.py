"""Configuration of the node agent; the first boot writes it."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field

from api.model import ApiModel
from workers.lib.runtime import HealthConfig


class NodeAgentConfig(ApiModel):
    """Content of ``/var/lib/gardener-node-agent/config.yaml``."""

    server: str
    """URL of the API server."""
    ca_file: Path
    """CA bundle by which the API server is verified."""
    secret_name: str
    """Secret in kube-system with the operating system config of this machine's pool."""
    kubernetes_version: str
    """Version of the kubelet that this configuration runs; it becomes a label of the Node."""
    state_directory: Path = Path("/var/lib/gardener-node-agent")
    sync_period: timedelta = timedelta(minutes=10)
    health: HealthConfig = Field(default=HealthConfig(address="0.0.0.0", port=2751))
