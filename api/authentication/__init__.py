"""Models of authentication.gardener.cloud: requests to subresources of the garden, and a kind of Shoots."""
