"""Writes to a Seed's status."""

from collections.abc import Mapping
from typing import Any

from api import resources
from kube.client import KubeClient
from kube.edit import patch_as_read


async def write_seed_status(garden: KubeClient, seed: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """Write these fields of a Seed's status. Raises Conflict if the Seed has changed since ``seed`` was read."""
    await patch_as_read(garden, resources.SEED, seed, {"status": status}, subresource="status")
