"""Models of core.gardener.cloud: the garden side of Gardener."""
