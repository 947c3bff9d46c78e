"""The etcd controller of a seed, and the processes of an etcd pod other than etcd itself. Light to import."""

SEALED = "sealed"
"""Name of a file in a data directory. It says that clients may only read: the replication that made this directory has
not allowed them to write yet."""
