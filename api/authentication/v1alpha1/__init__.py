"""authentication.gardener.cloud/v1alpha1, one module for each kind or pair of kinds."""
