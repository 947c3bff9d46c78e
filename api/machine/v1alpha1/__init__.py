"""machine.sapcloud.io/v1alpha1, one kind a module."""
