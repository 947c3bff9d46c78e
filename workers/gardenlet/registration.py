"""Registers the Seed of a gardenlet in the garden, once."""

import logging
from typing import Any

from api import resources
from kube.client import KubeClient, Object
from workers.gardenlet.config import SeedConfig
from workers.lib.events import emit

log = logging.getLogger(__name__)

MANAGER = "gardenlet"


async def register(garden: KubeClient, config: SeedConfig) -> Object:
    """Create the Seed if it does not exist; a second run finds it.

    An existing Seed stays as it is, because the garden accepts changes of its spec only from operators. An Event of the
    Seed lists the fields in which the configuration differs.
    """
    name = config.metadata["name"]
    live = await garden.find(resources.SEED, name)
    if live is None:
        # Apply, not create: the garden's authorizer gets the name of an applied object, but not of a created one.
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
