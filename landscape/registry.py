"""The landscape's registry of container images: that of the distribution project, whose images are files.

It is a mirror of all registries for the nodes of Shoots: they ask it first, whatever registry an image's name has. The
process that they reach only reads. To push, the owner of the machine runs a second process for as long as it takes, in
a network namespace where no other process is.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import platform
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from landscape import binaries
from landscape.cluster import Credentials
from landscape.errors import LandscapeError
from landscape.files import locked, write_if_changed
from landscape.plan import LOOPBACK, Plan
from landscape.processes import ProcessSpec
from landscape.progress import Progress
from landscape.shell import run
from landscape.waiting import until

SERVER = "registry"
_PUSH = f"{LOOPBACK}:5000"
_NAMESPACE = "gardener-push"
"""Namespace of the cloud's containerd for the images that are being pushed."""
_IN_NAMESPACE = ("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "--", "sh", "-ec")
_WITH_LOOPBACK = 'ip link set lo up; exec "$0" "$@"'
ENVIRONMENT = {"OTEL_TRACES_EXPORTER": "none"}
"""Without this, the registry would send traces to a collector that does not exist."""
_LISTENING = "0100007F:1388 00000000:0000 0A"
"""The socket at ``_PUSH`` in the kernel's list of sockets."""


def process(plan: Plan, registry: str) -> ProcessSpec:
    """Write the configuration of the process that machines reach; returns how to start it."""
    place = urlsplit(plan.registry_endpoint)
    pair = Credentials.of(plan.cloud).ca.issue(SERVER, SERVER, names=[plan.cloud.address])
    files = {"certificate": str(pair.certificate), "key": str(pair.key)}
    content = json.dumps(configuration(plan.registry / "images", {"addr": place.netloc, "tls": files}), indent=2)
    (plan.registry / "images").mkdir(parents=True, exist_ok=True)
    file = plan.registry / "serving.yaml"
    write_if_changed(file, content)
    # Restarts the process if its configuration has changed.
    environment = ENVIRONMENT | {"GARDENER_VERSION": hashlib.sha256(content.encode()).hexdigest()[:12]}
    return ProcessSpec(SERVER, (registry, "serve", str(file)), plan.cloud.netns, environment)


def configuration(images: Path, http: dict[str, Any], *, writable: bool = False) -> dict[str, Any]:
    """Configuration of a registry. ``http``: where it listens."""
    return {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(images)},
            "maintenance": {"uploadpurging": {"enabled": False}, "readonly": {"enabled": not writable}},
        },
        "http": http,
    }


async def ready(plan: Plan, hopeless: Callable[[str], str | None]) -> None:
    """Wait until machines can connect; ``hopeless`` says why they never will."""
    place = urlsplit(plan.registry_endpoint)

    async def connects() -> bool:
        try:
            _, writer = await asyncio.open_connection(place.hostname, place.port)
        except OSError:
            return False
        writer.close()
        return True

    await until(connects, SERVER, 120, lambda: hopeless(SERVER))


async def push(plan: Plan, archives: Sequence[Path], progress: Progress) -> list[str]:
    """Push all images of these archives; returns their names. Safe to repeat: what the registry has is not sent again.

    containerd reads the formats of archives, and its client pushes. A push that was killed leaves images in a namespace
    of the cloud's containerd; the next one removes them.
    """
    (node,) = plan.cloud.nodes
    containerd = ("ctr", "--address", node.containerd_socket, "--namespace", _NAMESPACE)

    async def images() -> list[str]:
        return (await run(*containerd, "images", "list", "--quiet")).split()

    async def forget() -> None:
        if left := await images():
            await run(*containerd, "images", "remove", "--sync", *left)

    pushed = []
    with locked(plan.registry):
        await forget()
        try:
            for archive in archives:
                await run(*containerd, "images", "import", "--no-unpack", archive.absolute())
            targets = {name: f"{_PUSH}/{repository(name)}" for name in await images()}
            if not targets:
                raise LandscapeError(f"no image in {', '.join(map(str, archives))}")
            async with _writable(plan, progress) as enter:
                for name, target in targets.items():
                    with progress.step(f"{name} pushed"):
                        options = ("--plain-http", "--platform", f"linux/{platform.machine()}")
                        await run(*enter, *containerd, "images", "push", *options, target, name)
                    pushed.append(name)
        finally:
            await forget()
    return pushed


def repository(image: str) -> str:
    """An image's name without its registry. Raises LandscapeError if it has none: no pod could name it."""
    registry, _, rest = image.partition("/")
    if not rest or not (registry == "localhost" or "." in registry or ":" in registry):
        raise LandscapeError(
            f"image {image!r} has no name with a registry: name it, for example by `docker tag`, and save that name"
        )
    return rest


@contextlib.asynccontextmanager
async def _writable(plan: Plan, progress: Progress) -> AsyncIterator[tuple[str, ...]]:
    """Run a registry that takes images; yields the command that enters its network. It ends with this process."""
    found = await binaries.ensure((binaries.registry(),), progress)
    file = plan.registry / "push.yaml"
    write_if_changed(file, json.dumps(configuration(plan.registry / "images", {"addr": _PUSH}, writable=True)))
    command = (*_IN_NAMESPACE, _WITH_LOOPBACK, found["registry"], "serve", str(file))
    with (plan.logs / "registry-push.log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | ENVIRONMENT
        )
    try:
        await until(
            partial(asyncio.to_thread, _listens, running.pid),
            "the registry for pushes",
            30,
            lambda: None if running.returncode is None else f"it has ended, see {log.name}",
        )
        yield ("nsenter", "--target", str(running.pid), "--net", "--")
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.kill()
        await running.wait()


def _listens(pid: int) -> bool:
    """Whether the process listens in a network namespace of its own."""
    process = Path("/proc", str(pid))
    with contextlib.suppress(OSError):
        if (process / "ns/net").readlink() != Path("/proc/self/ns/net").readlink():
            return _LISTENING in (process / "net/tcp").read_text()
    return False
