"""Registers the Seed of a gardenlet in the garden, once."""

import logging
from typing import Any

from api import resources
from kube.client import KubeClient, Object
from workers.events import emit
from workers.gardenlet.config import SeedConfig

log = logging.getLogger(__name__)

MANAGER = "gardenlet"


async def register(garden: KubeClient, config: SeedConfig) -> Object:
    """Create the Seed if it is not there; a second run finds it.

    An existing Seed stays as it is, because the garden takes changes of its spec from operators alone. An Event of the
    Seed says where the configuration differs.
    """
    name = config.metadata["name"]
    live = await garden.find(resources.SEED, name)
    if live is None:
        # By apply: the garden's authorizer is told the name of what is applied, but not of what is created.
        seed = {"apiVersion": resources.SEED.api_version, "kind": "Seed", **config.model_dump()}
        return await garden.apply_blindly(seed, manager=MANAGER)
    if differing := _differing(config.model_dump(), live):
        message = (
            f"seedConfig of the gardenlet differs from the Seed in {', '.join(differing)}. The Seed stays as it is, "
            "because a gardenlet registers its Seed once: an operator changes the Seed, or the configuration"
        )
        log.warning("Seed %s: %s", name, message)
        seed = {**live, "apiVersion": resources.SEED.api_version, "kind": "Seed"}
        await emit(garden, seed, MANAGER, "SeedConfigDiffers", message, "Warning")
    return live


def _differing(wanted: Any, live: Any, path: str = "") -> list[str]:
    """Paths of the fields of ``wanted`` that have another value in ``live``. A list counts as one value."""
    if not isinstance(wanted, dict) or not isinstance(live, dict):
        return [] if wanted == live else [path]
    return [
        field
        for key, value in wanted.items()
        for field in _differing(value, live.get(key), f"{path}.{key}".lstrip("."))
    ]
