"""The gardenlet: the activities of one seed, and the controllers that keep it and its shoots observed."""

from workers.gardenlet.process import run

__all__ = ["run"]
