"""When the vertical pod autoscaler may evict pods to give them less: never, or in a maintenance window.

Source: Gardener docs/concepts/gardenlet.md, "VPAEvictionRequirements controller"; spec/api-core.md 13.
"""

from datetime import datetime

from api.decisions.maintenance_window import MaintenanceWindow
from api.resources import Object, ObjectView

LABEL, MANAGED = "autoscaling.gardener.cloud/eviction-requirements", "managed-by-controller"
"""Label of the VerticalPodAutoscalers whose eviction requirements the gardenlet sets."""
RESTRICTION = "eviction-requirements.autoscaling.gardener.cloud/downscale-restriction"
NEVER, IN_WINDOW = "never", "in-maintenance-window-only"
"""Values of annotation ``RESTRICTION``."""
WINDOW = "shoot.gardener.cloud/maintenance-window"
"""Annotation with begin and end of the window, as in ``spec.maintenance.timeWindow``, joined by a comma."""
_ONLY_MORE: Object = {"resources": ["memory", "cpu"], "changeRequirement": "TargetHigherThanRequests"}


def wanted_requirements(autoscaler: ObjectView, now: datetime) -> tuple[list[Object], datetime | None]:
    """Eviction requirements of a VerticalPodAutoscaler, and the time at which they change; None: they stay.

    Raises ValueError if the annotations are missing or wrong. The text says what to do.
    """
    annotations = autoscaler["metadata"].get("annotations") or {}
    restriction = annotations.get(RESTRICTION)
    if restriction == NEVER:
        return [_ONLY_MORE], None
    if restriction != IN_WINDOW:
        raise ValueError(f"annotation {RESTRICTION} must be {NEVER} or {IN_WINDOW}, not {restriction!r}")
    try:
        begin, end = annotations.get(WINDOW, "").split(",")
        window = MaintenanceWindow.parse(begin.strip(), end.strip())
    except ValueError:
        raise ValueError(f"annotation {WINDOW} must be like 220000+0000,230000+0000") from None
    if window.contains(now):
        return [], window.latest_begin(now) + window.length
    return [_ONLY_MORE], window.next_begin(now)
