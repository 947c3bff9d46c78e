"""Processes of self-hosted Shoots: those of ``gardener shoot init`` and ``join``, and the cluster's controllers."""
