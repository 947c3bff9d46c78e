"""Models of extensions.gardener.cloud: the contract with extension controllers."""
