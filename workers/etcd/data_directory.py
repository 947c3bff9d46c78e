"""Whether etcd can start from a data directory, as far as a short look at its files tells."""

import struct
from pathlib import Path


def fault_of(data: Path) -> str | None:
    """Why etcd cannot start from this directory, as far as a short look tells; None if it can."""
    if not has_log(data):
        return "there is no data"
    return database_fault(data / "member" / "snap" / "db")


def has_log(data: Path) -> bool:
    """Whether etcd has ever accepted a write. It creates a complete write-ahead log before its first write."""
    return any((data / "member" / "wal").glob("*.wal"))


def database_fault(database: Path) -> str | None:
    """Why a bbolt file cannot be opened: both of its meta pages are damaged, or it was cut short."""
    magic, version, meta_size = 0xED0CDAED, 2, 64
    try:
        size = database.stat().st_size
        with database.open("rb") as file:
            for page_size in (4096, 8192, 16384, 32768, 65536):
                for page in (0, 1):
                    file.seek(page * page_size + 16)
                    meta = file.read(meta_size)
                    if len(meta) < meta_size:
                        continue
                    found_magic, found_version, found_size = struct.unpack_from("<III", meta)
                    pages, checksum = struct.unpack_from("<Q", meta, 40)[0], struct.unpack_from("<Q", meta, 56)[0]
                    if (found_magic, found_version, found_size) != (magic, version, page_size):
                        continue
                    if _fnv64a(meta[:56]) == checksum:
                        return None if size >= pages * page_size else "the database was cut short"
    except OSError as error:
        return f"the database cannot be read: {error.strerror}"
    return "the database has no valid meta page"


def _fnv64a(content: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in content:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
