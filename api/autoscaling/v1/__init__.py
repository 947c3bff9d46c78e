"""autoscaling.k8s.io/v1, one kind a module."""
