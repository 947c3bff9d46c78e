"""Secrets of one control plane: their descriptions, and the secrets manager that stores them in its namespace."""
