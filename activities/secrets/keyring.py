"""Key files: the root keys of the garden side, and files of keys derived from them, one for each worker of a seed.

A file of root keys holds one key a line, ``<key id> <base64 of 32 bytes>``. The first line encrypts, all lines decrypt.
Only processes of the garden side have this file. Each key that encrypts data is derived from a root key for one
purpose, by HKDF-SHA256. A worker of a seed has a file of derived keys: ``<key id> <base64 of 32 bytes> <purpose>``.
From derived keys, the worker can compute neither the root key nor the key of another purpose.
docs/operations/keys.md describes the rotation.
"""

import base64
import binascii
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

OPERATORS = "operators"
"""Destination of payloads that people send to workflows, in place of a task queue."""
_KEY_BYTES = 32


class CodecError(Exception):
    """A key file cannot be used, or a payload is refused. The exception's text holds no key and no content."""


def queue_purpose(queue: str) -> str:
    """Purpose of the key for payloads of one task queue, or of ``OPERATORS``."""
    return f"queue/{queue}"


def shoot_state_purpose(seed: str) -> str:
    """Purpose of the key that encrypts ShootStates of one seed."""
    return f"shoot-state/{seed}"


class Keyring:
    """The keys of one file, by purpose."""

    def __init__(self, roots: Mapping[str, bytes], derived: Mapping[str, Mapping[str, bytes]] | None = None) -> None:
        self._roots = dict(roots)
        self._derived = {purpose: dict(keys) for purpose, keys in (derived or {}).items()}
        every = [self._roots, *self._derived.values()]
        if not any(every):
            raise CodecError("no key is given")
        for key_id, key in (item for keys in every for item in keys.items()):
            if len(key) != _KEY_BYTES:
                raise CodecError(f"key {key_id} has {len(key)} bytes, must have {_KEY_BYTES}")

    @property
    def roots(self) -> dict[str, bytes]:
        """Root keys by id; empty in a file of derived keys."""
        return dict(self._roots)

    def keys(self, purpose: str) -> dict[str, bytes]:
        """Keys of a purpose by id, in the file's order; empty if the file has no key of the purpose."""
        if self._roots:
            return {key_id: _derive(key, purpose) for key_id, key in self._roots.items()}
        return dict(self._derived.get(purpose, {}))

    def derive(self, purposes: Iterable[str]) -> str:
        """Content of a file of derived keys for these purposes. Raises CodecError if this keyring has no root keys."""
        if not self._roots:
            raise CodecError("keys are derived of root keys only: this file holds derived keys")
        lines = [
            f"{key_id} {base64.b64encode(key).decode()} {purpose}\n"
            for purpose in purposes
            for key_id, key in self.keys(purpose).items()
        ]
        return "".join(lines)


def _derive(root: bytes, purpose: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=purpose.encode()).derive(root)


def read_keyring(path: Path) -> Keyring:
    """Read a key file of either kind.

    Raises:
        CodecError: the file is missing or not in the format above; its text names the line, never the content.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CodecError(f"reading codec key file {path}: {type(error).__name__}") from None
    roots: dict[str, bytes] = {}
    derived: dict[str, dict[str, bytes]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            key_id, encoded, *purpose = line.split()
            key = base64.b64decode(encoded, validate=True)
            if len(purpose) > 1:
                raise ValueError
        except (ValueError, binascii.Error):
            raise CodecError(
                f"codec key file {path}, line {number}: must be `<key id> <base64>` or `<key id> <base64> <purpose>`"
            ) from None
        (derived.setdefault(purpose[0], {}) if purpose else roots)[key_id] = key
    if not roots and not derived:
        raise CodecError(f"codec key file {path} holds no key")
    if roots and derived:
        raise CodecError(f"codec key file {path} holds root keys and derived keys: a file holds one kind")
    try:
        return Keyring(roots, derived)
    except CodecError as error:
        raise CodecError(f"codec key file {path}: {error}") from None


def write_key_file(path: Path) -> None:
    """Write a file with one new root key that only its owner can read; an existing file stays as it is."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(_new_line())


def add_root_key(path: Path) -> None:
    """Add a new root key as the last line of a file. Raises CodecError if the file holds no root keys."""
    write_private(path, "".join([*_root_lines(path), _new_line()]))


def promote_root_key(path: Path, key_id: str) -> None:
    """Move the line of a root key to the top of its file, so that this key encrypts.

    Raises CodecError if the file holds no such root key.
    """
    lines = _root_lines(path)
    chosen = [line for line in lines if line.split()[0] == key_id]
    if not chosen:
        raise CodecError(f"codec key file {path} has no key {key_id!r}")
    write_private(path, "".join([*chosen, *(line for line in lines if line not in chosen)]))


def _root_lines(path: Path) -> list[str]:
    if not read_keyring(path).roots:
        raise CodecError(f"codec key file {path} holds derived keys: rotate root keys, then derive again")
    return [f"{line}\n" for line in path.read_text().splitlines() if line.strip()]


def _new_line() -> str:
    return f"{secrets.token_hex(4)} {base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()}\n"


def write_private(path: Path, content: str) -> None:
    """Write a file that only its owner can read; the new file replaces an existing one atomically."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
