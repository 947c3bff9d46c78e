"""Completion of arguments in a shell: names of objects that the user may read in the garden, and in the Shoot.

A shell that completes shows no errors. So a name that cannot be asked for in time is just not offered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import click

from api import resources
from api.contracts.kubeconfigs import issued
from api.names import issued_kubeconfigs
from api.resources import Resource
from kube.client import KubeClient
from kube.errors import ApiError
from kube.kubeconfig import KubeconfigError
from workers.cli.connection import garden_client

_SECONDS = 5.0
"""A user waits for the answer with the cursor in the line."""
_VIEWER_SECONDS = 600

Values = Mapping[str, Any]
"""Values of the other parameters of the command line, by name."""
Find = Callable[[KubeClient, Values, str], Awaitable[Iterable[str]]]
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completed(find: Find) -> Complete:
    """A callback for ``shell_complete``: what ``find`` gives that begins like the word so far."""

    async def ask(values: Values, incomplete: str) -> Iterable[str]:
        async with asyncio.timeout(_SECONDS), garden_client(values.get("garden_kubeconfig")) as garden:
            return await find(garden, values, incomplete)

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            found = asyncio.run(ask(context.params, incomplete))
        except (click.ClickException, ApiError, KubeconfigError, OSError, LookupError, TimeoutError):
            return []
        return sorted(each for each in found if each.startswith(incomplete))

    return complete


def _place(values: Values) -> tuple[str, str]:
    """Namespace and name of the Shoot in the command line. Raises LookupError without one."""
    shoot, namespace = values["shoot"], values.get("namespace")
    if isinstance(shoot, str):
        shoot = tuple(shoot.split("/")) if "/" in shoot else (namespace, shoot)
    if not shoot or len(shoot) != 2 or not all(shoot):
        raise LookupError("no Shoot is named")
    return shoot[0], shoot[1]


async def _shoot(garden: KubeClient, values: Values) -> Mapping[str, Any]:
    namespace, name = _place(values)
    return await garden.get(resources.SHOOT, name, namespace)


async def _shoots(garden: KubeClient, values: Values, incomplete: str) -> Iterable[str]:
    """Shoots of all namespaces; of one namespace, if the word or an option names it: members may list only those."""
    option = values.get("namespace")
    namespace = option or (incomplete.partition("/")[0] if "/" in incomplete else None)
    found = [each["metadata"] for each in await garden.list(resources.SHOOT, namespace)]
    bare = option and "/" not in incomplete
    return [each["name"] if bare else f"{each['namespace']}/{each['name']}" for each in found]


def _names_of(resource: Resource) -> Complete:
    async def find(garden: KubeClient, _: Values, __: str) -> Iterable[str]:
        return [each["metadata"]["name"] for each in await garden.list(resource)]

    return _completed(find)


async def _nodes(garden: KubeClient, values: Values, _: str) -> Iterable[str]:
    from workers.cli.kubeconfig import requested_kubeconfig  # which has arguments that are completed here

    namespace, name = _place(values)
    config, _how = await requested_kubeconfig(garden, namespace, name, expiration=_VIEWER_SECONDS, viewer=True)
    async with KubeClient.from_kubeconfig(config) as cluster:
        return [each["metadata"]["name"] for each in await cluster.list(resources.NODE)]


async def _pools(garden: KubeClient, values: Values, _: str) -> Iterable[str]:
    found = await _shoot(garden, values)
    named = [each["name"] for each in found["spec"]["provider"].get("workers") or []]
    return [each for each in named if each not in (values.get("pools") or ())]


async def _failed_tasks(garden: KubeClient, values: Values, _: str) -> Iterable[str]:
    """Tasks that the Shoot reports as failed: those are skipped, provided and run again."""
    status = (await _shoot(garden, values)).get("status") or {}
    return [each["taskID"] for each in status.get("lastErrors") or [] if each.get("taskID")]


async def _kubeconfigs(garden: KubeClient, values: Values, _: str) -> Iterable[str]:
    namespace, name = _place(values)
    recorded = issued(await garden.find(resources.CONFIG_MAP, issued_kubeconfigs(name), namespace))
    return [serial for serial, each in recorded.items() if not each.discarded]


async def _members(garden: KubeClient, values: Values, _: str) -> Iterable[str]:
    project = await garden.get(resources.PROJECT, values["project"])
    return [each["name"] for each in project["spec"].get("members") or []]


SHOOTS = _completed(_shoots)
NODES = _completed(_nodes)
POOLS = _completed(_pools)
FAILED_TASKS = _completed(_failed_tasks)
KUBECONFIGS = _completed(_kubeconfigs)
MEMBERS = _completed(_members)
SEEDS = _names_of(resources.SEED)
PROJECTS = _names_of(resources.PROJECT)
