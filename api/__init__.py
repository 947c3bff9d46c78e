"""The Kubernetes API of Gardener: models, defaults, validation, names. It imports no other package of this project."""
