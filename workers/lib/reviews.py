"""Webhooks over HTTP: AdmissionReview in, AdmissionReview out."""

from __future__ import annotations

import json
import logging
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from aiohttp import web
from prometheus_client import Histogram
from pydantic import ValidationError

from api.meta import KubeObject
from api.resources import Object
from api.validation.field import Faults
from workers.lib.access import User

log = logging.getLogger(__name__)

K = TypeVar("K", bound=KubeObject)
SECONDS = Histogram(
    "gardener_admission_seconds",
    "Time to answer an admission review.",
    ["path", "resource", "allowed"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1, 5),
)

Patch = list[dict[str, Any]]


@dataclass(frozen=True)
class Review:
    """A write for which the API server waits for an answer."""

    uid: str
    operation: Literal["CREATE", "UPDATE", "DELETE"]
    group: str
    plural: str
    kind: str
    namespace: str
    name: str
    user: User
    object: Object | None
    old: Object | None
    subresource: str = ""
    dry_run: bool = False
    version: str = ""

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Review:
        return cls(
            uid=request["uid"],
            operation=request["operation"],
            group=request["resource"]["group"],
            plural=request["resource"]["resource"],
            kind=request["kind"]["kind"],
            namespace=request.get("namespace", ""),
            name=request.get("name", ""),
            user=User.of(request.get("userInfo") or {}),
            object=request.get("object"),
            old=request.get("oldObject"),
            subresource=request.get("subResource") or "",
            dry_run=bool(request.get("dryRun")),
            version=request["resource"]["version"],
        )

    def models(self, model: type[K]) -> tuple[K, K | None]:
        """The object as written, and as it was before; None for a new object."""
        if self.object is None:
            raise ValueError(f"a {self.operation} has no object")
        return model.of(self.object), model.of(self.old) if self.old else None

    @property
    def spec_changed(self) -> bool:
        return self.old is None or self.object is None or self.object.get("spec") != self.old.get("spec")

    @property
    def deleting(self) -> bool:
        return self.object is not None and "deletionTimestamp" in self.object["metadata"]


class Refusal(Exception):
    """The write is refused. The author of the write sees the text."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    @classmethod
    def invalid(cls, review: Review, faults: Faults) -> Refusal:
        """Status 422: the object is inconsistent, or its change is not allowed."""
        return cls(422, "Invalid", f'{review.kind}.{review.group} "{review.name}" is invalid: {faults}')

    @classmethod
    def forbidden(cls, review: Review, what: Faults | str) -> Refusal:
        """Status 403: other objects do not allow the write, or its author lacks a right."""
        plural = f"{review.plural}.{review.group}" if review.group else review.plural
        return cls(403, "Forbidden", f'{plural} "{review.name}" is forbidden: {what}')


def handler(answer: Callable[[Review], Awaitable[dict[str, Any]]], path: str) -> Any:
    """Handler of a webhook. ``answer``: gives the fields of the response, or raises Refusal."""

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


def change(before: Object, after: Object) -> dict[str, Any]:
    """Fields of a response that changes the object of a review."""
    changes = patch(before, after)
    return {"patchType": "JSONPatch", "patch": b64encode(json.dumps(changes).encode()).decode()} if changes else {}


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
