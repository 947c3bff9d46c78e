"""core.gardener.cloud/v1beta1, one kind a module."""
