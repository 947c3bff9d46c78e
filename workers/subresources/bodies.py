"""Bodies and query parameters of requests: JSON in the way of Kubernetes' API servers."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NoReturn, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from api.meta import KubeObject
from workers.subresources.refusals import Refusal, bad_request, invalid

M = TypeVar("M", bound=KubeObject)

_JSON = "application/json"
_ACCEPTED = frozenset({_JSON, "application/*", "*/*"})
_VALIDATIONS = ("Ignore", "Warn", "Strict")
_TOKEN = re.compile(r"[^\s;,]+")


def check_accept(request: web.Request) -> None:
    """Raise 406 unless the client accepts JSON. A client may prefer protobuf as long as it accepts JSON, too."""
    offered = ",".join(request.headers.getall("Accept", [])) or "*/*"
    for each in offered.split(","):
        media, *parameters = (part.strip().lower() for part in each.split(";"))
        if media in _ACCEPTED and not any(part.startswith("as=") for part in parameters):
            return
    raise Refusal(406, f"only the following media types are accepted: {_JSON}")


def dry_run(request: web.Request) -> bool:
    """Whether nothing must be issued or changed. Raises 422 for a value that Kubernetes does not know."""
    asked = [value for value in request.query.getall("dryRun", []) if value]
    if set(asked) - {"All"}:
        raise invalid("CreateOptions", "meta.k8s.io", "", "dryRun", f'Unsupported value: {asked[0]!r}: must be "All"')
    return bool(asked)


async def read_object(request: web.Request, limit: int, seconds: float) -> dict[str, Any]:
    """The body as a JSON object.

    Raises 408 if it takes more than ``seconds``, 413 for more than ``limit`` bytes, 415 for another format than JSON.
    """
    media = _TOKEN.match(request.headers.get("Content-Type", _JSON).strip().lower())
    if media is None or media[0] != _JSON or request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refusal(
            415,
            f"the body of the request was in an unknown format - accepted media types include: {_JSON} "
            "(protobuf, YAML and compressed bodies are not read)",
        )
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.content.iter_any():
                content += piece
                if len(content) > limit:
                    raise Refusal(413, f"the body of the request has more than {limit} bytes")
    except TimeoutError:
        raise Refusal(408, f"the body of the request took more than {seconds:.0f} s") from None
    try:
        found = json.loads(content.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise bad_request("the body of the request is not JSON") from None
    if not isinstance(found, dict):
        raise bad_request("the body of the request is not a JSON object")
    return found


def read(model: type[M], content: dict[str, Any], request: web.Request) -> tuple[M, list[str]]:
    """The object in a body, and warnings about fields that its kind does not have.

    A body without ``apiVersion`` and ``kind`` is of the subresource's kind. Raises 400.
    """
    wanted = {"apiVersion": f"{model.definition.group}/{model.definition.version}", "kind": model.__name__}
    for field, value in wanted.items():
        if content.get(field) not in (None, "", value):
            raise bad_request(
                f"the object provided is unrecognized: {field} must be {value!r}, not {str(content[field])[:100]!r}"
            )
    content = {**content, **wanted, "metadata": content.get("metadata") or {}}
    if content.get("spec") is None:
        content.pop("spec", None)
    try:
        found = model.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        path = ".".join(map(str, fault["loc"]))
        raise bad_request(f"the object provided is unrecognized: {path}: {fault['msg']}") from None
    return found, _unknown(found, request)


def _unknown(found: KubeObject, request: web.Request) -> list[str]:
    how = request.query.get("fieldValidation") or "Warn"
    if how not in _VALIDATIONS:
        raise invalid(
            "CreateOptions", "meta.k8s.io", "", "fieldValidation", f"must be one of {', '.join(_VALIDATIONS)}"
        )
    warnings = [f'unknown field "{path}"' for path in _extras(found) if not path.startswith("metadata.")]
    if how == "Strict" and warnings:
        raise bad_request(f"strict decoding error: {', '.join(warnings)}")
    return warnings if how == "Warn" else []


def _extras(model: BaseModel, path: str = "") -> list[str]:
    found = [f"{path}{name}" for name in model.model_extra or ()]
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            found += _extras(value, f"{path}{field.alias or name}.")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
