"""The machine: its files, its systemd and its container runtime."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import aiohttp

_KUBELET_HEALTH = "http://127.0.0.1:10248/healthz"
_ANSWER_SECONDS = 2.0


class CommandFailed(Exception):
    """A program of the machine ended with an error."""


class System:
    """Operations of the node agent on its machine; ``root`` is ``/`` except in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def path(self, path: str | Path) -> Path:
        return self._root / str(path).lstrip("/")

    def holds(self, path: str, content: bytes, mode: int) -> bool:
        """Whether the file is there with this content and mode."""
        file = self.path(path)
        try:
            return file.stat().st_mode & 0o7777 == mode and file.read_bytes() == content
        except (FileNotFoundError, NotADirectoryError):
            return False

    def write(self, path: str, content: bytes, mode: int) -> None:
        """Replace the file as a whole, so that no process reads a part of it."""
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(content)
            os.chmod(temporary, mode)
            os.rename(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise

    def name_host(self, host: str, address: str) -> None:
        """Let the machine find a host at an address. The file is written in place: it may be a mount."""
        file = self.path("/etc/hosts")
        lines = [each for each in file.read_text().splitlines() if each.split()[1:] != [host]]
        content = "\n".join([*lines, f"{address} {host}", ""])
        if file.read_text() != content:
            file.write_text(content)

    def remove(self, path: str | Path) -> None:
        self.path(path).unlink(missing_ok=True)

    async def copy_from_image(self, image: str, path_in_image: str, path: str, mode: int) -> None:
        """Copy a file out of a container image that the machine has."""
        with tempfile.TemporaryDirectory(prefix="node-agent-") as mounted:
            await self.run("ctr", "--namespace", "k8s.io", "images", "mount", image, mounted)
            try:
                # Never written in place: the old file may be a program that is running.
                target = self.path(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = target.with_name(f".{target.name}.new")
                source = Path(mounted) / path_in_image.lstrip("/")
                await asyncio.to_thread(shutil.copyfile, source, temporary)
                temporary.chmod(mode)
                temporary.rename(target)
            finally:
                await self.run("ctr", "--namespace", "k8s.io", "images", "unmount", "--rm", mounted)

    async def systemctl(self, *arguments: str) -> None:
        await self.run("systemctl", *arguments)

    async def unit_is(self, state: str, name: str) -> bool:
        """Whether a unit is in a state. ``state``: active or enabled."""
        process = await asyncio.create_subprocess_exec("systemctl", "--quiet", f"is-{state}", name)
        return await process.wait() == 0

    async def kubelet_answers(self) -> bool:
        """Whether the kubelet reports that it is healthy."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS)) as session,
                session.get(_KUBELET_HEALTH) as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def last_lines(self, unit: str) -> list[str]:
        """The last lines of a unit's journal; none if the journal cannot be read."""
        process = await asyncio.create_subprocess_exec(
            *("journalctl", f"--unit={unit}", "--lines=50", "--output=cat", "--no-pager"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate()
        return output.decode(errors="replace").splitlines()

    async def run(self, *command: str) -> None:
        """Run a command. Raises CommandFailed with the last lines of its error output."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
        if process.returncode:
            last = errors.decode(errors="replace").strip().splitlines()[-3:]
            raise CommandFailed(f"{' '.join(command)}: exit status {process.returncode}: {' / '.join(last)}")
