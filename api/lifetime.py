"""How long a Shoot may live by its quotas: pure functions. Source: spec/api-core.md 10.2 and 12, "Shoot quota"."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from api import constants


def lifetime(quotas: Iterable[Mapping[str, Any]]) -> timedelta | None:
    """The shortest that any of the quotas allows; None if none of them limits it."""
    days = [each["spec"]["clusterLifetimeDays"] for each in quotas if each["spec"].get("clusterLifetimeDays")]
    return timedelta(days=min(days)) if days else None


def expiration(shoot: Mapping[str, Any], allowed: timedelta) -> datetime:
    """When the Shoot's life ends: as its owner has set it, else counted from its creation.

    What cannot be read, and admission refuses, counts as not set.
    """
    metadata = shoot["metadata"]
    text = (metadata.get("annotations") or {}).get(constants.SHOOT_EXPIRATION_TIMESTAMP, "")
    return parsed(text) or datetime.fromisoformat(metadata["creationTimestamp"]) + allowed


def parsed(text: str) -> datetime | None:
    """A time with a zone; None if it is none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
