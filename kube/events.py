"""Events that ``kubectl describe`` shows below an object."""

import contextlib
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal

from api.resources import EVENT, ObjectView
from api.times import micro_timestamp, timestamp
from kube.client import KubeClient
from kube.errors import AlreadyExists, ApiError, NotFound

log = logging.getLogger(__name__)

_counts: OrderedDict[str, int] = OrderedDict()
"""Number of times that this process has written each Event, by the Event's name. Gardenlets may write Events, but may
not read them."""
_REMEMBERED = 4096
_MESSAGE_BYTES = 1000
"""Longest message in UTF-8. The API server refuses an Event whose message has more than 1024 bytes."""


async def emit(
    client: KubeClient,
    obj: ObjectView,
    component: str,
    reason: str,
    message: str,
    type: Literal["Normal", "Warning"] = "Normal",
) -> None:
    """Write an Event about ``obj``. If it cannot be written, only log that.

    The Event's name is computed from its content: the same event again raises ``count`` of the existing object.
    """
    message = _shortened(message)
    event = _event(obj, component, type, reason, message, (component, type, reason, message))
    name = event["metadata"]["name"]
    try:
        count = await _write(client, event, _counts.pop(name, 0) + 1)
    except ApiError as error:
        log.warning("event %s for %s %s is lost: %s", reason, obj["kind"], obj["metadata"]["name"], error)
        return
    _counts[name] = count
    while len(_counts) > _REMEMBERED:
        _counts.popitem(last=False)


async def record(
    client: KubeClient, obj: ObjectView, component: str, type: str, reason: str, message: str, *, occasion: str
) -> None:
    """Write an Event about ``obj``, once for each ``occasion``: a second call finds the first one's Event.

    Raises ApiError if the Event cannot be written.
    """
    with contextlib.suppress(AlreadyExists):
        await client.create(_event(obj, component, type, reason, _shortened(message), (occasion,)))


def _shortened(message: str) -> str:
    return message.encode()[:_MESSAGE_BYTES].decode(errors="ignore")


def _event(
    obj: ObjectView, component: str, type: str, reason: str, message: str, identity: Iterable[str]
) -> dict[str, Any]:
    """An Event. Its name is computed from the uid of ``obj`` and from ``identity``."""
    now = datetime.now(UTC)
    metadata = obj["metadata"]
    digest = hashlib.sha256("\0".join((metadata["uid"], *identity)).encode()).hexdigest()[:16]
    seconds = timestamp(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata.get("namespace") or "default"},
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
        "message": message,
        "action": reason,
        "eventTime": micro_timestamp(now),
        "firstTimestamp": seconds,
        "lastTimestamp": seconds,
        "count": 1,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": component,
    }


async def _write(client: KubeClient, event: dict[str, Any], count: int) -> int:
    """Create an Event, or raise the count of the existing one; returns the count."""
    if count == 1:
        try:
            await client.create(event)
            return 1
        except AlreadyExists:
            count = 2  # an earlier process wrote it, perhaps more often
    metadata = event["metadata"]
    again = {"count": count, "lastTimestamp": event["lastTimestamp"]}
    try:
        await client.patch(EVENT, metadata["name"], metadata["namespace"], again)
    except NotFound:  # API servers keep Events for an hour
        await client.create(event)
        return 1
    return count
