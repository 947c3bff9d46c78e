"""Run a command and wait for it."""

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path

from landscape.errors import LandscapeError


async def run(
    *argv: str | Path,
    stdin: str | None = None,
    netns: str | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    check: bool = True,
) -> str:
    """Run the command, in a network namespace if one is named, and return its output.

    Raises LandscapeError with the end of its error output if it fails and ``check`` is set.
    """
    command = [str(part) for part in argv]
    if netns is not None:
        command = ["nsenter", f"--net=/run/netns/{netns}", "--", *command]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=directory,
        )
    except FileNotFoundError:
        if not check:
            return ""
        raise LandscapeError(f"{command[0]} is not installed: run `make packages`") from None
    output, errors = await process.communicate(stdin.encode() if stdin is not None else None)
    if check and process.returncode:
        last = "\n".join(errors.decode(errors="replace").strip().splitlines()[-8:])
        raise LandscapeError(f"{' '.join(command)[:300]}: exit status {process.returncode}: {last}")
    return output.decode(errors="replace")
