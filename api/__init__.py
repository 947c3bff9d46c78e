"""The Kubernetes API of Gardener: models, decisions, defaults, validation, contracts of workflows, names.

It imports no other package of this project.
"""
