"""Files that running processes read."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def write_if_changed(path: Path, content: str, *, mode: int = 0o644) -> None:
    """Write a file if its content has changed. kube-proxy, for example, exits at each write of its configuration."""
    if path.exists() and path.read_text() == content:
        return
    write_file(path, content.encode(), mode=mode)


def write_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically; it has its mode from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    scratch.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file or directory that several processes write: commands and the keeper, for example."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
