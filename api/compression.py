"""Decompression with a limit of size: a few hundred bytes of gzip can unpack to gigabytes, and senders are not trusted.

Standard library only: etcd's wrapper imports this before etcd starts.
"""

import zlib
from collections.abc import Iterable, Iterator

MIB = 1 << 20
SEALED_LIMIT = 4 * MIB
"""Maximum size in bytes of one encrypted value. It was part of an object in etcd, whose limit is 1.5 MiB."""
LIMIT = 32 * MIB
"""Maximum size in bytes of the machines of one Shoot, or of one key of manifests: ten times the largest known ones."""

_GZIP = 31
"""zlib's window bits for data with gzip's header."""
_PIECE = MIB


class TooLarge(ValueError):
    """The data unpacks to more than the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"unpacks to more than {limit / MIB:.0f} MiB")


class Damaged(ValueError):
    """The data is not gzip, or is truncated."""


def unzip(data: bytes, limit: int) -> bytes:
    """Content of gzip data. Raises TooLarge above ``limit`` bytes, and Damaged."""
    return b"".join(unzip_stream([data], limit))


def unzip_stream(content: Iterable[bytes], limit: int | None = None) -> Iterator[bytes]:
    """Content of gzip data in pieces of at most 1 MiB. Raises TooLarge above ``limit`` bytes, and Damaged."""
    decompress = zlib.decompressobj(_GZIP)
    size = 0
    try:
        for chunk in content:
            while True:
                piece = decompress.decompress(chunk, _PIECE)
                size += len(piece)
                if limit is not None and size > limit:
                    raise TooLarge(limit)
                if piece:
                    yield piece
                chunk = decompress.unconsumed_tail
                if not chunk and len(piece) < _PIECE:
                    break
    except zlib.error:
        raise Damaged("is not gzip, or damaged") from None
    if not decompress.eof:
        raise Damaged("was cut short")
