"""provider-local's long operations. Gardener's own flows know nothing of them, nor they of those."""

from workflows.provider_local.infrastructure import DeleteInfrastructure
from workflows.provider_local.worker import DeleteWorker, ReconcileWorker, RestoreWorker

WORKFLOWS = (DeleteInfrastructure, DeleteWorker, ReconcileWorker, RestoreWorker)

__all__ = ["WORKFLOWS", "DeleteInfrastructure", "DeleteWorker", "ReconcileWorker", "RestoreWorker"]
