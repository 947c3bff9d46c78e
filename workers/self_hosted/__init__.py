"""The process of ``gardener shoot init``: a Temporal of its own, the worker, and the controller of exposures."""
