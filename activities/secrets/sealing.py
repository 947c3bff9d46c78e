"""Encryption (sealing) of values that a seed stores in the garden: compressed JSON, encrypted by AES-256-GCM.

Each seed has its own keys, and an encrypted value names the seed whose key encrypted it. A gardenlet decrypts only
values that are encrypted for its own seed. When a control plane moves, the garden side encrypts its ShootState again
for the destination (``activities.garden.shoot_states``). The first key encrypts; all keys decrypt.
"""

import base64
import binascii
import gzip
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from api import compression
from api.contracts.operations import ShootRef

_SEALED, _SEED = "sealed", "seed"
_NONCE_BYTES = 12


class CannotOpen(Exception):
    """A value is not encrypted for this seed, or was changed. The exception's text holds no part of the value."""


class Sealing:
    """Encrypts and decrypts values of one seed. Without keys (in tests), values stay as they are.

    Args:
        seed: name of the seed to which the keys belong; an encrypted value names this seed.
        keys: the seed's keys by id.
        shared: keys that all seeds shared before each seed got its own. While there are shared keys, ``open`` accepts
            values that were encrypted by them, and values that were never encrypted.
        changed: returns the new keys and new shared keys after a change, and None without a change.
    """

    def __init__(
        self,
        seed: str = "",
        keys: Mapping[str, bytes] | None = None,
        shared: Mapping[str, bytes] | None = None,
        changed: Callable[[], tuple[Mapping[str, bytes], Mapping[str, bytes]] | None] = lambda: None,
    ) -> None:
        self._seed = seed
        self._changed = changed
        self._take(keys, shared)

    def _follow(self) -> None:
        if (found := self._changed()) is not None:
            self._take(*found)

    def _take(self, keys: Mapping[str, bytes] | None, shared: Mapping[str, bytes] | None) -> None:
        self._ciphers = {key_id: AESGCM(key) for key_id, key in (keys or {}).items()}
        self._shared = {key_id: AESGCM(key) for key_id, key in (shared or {}).items()}
        self._current = next(iter(self._ciphers), "")

    def seal(self, value: Any, shoot: ShootRef, item: str) -> Any:
        """Encrypt a value; returns ``{"sealed": "<key id>:<base64>", "seed": "<seed>"}``.

        ``open`` accepts the result only for the same seed, and only as the same item of the same Shoot's ShootState.
        """
        self._follow()
        if not self._current:
            return value
        nonce = os.urandom(_NONCE_BYTES)
        content = gzip.compress(json.dumps(value, separators=(",", ":")).encode(), mtime=0)
        sealed = self._ciphers[self._current].encrypt(nonce, content, self._bound(self._current, shoot, item))
        return {_SEALED: f"{self._current}:{base64.b64encode(nonce + sealed).decode()}", _SEED: self._seed}

    def open(self, value: Any, shoot: ShootRef, item: str) -> Any:
        """Decrypt a value.

        Raises CannotOpen, and ``api.compression.TooLarge``.
        """
        self._follow()
        if not self._ciphers:
            return value
        seed = sealed_by(value)
        if seed is None:
            if self._shared:
                return value
            raise CannotOpen("it is not sealed")
        key_id, _, encoded = str(value[_SEALED]).partition(":")
        if seed == "":
            cipher, bound = self._shared.get(key_id), f"{key_id}/{shoot}".encode()
        elif seed == self._seed:
            cipher, bound = self._ciphers.get(key_id), self._bound(key_id, shoot, item)
        else:
            raise CannotOpen(f"it is sealed for seed {seed[:64]!r}")
        if cipher is None:
            raise CannotOpen(f"it was sealed by key {key_id[:64]!r}, which is not in the key file")
        try:
            raw = base64.b64decode(encoded, validate=True)
            content = cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], bound)
        except (InvalidTag, binascii.Error, ValueError):
            raise CannotOpen(f"it was not sealed for {shoot} by key {key_id[:64]!r}, or was changed") from None
        return json.loads(compression.unzip(content, compression.SEALED_LIMIT))

    def is_current(self, value: Any) -> bool:
        """Whether a value is encrypted as ``seal`` does now: for this seed, by the seed's first key."""
        self._follow()
        if not self._current:
            return True
        return sealed_by(value) == self._seed and str(value[_SEALED]).startswith(f"{self._current}:")

    def _bound(self, key_id: str, shoot: ShootRef, item: str) -> bytes:
        return json.dumps([key_id, self._seed, shoot.namespace, shoot.name, shoot.uid, item]).encode()


def sealed_by(value: Any) -> str | None:
    """The seed that a value names; empty if a key shared by all seeds encrypted it, None if it is not encrypted.

    Only decryption proves that the named seed is right.
    """
    if not isinstance(value, Mapping) or _SEALED not in value or set(value) - {_SEALED, _SEED}:
        return None
    return str(value.get(_SEED, ""))
