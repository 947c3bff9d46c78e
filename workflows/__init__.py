"""Workflows: deterministic code that only orders activities."""
