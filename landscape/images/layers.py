"""Layers of our images. The name of each is a hash of its sources, and each is made once."""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from api import images
from landscape.errors import LandscapeError
from landscape.images import trees
from landscape.images.oci import Blob, BlobStore
from workers.network_policy_agent import cni_plugin

Progress = Callable[[str], None]
PROJECT = Path(__file__).resolve().parents[2]
_CODE = ("activities", "api", "charts", "etcd", "kube", "workers", "workflows")
"""The charts, too: a gardenlet deploys the gardenlets of managed seeds by its own chart."""
_FILES = Path(__file__).parent / "files"
_PYTHON_OF_TREES = (3, 11)

_GENERATORS = (
    "bless-boot", "cryptsetup", "debug", "fstab", "getty", "gpt-auto", "hibernate-resume", "integritysetup",
    "rc-local", "run", "system-update", "sysv", "veritysetup",
)  # fmt: skip

# Raise it if the steps below change the content of a layer.
_RECIPE = 1

_LAUNCHER = """\
#!/usr/bin/python3 -I
import sys

sys.path[:0] = ["/opt/gardener/code", "/opt/gardener/packages"]
from workers.cli.main import main

sys.exit(main())
"""

_SHELL_OF_BUSYBOX = """\
#!/bin/bash
while IFS= read -rd '' entry; do
    [[ ${entry%%=*} =~ ^[a-zA-Z_][a-zA-Z0-9_]*$ ]] || exec -a "$0" /bin/bash "$@"
done < /proc/self/environ
exec -a "$0" /bin/busybox "$@"
"""
"""Busybox's own shell, whose messages tests compare; or bash if there are variables that busybox's does not pass on,
because their names, like ``data-1``, are no identifiers."""

_USERS_OF_BUSYBOX = {"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n"}

_KEPT_SECONDS = 7 * 24 * 3600.0

PYTHON_PATH = "/opt/gardener/code:/opt/gardener/packages"


class Layers:
    """Makes layers, or finds them in the cache."""

    def __init__(self, cache: Path, progress: Progress) -> None:
        self.store = BlobStore(cache / "blobs")
        self._cache = cache
        self._known = cache / "layers"
        self._trees = cache / "trees"
        self._base_tree = self._trees / f"base-{trees.base_key()}"
        self._progress = progress
        for directory in (self._known, self._trees):
            directory.mkdir(parents=True, exist_ok=True)

    def base(self) -> Blob:
        """The Debian tree under every image that is not static."""
        return self._remember("base", trees.base_key(), lambda: self.store.add_tree(self.base_tree(), ("./tmp/*",)))

    def base_tree(self) -> Path:
        if not self._base_tree.exists():
            trees.make_base(self._base_tree, self._cache / "debs", self._progress)
        return self._base_tree

    def machine(self) -> Blob:
        """The Debian tree of a machine: systemd, containerd, runc, CNI plugins."""
        return self._tree("machine", trees.machine_key(), trees.make_machine)

    def postgresql(self) -> Blob:
        """The Debian tree of a database server."""
        return self._tree("postgresql", trees.postgresql_key(), trees.make_postgresql)

    def conformance(self) -> Blob:
        """The Debian tree with the commands that pods of Kubernetes' end-to-end tests run."""
        key = trees.conformance_key()
        return self._remember("conformance", key, lambda: self.store.add_tree(self._conformance_tree(key)))

    def busybox(self) -> Blob:
        """One static program under the names of all commands that it has, a static bash, and files that they read."""
        key = trees.conformance_key()

        def fill(root: Path) -> None:
            programs = self._conformance_tree(key) / "bin"
            for directory in ("bin", "etc", "home", "root", "tmp", "usr/sbin", "var"):
                (root / directory).mkdir(parents=True)
            (root / "tmp").chmod(0o1777)
            for name, source in (("busybox", "busybox"), ("bash", "bash-static")):
                shutil.copyfile(programs / source, root / "bin" / name)
                (root / "bin" / name).chmod(0o755)
            (root / "bin/sh").write_text(_SHELL_OF_BUSYBOX)
            (root / "bin/sh").chmod(0o755)
            listed = subprocess.run([root / "bin/busybox", "--list"], capture_output=True, text=True, check=True)
            for command in sorted(set(listed.stdout.split()) - {"busybox", "bash", "sh"}):
                (root / "bin" / command).symlink_to("busybox")
            for name, line in _USERS_OF_BUSYBOX.items():
                (root / "etc" / name).write_text(line)

        return self._made("busybox", _digest([key, _SHELL_OF_BUSYBOX, *_USERS_OF_BUSYBOX.values()]), fill)

    def _conformance_tree(self, key: str) -> Path:
        tree = self._trees / f"conformance-{key}"
        if not tree.exists():
            trees.make_conformance(tree, self._cache / "debs", self._progress)
        return tree

    def setuid(self, name: str, file: Path, path: str) -> Blob:
        """An executable that runs as its owner, root."""

        def fill(root: Path) -> None:
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True)
            shutil.copyfile(file, target)
            target.chmod(0o4755)

        return self._made(name, _digest([json.dumps(_identity([(file, path)]))]), fill)

    def own_files(self, name: str) -> Blob:
        """Scripts and configuration: the content of ``files/NAME``, with paths as in the image."""
        source = _FILES / name

        def fill(root: Path) -> None:
            shutil.copytree(source, root, dirs_exist_ok=True)
            for script in root.rglob("*.sh"):
                script.chmod(0o755)

        return self._made(f"{name}-files", _hash_of_tree(source)[:16], fill)

    def machine_files(self) -> Blob:
        """Our configuration of a machine: units, containerd's configuration, scripts, and our CNI plugin."""
        source = _FILES / "machine"
        plugin = f"#!/usr/bin/python3 -IS\n{Path(cni_plugin.__file__).read_text()}"

        def fill(root: Path) -> None:
            shutil.copytree(source, root, symlinks=True, dirs_exist_ok=True)
            config = root / "etc/containerd/config.toml"
            config.write_text(config.read_text().replace("@PAUSE@", images.PAUSE))
            units = root / "etc/systemd/system"
            wants = units / "multi-user.target.wants"
            wants.mkdir()
            for unit in ("containerd.service", "machine-userdata.service"):
                own = units / unit
                (wants / unit).symlink_to(f"../{unit}" if own.exists() else f"/lib/systemd/system/{unit}")
            (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
            # These generators search for disks, consoles and containers at each boot and reload; a machine has none.
            generators = root / "etc/systemd/system-generators"
            generators.mkdir()
            for generator in _GENERATORS:
                (generators / f"systemd-{generator}-generator").symlink_to("/dev/null")
            own_plugin = root / "usr/lib/cni" / cni_plugin.NAME
            own_plugin.parent.mkdir(parents=True)
            own_plugin.write_text(plugin)
            for script in (*(root / "usr/local/lib/machine").iterdir(), own_plugin):
                script.chmod(0o755)

        key = _digest([images.PAUSE, *_GENERATORS, _hash_of_tree(source), plugin])
        return self._made("machine-files", key, fill)

    def files(self, name: str, files: Iterable[tuple[Path, str]], links: Iterable[tuple[str, str]] = ()) -> Blob:
        """Executables: (file, path in the image), and symbolic links (path, target)."""
        files, links = tuple(files), tuple(links)
        key = hashlib.sha256(json.dumps([_identity(files), links]).encode()).hexdigest()[:16]

        def fill(root: Path) -> None:
            for source, path in files:
                target = root / path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                target.chmod(0o755)
            for path, target_of_link in links:
                link = root / path.lstrip("/")
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(target_of_link)

        return self._made(name, key, fill)

    def packages(self) -> Blob:
        """The Python packages that our code needs at run time, as installed beside this process."""
        distributions = runtime_distributions()
        key = _digest([f"{name}=={found.version}" for name, found in sorted(distributions.items())])

        def fill(root: Path) -> None:
            if sys.version_info[:2] != _PYTHON_OF_TREES:
                raise LandscapeError(
                    "images need the packages of Python 3.11: make the virtual environment with python3.11"
                )
            target = root / "opt/gardener/packages"
            for found in distributions.values():
                for file in found.files or ():
                    path = Path(str(file.locate()))
                    if ".." in file.parts or path.suffix in (".pyc", ".pyi"):
                        continue
                    copy = target / file
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)
            _link_copies(target)
            trees.compile_python(self.base_tree(), target, "/opt/gardener/packages")

        return self._made("packages", key, fill)

    def code(self) -> Blob:
        """Our own code: the only layer that changes during development."""
        sources = [PROJECT / name for name in _CODE]

        def fill(root: Path) -> None:
            target = root / "opt/gardener/code"
            for source in sources:
                shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns("__pycache__"))
            trees.compile_python(self.base_tree(), target, "/opt/gardener/code")
            launcher = root / "usr/local/bin/gardener"
            launcher.parent.mkdir(parents=True)
            launcher.write_text(_LAUNCHER)
            launcher.chmod(0o755)

        return self._made("code", _digest([_LAUNCHER, *map(_hash_of_tree, sources)]), fill)

    def _tree(self, name: str, key: str, make_tree: Callable[[Path, Path, Progress], None]) -> Blob:
        """A layer of a Debian tree that is not used to prepare other layers."""

        def make() -> Blob:
            tree = self._trees / f"{name}-{key}"
            if not tree.exists():
                make_tree(tree, self._cache / "debs", self._progress)
            blob = self.store.add_tree(tree)
            shutil.rmtree(tree)
            return blob

        return self._remember(name, key, make)

    def _made(self, name: str, key: str, fill: Callable[[Path], None]) -> Blob:
        def make() -> Blob:
            self._progress(f"layer {name}")
            # Use the directory of the trees: compile_python moves files to and from a tree.
            with tempfile.TemporaryDirectory(dir=self._trees, prefix=".layer-") as temporary:
                root = Path(temporary) / "root"
                root.mkdir(mode=0o755)
                fill(root)
                return self.store.add_tree(root)

        return self._remember(name, f"{_RECIPE}-{key}", make)

    def _remember(self, name: str, key: str, make: Callable[[], Blob]) -> Blob:
        note = self._known / f"{name}-{key}.json"
        if note.exists():
            blob = Blob(**json.loads(note.read_text()))
            if self.store.holds(blob):
                for used in (note, self.store.path(blob)):
                    used.touch()
                return blob
        blob = make()
        note.write_text(json.dumps({"digest": blob.digest, "size": blob.size}))
        return blob

    def forget_unused(self, *more: Path) -> None:
        """Delete blobs, notes, trees, and files in the given directories that no run has used for a week."""
        oldest = time.time() - _KEPT_SECONDS
        for directory in (self.store.directory, self._known, *more):
            for file in directory.iterdir():
                if file.is_file() and file.stat().st_mtime < oldest:
                    file.unlink(missing_ok=True)
        for tree in self._trees.iterdir():
            if tree != self._base_tree and tree.stat().st_mtime < oldest:
                shutil.rmtree(tree)


def _link_copies(directory: Path) -> None:
    """Replace libraries that lie beside a copy of the same content by links: a wheel has no links, and Helm's library,
    85 MB, is in it under three names."""
    known: dict[tuple[Path, str], Path] = {}
    for path in sorted(directory.rglob("*.so*")):
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            first = known.setdefault((path.parent, content), path)
            if first != path:
                path.unlink()
                path.symlink_to(first.name)


@cache
def runtime_distributions() -> dict[str, metadata.Distribution]:
    """Our dependencies and theirs, without extras, by normalized name.

    Call this before images are made in a thread. Markers are read by Python's parser, and CPython 3.11 fails
    ("AST constructor recursion depth mismatch") where another thread parses meanwhile, as ``api.descriptions`` does.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, metadata.Distribution] = {}
    todo = [*(metadata.distribution("gardener-on-temporal").requires or ())]
    while todo:
        requirement = Requirement(todo.pop())
        name = str(canonicalize_name(requirement.name))
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = metadata.distribution(name)
        todo += found[name].requires or ()
    return found


def _identity(files: Iterable[tuple[Path, str]]) -> list[tuple[str, int, int]]:
    """Identifies a binary: its path contains the version, and size and date change if it is built again."""
    return [(path, file.stat().st_size, file.stat().st_mtime_ns) for file, path in files]


def _hash_of_tree(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(directory)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
