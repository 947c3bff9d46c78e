"""How VerticalPodAutoscalers change pods. Source: spec/resource-manager.md 6."""

from typing import Any

from workers.lib.reviews import Review, change

_REPLACES = (None, "Auto", "Recreate")
"""Update modes that evict pods, so that new pods have the recommended requests; None stands for ``Recreate``."""


async def update_in_place(review: Review) -> dict[str, Any]:
    """Change the requests of running pods, and evict pods only where that is not possible."""
    if review.object is None:
        return {}
    policy = review.object["spec"].get("updatePolicy") or {}
    if policy.get("updateMode") not in _REPLACES:
        return {}
    spec = {**review.object["spec"], "updatePolicy": {**policy, "updateMode": "InPlaceOrRecreate"}}
    return change(review.object, {**review.object, "spec": spec})
