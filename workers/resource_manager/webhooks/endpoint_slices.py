"""Hints of EndpointSlices, by which traffic stays in the zone of its client. Source: spec/resource-manager.md 7."""

from copy import deepcopy
from typing import Any

from workers.lib.reviews import Review, change


async def hint_own_zone(review: Review) -> dict[str, Any]:
    """Name the zone of each endpoint as the only zone whose clients use it. An endpoint without zone stays as it is.

    Hints that Kubernetes computes depend on the number of CPUs in each zone, and are left out for few endpoints.
    """
    if review.object is None:
        return {}
    changed = deepcopy(review.object)
    for each in changed.get("endpoints") or ():
        if zone := each.get("zone"):
            each["hints"] = {**(each.get("hints") or {}), "forZones": [{"name": zone}]}
    return change(review.object, changed)
