"""Workflows of a Shoot."""
