"""Use of Projects and limits of their namespaces, as pure functions. Source: spec/api-core.md 12."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from api.constants import QUOTA_CONFIG_MAPS_PER_SHOOT, QUOTA_SECRETS_PER_SHOOT
from api.quantities import parse_quantity
from api.resources import Object, ObjectView
from api.times import timestamp

MAX_SHOOTS = "count/shoots.core.gardener.cloud"
PER_SHOOT = {
    QUOTA_CONFIG_MAPS_PER_SHOOT: ("count/configmaps", 3),
    QUOTA_SECRETS_PER_SHOOT: ("count/secrets", 3),
}
"""For each annotation, the limit of a ResourceQuota, and the number of objects that Gardener creates for one Shoot in
the namespace of its project: ConfigMaps ``.ca-cluster``, ``.ca-kubelet`` and ``.issued-kubeconfigs``; Secrets
``.ssh-keypair``, ``.ssh-keypair.old`` and ``.monitoring``."""


def stale_status(project: ObjectView, now: datetime, *, grace: timedelta, expiration: timedelta) -> dict[str, Any]:
    """Status of a Project that is not in use: since when, and after the grace period also when it is deleted.

    A deletion that has been announced moves to a later time only: owners rely on the time that they have read.
    """
    status = project.get("status") or {}
    since = datetime.fromisoformat(status["staleSinceTimestamp"]) if status.get("staleSinceTimestamp") else now
    deletion = None
    if since + grace <= now:
        announced = status.get("staleAutoDeleteTimestamp")
        times = [since + expiration, *([datetime.fromisoformat(announced)] if announced else [])]
        deletion = timestamp(max(times))
    return {"staleSinceTimestamp": timestamp(since), "staleAutoDeleteTimestamp": deletion}


def is_recent(project: ObjectView, now: datetime, lifetime: timedelta) -> bool:
    """Whether a Project was created, or used, within the minimum lifetime."""
    status = project.get("status") or {}
    times = [project["metadata"]["creationTimestamp"], status.get("lastActivityTimestamp")]
    return any(each and datetime.fromisoformat(each) + lifetime > now for each in times)


def with_template(quota: ObjectView | None, template: ObjectView) -> dict[str, Any]:
    """Limits of a ResourceQuota, and the limits of its template that it lacks: existing limits are never changed."""
    return {**template["spec"]["hard"], **(((quota or {}).get("spec") or {}).get("hard") or {})}


def raised(quota: ObjectView, shoots: int) -> Object | None:
    """Merge patch that raises limits of a ResourceQuota, so that Gardener's own objects do not use up those of users.

    ``shoots``: number of Shoots in the namespace; it is used if the ResourceQuota does not limit their number. Limits
    are raised once for each number of objects per Shoot, which an annotation notes. None: nothing to do.
    """
    limits: Mapping[str, Any] = (quota.get("spec") or {}).get("hard") or {}
    if not limits or "deletionTimestamp" in quota["metadata"]:
        return None
    annotations = quota["metadata"].get("annotations") or {}
    most = parse_quantity(limits[MAX_SHOOTS]) if MAX_SHOOTS in limits else Decimal(shoots)
    noted: dict[str, str] = {}
    hard: dict[str, str] = {}
    for annotation, (limit, count) in PER_SHOOT.items():
        before = annotations.get(annotation)
        if before == str(count):
            continue
        noted[annotation] = str(count)
        if limit not in limits:
            continue
        present = parse_quantity(limits[limit])
        if before is None or not before.isdigit():
            wanted = max(present, most * count)
        else:
            wanted = present + most * max(count - int(before), 0)
        if wanted != present:
            hard[limit] = str(int(wanted))
    if not noted:
        return None
    return {"metadata": {"annotations": noted}, **({"spec": {"hard": hard}} if hard else {})}
