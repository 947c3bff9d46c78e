"""Copies of the objects in ``spec.resources`` of a Shoot: extensions read them in the seed as ``ref-<name>``.

For a WorkloadIdentity there is a Secret ``workload-identity-ref-<name>`` with a token.

Source: spec/extensions.md 1.5, spec/flows.md 2.
"""

import asyncio
from typing import Any

from temporalio import activity

from activities.clusters import Clusters, ClusterView
from activities.errors import permanent
from activities.seed import rollout, workload_identity
from activities.seed.extension_objects import MANAGER
from api import constants, resources
from api.contracts.operations import ShootTask, TaskResult
from api.decisions import workload_identity as names
from api.decisions.shoot_state import REFERENCE_PREFIX
from api.decisions.workload_identity import is_identity
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
        named = [each["resourceRef"] for each in view.shoot["spec"].get("resources") or ()]
        identities = [each["name"] for each in named if is_identity(each)]
        references = [each for each in named if not is_identity(each)]
        copies = await asyncio.gather(*(self._copy(task, each) for each in references))
        await asyncio.gather(*(self._clusters.seed.apply(each, manager=MANAGER) for each in copies))
        secrets = [await self._request_token(task, view, name) for name in identities]
        kept = {(each["kind"], each["metadata"]["name"]) for each in copies} | {("Secret", each) for each in secrets}
        await self._delete(task, keep=kept)
        return TaskResult(note=", ".join(sorted(name for _, name in kept)))

    @activity.defn
    async def delete_references(self, task: ShootTask) -> TaskResult:
        """Delete all copies; a second run finds none."""
        await self._delete(task, keep=set())
        return TaskResult()

    async def _copy(self, task: ShootTask, reference: dict[str, Any]) -> dict[str, Any]:
        kind, name = reference["kind"], reference["name"]
        source = await self._clusters.garden.find(_KINDS[kind], name, task.shoot.namespace) if kind in _KINDS else None
        if source is None:
            raise _missing(task, kind, name)
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

    async def _request_token(self, task: ShootTask, view: ClusterView, name: str) -> str:
        """Write the Secret with a token of a WorkloadIdentity; returns the name of the Secret."""
        identity = await self._clusters.garden.find(resources.WORKLOAD_IDENTITY, name, task.shoot.namespace)
        if identity is None:
            raise _missing(task, resources.WORKLOAD_IDENTITY.kind, name)
        place = {"name": f"{names.REFERENCE_PREFIX}{name}", "namespace": task.technical_id}
        labels = {constants.PURPOSE: _PURPOSE, names.REFERENCED: "true"}
        await workload_identity.deploy_secret(self._clusters, identity, view.shoot, place, labels)
        return place["name"]

    async def _delete(self, task: ShootTask, keep: set[tuple[str, str]]) -> None:
        for kind in _KINDS.values():
            await rollout.delete(self._clusters.seed, await self._stale(task, kind, keep), task.technical_id)

    async def _stale(self, task: ShootTask, kind: Resource, keep: set[tuple[str, str]]) -> list[tuple[Resource, str]]:
        labels = f"{constants.PURPOSE}={_PURPOSE}"
        found = await self._clusters.seed.list(kind, task.technical_id, labels=labels)
        names = [each["metadata"]["name"] for each in found]
        return [(kind, name) for name in names if (kind.kind, name) not in keep]


def _missing(task: ShootTask, kind: str, name: str) -> Exception:
    return permanent(
        ErrorCode.CONFIGURATION_PROBLEM,
        f"{kind} {task.shoot.namespace}/{name}, which spec.resources of Shoot {task.shoot} refers to, does not exist: "
        "create it, or take it out of the Shoot",
    )
