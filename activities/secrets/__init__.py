"""Secrets of one control plane: what they are made of, and the manager that keeps them in its namespace."""
