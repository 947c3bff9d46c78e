"""Models of operations.gardener.cloud; not to be confused with ``api.contracts.operations``, inputs of activities."""
