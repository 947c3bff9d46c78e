"""Checks that a Helm chart in an object can be loaded, before a gardenlet tries to install it.

The archive comes from a user's object. So its content is limited before it is read, and only ``Chart.yaml`` is parsed.
The limits are Helm's own (pkg/chart/loader/archive).
"""

from __future__ import annotations

import base64
import binascii
import re
import tarfile
import zlib
from io import BytesIO
from typing import Any

import yaml

_CONTENT_BYTES = 100 << 20
"""Longest content of all files of a chart."""
_FILE_BYTES = 5 << 20
"""Longest content of one file."""
_METADATA_BYTES = 64 << 10
"""Longest ``Chart.yaml``."""
_FILES = 5000
_VERSIONS = ("v1", "v2")
_SEMVER = re.compile(
    r"v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)


class _Unloadable(Exception):
    """Why Helm cannot load the chart."""


def chart_fault(encoded: str) -> str:
    """Why Helm cannot load a chart, a compressed archive in base64; empty if it can.

    The check takes up to a second for a large archive, so call it in a thread.
    """
    try:
        archive = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return "must be base64"
    try:
        _check_metadata(_metadata(archive))
    except _Unloadable as error:
        return f"{error}: package the chart with helm package, and encode the archive with base64"
    except (tarfile.TarError, EOFError, OSError, zlib.error):
        return "is no compressed archive: package the chart with helm package, and encode the archive with base64"
    return ""


def _metadata(archive: bytes) -> bytes:
    """Content of ``Chart.yaml`` in the archive. Raises _Unloadable."""
    found: bytes | None = None
    directory, total = "", 0
    # A stream: it is decompressed in small parts, and only as far as the limits allow.
    with tarfile.open(fileobj=BytesIO(archive), mode="r|gz") as members:
        for count, member in enumerate(members):
            total += member.size
            if count >= _FILES or total > _CONTENT_BYTES or member.size > _FILE_BYTES:
                raise _Unloadable(f"is too large: {_FILES} files, 5 MiB for each and 100 MiB for all are the limits")
            if not member.isfile():
                continue
            top, _, rest = member.name.removeprefix("./").partition("/")
            if not rest or ".." in member.name.split("/") or member.name.startswith("/"):
                raise _Unloadable(f"holds {member.name[:100]!r}, which is outside of the chart's directory")
            if rest == "Chart.yaml" and found is None:
                if member.size > _METADATA_BYTES:
                    raise _Unloadable("has a Chart.yaml of more than 64 KiB")
                content = members.extractfile(member)
                directory, found = top, content.read() if content else b""
            elif found is not None and top != directory:
                raise _Unloadable(f"holds files in {directory!r} and in {top[:100]!r}: a chart has one directory")
    if found is None:
        raise _Unloadable("holds no Chart.yaml in its directory")
    return found


def _check_metadata(text: bytes) -> None:
    try:
        metadata: Any = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError):
        raise _Unloadable("has a Chart.yaml that is no YAML") from None
    if not isinstance(metadata, dict):
        raise _Unloadable("has a Chart.yaml that is no object")
    if metadata.get("apiVersion") not in _VERSIONS:
        raise _Unloadable("has a Chart.yaml whose apiVersion is neither v1 nor v2")
    if not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise _Unloadable("has a Chart.yaml without a name")
    if not _SEMVER.fullmatch(str(metadata.get("version", ""))):
        raise _Unloadable("has a Chart.yaml whose version is no semantic version, like 1.2.3")
    if metadata.get("type") == "library":
        raise _Unloadable("is a library, which installs nothing")
