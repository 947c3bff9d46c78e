"""Kubernetes Events about a Shoot."""

import hashlib

from api import resources
from api.contracts.operations import ShootRef
from api.times import timestamp
from kube.client import KubeClient
from kube.errors import AlreadyExists

MANAGER = "gardener-controller-manager"
MESSAGE_LIMIT = 1000


async def record(garden: KubeClient, shoot: ShootRef, identity: str, type_: str, reason: str, message: str) -> None:
    """Create an Event. Its name is computed from the Shoot's uid and ``identity``, so a second run creates no other."""
    digest = hashlib.sha256(f"{shoot.uid}/{identity}".encode()).hexdigest()[:16]
    now = timestamp()
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{shoot.name}.{digest}", "namespace": shoot.namespace},
        "involvedObject": {
            "apiVersion": resources.SHOOT.api_version,
            "kind": "Shoot",
            "name": shoot.name,
            "namespace": shoot.namespace,
            "uid": shoot.uid,
        },
        "type": type_,
        "reason": reason,
        "message": message[:MESSAGE_LIMIT],
        "source": {"component": MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        await garden.create(event)
    except AlreadyExists:
        return
