"""A whole extension: its controllers and its heartbeat."""

import asyncio
import logging
from collections.abc import Iterable

from activities.extension import Actuator
from kube.cache import Caches
from workers.extension.controller import ExtensionController
from workers.extension.heartbeat import run_heartbeat

_log = logging.getLogger(__name__)


async def serve(caches: Caches, actuators: Iterable[Actuator], *, name: str, namespace: str) -> None:
    """Serve the objects of all actuators until cancelled. A restarted process continues from the objects' status.

    ``name``: name of the ControllerRegistration. ``namespace``: the extension's own namespace in the seed. It holds the
    Lease of the heartbeat; a flow that needs the extension waits until this Lease is fresh.
    """
    controllers = [ExtensionController(caches.client, caches, each) for each in actuators]
    _log.info("extension %s serves %s", name, ", ".join(map(str, controllers)))
    await asyncio.gather(
        run_heartbeat(caches.client, namespace, holder=name), *(controller.run() for controller in controllers)
    )
