"""The etcd controller of a seed, and what runs in an etcd pod beside etcd itself. Light to import."""

SEALED = "sealed"
"""A file in a data directory whose clients may only read: who made it still follows another seed's etcd."""
