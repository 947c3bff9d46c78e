"""The webhooks of the garden over HTTP."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from pydantic import ValidationError

from workers.admission.conversion import convert
from workers.admission.domains import check_internal_domain
from workers.admission.kinds import DELETION_VALIDATORS, MUTATORS, REFERENCE_VALIDATORS, VALIDATORS
from workers.admission.limits import NO_LIMITS, ResourceAdmissionConfiguration, check_limits
from workers.admission.protection import check_finalizers_kept, check_update_allowed
from workers.admission.review import Garden, Review
from workers.admission.seed_writes import check_write, is_gardenlet
from workers.admission.webhooks import (
    CONVERT_PATH,
    INTERNAL_DOMAIN_PATH,
    LIMIT_PATH,
    MUTATE_PATH,
    PROTECT_PATH,
    RESTRICT_PATH,
    VALIDATE_PATH,
)
from workers.lib.reviews import change, handler


def application(garden: Garden, limits: ResourceAdmissionConfiguration = NO_LIMITS) -> web.Application:
    """The server's routes."""
    mutators = {(each.group, each.plural): answer for each, answer in MUTATORS.items()}
    all_validators = VALIDATORS | REFERENCE_VALIDATORS | DELETION_VALIDATORS
    validators = {(each.group, each.plural): answer for each, answer in all_validators.items()}

    async def mutate(review: Review) -> dict[str, Any]:
        if review.object is None:
            return {}
        if review.operation == "UPDATE" and is_gardenlet(review.user):
            return {}  # defaults of a new version would be changes that a gardenlet may not make
        try:
            wanted = await mutators[review.group, review.plural](review, garden)
        except ValidationError:
            return {}  # the schema is validated next, and its message is clearer
        return change(review.object, wanted)

    async def validate(review: Review) -> dict[str, Any]:
        warnings = await validators[review.group, review.plural](review, garden)
        return {"warnings": warnings} if warnings else {}

    async def restrict(review: Review) -> dict[str, Any]:
        if is_gardenlet(review.user):
            await check_write(review, garden)
        return {}

    async def protect(review: Review) -> dict[str, Any]:
        await check_update_allowed(review)
        if review.operation == "UPDATE":
            await check_finalizers_kept(review, garden)
        return {}

    async def limit(review: Review) -> dict[str, Any]:
        await check_limits(review, limits, garden)
        return {}

    async def internal_domain(review: Review) -> dict[str, Any]:
        await check_internal_domain(review, garden)
        return {}

    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_post(MUTATE_PATH, handler(mutate, MUTATE_PATH))
    app.router.add_post(VALIDATE_PATH, handler(validate, VALIDATE_PATH))
    app.router.add_post(PROTECT_PATH, handler(protect, PROTECT_PATH))
    app.router.add_post(RESTRICT_PATH, handler(restrict, RESTRICT_PATH))
    app.router.add_post(CONVERT_PATH, convert())
    app.router.add_post(LIMIT_PATH, handler(limit, LIMIT_PATH))
    app.router.add_post(INTERNAL_DOMAIN_PATH, handler(internal_domain, INTERNAL_DOMAIN_PATH))
    return app
