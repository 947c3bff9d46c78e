"""The gardenlet: it runs the activities of one seed, and the controllers that check this seed and its shoots."""

from workers.gardenlet.process import run

__all__ = ["run"]
