"""core.gardener.cloud/v1, one kind a module."""
