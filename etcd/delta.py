"""Delta snapshots: the changes of a range of revisions, as gzip of JSON lines with a trailer.

Each line is one change: ``{"r": revision, "k": key, "v": value}``; a line without ``v`` is a deletion. Keys and
values are base64, as in etcd's JSON API. The last line holds the SHA-256 of the lines before it,
their number, and the revisions covered. Standard library only, as ``etcd.snapshots``.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from api import compression

_GZIP = 16 + zlib.MAX_WBITS
_LEVEL = 3
_LINE_LIMIT = 8 << 20
"""Bytes of one change. An API server writes objects of up to 1.5 MiB, 2 MiB in base64."""


class DamagedDelta(Exception):
    """A delta snapshot whose content is not the content that was written."""


@dataclass(frozen=True)
class Change:
    """One key put or deleted; changes of one transaction share a revision."""

    revision: int
    key: str
    value: str | None
    """None if the key was deleted."""


class DeltaWriter:
    """Collects changes, and keeps them compressed."""

    def __init__(self) -> None:
        self._compress = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._digest = hashlib.sha256()
        self._pieces: list[bytes] = []
        self.first = 0
        self.last = 0
        self.count = 0
        self.size = 0
        """Bytes before compression."""

    def add(self, change: Change) -> None:
        line: dict[str, Any] = {"r": change.revision, "k": change.key}
        if change.value is not None:
            line["v"] = change.value
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        self._digest.update(text)
        if piece := self._compress.compress(text):
            self._pieces.append(piece)
        self.first = self.first or change.revision
        self.last = change.revision
        self.count += 1
        self.size += len(text)

    def finish(self) -> bytes:
        """Return the file. No change can be added after that."""
        trailer = {"sha256": self._digest.hexdigest(), "count": self.count, "first": self.first, "last": self.last}
        self._pieces += [self._compress.compress(json.dumps(trailer).encode() + b"\n"), self._compress.flush()]
        return b"".join(self._pieces)


def read(content: Iterable[bytes]) -> Iterator[Change]:
    """The changes of a file, in order.

    Raises:
        DamagedDelta: the file is cut short or altered, which is certain only at the end of the file.
    """
    digest, count, last = hashlib.sha256(), 0, b""
    for line in _lines(content):
        if last:
            digest.update(last)
            count += 1
            yield _change(last)
        last = line
    try:
        trailer = json.loads(last)
        whole = trailer["sha256"] == digest.hexdigest() and trailer["count"] == count
    except (ValueError, KeyError, TypeError):
        raise DamagedDelta("the trailer is missing: it was cut short") from None
    if not whole:
        raise DamagedDelta("the checksum in its trailer does not match")


def _change(line: bytes) -> Change:
    try:
        change = json.loads(line)
        return Change(change["r"], change["k"], change.get("v"))
    except (ValueError, KeyError, TypeError):
        raise DamagedDelta("a line is no change") from None


def _lines(content: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    try:
        for piece in compression.unzip_stream(content):
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > _LINE_LIMIT:
                raise DamagedDelta(f"a line has more than {_LINE_LIMIT >> 20} MiB")
            yield from (line + b"\n" for line in whole)
    except compression.Damaged as error:
        raise DamagedDelta(f"it {error}") from None
    if rest:
        raise DamagedDelta("it was cut short")
