"""Kubernetes access: clients of clusters, shared list+watch caches, a small controller base."""
