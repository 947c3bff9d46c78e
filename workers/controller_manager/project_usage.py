"""Finds Projects that are not in use, and deletes them after a time; notes activity in Projects.

Source: spec/api-core.md 12, "Project stale" and "Project activity".
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Self

from pydantic import Field, model_validator

from api import resources
from api.constants import (
    CONFIRMATION_DELETION,
    GARDEN_NAMESPACE,
    PROJECT_SKIP_STALE_CHECK,
    REFERENCE_CREDENTIALS_BINDING,
    REFERENCE_SECRET_BINDING,
)
from api.decisions.credentials import BINDINGS
from api.decisions.project_usage import is_recent, stale_status
from api.decisions.quota import named_quotas
from api.labels import is_true
from api.meta import LabelSelector
from api.model import ApiModel
from api.resources import ObjectView, Resource
from api.times import timestamp
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.edit import patch_as_read
from kube.events import emit
from workers.controller_manager.project import BY_NAMESPACE, namespaces_of

log = logging.getLogger(__name__)

_MANAGER = "gardener-controller-manager"
_NEW = timedelta(hours=1)
"""An object that is older when a controller-manager starts is not activity: it was noted when it was created."""


class ProjectQuota(ApiModel):
    """Template of the ResourceQuota in the namespaces of Projects."""

    config: Object
    """ResourceQuota (v1), of which ``spec.hard``, labels and annotations are used."""
    project_selector: LabelSelector = LabelSelector()
    """Projects with these labels get this template; a Project gets the first template that selects it."""

    @model_validator(mode="after")
    def _has_limits(self) -> Self:
        if not isinstance((self.config.get("spec") or {}).get("hard"), dict):
            raise ValueError("config must be a ResourceQuota with spec.hard")
        return self


class ProjectConfig(ApiModel):
    minimum_lifetime_days: int = Field(default=30, ge=0)
    """A Project is not stale within this time after its creation, and after the last activity."""
    stale_grace_period_days: int = Field(default=14, ge=0)
    """Time after which the deletion of a stale Project is announced."""
    stale_expiration_time_days: int = Field(default=90, ge=0)
    """Time after which a stale Project is deleted."""
    stale_sync_period: timedelta = Field(default=timedelta(hours=12), gt=timedelta())
    quotas: tuple[ProjectQuota, ...] = ()


# Stale Projects


async def run_stale_project_controller(client: KubeClient, caches: Caches, config: ProjectConfig) -> None:
    """Run until cancelled."""
    kinds = (resources.PROJECT, resources.SHOOT, resources.CORE_BACKUP_ENTRY, *BINDINGS)
    await asyncio.gather(*(caches.of(each).synced() for each in kinds))
    controller = Controller("stale projects", _StaleReconciler(client, caches, config).reconcile, workers=1)
    controller.watch(caches.of(resources.PROJECT), when=_may_change_staleness)
    await controller.run()


def _may_change_staleness(event: WatchEvent) -> bool:
    return event.old is None or _activity_of(event.old) != _activity_of(event.object)


def _activity_of(project: ObjectView) -> object:
    return (project.get("spec") or {}).get("namespace"), (project.get("status") or {}).get("lastActivityTimestamp")


class _StaleReconciler:
    def __init__(self, client: KubeClient, caches: Caches, config: ProjectConfig) -> None:
        self._client = client
        self._caches = caches
        self._config = config

    async def reconcile(self, key: Key) -> Requeue | None:
        project = self._caches.of(resources.PROJECT).get(key.name)
        if project is None or "deletionTimestamp" in project["metadata"]:
            return None
        namespace = (project.get("spec") or {}).get("namespace")
        if namespace:
            await self._check(project, namespace)
        return Requeue(self._config.stale_sync_period.total_seconds())

    async def _check(self, project: Object, namespace: str) -> None:
        config, now = self._config, datetime.now(UTC)
        recent = is_recent(project, now, timedelta(days=config.minimum_lifetime_days))
        if recent or await self._is_exempt(namespace) or self._is_used(namespace):
            await self._write(project, {"staleSinceTimestamp": None, "staleAutoDeleteTimestamp": None})
            return
        grace = timedelta(days=config.stale_grace_period_days)
        expiration = timedelta(days=config.stale_expiration_time_days)
        status = stale_status(project, now, grace=grace, expiration=expiration)
        project = await self._write(project, status)
        deletion = status["staleAutoDeleteTimestamp"]
        if deletion is not None and datetime.fromisoformat(deletion) <= now:
            await self._delete(project, status["staleSinceTimestamp"])

    async def _is_exempt(self, namespace: str) -> bool:
        """Whether a Project is never stale: the garden's own one, and those whose namespace has the annotation."""
        if namespace == GARDEN_NAMESPACE:
            return True
        found = await self._client.find(resources.NAMESPACE, namespace)
        annotations = (found or {}).get("metadata", {}).get("annotations") or {}
        return is_true(annotations.get(PROJECT_SKIP_STALE_CHECK))

    def _is_used(self, namespace: str) -> bool:
        """Whether the namespace has Shoots, backups, or credentials or Quotas that a Shoot of any project uses."""
        if any(self._caches.of(each).list(namespace) for each in (resources.SHOOT, resources.CORE_BACKUP_ENTRY)):
            return True
        for kind in BINDINGS.values():
            for binding in self._caches.of(kind.resource).list():
                homes = {kind.credentials(binding).namespace, *(each.namespace for each in named_quotas(binding))}
                if namespace in homes and self._has_shoots(kind.shoot_field, key_of(binding)):
                    return True
        return False

    def _has_shoots(self, field: str, binding: Key) -> bool:
        shoots = self._caches.of(resources.SHOOT).list(binding.namespace)
        return any(each["spec"].get(field) == binding.name for each in shoots)

    async def _write(self, project: Object, status: Object) -> Object:
        known = project.get("status") or {}
        if all(known.get(field) == value for field, value in status.items()):
            return project
        return await patch_as_read(self._client, resources.PROJECT, project, {"status": status}, subresource="status")

    async def _delete(self, project: Object, since: str) -> None:
        metadata = project["metadata"]
        text = f"it has not been used since {since}: deleting it"
        confirmed = {"metadata": {"annotations": {CONFIRMATION_DELETION: "true"}}}
        await patch_as_read(self._client, resources.PROJECT, project, confirmed)
        await self._client.delete(resources.PROJECT, metadata["name"], uid=metadata["uid"])
        log.info("Project %s: %s", metadata["name"], text)
        await emit(self._client, project, _MANAGER, "ProjectStale", text)


# Activity


async def run_project_activity_controller(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    projects = caches.of(resources.PROJECT)
    await projects.synced()
    projects.index(BY_NAMESPACE, namespaces_of)
    controller = Controller("activity in projects", _ActivityReconciler(client, caches).reconcile, workers=1)

    def project_of(event: WatchEvent) -> Iterable[Key]:
        return [key_of(each) for each in projects.by_index(BY_NAMESPACE, event.object["metadata"]["namespace"])]

    for resource in (resources.SHOOT, resources.CORE_BACKUP_ENTRY, resources.QUOTA):
        controller.watch(caches.of(resource), keys=project_of, when=_is_activity)
    for label in (REFERENCE_CREDENTIALS_BINDING, REFERENCE_SECRET_BINDING):
        for resource in _CREDENTIALS:
            cache = caches.of(resource, labels=f"{label}=true")
            controller.watch(cache, keys=project_of, when=_is_activity)
    await controller.run()


_CREDENTIALS: tuple[Resource, ...] = (resources.SECRET, resources.INTERNAL_SECRET)


def _is_activity(event: WatchEvent) -> bool:
    """Whether an object is new, or its content has changed. Labels, finalizers and a status are no activity."""
    if event.type == "DELETED":
        return False
    if event.old is None:
        created = datetime.fromisoformat(event.object["metadata"]["creationTimestamp"])
        return datetime.now(UTC) - created < _NEW
    return any(event.old.get(field) != event.object.get(field) for field in ("spec", "data"))


class _ActivityReconciler:
    def __init__(self, client: KubeClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches

    async def reconcile(self, key: Key) -> None:
        project = self._caches.of(resources.PROJECT).get(key.name)
        if project is not None and "deletionTimestamp" not in project["metadata"]:
            patch = {"status": {"lastActivityTimestamp": timestamp(datetime.now(UTC))}}
            await self._client.patch(resources.PROJECT, key.name, None, patch, subresource="status")
