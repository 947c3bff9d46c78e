"""Images that new machines have beside their own, on request."""

import asyncio
from pathlib import Path

from landscape import binaries, images
from landscape.images.store import publish
from landscape.lifecycle import TOOLS
from landscape.plan import Plan
from landscape.progress import Progress


async def add(plan: Plan, archive: Path, progress: Progress) -> None:
    """Give new machines the images of an archive, in place of those of an earlier call. Safe to repeat.

    An ``up`` takes the images from machines that it makes later.
    """
    version = plan.kubernetes_version
    found = await binaries.ensure(TOOLS["shoot"](version), progress)
    own = await asyncio.to_thread(images.archives_for, "shoot", version, found, progress.say)
    await publish(plan.machine_images, [*own, archive])
