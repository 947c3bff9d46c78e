"""The payload codec: what it encrypts stays closed to those without the key, and open across a rotation."""

import base64
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import default
from temporalio.exceptions import ApplicationError

from workers.codec import (
    CodecError,
    EncryptionCodec,
    TrimmedFailures,
    data_converter,
    read_key_file,
    write_key_file,
)

OLD, NEW = b"o" * 32, b"n" * 32


def payload(text: str = "SENTINEL") -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=f'"{text}"'.encode())


async def test_a_payload_comes_back_and_is_unreadable_between() -> None:
    codec = EncryptionCodec({"a": NEW})
    [sealed] = await codec.encode([payload()])

    assert b"SENTINEL" not in sealed.SerializeToString()
    assert await codec.decode([sealed]) == [payload()]


async def test_two_encryptions_of_the_same_differ() -> None:
    first, second = await EncryptionCodec({"a": NEW}).encode([payload(), payload()])
    assert first.data != second.data


async def test_after_a_rotation_old_histories_are_read_and_new_ones_use_the_new_key() -> None:
    [old] = await EncryptionCodec({"old": OLD}).encode([payload()])
    rotated = EncryptionCodec({"new": NEW, "old": OLD})
    assert await rotated.decode([old]) == [payload()]
    [new] = await rotated.encode([payload()])
    assert await EncryptionCodec({"new": NEW}).decode([new]) == [payload()]


async def test_a_missing_key_is_named() -> None:
    [old] = await EncryptionCodec({"old": OLD}).encode([payload()])
    with pytest.raises(CodecError, match="no key 'old'"):
        await EncryptionCodec({"new": NEW}).decode([old])


@pytest.mark.parametrize("place", [0, 20, -1])
async def test_a_changed_payload_is_refused(place: int) -> None:
    codec = EncryptionCodec({"a": NEW})
    [sealed] = await codec.encode([payload()])
    data = bytearray(sealed.data)
    data[place] ^= 1
    sealed.data = bytes(data)
    with pytest.raises(CodecError, match="was changed"):
        await codec.decode([sealed])


async def test_a_key_id_cannot_be_exchanged() -> None:
    """It says which key opens a payload; it is authenticated with it."""
    codec = EncryptionCodec({"a": NEW, "b": NEW})
    [sealed] = await codec.encode([payload()])
    sealed.metadata["encryption-key-id"] = b"b"
    with pytest.raises(CodecError):
        await codec.decode([sealed])


async def test_what_is_not_encrypted_passes_through() -> None:
    assert await EncryptionCodec({"a": NEW}).decode([payload()]) == [payload()]


def test_a_key_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key_file(path)
    first = path.read_text()
    write_key_file(path)
    assert path.read_text() == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert [len(key) for key in read_key_file(path).values()] == [32]


@pytest.mark.parametrize("content", ["", "only-one-word", "id not*base64", "id a b"])
def test_a_broken_key_file_is_refused_without_quoting_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(CodecError) as refused:
        read_key_file(path)
    assert not content or content not in str(refused.value)


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"id {base64.b64encode(b'short').decode()}")
    with pytest.raises(CodecError, match="has 5 bytes"):
        data_converter(path)


def test_a_long_failure_keeps_its_beginning_and_fits() -> None:
    failure = Failure()
    TrimmedFailures().to_failure(ApplicationError("why " + "x" * 10_000), default().payload_converter, failure)
    assert failure.ByteSize() < 2048
    error = TrimmedFailures().from_failure(failure, default().payload_converter)
    assert str(error).startswith("why xxx")
