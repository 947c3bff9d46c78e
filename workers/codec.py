"""What histories are encrypted with: every payload, failure message and stack trace, by AES-256-GCM.

A key file holds one key a line, ``<key id> <base64 of 32 bytes>``. The first encrypts; all decrypt, so a
key is rotated by putting a new line on top and dropped once no history needs it. The key id travels in
a payload's metadata, and is authenticated with it.
"""

import base64
import binascii
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
    PayloadConverter,
)

ENCODING = b"binary/encrypted"
_KEY_BYTES = 32
_NONCE_BYTES = 12
_MESSAGE_LIMIT = 1000
_STACK_LIMIT = 600
"""The end of a trace is where it happened."""


class CodecError(Exception):
    """A key file that cannot be used, or a payload that none of its keys opens."""


class EncryptionCodec(PayloadCodec):
    """Encrypts payloads; keys by id, the first one encrypts."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        if not keys:
            raise CodecError("no key is given")
        for key_id, key in keys.items():
            if len(key) != _KEY_BYTES:
                raise CodecError(f"key {key_id} has {len(key)} bytes, must have {_KEY_BYTES}")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._current = next(iter(keys))

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypt(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypt(payload) for payload in payloads]

    def _encrypt(self, payload: Payload) -> Payload:
        nonce = os.urandom(_NONCE_BYTES)
        key_id = self._current.encode()
        sealed = self._ciphers[self._current].encrypt(nonce, payload.SerializeToString(), key_id)
        return Payload(metadata={"encoding": ENCODING, "encryption-key-id": key_id}, data=nonce + sealed)

    def _decrypt(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding", b"") != ENCODING:
            return payload
        key_id = payload.metadata.get("encryption-key-id", b"")
        cipher = self._ciphers.get(key_id.decode(errors="replace"))
        if cipher is None:
            raise CodecError(f"no key {key_id.decode(errors='replace')!r}: the key file lacks it")
        nonce, sealed = payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:]
        try:
            return Payload.FromString(cipher.decrypt(nonce, sealed, key_id))
        except InvalidTag:
            raise CodecError(f"a payload was not encrypted by key {key_id.decode()!r}, or was changed") from None


class TrimmedFailures(DefaultFailureConverterWithEncodedAttributes):
    """Encodes messages and stack traces, each cut to what Temporal keeps of an activity that is retried.

    Its server replaces a larger failure by "Failure exceeds size limit." (4 KiB, causes included), and then
    nobody learns why something is retried.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        [told] = payload_converter.from_payloads([failure.encoded_attributes])
        told["message"] = _first(told["message"], _MESSAGE_LIMIT)
        told["stack_trace"] = told["stack_trace"][-_STACK_LIMIT:]
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([told])[0])


def _first(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def write_key_file(path: Path) -> None:
    """Make a file with one new key, readable by its owner only; an existing file is left as it is."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secrets.token_hex(4)} {base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()}\n")


def read_key_file(path: Path) -> dict[str, bytes]:
    """Keys by id, in the file's order.

    Raises:
        CodecError: the file is missing or not as described above; says where, never what is in it.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CodecError(f"reading codec key file {path}: {type(error).__name__}") from None
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            key_id, encoded = line.split()
            keys[key_id] = base64.b64decode(encoded, validate=True)
        except (ValueError, binascii.Error):
            raise CodecError(f"codec key file {path}, line {number}: must be `<key id> <base64>`") from None
    if not keys:
        raise CodecError(f"codec key file {path} holds no key")
    return keys


def data_converter(key_file: Path | None) -> DataConverter:
    """How every client and worker of ours talks to Temporal: pydantic models, encrypted.

    Failures are encrypted, too: their messages name objects. Without a key file (tests, histories that
    were recorded decoded) nothing is.
    """
    if key_file is None:
        return pydantic_data_converter
    return replace(
        pydantic_data_converter,
        payload_codec=EncryptionCodec(read_key_file(key_file)),
        failure_converter_class=TrimmedFailures,
    )
