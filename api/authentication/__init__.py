"""Models of authentication.gardener.cloud: requests to subresources, which are answered and never stored."""
