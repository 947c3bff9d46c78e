"""Webhooks of the resource manager: they change new pods in the target cluster."""

from workers.resource_manager.webhooks.server import Webhooks

__all__ = ["Webhooks"]
