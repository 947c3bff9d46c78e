"""Flows of self-hosted Shoots, which run on their own machines."""
