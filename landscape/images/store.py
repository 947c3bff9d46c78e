"""Store of the images that every machine of a landscape has from its start.

Importing them would take each machine half a minute. So they are imported and unpacked once, into a prepared containerd
root, and machines link to it: the directory is mounted read-only at /opt/images.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from landscape import containerd

_CURRENT = "current"


async def publish(directory: Path, archives: Sequence[Path]) -> list[str]:
    """Publish the images of these archives for new machines; returns the archives that had to be imported.

    Running machines keep their images: earlier versions stay in the directory until the landscape is taken down.
    """
    root, changed = await containerd.prepare("shoot", archives)
    version = directory / root.name
    if not version.exists():
        unfinished = directory / f".{root.name}.{os.getpid()}"
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        await containerd.copy(root, unfinished)
        await asyncio.to_thread(unfinished.rename, version)
    await asyncio.to_thread(_point_to, version, directory / _CURRENT)
    return changed


def _point_to(target: Path, link: Path) -> None:
    new = link.with_name(f".{link.name}.{os.getpid()}")
    new.symlink_to(target.name)
    new.rename(link)
