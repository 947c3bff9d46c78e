"""The etcd controller of a seed, and what runs in an etcd pod beside etcd itself. Light to import."""
