"""Models of seedmanagement.gardener.cloud."""
