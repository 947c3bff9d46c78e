"""Processes and the `gardener` command: they wire clients, queues and workflows. ``lib`` is what processes share."""
