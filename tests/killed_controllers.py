"""Controllers of the controller-manager and of the gardenlet in a process that kills itself between two writes.

``python -m tests.killed_controllers`` takes its ``Life`` as JSON on the standard input. The process has the code and
the clients of the real one. It sends itself SIGKILL when it is about to send one write too many, or when its last
write has been done and no code has seen the answer: nothing in the process can react to that.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.clusters import Clusters
from api.resources import EVENT, Resource
from kube.cache import Caches
from kube.client import KubeClient
from kube.kubeconfig import endpoint_of
from workers.controller_manager.installations import run_installation_controller
from workers.controller_manager.managed_seed_sets import ManagedSeedSetConfig, run_managed_seed_set_controller
from workers.controller_manager.seed_autoscalers import SeedAutoscalerConfig, run_seed_autoscaler_controller
from workers.gardenlet.installations import InstallationController

ROOT = Path(__file__).parents[1]
_WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class Life:
    part: str
    """Name of a part in ``PARTS``."""
    garden: dict[str, Any]
    """Kubeconfig."""
    seed: dict[str, Any] | None = None
    """Kubeconfig of a seed for a part of the gardenlet."""
    writes: int = 1
    """Number of writes of the process that succeed."""
    answered: bool = True
    """Whether the process goes on after its last write until it is about to send another one."""


class Mortal(KubeClient):
    """Counts the writes of the whole process."""

    life: Life
    sent = 0

    async def _call(self, method: str, res: Resource, *args: Any, **kwargs: Any) -> Any:
        # A process writes an Event again that a former one has written: a life of one Event would make no progress.
        if method not in _WRITES or res == EVENT:
            return await super()._call(method, res, *args, **kwargs)
        if Mortal.sent >= self.life.writes:
            os.kill(os.getpid(), signal.SIGKILL)
        # A refused request changes nothing, like the deletion of an object that a former process has deleted.
        answer = await super()._call(method, res, *args, **kwargs)
        Mortal.sent += 1
        if not self.life.answered and Mortal.sent >= self.life.writes:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


async def _installations_of_seeds(garden: KubeClient, seed: KubeClient) -> None:
    await run_installation_controller(garden, Caches(garden))


async def _sets(garden: KubeClient, seed: KubeClient) -> None:
    caches = Caches(garden)
    autoscaler = SeedAutoscalerConfig(sync_period=timedelta(seconds=0.1))
    await asyncio.gather(
        run_managed_seed_set_controller(garden, caches, ManagedSeedSetConfig()),
        run_seed_autoscaler_controller(garden, caches, autoscaler),
    )


async def _installations_in_the_seed(garden: KubeClient, seed: KubeClient) -> None:
    await InstallationController(Clusters(garden, seed, "seed-1")).run()


PARTS: dict[str, Callable[[KubeClient, KubeClient], Coroutine[Any, Any, None]]] = {
    "installations of seeds": _installations_of_seeds,
    "sets": _sets,
    "installations in the seed": _installations_in_the_seed,
}


class Lives:
    """Processes of one part, each of which is killed and followed by the next one."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.killed = 0
        """Number of processes that were killed."""

    @asynccontextmanager
    async def going_on(self) -> Any:
        """Run one process after the other until the end of the block."""
        task = asyncio.create_task(self._run())
        try:
            yield
            if task.done():
                await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            # In turns before a write, and after one whose answer is lost.
            life = {**asdict(self._life), "answered": self.killed % 2 == 0}
            command = (sys.executable, "-m", "tests.killed_controllers")
            process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, cwd=ROOT)
            try:
                await process.communicate(json.dumps(life).encode())
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            assert process.returncode == -signal.SIGKILL, f"the process ended by itself: {process.returncode}"
            self.killed += 1


async def main() -> None:
    life = Life(**json.load(sys.stdin))
    Mortal.life = life
    garden = Mortal(endpoint_of(life.garden))
    await PARTS[life.part](garden, Mortal(endpoint_of(life.seed)) if life.seed else garden)


if __name__ == "__main__":
    asyncio.run(main())
