"""Copies of the objects in ``spec.resources`` of a Shoot: extensions read them in the seed as ``ref-<name>``.

Source: spec/extensions.md 1.5, spec/flows.md 2.
"""

import asyncio
from typing import Any

from temporalio import activity

from activities.clusters import Clusters
from activities.errors import permanent
from activities.seed import rollout
from activities.seed.extension_objects import MANAGER
from api import constants, resources
from api.contracts.operations import ShootTask, TaskResult
from api.decisions.shoot_state import REFERENCE_PREFIX
from api.errors import ErrorCode
from api.resources import Resource

_PURPOSE = "referenced-resource"
_KINDS = {"Secret": resources.SECRET, "ConfigMap": resources.CONFIG_MAP}


class ReferenceActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def deploy_references(self, task: ShootTask) -> TaskResult:
        """Update the copies, and delete copies whose reference is gone; a second run changes nothing.

        Raises:
            ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if a referenced object does not exist.
        """
        view = await self._clusters.cluster(task.technical_id)
        references = [each["resourceRef"] for each in view.shoot["spec"].get("resources") or ()]
        copies = await asyncio.gather(*(self._copy(task, each) for each in references))
        await asyncio.gather(*(self._clusters.seed.apply(each, manager=MANAGER) for each in copies))
        await self._delete(task, keep={(each["kind"], each["metadata"]["name"]) for each in copies})
        return TaskResult(note=", ".join(sorted(each["metadata"]["name"] for each in copies)))

    @activity.defn
    async def delete_references(self, task: ShootTask) -> TaskResult:
        """Delete all copies; a second run finds none."""
        await self._delete(task, keep=set())
        return TaskResult()

    async def _copy(self, task: ShootTask, reference: dict[str, Any]) -> dict[str, Any]:
        kind, name = reference["kind"], reference["name"]
        source = await self._clusters.garden.find(_KINDS[kind], name, task.shoot.namespace) if kind in _KINDS else None
        if source is None:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"{kind} {task.shoot.namespace}/{name}, which spec.resources of Shoot {task.shoot} refers to, does not "
                "exist: create it, or take it out of the Shoot",
            )
        return {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {
                "name": f"{REFERENCE_PREFIX}{name}",
                "namespace": task.technical_id,
                "labels": {constants.PURPOSE: _PURPOSE},
            },
            **{part: source[part] for part in ("type", "data", "binaryData") if source.get(part)},
        }

    async def _delete(self, task: ShootTask, keep: set[tuple[str, str]]) -> None:
        for kind in _KINDS.values():
            await rollout.delete(self._clusters.seed, await self._stale(task, kind, keep), task.technical_id)

    async def _stale(self, task: ShootTask, kind: Resource, keep: set[tuple[str, str]]) -> list[tuple[Resource, str]]:
        labels = f"{constants.PURPOSE}={_PURPOSE}"
        found = await self._clusters.seed.list(kind, task.technical_id, labels=labels)
        names = [each["metadata"]["name"] for each in found]
        return [(kind, name) for name in names if (kind.kind, name) not in keep]
