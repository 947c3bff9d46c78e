"""Backups of etcd: the store that holds them, the names and order of snapshots. The package itself imports nothing."""
