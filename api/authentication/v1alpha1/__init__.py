"""authentication.gardener.cloud/v1alpha1, one module for each pair of kinds."""
