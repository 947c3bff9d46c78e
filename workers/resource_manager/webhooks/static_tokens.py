"""Static tokens in Secrets. Source: spec/resource-manager.md 5 (TokenInvalidator)."""

from typing import Any

from activities.components.resource_manager_webhooks import TOKEN_INVALIDATOR_CONSIDER
from workers.lib.reviews import Review, change
from workers.resource_manager.token_invalidator import INVALID


async def invalidate(review: Review) -> dict[str, Any]:
    """Replace the token of a Secret with the label. The API server also asks about a Secret that loses the label."""
    secret = review.object
    if secret is None or (secret["metadata"].get("labels") or {}).get(TOKEN_INVALIDATOR_CONSIDER) != "true":
        return {}
    data = secret.get("data") or {}
    return change(secret, {**secret, "data": {**data, "token": INVALID}}) if "token" in data else {}
