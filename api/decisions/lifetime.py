"""Lifetime of a Shoot by its quotas: pure functions. Source: spec/api-core.md 10.2 and 12, "Shoot quota"."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from api import constants
from api.times import parsed


def lifetime(quotas: Iterable[Mapping[str, Any]]) -> timedelta | None:
    """The shortest lifetime of all quotas; None if no quota limits the lifetime."""
    days = [each["spec"]["clusterLifetimeDays"] for each in quotas if each["spec"].get("clusterLifetimeDays")]
    return timedelta(days=min(days)) if days else None


def expiration(shoot: Mapping[str, Any], allowed: timedelta) -> datetime:
    """Expiration time of a Shoot: the one in its annotation, or else ``allowed`` after its creation.

    An invalid annotation, which admission refuses, is ignored.
    """
    metadata = shoot["metadata"]
    text = (metadata.get("annotations") or {}).get(constants.SHOOT_EXPIRATION_TIMESTAMP, "")
    return parsed(text) or datetime.fromisoformat(metadata["creationTimestamp"]) + allowed
