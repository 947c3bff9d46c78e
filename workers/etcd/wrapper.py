"""What an etcd container starts: restores an empty or broken data directory, then becomes etcd.

``python3 -m workers.etcd.wrapper CONFIG``. On the way of every API server's start, so: the standard
library only, and nothing imported before it is needed. Configuration is JSON, made by
``workers.etcd.manifests``:

    etcd            etcd's own configuration, but for what differs by member
    dataDir         data directory
    runDirectory    where etcd's configuration and the result of the initialization are written
    members         peer URL by name of every member; ours is $POD_NAME
    store           provider, bucket, prefix, credentialsDirectory; null without backups
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from workers.etcd.json_log import log

INITIALIZATION_FILE = "initialization.json"
_RETRY_SECONDS = 2.0
_END_SOON = """\
"$@" & etcd=$!
trap 'kill -TERM $etcd; sleep 0.5; kill -KILL $etcd 2>/dev/null' TERM
wait $etcd
"""
"""When it is to end, etcd takes no connections any more and waits 7 s for its watches, which do not end by themselves.
Nobody is served meanwhile if it is alone, and it need not be: what it has confirmed is on disk."""


def main(config_path: str) -> NoReturn:
    """Never returns: the process is etcd afterwards, or looks after it, or has ended."""
    # As process 1 we have no default action for it; etcd sets its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    config = json.loads(Path(config_path).read_text())
    name = os.environ["POD_NAME"]
    try:
        file = prepare(config, name)
    except Exception as error:  # the last line of a container's log is what its status shows
        _report(config, "Failed", detail=type(error).__name__)
        log("error", f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None
    command = [os.environ.get("ETCD_BINARY", "etcd"), "--config-file", str(file)]
    if len(config["members"]) == 1:
        command = ["sh", "-c", _END_SOON, "etcd", *command]
    os.execvp(command[0], command)


def prepare(config: dict[str, Any], name: str) -> Path:
    """Make the data directory fit to start from; returns etcd's configuration file."""
    data = Path(config["dataDir"])
    fault = fault_of(data)
    if fault is None:
        _report(config, "Successful", detail="data directory is sound")
    else:
        _initialize(config, name, data, fault)
    file = Path(config["runDirectory"], "etcd.conf.yaml")
    file.write_text(json.dumps({**config["etcd"], **member_config(config, name)}, indent=1))
    return file


def member_config(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The part of etcd's configuration that each member has for itself."""
    return {
        "name": name,
        "data-dir": config["dataDir"],
        "initial-advertise-peer-urls": config["members"][name],
        "initial-cluster": ",".join(f"{member}={url}" for member, url in sorted(config["members"].items())),
        "advertise-client-urls": config["advertiseClientUrls"].replace("$NAME", name),
    }


def fault_of(data: Path) -> str | None:
    """Why etcd cannot start from this directory, as far as a glance tells; None if it can."""
    if not _has_log(data):
        return "there is no data"
    return database_fault(data / "member" / "snap" / "db")


def _has_log(data: Path) -> bool:
    """Whether etcd ever accepted anything: its write-ahead log is made whole, before the first write."""
    return any((data / "member" / "wal").glob("*.wal"))


def database_fault(database: Path) -> str | None:
    """Why a bbolt file cannot be opened: both of its meta pages are damaged, or it was cut short."""
    import struct

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


def _initialize(config: dict[str, Any], name: str, data: Path, fault: str) -> None:
    _report(config, "Progress", detail=fault)
    store = config.get("store")
    found: list[str] = _snapshots(store) if store else []
    if found and len(config["members"]) > 1:
        _await_another_member(config, name, fault)
        found = []
    elif _has_log(data) and not found:
        # Broken, but all there is: an operator may save more from it than nothing.
        raise RuntimeError(f"data directory is unusable ({fault}) and there is no backup to restore")
    if data.exists():
        _set_aside(data)
    if found:
        from workers.etcd.restore import restore

        log("info", f"{fault}; restoring from {len(found)} snapshots")
        revision = restore(config, name, found)
        _report(config, "Successful", detail=f"restored revision {revision}")
    else:
        log("info", f"{fault}; starting empty")
        _report(config, "Successful", detail="new")


def _await_another_member(config: dict[str, Any], name: str, fault: str) -> None:
    """Of several members each has all data, so one that lost it gets it from the others.

    A backup is no member's to restore alone: it would be a cluster of its own. If all have lost their
    data, nobody ever listens, and an operator restores with one member.
    """
    import socket
    from urllib.parse import urlsplit

    others = [urlsplit(url) for member, url in config["members"].items() if member != name]
    while True:
        for other in others:
            try:
                socket.create_connection((other.hostname, other.port), _RETRY_SECONDS).close()
                return
            except OSError:
                continue
        log("warning", f"{fault}, there are backups, and no other member is up; waiting for one")
        time.sleep(_RETRY_SECONDS)


def _set_aside(data: Path) -> None:
    """Keep what we replace, until the next time."""
    import shutil

    for older in data.parent.glob(f"{data.name}.broken-*"):
        shutil.rmtree(older)
    data.rename(data.with_name(f"{data.name}.broken-{int(time.time())}"))


def _snapshots(store: dict[str, Any]) -> list[str]:
    """Names of what can be restored.

    Does not end before the store has answered: an etcd that starts empty because its backups could
    not be seen would be written to, and the backups would be lost to it.
    """
    from workers.etcd.store_reader import StoreReader, Unreadable

    while True:
        try:
            return StoreReader(store).snapshots()
        except Unreadable as error:
            log("warning", f"{error}; trying again, nothing is started without knowing the backups")
            time.sleep(_RETRY_SECONDS)


def _report(config: dict[str, Any], status: str, *, detail: str) -> None:
    file = Path(config["runDirectory"], INITIALIZATION_FILE)
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps({"status": status, "detail": detail}))
    temporary.rename(file)


if __name__ == "__main__":
    main(sys.argv[1])
