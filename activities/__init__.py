"""Idempotent steps, by the cluster or system they touch. They know no order."""
