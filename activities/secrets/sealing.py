"""Sealing what leaves a seed for the garden: compressed JSON, encrypted by AES-256-GCM.

Every gardenlet has the same key file (``workers.codec``), so that what one seed has sealed another one opens,
also when the first one is gone. The first key seals; all open.
"""

import base64
import binascii
import gzip
import json
import os
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from api import compression

_SEALED = "sealed"
_NONCE_BYTES = 12


class CannotOpen(Exception):
    """A sealed value that none of the keys opens; the text holds nothing of it."""


class Sealing:
    """Keys by id; without any, values stay as they are."""

    def __init__(self, keys: Mapping[str, bytes] | None = None) -> None:
        self._ciphers = {key_id: AESGCM(key) for key_id, key in (keys or {}).items()}
        self._current = next(iter(self._ciphers), "")

    def seal(self, value: Any, subject: str) -> Any:
        """``{"sealed": "<key id>:<base64>"}``; it opens for the same subject only."""
        if not self._current:
            return value
        nonce = os.urandom(_NONCE_BYTES)
        content = gzip.compress(json.dumps(value, separators=(",", ":")).encode(), mtime=0)
        sealed = self._ciphers[self._current].encrypt(nonce, content, f"{self._current}/{subject}".encode())
        return {_SEALED: f"{self._current}:{base64.b64encode(nonce + sealed).decode()}"}

    def open(self, value: Any, subject: str) -> Any:
        """What was sealed; a value that never was is given back.

        Raises CannotOpen, and ``api.compression.TooLarge``.
        """
        if not isinstance(value, Mapping) or set(value) != {_SEALED}:
            return value
        key_id, _, encoded = str(value[_SEALED]).partition(":")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise CannotOpen(f"it was sealed by key {key_id!r}, which is not in the key file")
        try:
            raw = base64.b64decode(encoded, validate=True)
            content = cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], f"{key_id}/{subject}".encode())
        except (InvalidTag, binascii.Error, ValueError):
            raise CannotOpen(f"it was not sealed for {subject} by key {key_id!r}, or was changed") from None
        return json.loads(compression.unzip(content, compression.SEALED_LIMIT))
