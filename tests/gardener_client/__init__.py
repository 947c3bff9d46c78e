"""A program with Gardener's own Go client, which tests build and run: ``main.go`` says what it does."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from landscape import binaries
from landscape.progress import Progress

VERSION = "1.130.0"
"""Version of Gardener whose client the program has; our facts are of a later one, see docs/spec."""
_MODULE = Path(__file__).parent
_NAME = "gardener-client"


def built() -> Path:
    """Find the program in the cache, or compile it: two minutes, once for each state of its source."""
    files = [*sorted(_MODULE.glob("*.go")), _MODULE / "go.sum"]
    source = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:12]
    tool = binaries.Tool(_NAME, f"{VERSION}-{source}", (_NAME,), _MODULE, _NAME)
    return Path(asyncio.run(binaries.ensure((tool,), Progress(quiet=True)))[_NAME])


@dataclass
class Said:
    """An answer of the program."""

    object: Any = None
    unknown: list[str] = field(default_factory=list)
    """Errors of the strict decoder about objects of the garden."""
    error: dict[str, Any] = field(default_factory=dict)
    """The ``Status`` of a refusal, as Gardener's client has decoded it."""
    failure: str = ""


class GardenerClient:
    """The running program, with a kubeconfig."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self._input, self._output = process.stdin, process.stdout
        self._turn = asyncio.Lock()

    async def ask(self, do: str, kind: str = "", **rest: Any) -> Said:
        """Send a request; the fields are those of ``request`` in main.go."""
        async with self._turn:
            self._input.write(json.dumps({"do": do, "kind": kind, **rest}).encode() + b"\n")
            await self._input.drain()
            return Said(**json.loads(await self._output.readline()))

    async def done(self, do: str, kind: str = "", **rest: Any) -> Any:
        """Send a request that the garden serves; returns the object."""
        said = await self.ask(do, kind, **rest)
        assert not said.failure, said.failure
        assert not said.error, said.error
        return said.object


@asynccontextmanager
async def running(program: Path, kubeconfig: Path) -> AsyncIterator[GardenerClient]:
    process = await asyncio.create_subprocess_exec(
        program,
        env={"KUBECONFIG": str(kubeconfig)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    try:
        yield GardenerClient(process)
    finally:
        process.kill()
        await process.wait()
