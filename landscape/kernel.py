"""Kernel limits that several kubelets and their machines' systemds exceed together."""

import json
from pathlib import Path

from landscape.files import write_file

_SYSTEM = Path("/proc/sys")
_AT_LEAST = {
    "fs/inotify/max_user_instances": 8192,
    "fs/inotify/max_user_watches": 524288,
}


def raise_limits(record: Path, system: Path = _SYSTEM) -> None:
    """Raise what is too low; what it was before is kept in ``record`` unless an earlier landscape did so."""
    before = {}
    for name, wanted in _AT_LEAST.items():
        current = int((system / name).read_text())
        if current < wanted:
            before[name] = current
            (system / name).write_text(str(wanted))
    if before and not record.exists():
        write_file(record, json.dumps(before).encode())


def restore_limits(record: Path, system: Path = _SYSTEM) -> None:
    """Undo ``raise_limits``; a limit that somebody else changed meanwhile stays."""
    if not record.exists():
        return
    for name, value in json.loads(record.read_text()).items():
        if int((system / name).read_text()) == _AT_LEAST[name]:
            (system / name).write_text(str(value))
    record.unlink()
