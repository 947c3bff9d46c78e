"""The `gardener` command."""
