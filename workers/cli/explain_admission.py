"""``gardener explain-admission -f FILE``: what the garden would make of objects, and why; nothing is stored.

The garden's API server answers by a dry run with the user's own rights, so the decisions are those of the garden's
schemas, policies and admission webhooks, with the objects that are there now.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import click
import yaml

from api.model import ApiModel
from kube.client import KubeClient
from kube.errors import ApiError
from workers.cli.connection import garden_client

_NOT_OF_ADMISSION = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")
_NEXT_FAULT = re.compile(r", (?=(?:spec|metadata|status)\b[^ ,]*: )")
_ENVELOPE = re.compile(r'^(?:admission webhook "[^"]*" denied the request: )?\S+ "[^"]*" is (?:invalid|forbidden): ')


class Default(ApiModel):
    """A field that admission sets or changes."""

    field: str
    value: Any = None
    given: Any = None
    """Value in the file; None if the file does not have the field."""


class Decision(ApiModel):
    """Decision of the garden about one object."""

    kind: str
    namespace: str
    name: str
    operation: str
    """Create or Update."""
    accepted: bool
    defaults: tuple[Default, ...] = ()
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@click.command("explain-admission")
@click.option("-f", "--filename", "file", type=click.File("rb"), required=True, help="YAML or JSON; - is the input.")
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def explain_admission(file: BinaryIO, garden_kubeconfig: str | None, output: str) -> None:
    """Say for each object in a file which defaults the garden sets, which rules refuse it, and which warnings it gets.

    Nothing is stored. Ends with status 1 if an object is refused.
    """
    try:
        objects = [each for each in yaml.safe_load_all(file) if each is not None]
    except yaml.YAMLError as error:
        raise click.ClickException(f"{file.name} is no YAML: {error}") from None
    for index, each in enumerate(objects):
        if not isinstance(each, dict) or not all(each.get(key) for key in ("apiVersion", "kind", "metadata")):
            raise click.ClickException(f"object {index + 1} of {file.name} has no apiVersion, kind or metadata")
    if not objects:
        raise click.ClickException(f"{file.name} holds no object")
    try:
        decisions = asyncio.run(_decide(objects, garden_kubeconfig))
    except (ApiError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if output == "json":
        click.echo(json.dumps([each.model_dump(mode="json") for each in decisions], indent=2))
    else:
        click.echo("\n".join(line for each in decisions for line in _text(each)))
    if not all(each.accepted for each in decisions):
        raise SystemExit(1)


async def _decide(objects: list[dict[str, Any]], path: str | None) -> list[Decision]:
    async with garden_client(path) as garden:
        return [await decide(garden, each) for each in objects]


async def decide(garden: KubeClient, obj: dict[str, Any]) -> Decision:
    """The garden's decision about an object. Raises ApiError if it cannot be asked."""
    metadata = obj["metadata"]
    resource = await garden.resource_for(str(obj["apiVersion"]), str(obj["kind"]))
    name, namespace = str(metadata.get("name", "")), metadata.get("namespace") if resource.namespaced else None
    live = await garden.find(resource, name, namespace) if name else None
    asked = obj
    if live is not None:
        asked = {**obj, "metadata": {**metadata, "resourceVersion": live["metadata"]["resourceVersion"]}}
    decision = Decision(
        kind=resource.kind,
        namespace=namespace or "",
        name=name or f"{metadata.get('generateName', '')}…",
        operation="Update" if live is not None else "Create",
        accepted=False,
    )
    try:
        stored, warnings = await garden.dry_run(asked)
    except ApiError as error:
        if error.status not in (400, 403, 422):
            raise
        return decision.model_copy(update={"refusals": refusals(error.whole_message or str(error))})
    defaults = tuple(sorted(changes(_plain(obj), _plain(stored)), key=lambda each: each.field))
    return decision.model_copy(update={"accepted": True, "defaults": defaults, "warnings": warnings})


def refusals(message: str) -> tuple[str, ...]:
    """Each fault in the message of a refusal."""
    bare = _ENVELOPE.sub("", message)
    if bare.startswith("[") and bare.endswith("]"):
        bare = bare[1:-1]
    return tuple(_NEXT_FAULT.split(bare))


def changes(given: Any, stored: Any, field: str = "") -> Iterator[Default]:
    """Fields of the stored object that the given one does not have, or has with another value."""
    if isinstance(given, Mapping) and isinstance(stored, Mapping):
        for key, value in stored.items():
            below = f"{field}.{key}" if field else str(key)
            yield from changes(given.get(key), value, below)
    elif isinstance(given, list) and isinstance(stored, list) and len(given) == len(stored):
        for index, (one, other) in enumerate(zip(given, stored, strict=True)):
            yield from changes(one, other, f"{field}[{index}]")
    elif given is None and isinstance(stored, Mapping) and stored:
        for key, value in stored.items():
            yield from changes(None, value, f"{field}.{key}")
    elif given != stored:
        yield Default(field=field, value=stored, given=given)


def _plain(obj: Mapping[str, Any]) -> dict[str, Any]:
    """An object without status, and without metadata that the API server itself keeps."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _NOT_OF_ADMISSION}
    return {**{key: value for key, value in obj.items() if key != "status"}, "metadata": metadata}


def _text(decision: Decision) -> Iterator[str]:
    where = f"{decision.namespace}/{decision.name}" if decision.namespace else decision.name
    verdict = "accepted" if decision.accepted else "refused"
    yield f"{decision.operation} {decision.kind} {where}: {verdict}"
    for title, lines in (
        ("refused by", decision.refusals),
        ("warnings", decision.warnings),
        ("set by admission", tuple(map(_shown, decision.defaults))),
    ):
        if lines:
            yield f"  {title}:"
            yield from (f"    {line}" for line in lines)


def _shown(default: Default) -> str:
    value = json.dumps(default.value, ensure_ascii=False)
    return f"{default.field}: {value}" + (
        f" (given: {json.dumps(default.given, ensure_ascii=False)})" if default.given is not None else ""
    )
