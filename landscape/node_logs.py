"""Logs of the nodes of the landscape's Shoots, in a store in the seed: only on request.

Seeds start without the image of the store, because its program would have to be compiled before the first start.
"""

import asyncio
from dataclasses import replace

from landscape import binaries, containerd, images, machine_images, workers
from landscape.lifecycle import processes_of
from landscape.plan import Plan
from landscape.progress import Progress
from landscape.waiting import answers, until


async def switch(plan: Plan, progress: Progress, *, on: bool) -> None:
    """Give the gardenlets another configuration, and the nodes of seeds the image before; safe to repeat.

    An ``up`` keeps the configuration. New machines have the image until the next ``up``: a Shoot can be a seed.
    """
    if on:
        await _bring_image(plan, progress)
    switched = replace(plan, node_logs=on)
    switched.save()
    processes = [ours for seed in switched.seeds for ours in workers.of_seed(switched, seed)]
    await asyncio.gather(*(_restart(switched, ours, progress) for ours in processes))


async def _bring_image(plan: Plan, progress: Progress) -> None:
    found = await binaries.ensure((binaries.victoria_logs(),), progress)
    with progress.step("image of the store of logs"):
        archive = await asyncio.to_thread(images.archive_of_victoria_logs, found, progress.say)
        for node in (node for seed in plan.seeds for node in seed.nodes):
            await containerd.add(node, archive)
        await machine_images.add(plan, archive, progress)


async def _restart(plan: Plan, ours: workers.Ours, progress: Progress) -> None:
    """Start a process if it does not run with its present configuration, and wait until it is ready."""
    processes, name = processes_of(plan), ours.spec.name
    with progress.step(f"{name} ready"):
        await asyncio.to_thread(processes.start, ours.spec)
        await until(lambda: answers(ours.ready_url), name, 120, lambda: processes.hopeless(name))
