"""seedmanagement.gardener.cloud/v1alpha1, one kind a module."""
