"""Processes, watchers and the `gardener` command: they wire clients, queues and workflows."""
