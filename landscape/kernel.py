"""Settings of the kernel for a landscape: modules, and limits that several kubelets and systemds together exceed."""

import json
from pathlib import Path

from landscape.errors import LandscapeError
from landscape.files import write_file
from landscape.shell import run

_SYSTEM = Path("/proc/sys")
_MODULES = {
    "overlay": lambda: "\toverlay\n" in Path("/proc/filesystems").read_text(),
    "br_netfilter": Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists,
    "tun": Path("/dev/net/tun").exists,
}
"""Modules that are not loaded automatically, each with a file that exists if it is loaded or built in."""
_AT_LEAST = {
    "fs/inotify/max_user_instances": 8192,
    "fs/inotify/max_user_watches": 524288,
}


def has_ipv6(system: Path = _SYSTEM) -> bool:
    """Whether the kernel has IPv6. Without it, machines have addresses of IPv4 only."""
    return (system / "net/ipv6").exists()


async def load_modules() -> None:
    """Load missing modules. They stay loaded after ``down``: other programs may use them."""
    for name, present in _MODULES.items():
        if not present():
            await run("modprobe", name, check=False)
        if not present():
            raise LandscapeError(f"the kernel has no {name}: load or build the module of that name")


def raise_limits(record: Path, system: Path = _SYSTEM) -> None:
    """Raise limits that are too low. ``record`` keeps the old values, unless an earlier landscape has recorded them."""
    before = {}
    for name, wanted in _AT_LEAST.items():
        current = int((system / name).read_text())
        if current < wanted:
            before[name] = current
            (system / name).write_text(str(wanted))
    if before and not record.exists():
        write_file(record, json.dumps(before).encode())


def restore_limits(record: Path, system: Path = _SYSTEM) -> None:
    """Restore the old limits; a limit that was changed since ``raise_limits`` stays."""
    if not record.exists():
        return
    for name, value in json.loads(record.read_text()).items():
        if int((system / name).read_text()) == _AT_LEAST[name]:
            (system / name).write_text(str(value))
    record.unlink()
