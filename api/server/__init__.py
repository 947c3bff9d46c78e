"""Webhooks of the garden's API: defaults and validations that a schema cannot express."""
