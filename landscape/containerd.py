"""One containerd per node, and prepared roots: a cache of containerd directories that hold imported images already.

Importing takes longer than starting a cluster. So images are imported once into a prepared root, and a cluster gets a
copy of it made of hard links: blobs and unpacked layers are never written to, only the databases are copied.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from api import images
from landscape.errors import LandscapeError
from landscape.files import write_file, write_if_changed
from landscape.kernel import has_ipv6
from landscape.network import POD_BRIDGE
from landscape.plan import CACHE_HOME, RUN_HOME, NodePlan
from landscape.processes import Processes, ProcessSpec
from landscape.shell import run
from landscape.waiting import until
from workers.network_policy_agent import cni_plugin

_PREPARED = CACHE_HOME / "containerd"
_NAMESPACE = "k8s.io"
_IMPORTED = "imported.json"
"""File in a containerd root: image archives by path, with their state at the import."""
_FORMAT = 2
"""Version of the format: raise it if prepared roots of earlier code cannot be used."""
_KEPT_ROOTS = 2
"""Number of prepared roots of earlier contents that are kept: another ``up`` may copy one, and other checkouts may use
some. They share equal files."""
_IMPORT_ATTEMPTS = 3
_CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))


def cni_plugins() -> Path:
    for directory in _CNI_DIRECTORIES:
        if (directory / "bridge").exists():
            return directory
    looked = " or ".join(map(str, _CNI_DIRECTORIES))
    raise LandscapeError(f"no CNI plugins in {looked}: run `make packages`")


def config(root: Path, run_directory: Path, cni: Path, plugins: Path) -> str:
    """containerd's configuration; everything it writes lies below ``root`` and ``run_directory``."""
    return f"""version = 2
root = "{root}"
state = "{run_directory}/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[debug]
  level = "warn"
[grpc]
  address = "{run_directory}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{run_directory}/runc"
"""


def cni_config(node: NodePlan, *, enforces: bool) -> str:
    """CNI configuration: a bridge with host-local addresses. No ``ipMasq``: one rule masquerades all pods.

    ``enforces``: whether the node enforces NetworkPolicies, so that each pod waits for its rules.
    """
    bridge = {
        "type": "bridge",
        "bridge": POD_BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "dataDir": str(node.directory / "cni-addresses"),
            "ranges": [[{"subnet": each}] for each in (node.pods, node.pods_ipv6) if each],
            "routes": [{"dst": each} for each in ("0.0.0.0/0", *(["::/0"] if node.pods_ipv6 else []))],
        },
    }
    announced = [{"type": cni_plugin.NAME, "socket": str(node.network_policies_socket)}] if enforces else []
    return json.dumps({"cniVersion": "0.4.0", "name": node.netns, "plugins": [bridge, *announced]}, indent=2)


def process(node: NodePlan, *, enforces: bool) -> ProcessSpec:
    """Write the configuration of the node's containerd; returns how to start it."""
    cni = node.directory / "cni"
    cni.mkdir(parents=True, exist_ok=True)
    plugins = _all_plugins(node.directory / "cni-plugins") if enforces else cni_plugins()
    found = node if has_ipv6() else replace(node, pods_ipv6="")
    (cni / "10-bridge.conflist").write_text(cni_config(found, enforces=enforces))
    root = node.directory / "containerd"
    return _process(f"{node.name}/containerd", root, node.run_directory, cni, plugins, node.netns)


def _all_plugins(directory: Path) -> Path:
    """Make a directory with all CNI plugins and our own: containerd looks into one only."""
    directory.mkdir(exist_ok=True)
    for each in cni_plugins().iterdir():
        if not (link := directory / each.name).exists():
            link.symlink_to(each)
    own = directory / cni_plugin.NAME
    write_if_changed(own, f"#!{sys.executable} -IS\n{Path(cni_plugin.__file__).read_text()}", mode=0o755)
    return directory


def _process(name: str, root: Path, run_directory: Path, cni: Path, plugins: Path, netns: str | None) -> ProcessSpec:
    run_directory.mkdir(parents=True, exist_ok=True)
    file = run_directory / "containerd.toml"
    file.write_text(config(root, run_directory, cni, plugins))
    return ProcessSpec(name, ("containerd", "--config", str(file)), netns=netns)


async def ready(socket: Path) -> None:
    """Wait until containerd serves the kubelet. It may answer other clients although its CRI plugin has failed."""

    async def answers() -> bool:
        listing = await run("ctr", "--address", socket, "plugins", "list", check=False)
        states = [
            line.split()[-1] for line in listing.splitlines() if line.split()[:2] == ["io.containerd.grpc.v1", "cri"]
        ]
        if "error" in states:
            raise LandscapeError(f"containerd on {socket} has no working CRI plugin: see its log, then kill it")
        return states == ["ok"]

    await until(answers, f"containerd on {socket}", timeout=60)


async def refresh(node: NodePlan, archives: Sequence[Path]) -> list[str]:
    """Import the archives that changed since they were imported into a running containerd; returns their names."""
    return await _import(node.directory / "containerd", node.containerd_socket, archives)


async def add(node: NodePlan, archive: Path) -> None:
    """Import one more archive into a running containerd; ``refresh`` leaves its images as they are."""
    await _import_archive(node.containerd_socket, str(archive))


async def _import(root: Path, socket: Path, archives: Sequence[Path]) -> list[str]:
    """Import changed archives, and remove images that only earlier archives contained."""
    known = imported(root)
    wanted = {str(archive): archive for archive in archives}
    changed = [name for name, archive in wanted.items() if name not in known or known[name].state != _state(archive)]
    for name in changed:
        archive = wanted[name]
        state = _state(archive)
        output = await _import_archive(socket, name)
        known[name] = Imported(state, tuple(re.findall(r"^unpacking (\S+)", output, re.MULTILINE)))
        _remember(root, known)
    obsolete = known.keys() - wanted.keys()
    if obsolete:
        kept = {image for name in wanted for image in known[name].images}
        if gone := sorted({image for name in obsolete for image in known[name].images} - kept):
            await _ctr(socket, "images", "remove", "--sync", *gone)
        _remember(root, {name: content for name, content in known.items() if name in wanted})
    return [wanted[name].name for name in changed]


async def _import_archive(socket: Path, archive: str) -> str:
    """Import all images of an archive; returns the output of ctr.

    Containerd collects its garbage beside: it may take a layer of an image that was replaced just when this import has
    found it and builds on it. The next attempt then unpacks that layer again.
    """
    for _ in range(_IMPORT_ATTEMPTS - 1):
        try:
            return await _ctr(socket, "images", "import", "--no-unpack=false", archive)
        except LandscapeError as error:
            if "parent snapshot" not in str(error):
                raise
    return await _ctr(socket, "images", "import", "--no-unpack=false", archive)


async def _ctr(socket: Path, *arguments: str) -> str:
    return await run("ctr", "--address", socket, "--namespace", _NAMESPACE, *arguments)


@dataclass(frozen=True)
class Imported:
    """An imported archive: its state at the import, and the names of its images."""

    state: str
    images: tuple[str, ...]


def imported(root: Path) -> dict[str, Imported]:
    """Archives that a containerd root holds, by path."""
    try:
        content = json.loads((root / _IMPORTED).read_text())
    except FileNotFoundError:
        return {}
    return {name: Imported(each["state"], tuple(each["images"])) for name, each in content.items()}


def _remember(root: Path, content: Mapping[str, Imported]) -> None:
    write_file(root / _IMPORTED, json.dumps({name: asdict(each) for name, each in content.items()}, indent=2).encode())


def _state(archive: Path) -> str:
    """Identifies the content of an archive: its name, or a note next to it if the name does not change."""
    note = archive.with_suffix(".key")
    return note.read_text() if note.exists() else str(archive.stat().st_size)


async def prepare(role: str, archives: Sequence[Path]) -> tuple[Path, list[str]]:
    """The prepared root of a role, with exactly these archives imported, and the names of those that were imported now.

    When archives have changed, the new root starts as a copy of the last, and only they are imported.
    """
    await asyncio.to_thread(_PREPARED.mkdir, parents=True, exist_ok=True)
    states = {str(archive): _state(archive) for archive in archives}
    digest = hashlib.sha256(json.dumps([_FORMAT, states], sort_keys=True).encode()).hexdigest()[:12]
    target = _PREPARED / f"{role}-{digest}"
    async with _locked(_PREPARED / f".{role}.lock"):
        if await asyncio.to_thread(target.is_dir):
            os.utime(target)
            return target, []
        await asyncio.to_thread(_remove_scratch, role)
        older = await asyncio.to_thread(_oldest_first, role)
        scratch = Path(tempfile.mkdtemp(prefix=f".{role}-", dir=_PREPARED))
        root = scratch / "root"
        try:
            if older:
                await copy(older[-1], root)
            await asyncio.to_thread(root.mkdir, exist_ok=True)
            changed = await _import_offline(root, scratch, archives)
            await asyncio.to_thread(root.rename, target)
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, True)
        for path in older[:-_KEPT_ROOTS]:
            # A root of which only a part is left must not look like a whole one: an ``up`` may be killed meanwhile.
            await asyncio.to_thread(path.rename, _PREPARED / f".{path.name}")
        await asyncio.to_thread(_remove_scratch, role)
    return target, changed


def _remove_scratch(role: str) -> None:
    """Remove what interrupted runs have left, a containerd too. Only the holder of the role's lock may do it."""
    for path in _PREPARED.glob(f".{role}-*"):
        left = _offline(path)
        left.stop(list(left.all()), politely=False)
        for each in (path, *RUN_HOME.glob(f".prepare-*{path.name.replace('.', '-')}")):
            shutil.rmtree(each, ignore_errors=True)


def _offline(scratch: Path) -> Processes:
    """The containerd that runs on a root outside of a landscape."""
    return Processes(scratch / "processes", scratch)


def _oldest_first(role: str) -> list[Path]:
    return sorted(_PREPARED.glob(f"{role}-*"), key=lambda path: path.stat().st_mtime)


async def _import_offline(root: Path, scratch: Path, archives: Sequence[Path]) -> list[str]:
    """Run a separate containerd on the root during the import."""
    processes = _offline(scratch)
    run_directory = RUN_HOME / f".prepare-{os.getpid()}{scratch.name.replace('.', '-')}"
    running = processes.start(_process("containerd", root, run_directory, scratch, cni_plugins(), None))
    socket = run_directory / "containerd.sock"
    try:
        await ready(socket)
        return await _import(root, socket, archives)
    finally:
        await asyncio.to_thread(processes.stop, [running])
        await asyncio.to_thread(shutil.rmtree, run_directory, True)


async def copy(source: Path, target: Path) -> None:
    """Copy a containerd root: hard links for blobs and layers, copies of files that are written in place.

    The target is there when it is whole: two containerds on one database would wait for each other, and spoil it.
    """
    scratch = target.with_name(f".{target.name}.copy")
    await asyncio.to_thread(shutil.rmtree, scratch, True)
    await run("cp", "--archive", "--link", source, scratch)
    await asyncio.to_thread(_unlink_databases, scratch)
    await asyncio.to_thread(scratch.rename, target)


def _unlink_databases(root: Path) -> None:
    databases = ["io.containerd.metadata.v1.bolt/meta.db", *(f"{path.name}/metadata.db" for path in root.iterdir())]
    for name in [*databases, _IMPORTED]:
        file = root / name
        if file.is_file():
            content = file.read_bytes()
            file.unlink()
            file.write_bytes(content)


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    with path.open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield
