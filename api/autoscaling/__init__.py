"""Models of autoscaling.k8s.io: the vertical pod autoscaler's kinds, which shoots serve."""
