"""Images of Kubernetes' conformance tests for the machines of a landscape, only on request."""

import asyncio

from landscape import binaries, images, machine_images, registry
from landscape.plan import Plan
from landscape.progress import Progress

_AGNHOST = "test/images/agnhost"


async def offer_images(plan: Plan, progress: Progress) -> binaries.Binaries:
    """Give new machines the images of the conformance tests; returns the binaries of the tests. Safe to repeat.

    The registry gets the images, too: some tests pull an image although their node has it.

    An ``up`` takes the images from machines that it makes later: repeat this afterwards.
    """
    found = await binaries.ensure(binaries.conformance_tools(), progress)
    source = await binaries.published_files(binaries.agnhost(), "k8s.io/kubernetes", progress)
    with progress.step("images of the conformance tests, for new machines"):
        archive = await asyncio.to_thread(images.archive_for_conformance, found, source / _AGNHOST, progress.say)
        await machine_images.add(plan, archive, progress)
    await registry.push(plan, [archive], progress)
    return found
