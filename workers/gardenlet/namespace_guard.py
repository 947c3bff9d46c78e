"""Lets an activity of a seed act only on the control-plane namespace of the Shoot that its input names."""

from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.clusters import Clusters
from activities.seed.namespace import shoot_uid
from api import resources
from api.contracts.operations import OperationType, ShootRef

UNGUARDED = frozenset(
    {
        "survey",
        "deploy_namespace",
        "delete_namespace",
        "wait_namespace_deleted",
        "migrate_backup_entry",
        "delete_backup_entry",
        "wait_backup_entry_deleted",
        "delete_source_backup_entry",
        "wait_source_backup_entry_deleted",
        "delete_public_sa_keys",
        "delete_shootstate",
    }
)
"""Activities that compare the uid themselves, or that act outside the namespace: on objects with the uid in their name,
or on the Shoot's own objects in the garden. They must run also while another Shoot has the namespace, so that a Shoot
can be deleted then.
"""
_WAITING = (OperationType.CREATE, OperationType.RECONCILE, OperationType.RESTORE)


class NamespaceGuard(Interceptor):
    """Refuses activities on a control-plane namespace that belongs to another Shoot than their input names.

    A task queue does not prove where an input comes from, and two Shoots may have had the same name one after the
    other. Install this interceptor in the gardenlet's worker, after ``ActivityInterceptor``.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Guarded(next, self._clusters)


class _Guarded(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, clusters: Clusters) -> None:
        super().__init__(next)
        self._clusters = clusters

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        task = getattr(input.args[0], "task", input.args[0]) if input.args else None
        shoot, namespace = getattr(task, "shoot", None), getattr(task, "technical_id", None)
        if isinstance(shoot, ShootRef) and isinstance(namespace, str):
            waiting = getattr(task, "operation", None) in _WAITING
            await self._check(shoot, namespace, waiting=waiting, guarded=activity.info().activity_type not in UNGUARDED)
        return await super().execute_activity(input)

    async def _check(self, shoot: ShootRef, namespace: str, *, waiting: bool, guarded: bool) -> None:
        """Raises ForeignNamespace.

        The error is final, except for operations that bring up a control plane: an earlier Shoot of this name may not
        have left the namespace yet. ``guarded``: if false, only the name is checked.
        """
        if not _is_named_after(namespace, shoot):
            raise ApplicationError(
                f"namespace {namespace} is not a control plane of a Shoot named {shoot.name}",
                type="ForeignNamespace",
                non_retryable=True,
            )
        cached = self._clusters.seed_caches.of(resources.NAMESPACE).get(namespace)
        if not guarded or (cached is not None and shoot_uid(cached) == shoot.uid):
            return
        live = await self._clusters.seed.find(resources.NAMESPACE, namespace)
        if live is None or (owner := shoot_uid(live)) == shoot.uid:
            return
        raise ApplicationError(
            f"namespace {namespace} in seed {self._clusters.seed_name} belongs to "
            f"{f'the Shoot with uid {owner}' if owner else 'no Shoot'}, not to Shoot {shoot} with uid {shoot.uid}"
            + ("; wait until it is gone" if waiting else ""),
            type="ForeignNamespace",
            non_retryable=not waiting,
        )


def _is_named_after(namespace: str, shoot: ShootRef) -> bool:
    """Whether a namespace could be the technical ID of the Shoot, in any Project."""
    prefix, _, rest = namespace.partition("--")
    return prefix == "shoot" and rest.count("--") == 1 and rest.endswith(f"--{shoot.name}")
