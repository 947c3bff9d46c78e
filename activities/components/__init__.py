"""Manifests of the components of a control plane and of a shoot's system: pure functions, no I/O."""
