"""The Kubernetes API of Gardener: models, defaults, validation, names. Imports nothing of ours."""
