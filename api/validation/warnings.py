"""Warnings that the API returns when a Shoot is written; the write is accepted (``AdmissionResponse.warnings``).

Source: spec/api.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from api.constants import PURPOSE_TESTING
from api.contracts.rotation import Kind
from api.core.v1beta1.cloud_profile import CloudProfile, ExpirableVersion
from api.core.v1beta1.shoot import Shoot
from api.decisions import rotation
from api.decisions.alerting import SELECTOR
from api.decisions.rotation import RotationFacts
from api.decisions.versions import expiration, find, stage
from api.times import timestamp
from api.validation.field import Path

ROTATION_INTERVAL = timedelta(days=90)
"""Age of credentials from which on a warning asks to rotate them; Gardener's default."""

_SOON = timedelta(days=30)
"""Time before the expiration of a version from which on its users are warned."""
_SPEC = Path("spec")


def warnings(shoot: Shoot, profile: CloudProfile | None, now: datetime, *, mails: bool = True) -> list[str]:
    """All warnings, one line each. ``mails``: whether the garden sends mails of alerts."""
    known = shoot.to_wire()
    return [*_unsent(shoot, mails), *_versions(shoot, profile, now), *_old_credentials(known, now)]


def _unsent(shoot: Shoot, mails: bool) -> Iterable[str]:
    alerting = shoot.spec.monitoring and shoot.spec.monitoring.alerting
    if not alerting or not alerting.email_receivers:
        return
    path = _SPEC / "monitoring" / "alerting" / "emailReceivers"
    if shoot.spec.purpose == PURPOSE_TESTING:
        yield f"{path}: no mails are sent about a Shoot of purpose {PURPOSE_TESTING}"
    elif not mails:
        yield f"{path}: this garden sends no mails; an operator can enable them by a Secret with label {SELECTOR}"


def _versions(shoot: Shoot, profile: CloudProfile | None, now: datetime) -> Iterable[str]:
    if profile is None:
        return
    kubernetes = profile.spec.kubernetes.versions
    yield from _ending(_SPEC / "kubernetes" / "version", kubernetes, shoot.spec.kubernetes.version, now)
    images = {each.name: each.versions for each in profile.spec.machine_images}
    for index, pool in enumerate(shoot.spec.provider.workers or []):
        path = _SPEC / "provider" / "workers" @ index
        if pool.kubernetes and pool.kubernetes.version:
            yield from _ending(path / "kubernetes" / "version", kubernetes, pool.kubernetes.version, now)
        image = pool.machine.image
        if image and image.name and image.version:
            here = path / "machine" / "image" / "version"
            yield from _ending(here, images.get(image.name, []), image.version, now)


def _ending(path: Path, versions: Sequence[ExpirableVersion], used: str, now: datetime) -> Iterable[str]:
    known = find(versions, used)
    if known is None:
        return
    standing, expires = stage(known, now), expiration(known)
    if standing == "expired":
        yield f"{path}: {used} has expired: the next maintenance updates it"
        return
    until = f"expires at {timestamp(expires)}, and is updated in the maintenance after that" if expires else ""
    if standing == "deprecated":
        yield f"{path}: {used} is deprecated" + (f", {until}" if until else "")
    elif expires and expires - now < _SOON:
        yield f"{path}: {used} {until}"


def _old_credentials(shoot: Mapping[str, Any], now: datetime) -> Iterable[str]:
    status, created = rotation.status_of(shoot), shoot["metadata"].get("creationTimestamp")
    for kind in filter(RotationFacts.of_shoot(shoot).has, Kind):
        since = (status.get(kind) or {}).get("lastInitiationTime") or created
        if since and now - datetime.fromisoformat(since) > ROTATION_INTERVAL:
            days = (now - datetime.fromisoformat(since)).days
            yield f"{kind.words}: not rotated for {days} days; see `gardener credentials rotate --help`"
