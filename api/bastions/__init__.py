"""Models of operations.gardener.cloud; not to be confused with ``api.operations``, inputs of activities."""
