"""Activities: idempotent steps, grouped by the cluster or system that they touch. Workflows decide the order."""
