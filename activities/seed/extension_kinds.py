"""The kinds of extension objects that a Shoot's flows use: one ``Kind`` each, the same operations for all.

The specs of the objects differ by kind, see ``activities.seed.extensions``. Waiting and deletion are the same for all
kinds. Source: spec/extensions.md 1.4, 3.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from activities.clusters import Clusters
from api import resources
from api.constants import TASK_DEPLOY_DNS_EXTERNAL, TASK_DEPLOY_DNS_INTERNAL, TASK_DEPLOY_INFRASTRUCTURE
from api.contracts.operations import ShootTask, Wait, backup_entry_name, source_backup_entry_name
from api.decisions.registrations import Phase, WantedExtension, deletion_phases, wanted_extensions
from api.names import dns_record_name, operating_system_config_names
from api.resources import Resource

Names = Callable[[Clusters, ShootTask], Awaitable[list[str]]]

_MINUTE = timedelta(minutes=1)
_THREE_MINUTES, _TEN_MINUTES = Wait(timeout=3 * _MINUTE), Wait(timeout=10 * _MINUTE)


def _named(name: Callable[[ShootTask], str]) -> Names:
    async def names(_: Clusters, task: ShootTask) -> list[str]:
        return [name(task)]

    return names


_of_the_shoot = _named(lambda task: task.shoot.name)


@dataclass(frozen=True)
class Kind:
    """One kind of extension objects, or the objects of a kind that one task handles."""

    task: str
    """Part of the tasks' names: ``deploy_<task>``, ``wait_<task>``, ``delete_<task>``, ``wait_<task>_deleted``."""
    resource: Resource
    wait: Wait = _THREE_MINUTES
    wanted: Names = _of_the_shoot
    """Names of the objects that the Shoot has now."""
    existing: Names | None = None
    """Names of the objects that exist, including former ones. None: only the wanted objects can exist."""
    waits: Callable[[Clusters, ShootTask], Awaitable[Mapping[str, Wait]]] | None = None
    """Waits of single objects, by name, if they differ from ``wait``."""
    only_on_change: bool = False
    """Do not reconcile an object that has the wanted spec and whose last operation succeeded."""
    asked_by: str = ""
    """Value of annotation ``shoot.gardener.cloud/tasks`` with which the object is reconciled nevertheless."""
    at_once: bool = False
    """The tasks that deploy and delete also wait: there are no separate tasks for waiting."""

    def place(self, task: ShootTask) -> str | None:
        """Namespace of the objects; None if the kind is cluster-scoped."""
        return task.technical_id if self.resource.namespaced else None

    async def there(self, clusters: Clusters, task: ShootTask) -> list[str]:
        """Names of all objects that a deletion has to delete."""
        return await (self.existing or self.wanted)(clusters, task)

    async def stale(self, clusters: Clusters, task: ShootTask) -> list[str]:
        """Names of objects that exist and are not wanted any more."""
        wanted = set(await self.wanted(clusters, task))
        return [name for name in await self.there(clusters, task) if name not in wanted]


async def _wanted_os_configs(clusters: Clusters, task: ShootTask) -> list[str]:
    view = await clusters.cluster(task.technical_id)
    return [name for pool in view.pools for name in operating_system_config_names(view.shoot, pool)]


def all_of(resource: Resource) -> Names:
    """Names of all objects of a kind in the Shoot's namespace."""

    async def names(clusters: Clusters, task: ShootTask) -> list[str]:
        return names_of(await clusters.seed.list(resource, task.technical_id))

    return names


async def _registrations(clusters: Clusters) -> list[dict[str, Any]]:
    return await clusters.garden.list(resources.CONTROLLER_REGISTRATION)


async def extensions_of(clusters: Clusters, task: ShootTask, phase: Phase | None = None) -> list[WantedExtension]:
    """The Extensions that the Shoot has now, of one phase of its reconciliation or of all."""
    view = await clusters.cluster(task.technical_id)
    return wanted_extensions(view.shoot, await _registrations(clusters), phase)


def _extensions(task_name: str, phase: Phase | None) -> Kind:
    """Extensions of a phase: a reconciliation deploys its objects in this phase, a deletion deletes its in this one."""

    async def wanted(clusters: Clusters, task: ShootTask) -> list[str]:
        return [each.type for each in await extensions_of(clusters, task, phase)]

    async def existing(clusters: Clusters, task: ShootTask) -> list[str]:
        phases = deletion_phases(await _registrations(clusters))
        return [
            each["metadata"]["name"]
            for each in await clusters.seed.list(resources.EXTENSION, task.technical_id)
            if phase in (None, phases.get(each["spec"]["type"], Phase.BEFORE_API_SERVER))
        ]

    async def waits(clusters: Clusters, task: ShootTask) -> dict[str, Wait]:
        return {each.type: Wait(timeout=each.timeout) for each in await extensions_of(clusters, task, phase)}

    return Kind(task_name, resources.EXTENSION, wanted=wanted, existing=existing, waits=waits)


async def _wanted_container_runtimes(clusters: Clusters, task: ShootTask) -> list[str]:
    view = await clusters.cluster(task.technical_id)
    return [f"{type_}-{pool['name']}" for pool in view.pools for type_ in container_runtimes(pool)]


def container_runtimes(pool: Mapping[str, Any]) -> list[str]:
    """Types of the container runtimes that a pool has in addition to containerd."""
    return [each["type"] for each in (pool.get("cri") or {}).get("containerRuntimes") or ()]


def names_of(objects: Iterable[dict[str, Any]]) -> list[str]:
    return [each["metadata"]["name"] for each in objects]


INFRASTRUCTURE = Kind(
    "infrastructure",
    resources.INFRASTRUCTURE,
    Wait(timeout=10 * _MINUTE, severe_after=3 * _MINUTE),
    only_on_change=True,
    asked_by=TASK_DEPLOY_INFRASTRUCTURE,
)
CONTROL_PLANE = Kind("control_plane_extension", resources.CONTROL_PLANE)
NETWORK = Kind("network", resources.NETWORK)
WORKER = Kind("worker", resources.WORKER, _TEN_MINUTES)
OPERATING_SYSTEM_CONFIG = Kind(
    "os_configs",
    resources.OPERATING_SYSTEM_CONFIG,
    wanted=_wanted_os_configs,
    existing=all_of(resources.OPERATING_SYSTEM_CONFIG),
)


async def _no_bastions(_: Clusters, __: ShootTask) -> list[str]:
    """No names: flows delete Bastions, but do not create them."""
    return []


BASTION = Kind("bastions", resources.BASTION, wanted=_no_bastions, existing=all_of(resources.BASTION))
CONTAINER_RUNTIME = Kind(
    "container_runtimes",
    resources.CONTAINER_RUNTIME,
    wanted=_wanted_container_runtimes,
    existing=all_of(resources.CONTAINER_RUNTIME),
)
EXTENSIONS = _extensions("extensions", None)
EXTENSIONS_BEFORE_API_SERVER = _extensions("extensions_before_apiserver", Phase.BEFORE_API_SERVER)
EXTENSIONS_AFTER_API_SERVER = _extensions("extensions_after_apiserver", Phase.AFTER_API_SERVER)
EXTENSIONS_AFTER_WORKER = _extensions("extensions_after_worker", Phase.AFTER_WORKER)
BACKUP_ENTRY = Kind("backup_entry", resources.BACKUP_ENTRY, _TEN_MINUTES, wanted=_named(backup_entry_name))


async def _source_entries(clusters: Clusters, task: ShootTask) -> list[str]:
    name = source_backup_entry_name(task)
    found = await clusters.garden.find(resources.CORE_BACKUP_ENTRY, name, task.shoot.namespace)
    return [name] if found else []


SOURCE_BACKUP_ENTRY = Kind("source_backup_entry", resources.BACKUP_ENTRY, _TEN_MINUTES, wanted=_source_entries)
"""BackupEntry in the source's bucket, from which backups are copied while a control plane moves."""


def _dns_record(role: str, asked_by: str) -> Kind:
    return Kind(
        f"{role}_dns",
        resources.DNS_RECORD,
        Wait(timeout=2 * _MINUTE, severe_after=timedelta(seconds=15)),
        wanted=_named(lambda task: dns_record_name(task.shoot.name, role)),
        only_on_change=True,
        asked_by=asked_by,
        at_once=True,
    )


INTERNAL_DNS = _dns_record("internal", TASK_DEPLOY_DNS_INTERNAL)
EXTERNAL_DNS = _dns_record("external", TASK_DEPLOY_DNS_EXTERNAL)

IN_NAMESPACE = (
    resources.BASTION,
    resources.CONTAINER_RUNTIME,
    resources.CONTROL_PLANE,
    resources.DNS_RECORD,
    resources.EXTENSION,
    resources.INFRASTRUCTURE,
    resources.NETWORK,
    resources.OPERATING_SYSTEM_CONFIG,
    resources.WORKER,
)
"""Kinds above whose objects are in a control plane's namespace: a force-deletion deletes them, a ShootState keeps their
state."""
