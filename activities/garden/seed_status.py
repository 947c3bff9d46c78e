"""Writes to a Seed's status."""

from collections.abc import Mapping
from typing import Any

from api import resources
from kube.client import KubeClient


async def write_seed_status(garden: KubeClient, seed: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """Write these fields of a Seed's status. Raises Conflict if the Seed has changed since ``seed`` was read."""
    metadata = seed["metadata"]
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": dict(status)}
    await garden.patch(resources.SEED, metadata["name"], None, patch, subresource="status")
