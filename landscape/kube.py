"""Clients of the landscape's clusters."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kube.client import KubeClient, Object
from kube.errors import ApiError, Unreachable
from landscape.errors import LandscapeError

_MANAGER = "landscape"
_BUSY_SECONDS = 60.0
_AGAIN_SECONDS = 0.5


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    """A client of one cluster. An error of its API server is one for the user of the landscape."""
    async with KubeClient.from_kubeconfig(kubeconfig) as client:
        try:
            yield client
        except ApiError as error:
            raise LandscapeError(f"{client.endpoint.server}: {error}") from None


async def apply(client: KubeClient, *objects: Object) -> None:
    """Apply all objects by server-side apply, in parallel.

    A busy API server that does not answer is asked again, for a minute: where a landscape comes up, all start at once.
    """
    await asyncio.gather(*(_apply(client, each) for each in objects))


async def _apply(client: KubeClient, obj: Object) -> None:
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            await client.apply(obj, manager=_MANAGER)
        except ApiError as error:
            if not (isinstance(error, Unreachable) or error.status >= 500) or time.monotonic() > deadline:
                raise
            await asyncio.sleep(_AGAIN_SECONDS)  # the backoff of a retry
        else:
            return


async def is_ready(client: KubeClient) -> bool:
    """Whether the API server is ready and serves its whole API."""
    try:
        await client.request("GET", "/readyz")
    except ApiError:
        return False
    return True
