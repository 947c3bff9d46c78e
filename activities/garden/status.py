"""Parts of a Shoot's status that several activities write."""

from datetime import datetime
from typing import Any

from activities.garden.events import MESSAGE_LIMIT
from api import resources
from api.contracts.operations import ShootRef
from api.times import timestamp
from kube.client import KubeClient
from kube.errors import NotFound


async def patch_status(garden: KubeClient, shoot: ShootRef, change: dict[str, Any], *, version: str = "") -> None:
    """Merge a change into a Shoot's status; nothing happens if the Shoot is gone.

    ``version``: raise Conflict if the Shoot is newer than this resourceVersion.
    """
    patch: dict[str, Any] = {"status": change}
    if version:
        patch["metadata"] = {"resourceVersion": version}
    try:
        await garden.patch(resources.SHOOT, shoot.name, shoot.namespace, patch, subresource="status")
    except NotFound:
        return


def last_error(message: str, task: str, codes: tuple[str, ...], at: datetime) -> dict[str, Any]:
    """An entry of ``lastErrors``."""
    return {
        "description": message[:MESSAGE_LIMIT],
        "taskID": task,
        **({"codes": list(codes)} if codes else {}),
        "lastUpdateTime": timestamp(at),
    }
