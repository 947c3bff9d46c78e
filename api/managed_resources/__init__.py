"""Models of resources.gardener.cloud; not to be confused with ``api.resources``, the registry of kinds."""
