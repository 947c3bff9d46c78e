"""Models of resources.gardener.cloud; named apart from ``api.resources``, the registry of kinds."""
