"""Models of operations.gardener.cloud; named apart from ``api.operations``, what flows and activities say."""
