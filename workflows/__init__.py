"""Deterministic flows: order alone."""
