"""Workflows of provider-local. They are independent of the flows of Shoots: both use the extension objects only."""

from workflows.provider_local.infrastructure import DeleteInfrastructure
from workflows.provider_local.worker import DeleteWorker, ReconcileWorker, RestoreWorker

WORKFLOWS = (DeleteInfrastructure, DeleteWorker, ReconcileWorker, RestoreWorker)

__all__ = ["WORKFLOWS", "DeleteInfrastructure", "DeleteWorker", "ReconcileWorker", "RestoreWorker"]
