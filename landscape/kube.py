"""Clients of the landscape's clusters."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kube.client import KubeClient, Object
from kube.errors import ApiError
from landscape.errors import LandscapeError

_MANAGER = "landscape"


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    """A client of one cluster. An error of its API server is one for the user of the landscape."""
    async with KubeClient.from_kubeconfig(kubeconfig) as client:
        try:
            yield client
        except ApiError as error:
            raise LandscapeError(f"{client.endpoint.server}: {error}") from None


async def apply(client: KubeClient, *objects: Object) -> None:
    """Apply all objects by server-side apply, in parallel."""
    await asyncio.gather(*(client.apply(each, manager=_MANAGER) for each in objects))


async def is_ready(client: KubeClient) -> bool:
    """Whether the API server is ready and serves its whole API."""
    try:
        await client.request("GET", "/readyz")
    except ApiError:
        return False
    return True
