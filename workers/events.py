"""Events that ``kubectl describe`` shows below an object."""

import logging
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

from activities.kube.client import KubeClient
from activities.kube.errors import ApiError
from api.times import micro_timestamp, timestamp

log = logging.getLogger(__name__)


async def emit(
    client: KubeClient,
    obj: dict[str, Any],
    component: str,
    reason: str,
    message: str,
    type: Literal["Normal", "Warning"] = "Normal",
) -> None:
    """Say something about ``obj``. An event that cannot be written is no reason to fail."""
    now = datetime.now(UTC)
    metadata = obj["metadata"]
    namespace = metadata.get("namespace") or "default"
    seconds = timestamp(now)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{uuid4().hex[:16]}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": type,
        "reason": reason,
        "message": message[:1024],
        "action": reason,
        "eventTime": micro_timestamp(now),
        "firstTimestamp": seconds,
        "lastTimestamp": seconds,
        "count": 1,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": component,
    }
    try:
        await client.create(event)
    except ApiError as error:
        log.warning("event %s for %s %s is lost: %s", reason, obj["kind"], metadata["name"], error)
