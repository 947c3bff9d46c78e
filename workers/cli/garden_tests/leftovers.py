"""Objects of a run: claim of the Shoot, and removal at the end, or after the run was killed.

The run's id is in a label of each object, and in an annotation of a Shoot that exists already. So another process finds
all of them by the id alone. Each step finds what is left of the steps before, so the removal can be repeated.
"""

import asyncio
from collections.abc import Awaitable, Callable

from api import resources
from api.constants import CONFIRMATION_DELETION
from kube.cache import Cache
from kube.client import KubeClient, Object
from kube.errors import ApiError, Conflict
from workers.cli.garden_tests.context import HIBERNATED_BY, RUN_LABEL, USED_BY, Context
from workers.cli.garden_tests.model import TestFailed

DELETION_SECONDS = 1800.0
_NAMESPACE_SECONDS = 300.0
_WAKE_SECONDS = 1800.0

OpenShoot = Callable[[str], Awaitable[KubeClient]]
"""Gives a client of the Shoot with this name."""


async def claim(garden: KubeClient, namespace: str, shoot: str, run: str) -> None:
    """Note in a Shoot that a run tests it. Raises TestFailed if another run does."""
    live = await garden.get(resources.SHOOT, shoot, namespace)
    other = (live["metadata"].get("annotations") or {}).get(USED_BY)
    if other not in (None, run):
        raise TestFailed(
            f"run {other} tests Shoot {namespace}/{shoot}; "
            f"if that run was killed, remove what it has left by --cleanup {other}"
        )
    version = live["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version, "annotations": {USED_BY: run}}}
    try:
        await garden.patch(resources.SHOOT, shoot, namespace, patch)
    except Conflict:
        await claim(garden, namespace, shoot, run)


async def remove(garden: KubeClient, namespace: str, run: str, open_shoot: OpenShoot) -> tuple[list[str], list[str]]:
    """Delete all that a run has created, and wait until it is gone. Returns what was removed, and what failed."""
    removed: list[str] = []
    faults: list[str] = []
    for shoot in await garden.list(resources.SHOOT, namespace):
        metadata = shoot["metadata"]
        name, what = metadata["name"], f"Shoot {namespace}/{metadata['name']}"
        try:
            if (metadata.get("labels") or {}).get(RUN_LABEL) == run:
                await _delete_shoot(garden, namespace, name, metadata["uid"])
                removed.append(what)
            elif (metadata.get("annotations") or {}).get(USED_BY) == run:
                removed += await _release(garden, shoot, run, open_shoot)
        except (ApiError, TestFailed, TimeoutError) as error:
            faults.append(f"{what}: {error or 'it is not gone in time'}")
    return removed, faults


async def _delete_shoot(garden: KubeClient, namespace: str, name: str, uid: str) -> None:
    confirmed = {"metadata": {"annotations": {CONFIRMATION_DELETION: "true"}}}
    await garden.patch(resources.SHOOT, name, namespace, confirmed)
    await garden.delete(resources.SHOOT, name, namespace, uid=uid)
    async with Cache(garden, resources.SHOOT, namespace, fields=f"metadata.name={name}") as cache:
        await cache.wait_for(
            name, namespace, lambda live: live is None or live["metadata"]["uid"] != uid or None, DELETION_SECONDS
        )


async def _release(garden: KubeClient, shoot: Object, run: str, open_shoot: OpenShoot) -> list[str]:
    """Delete the run's namespaces in a Shoot that stays, and take back the run's annotations."""
    namespace, name = shoot["metadata"]["namespace"], shoot["metadata"]["name"]
    if (shoot["metadata"].get("annotations") or {}).get(HIBERNATED_BY) == run:
        context = Context(garden, namespace, name, run, image="", open_cluster=lambda: open_shoot(name))
        async with asyncio.timeout(_WAKE_SECONDS):
            await context.change({"hibernation": {"enabled": False}}, {HIBERNATED_BY: None})
    removed = []
    async with await open_shoot(name) as cluster:
        selector = f"{RUN_LABEL}={run}"
        for each in await cluster.list(resources.NAMESPACE, labels=selector):
            await cluster.delete(resources.NAMESPACE, each["metadata"]["name"])
            removed.append(f"namespace {each['metadata']['name']} in Shoot {namespace}/{name}")
        async with Cache(cluster, resources.NAMESPACE, labels=selector) as cache:
            await cache.wait_until(lambda store: not store.list() or None, _NAMESPACE_SECONDS)
    await garden.patch(resources.SHOOT, name, namespace, {"metadata": {"annotations": {USED_BY: None}}})
    return removed
