"""Tasks by which a seed releases extension objects: controllers release what they manage, then the objects are deleted.

A released resource stays in the cloud, in the DNS or in the shoot; the destination's controllers take it over.
"""

from dataclasses import dataclass

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.seed.extensions import ExtensionActivities as Extensions
    from api.contracts.operations import ShootTask
    from workflows.flow import Activity


@dataclass(frozen=True)
class Release:
    """Activities for the objects of one kind, in the order of their tasks."""

    migrate: Activity[ShootTask]
    wait_migrated: Activity[ShootTask]
    delete: Activity[ShootTask]
    wait_deleted: Activity[ShootTask]


INFRASTRUCTURE = Release(
    Extensions.migrate_infrastructure,
    Extensions.wait_infrastructure_migrated,
    Extensions.delete_infrastructure,
    Extensions.wait_infrastructure_deleted,
)
CONTROL_PLANE = Release(
    Extensions.migrate_control_plane_extension,
    Extensions.wait_control_plane_extension_migrated,
    Extensions.delete_control_plane_extension,
    Extensions.wait_control_plane_extension_deleted,
)
NETWORK = Release(
    Extensions.migrate_network,
    Extensions.wait_network_migrated,
    Extensions.delete_network,
    Extensions.wait_network_deleted,
)
WORKER = Release(
    Extensions.migrate_worker,
    Extensions.wait_worker_migrated,
    Extensions.delete_worker,
    Extensions.wait_worker_deleted,
)
OS_CONFIGS = Release(
    Extensions.migrate_os_configs,
    Extensions.wait_os_configs_migrated,
    Extensions.delete_os_configs,
    Extensions.wait_os_configs_deleted,
)
CONTAINER_RUNTIMES = Release(
    Extensions.migrate_container_runtimes,
    Extensions.wait_container_runtimes_migrated,
    Extensions.delete_container_runtimes,
    Extensions.wait_container_runtimes_deleted,
)
EXTENSIONS = Release(
    Extensions.migrate_extensions,
    Extensions.wait_extensions_migrated,
    Extensions.delete_extensions,
    Extensions.wait_extensions_deleted,
)
EXTENSIONS_BEFORE_API_SERVER = Release(
    Extensions.migrate_extensions_before_apiserver,
    Extensions.wait_extensions_before_apiserver_migrated,
    Extensions.delete_extensions_before_apiserver,
    Extensions.wait_extensions_before_apiserver_deleted,
)
EXTENSIONS_AFTER_API_SERVER = Release(
    Extensions.migrate_extensions_after_apiserver,
    Extensions.wait_extensions_after_apiserver_migrated,
    Extensions.delete_extensions_after_apiserver,
    Extensions.wait_extensions_after_apiserver_deleted,
)
