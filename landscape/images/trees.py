"""Debian trees, made by debootstrap: the ground of every image that needs a C library, a shell or systemd.

A tree is kept beside the images: later layers are prepared in it (byte code by its own Python).
"""

import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from api import images
from landscape.errors import LandscapeError

_SUITE = "bookworm"
_DOWNLOADS = threading.Lock()
"""Lock of debootstrap's cache: debootstrap does not recognize files that another run is still writing there."""
# Part of a tree's name: raise it if the steps below change the content of a tree.
_RECIPE = 1

BASE_PACKAGES = ("ca-certificates", "iproute2", "iptables", "nftables", "openvpn", "procps", "python3")
"""python3 for our code, openvpn, iproute2 and iptables for the VPN and kube-proxy, nftables for NetworkPolicies, procps
to look around."""

MACHINE_PACKAGES = (
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "openssh-server",
    "runc",
    "sudo",
    "systemd",
    "systemd-journal-remote",
    "systemd-sysv",
)
"""systemd-journal-remote for systemd-journal-upload, which sends the journal to the store of logs in the seed."""

POSTGRESQL_PACKAGES = (f"postgresql-{images.POSTGRESQL_VERSION}",)

CONFORMANCE_PACKAGES = (
    "bash-static", "bind9-dnsutils", "busybox-static", "curl", "iperf", "iproute2", "netcat-openbsd", "nginx-light",
    "procps", "socat", "wget",
)  # fmt: skip
"""Commands that pods of Kubernetes' end-to-end tests run; busybox and nginx also have images of their own."""
_USERS_OF_AGNHOST = {
    "passwd": "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n",
    "group": "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
}
"""A user with a further group, which a test looks for in the image."""

# Documentation, which is not needed in a container.
_SUPERFLUOUS = (
    "boot", "media", "mnt", "srv",
    "usr/share/bash-completion", "usr/share/bug", "usr/share/doc", "usr/share/doc-base", "usr/share/info",
    "usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/share/zsh",
    "var/cache/apt", "var/cache/debconf", "var/lib/apt", "var/log",
)  # fmt: skip

# Boot takes as long as the units that it starts: a machine needs only its journal, containerd and our own units.
_MASKED_UNITS = (
    "apt-daily-upgrade.timer", "apt-daily.timer", "console-getty.service", "dev-hugepages.mount",
    "dev-mqueue.mount", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer",
    "getty-static.service", "getty.target", "kmod-static-nodes.service", "modprobe@.service",
    "proc-sys-fs-binfmt_misc.automount", "rc-local.service", "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
    "systemd-ask-password-console.path", "systemd-ask-password-wall.path", "systemd-binfmt.service",
    "systemd-firstboot.service", "systemd-hwdb-update.service", "systemd-logind.service",
    "systemd-machine-id-commit.service", "systemd-modules-load.service", "systemd-networkd.service",
    "systemd-networkd.socket", "systemd-network-generator.service", "systemd-pstore.service",
    "systemd-quotacheck.service", "systemd-random-seed.service", "systemd-remount-fs.service",
    "systemd-resolved.service", "systemd-sysusers.service", "systemd-timesyncd.service",
    "systemd-tmpfiles-clean.timer", "systemd-udev-settle.service", "systemd-udev-trigger.service",
    "systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-udevd.service",
    "systemd-update-done.service", "systemd-update-utmp.service", "systemd-update-utmp-runlevel.service",
    "systemd-vconsole-setup.service",
)  # fmt: skip


def base_key() -> str:
    return _key("base", BASE_PACKAGES, ())


def machine_key() -> str:
    return _key("machine", (*BASE_PACKAGES, *MACHINE_PACKAGES), _MASKED_UNITS)


def postgresql_key() -> str:
    return _key("postgresql", POSTGRESQL_PACKAGES, ())


def conformance_key() -> str:
    return _key("conformance", CONFORMANCE_PACKAGES, tuple(_USERS_OF_AGNHOST.values()))


def make_base(directory: Path, debs: Path, progress: Callable[[str], None]) -> None:
    """Make the common tree at ``directory``."""
    progress("Debian base tree (debootstrap, about 45 s)")
    with _unfinished(directory) as tree:
        debootstrap(tree, BASE_PACKAGES, debs)
        _append(tree / "etc/passwd", "nonroot:x:65532:65532:nonroot:/nonexistent:/usr/sbin/nologin\n")
        _append(tree / "etc/group", "nonroot:x:65532:\n")
        _slim(tree)


def make_machine(directory: Path, debs: Path, progress: Callable[[str], None]) -> None:
    """Make the tree of a machine at ``directory``."""
    progress("Debian machine tree (debootstrap, about 60 s)")
    with _unfinished(directory) as tree:
        debootstrap(tree, (*BASE_PACKAGES, *MACHINE_PACKAGES), debs)
        units = tree / "etc/systemd/system"
        for wanted in (*units.glob("*.wants"), *units.glob("*.requires")):
            shutil.rmtree(wanted)
        for unit in _MASKED_UNITS:
            (units / unit).unlink(missing_ok=True)
            (units / unit).symlink_to("/dev/null")
        for directory_name in ("etc/machine", "opt/images", "opt/bin", "opt/cni"):
            (tree / directory_name).mkdir(parents=True, exist_ok=True)
        (tree / "opt/cni/bin").symlink_to("/usr/lib/cni")
        init = tree / "usr/sbin/init"
        init.unlink()
        init.symlink_to("/usr/local/lib/machine/init")
        # Each machine makes its own key at its first start: see ssh.service.d.
        for key in (tree / "etc/ssh").glob("ssh_host_*"):
            key.unlink()
        # Leave it empty: systemd creates an id for each machine, in memory.
        (tree / "etc/machine-id").write_text("")
        _slim(tree)


def make_postgresql(directory: Path, debs: Path, progress: Callable[[str], None]) -> None:
    """Make the tree of a database server at ``directory``: without a database, which its entrypoint makes."""
    progress("Debian tree with PostgreSQL (debootstrap, about 40 s)")
    with _unfinished(directory) as tree:
        debootstrap(tree, POSTGRESQL_PACKAGES, debs)
        # The package has created a database; debootstrap has kept it from starting the server.
        for made in ("etc/postgresql", "var/lib/postgresql"):
            for entry in (tree / made).iterdir():
                shutil.rmtree(entry)
        data = tree / "var/lib/postgresql/data"
        data.mkdir(mode=0o700)
        owner = data.parent.stat()
        os.chown(data, owner.st_uid, owner.st_gid)
        _empty(tree)
        # An engine that mounts a tmpfs there gives it the mode of this directory.
        sockets = tree / "run/postgresql"
        sockets.mkdir()
        sockets.chmod(0o1777)


def make_conformance(directory: Path, debs: Path, progress: Callable[[str], None]) -> None:
    """Make the tree of images of Kubernetes' end-to-end tests at ``directory``."""
    progress("Debian tree for Kubernetes' end-to-end tests (debootstrap, about 60 s)")
    with _unfinished(directory) as tree:
        debootstrap(tree, CONFORMANCE_PACKAGES, debs)
        for name, lines in _USERS_OF_AGNHOST.items():
            _append(tree / "etc" / name, lines)
        (tree / "uploads").mkdir()
        _empty(tree)


def compile_python(base: Path, directory: Path, place: str) -> None:
    """Compile the Python files below ``directory``, which will be ``place`` in the image, with the base tree's Python.

    Unchecked byte code: a layer's files all have one date, and an image's sources never change.
    ``directory`` must be on the file system of ``base``; it is moved there and back.
    """
    inside = base / "tmp" / f"compile-{os.getpid()}-{directory.name}"
    directory.rename(inside)
    try:
        _run(
            "chroot", str(base), "/usr/bin/python3", "-m", "compileall", "-q", "-f",
            "--invalidation-mode", "unchecked-hash", "-s", f"/tmp/{inside.name}", "-p", place,
            f"/tmp/{inside.name}",
        )  # fmt: skip
    finally:
        inside.rename(directory)


@contextmanager
def _unfinished(directory: Path) -> Iterator[Path]:
    """Make a tree under a temporary name, and rename it when it is complete."""
    unfinished = directory.with_name(f".{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        yield unfinished
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def debootstrap(tree: Path, packages: Sequence[str], debs: Path) -> None:
    if shutil.which("debootstrap") is None:
        raise LandscapeError("debootstrap is not installed: run `make packages`")
    debs.mkdir(parents=True, exist_ok=True)
    with _DOWNLOADS:
        _run(
            "debootstrap", "--variant=minbase", f"--include={','.join(packages)}", f"--cache-dir={debs}",
            _SUITE, str(tree), *_mirror(),
        )  # fmt: skip


def _mirror() -> list[str]:
    """Mirror from which this machine's apt gets the suite; empty for debootstrap's default."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Identifier: Packages", f"Codename: {_SUITE}"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return []
    return found[:1]


def _slim(tree: Path) -> None:
    _empty(tree)
    _run(
        "chroot", str(tree), "/usr/bin/python3", "-m", "compileall", "-q", "-f",
        "--invalidation-mode", "unchecked-hash", "/usr/lib/python3.11", "/usr/lib/python3",
    )  # fmt: skip


def _empty(tree: Path) -> None:
    """Remove files that a container does not need, or that the engine mounts itself."""
    for name in _SUPERFLUOUS:
        path = tree / name
        if path.is_dir():
            shutil.rmtree(path)
            path.mkdir()
    (tree / "var/lib/apt/lists/partial").mkdir(parents=True, exist_ok=True)
    for dist in (tree / "dev", tree / "proc", tree / "sys", tree / "run", tree / "tmp"):
        for entry in dist.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for name in ("etc/resolv.conf", "etc/hostname", "etc/hosts"):
        (tree / name).unlink(missing_ok=True)


def _append(file: Path, line: str) -> None:
    with file.open("a") as opened:
        opened.write(line)


def _run(*argv: str) -> None:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise LandscapeError(f"{' '.join(argv)[:200]}: exit status {done.returncode}: {last}")


def _key(name: str, packages: Sequence[str], more: Sequence[str]) -> str:
    inputs = json.dumps([name, _RECIPE, _SUITE, *packages, "", *more, "", *_SUPERFLUOUS])
    return hashlib.sha256(inputs.encode()).hexdigest()[:16]
