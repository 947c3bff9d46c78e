"""Kubernetes Events about a Shoot."""

from api import resources
from api.contracts.operations import ShootRef
from kube import events
from kube.client import KubeClient

MANAGER = "gardener-controller-manager"
MESSAGE_LIMIT = 1000
"""Maximum number of characters of a description in the status of a Shoot."""


async def record(garden: KubeClient, shoot: ShootRef, identity: str, type_: str, reason: str, message: str) -> None:
    """Create an Event. Its name is computed from the Shoot's uid and ``identity``, so a second run creates no other."""
    about = {
        "apiVersion": resources.SHOOT.api_version,
        "kind": resources.SHOOT.kind,
        "metadata": {"name": shoot.name, "namespace": shoot.namespace, "uid": shoot.uid},
    }
    await events.record(garden, about, MANAGER, type_, reason, message, occasion=identity)
