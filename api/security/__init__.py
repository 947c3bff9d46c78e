"""Models of security.gardener.cloud."""
