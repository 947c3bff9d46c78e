"""``gardener project members list|add|remove PROJECT``: the people and machines that a Project belongs to."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from api import resources
from kube.errors import ApiError, Conflict, NotFound
from workers.cli import completion
from workers.cli.connection import garden_client

T = TypeVar("T")
Member = dict[str, Any]

_RBAC = "rbac.authorization.k8s.io"
_KINDS = {"user": "User", "group": "Group", "serviceaccount": "ServiceAccount"}
_OF_OWNER = ("admin", "owner")
"""Roles that the garden gives the owner of a Project again, whatever a client writes."""
_GARDEN = click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
_OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
_ROLES = click.option(
    "--role", "roles", multiple=True,
    help="owner, admin, viewer, uam, serviceaccountmanager or extension:NAME; several are possible.",
)  # fmt: skip


def _subject(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--namespace", help="Namespace of a service account."),
        click.option(
            "--kind", type=click.Choice(sorted(_KINDS), case_sensitive=False), default="user", show_default=True
        ),
        click.argument("name", shell_complete=completion.MEMBERS),
        click.argument("project", shell_complete=completion.PROJECTS),
    ):
        command = option(command)
    return command


@click.group()
def project() -> None:
    """Manage Projects."""


@project.group()
def members() -> None:
    """List, add and remove the members of a Project."""


@members.command("list")
@click.argument("project", shell_complete=completion.PROJECTS)
@_GARDEN
@_OUTPUT
def list_members(project: str, garden_kubeconfig: str | None, output: str) -> None:
    """List the members of PROJECT with their roles."""
    _show(_run(project, _read(project, garden_kubeconfig)), output)


@members.command()
@_subject
@_ROLES
@_GARDEN
@_OUTPUT
def add(
    project: str,
    name: str,
    kind: str,
    namespace: str | None,
    roles: tuple[str, ...],
    garden_kubeconfig: str | None,
    output: str,
) -> None:
    """Make NAME a member of PROJECT, or give the member more roles; without --role a viewer."""
    subject = _subject_of(name, kind, namespace)

    def change(found: list[Member], _: Member) -> list[Member]:
        known = _known(found, subject)
        wanted = [*_roles(known or {}), *roles] or ["viewer"]
        first, *further = dict.fromkeys(wanted)
        made = {**(known or subject), "role": first, "roles": further}
        return [made if each is known else each for each in found] if known else [*found, made]

    _show(_run(project, _write(project, change, garden_kubeconfig)), output)


@members.command()
@_subject
@_ROLES
@_GARDEN
@_OUTPUT
def remove(
    project: str,
    name: str,
    kind: str,
    namespace: str | None,
    roles: tuple[str, ...],
    garden_kubeconfig: str | None,
    output: str,
) -> None:
    """Remove the member NAME from PROJECT, or with --role only these roles of it.

    The owner stays a member with roles admin and owner.
    """
    subject = _subject_of(name, kind, namespace)

    def change(found: list[Member], owner: Member) -> list[Member]:
        known = _known(found, subject)
        if known is None:
            raise click.ClickException(f"{subject['kind']} {name} is no member of Project {project}")
        if _is(owner, subject) and (not roles or set(roles) & set(_OF_OWNER)):
            raise click.ClickException(
                f"{subject['kind']} {name} is the owner of Project {project}, and an owner stays a member with roles "
                f"{' and '.join(_OF_OWNER)}: make another member the owner first (spec.owner of the Project)"
            )
        if missing := sorted(set(roles) - set(_roles(known))):
            raise click.ClickException(f"{subject['kind']} {name} does not have role {', '.join(missing)}")
        left = [each for each in _roles(known) if each not in roles] if roles else []
        remaining = [{**known, "role": left[0], "roles": left[1:]}] if left else []
        at = found.index(known)
        return [*found[:at], *remaining, *found[at + 1 :]]

    _show(_run(project, _write(project, change, garden_kubeconfig)), output)


def _subject_of(name: str, kind: str, namespace: str | None) -> Member:
    if (kind == "serviceaccount") != (namespace is not None):
        raise click.UsageError("--namespace belongs to --kind serviceaccount, and only to it")
    if namespace is not None:
        return {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return {"kind": _KINDS[kind], "name": name, "apiGroup": _RBAC}


def _known(found: list[Member], subject: Member) -> Member | None:
    return next((each for each in found if _is(each, subject)), None)


def _is(member: Member, subject: Member) -> bool:
    return all(member.get(key) == subject.get(key) for key in ("kind", "name", "namespace"))


def _roles(member: Member) -> list[str]:
    first = member.get("role")
    return [*([first] if first else []), *(member.get("roles") or [])]


async def _read(project: str, path: str | None) -> list[Member]:
    async with garden_client(path) as garden:
        found = await garden.get(resources.PROJECT, project)
    return list(found["spec"].get("members") or [])


async def _write(
    project: str, change: Callable[[list[Member], Member], list[Member]], path: str | None
) -> list[Member]:
    """Change the members, by a function of them and of the owner.

    A change that another client made meanwhile is read again and kept.
    """
    async with garden_client(path) as garden:
        while True:
            live = await garden.get(resources.PROJECT, project)
            wanted = change(list(live["spec"].get("members") or []), live["spec"].get("owner") or {})
            try:
                written = await garden.replace({**live, "spec": {**live["spec"], "members": wanted}})
            except Conflict:
                continue
            return list(written["spec"].get("members") or [])


def _run(project: str, work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except NotFound:
        raise click.ClickException(f"Project {project} does not exist") from None
    except ApiError as error:
        raise click.ClickException(str(error)) from None


def _show(members: list[Member], output: str) -> None:
    if output == "json":
        click.echo(json.dumps([{**each, "roles": _roles(each)} for each in members], indent=2))
        return
    for each in members:
        name = f"{each['namespace']}/{each['name']}" if each.get("namespace") else each["name"]
        click.echo(f"{each['kind']} {name}: {', '.join(_roles(each))}")
