"""Manifests that the operator of a seed adds to all of its shoots: Secrets in the seed's namespace ``garden``.

Source: spec/flows.md 2, spec/api-core.md (annotations).
"""

from collections.abc import Mapping
from typing import Any

from temporalio import activity

from activities.clusters import Clusters
from activities.components.managed_resource import managed_secrets
from activities.errors import transient
from activities.seed import rollout
from api import constants, resources
from api.contracts.operations import ShootTask, TaskResult
from api.errors import ErrorCode
from api.labels import matches
from api.meta import LabelSelector

NAME = "static-manifests-from-seed"
"""Name of the ManagedResource."""
PREFIX = "static-manifests-"
_LABEL = f"{constants.STATIC_MANIFESTS}=true"


class StaticManifestActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def populate_static_manifests(self, task: ShootTask) -> TaskResult:
        """Copy the Secrets whose selector matches this Shoot; a ManagedResource applies their manifests to the shoot.

        Copies of Secrets that are gone or no longer match are deleted, and with them their objects in the shoot. A
        second run changes nothing.

        Raises:
            ApplicationError: ``ERR_RETRYABLE_CONFIGURATION_PROBLEM`` if the selector of a Secret cannot be read: no
                owner of a Shoot can fix that.
        """
        seed, namespace = self._clusters.seed, task.technical_id
        view = await self._clusters.cluster(namespace)
        labels = view.shoot["metadata"].get("labels") or {}
        sources = await seed.list(resources.SECRET, constants.GARDEN_NAMESPACE, labels=_LABEL)
        copies = [_copy(each, namespace) for each in sources if _is_for(each, labels)]
        names = sorted(each["metadata"]["name"] for each in copies)
        if names:
            await rollout.apply(seed, [*copies, managed_secrets(NAME, namespace, names)])
        else:
            await rollout.delete(seed, [(resources.MANAGED_RESOURCE, NAME)], namespace)
        found = await seed.list(resources.SECRET, namespace, labels=_LABEL)
        stale = {each["metadata"]["name"] for each in found} - set(names)
        await rollout.delete(seed, [(resources.SECRET, each) for each in stale], namespace)
        return TaskResult(note=", ".join(names))


def _is_for(secret: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether the labels of a Shoot match the selector of a Secret; a Secret without a selector matches all Shoots."""
    metadata = secret["metadata"]
    text = (metadata.get("annotations") or {}).get(constants.STATIC_MANIFESTS_SELECTOR)
    if text is None:
        return True
    try:
        selector = LabelSelector.model_validate_json(text)
        if unknown := selector.model_extra:
            raise ValueError(f"unknown field {next(iter(unknown))}")
        return matches(selector, labels)
    except (ValueError, KeyError) as error:
        raise transient(
            ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM,
            f"Secret {constants.GARDEN_NAMESPACE}/{metadata['name']} of the seed: its annotation "
            f"{constants.STATIC_MANIFESTS_SELECTOR} is no label selector in JSON ({_first_line(error)}): mend it there",
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _copy(secret: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": f"{PREFIX}{secret['metadata']['name']}",
            "namespace": namespace,
            "labels": {constants.STATIC_MANIFESTS: "true"},
        },
        **{part: secret[part] for part in ("type", "data") if part in secret},
    }
