"""Sealing what leaves a seed for the garden: compressed JSON, encrypted by AES-256-GCM.

Each seed has a key of its own, and a sealed value says which seed's key sealed it. A gardenlet opens only what is
sealed for its own seed. When a control plane moves, the garden side seals its ShootState again for the destination
(``activities.garden.shoot_states``). The first key seals; all open.
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
from api.operations import ShootRef

_SEALED, _SEED = "sealed", "seed"
_NONCE_BYTES = 12


class CannotOpen(Exception):
    """A value that is not sealed for this seed, or was changed; the text holds nothing of it."""


class Sealing:
    """Seals and opens for one seed. Without keys (tests), values stay as they are.

    Args:
        seed: the seed whose keys these are; a sealed value names it.
        keys: the seed's keys by id.
        shared: keys that all seeds had before each got its own. While there are any, values that were sealed by
            them open, and so do values that were never sealed.
        changed: returns other keys and shared keys when there are some, and None otherwise.
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
        """``{"sealed": "<key id>:<base64>", "seed": "<seed>"}``.

        It opens only for the same seed, and only as the same item of the ShootState of the same Shoot.
        """
        self._follow()
        if not self._current:
            return value
        nonce = os.urandom(_NONCE_BYTES)
        content = gzip.compress(json.dumps(value, separators=(",", ":")).encode(), mtime=0)
        sealed = self._ciphers[self._current].encrypt(nonce, content, self._bound(self._current, shoot, item))
        return {_SEALED: f"{self._current}:{base64.b64encode(nonce + sealed).decode()}", _SEED: self._seed}

    def open(self, value: Any, shoot: ShootRef, item: str) -> Any:
        """What was sealed.

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
        """Whether a value is sealed as ``seal`` does it now: for this seed, by its first key."""
        self._follow()
        if not self._current:
            return True
        return sealed_by(value) == self._seed and str(value[_SEALED]).startswith(f"{self._current}:")

    def _bound(self, key_id: str, shoot: ShootRef, item: str) -> bytes:
        return json.dumps([key_id, self._seed, shoot.namespace, shoot.name, shoot.uid, item]).encode()


def sealed_by(value: Any) -> str | None:
    """The seed that a sealed value names; empty if it was sealed by the key that all seeds had, None if it is plain.

    Only opening the value proves it.
    """
    if not isinstance(value, Mapping) or _SEALED not in value or set(value) - {_SEALED, _SEED}:
        return None
    return str(value.get(_SEED, ""))
