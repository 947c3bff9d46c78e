"""The webhooks over HTTP: AdmissionReview in, AdmissionReview out."""

from __future__ import annotations

import json
import logging
import time
from base64 import b64encode
from typing import Any

from aiohttp import web
from prometheus_client import Histogram
from pydantic import ValidationError

from api.resources import Object
from workers.admission.conversion import convert
from workers.admission.domains import check_internal_domain
from workers.admission.kinds import DELETION_VALIDATORS, MUTATORS, REFERENCE_VALIDATORS, VALIDATORS
from workers.admission.limits import NO_LIMITS, ResourceAdmissionConfiguration, check_limits
from workers.admission.protection import check_finalizers_kept, check_update_allowed
from workers.admission.review import Garden, Refusal, Review
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

log = logging.getLogger(__name__)

SECONDS = Histogram(
    "gardener_admission_seconds",
    "Time to answer an admission review.",
    ["path", "resource", "allowed"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1, 5),
)

Patch = list[dict[str, Any]]


def application(garden: Garden, limits: ResourceAdmissionConfiguration = NO_LIMITS) -> web.Application:
    """The server's routes."""
    mutators = {(each.group, each.plural): handler for each, handler in MUTATORS.items()}
    all_validators = VALIDATORS | REFERENCE_VALIDATORS | DELETION_VALIDATORS
    validators = {(each.group, each.plural): handler for each, handler in all_validators.items()}

    async def mutate(review: Review) -> dict[str, Any]:
        if review.object is None:
            return {}
        if review.operation == "UPDATE" and is_gardenlet(review.user):
            return {}  # defaults of a new version would be changes that a gardenlet may not make
        try:
            wanted = await mutators[review.group, review.plural](review, garden)
        except ValidationError:
            return {}  # the schema is validated next, and its message is clearer
        changes = patch(review.object, wanted)
        return {"patchType": "JSONPatch", "patch": b64encode(json.dumps(changes).encode()).decode()} if changes else {}

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
    app.router.add_post(MUTATE_PATH, _handler(mutate, MUTATE_PATH))
    app.router.add_post(VALIDATE_PATH, _handler(validate, VALIDATE_PATH))
    app.router.add_post(PROTECT_PATH, _handler(protect, PROTECT_PATH))
    app.router.add_post(RESTRICT_PATH, _handler(restrict, RESTRICT_PATH))
    app.router.add_post(CONVERT_PATH, convert())
    app.router.add_post(LIMIT_PATH, _handler(limit, LIMIT_PATH))
    app.router.add_post(INTERNAL_DOMAIN_PATH, _handler(internal_domain, INTERNAL_DOMAIN_PATH))
    return app


def _handler(answer: Any, path: str) -> Any:
    async def handle(request: web.Request) -> web.Response:
        started = time.perf_counter()
        body = await request.json()
        review = Review.of(body["request"])
        try:
            response = {"uid": review.uid, "allowed": True, **await answer(review)}
        except Refusal as refusal:
            status = {"code": refusal.code, "reason": refusal.reason, "message": str(refusal)}
            response = {"uid": review.uid, "allowed": False, "status": status}
            log.info("refused %s by %s: %s", review.operation, review.user.name, refusal)
        except ValidationError as error:
            # Our models are as strict as the schemas, so this object was stored under older schemas.
            faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            message = f'{review.kind}.{review.group} "{review.name}" is invalid: {faults}'
            response = {
                "uid": review.uid,
                "allowed": False,
                "status": {"code": 422, "reason": "Invalid", "message": message},
            }
        SECONDS.labels(path, review.plural, str(response["allowed"])).observe(time.perf_counter() - started)
        return web.json_response({"apiVersion": body["apiVersion"], "kind": "AdmissionReview", "response": response})

    return handle


def patch(before: Object, after: Object) -> Patch:
    """JSON patch from one object to the other: it replaces whole top-level fields, and single fields of metadata."""
    metadata = _changes("/metadata", before.get("metadata") or {}, after.get("metadata") or {})
    rest = [{key: value for key, value in each.items() if key != "metadata"} for each in (before, after)]
    return metadata + _changes("", *rest)


def _changes(path: str, before: Object, after: Object) -> Patch:
    changed: Patch = [
        {"op": "add", "path": f"{path}/{key}", "value": _as_stored(value)}
        for key, value in after.items()
        if key not in before or before[key] != value
    ]
    return changed + [{"op": "remove", "path": f"{path}/{key}"} for key in before if key not in after]


def _as_stored(value: Any) -> Any:
    """Convert whole numbers to integers, as the API server stores them.

    The API server would treat ``-1.0`` as a change of the stored ``-1``, and raise the generation.
    """
    if isinstance(value, dict):
        return {key: _as_stored(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_stored(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
