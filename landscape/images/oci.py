"""Layers, images and archives in the OCI image layout, written without an engine or a registry.

Everything is content-addressed: a layer is a blob, an image a list of blobs, an archive a tar of the blobs that its
images need. Layers stay uncompressed: they never leave the machine, and unpacking gzip or zstd costs more than reading.
"""

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_EPOCH = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class Blob:
    """Content by its digest; ``sha256:…`` as written in manifests."""

    digest: str
    size: int

    def descriptor(self, media_type: str) -> dict[str, Any]:
        return {"mediaType": media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class Image:
    """Configuration of an image for the container runtime."""

    name: str
    layers: tuple[Blob, ...]
    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "0"
    stop_signal: str = "SIGTERM"
    command: tuple[str, ...] = ()
    """Arguments of the entrypoint, which a container may replace."""

    def config(self) -> bytes:
        return _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "created": _EPOCH,
                "config": {
                    "User": self.user,
                    "Entrypoint": list(self.entrypoint),
                    "Env": [f"{name}={value}" for name, value in sorted(self.environment.items())],
                    "WorkingDir": "/",
                    "StopSignal": self.stop_signal,
                }
                | ({"Cmd": list(self.command)} if self.command else {}),
                # Uncompressed, so a layer's digest is its diff id.
                "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in self.layers]},
                "history": [{"created": _EPOCH, "created_by": "gardener landscape"} for _ in self.layers],
            }
        )

    def manifest(self) -> bytes:
        config = self.config()
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": blob_of(config).descriptor(_CONFIG),
                "layers": [layer.descriptor(_LAYER) for layer in self.layers],
            }
        )


def blob_of(content: bytes) -> Blob:
    return Blob("sha256:" + hashlib.sha256(content).hexdigest(), len(content))


class BlobStore:
    """Blobs as files named by their digest."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, blob: Blob) -> Path:
        return self.directory / blob.digest.removeprefix("sha256:")

    def holds(self, blob: Blob) -> bool:
        try:
            return self.path(blob).stat().st_size == blob.size
        except FileNotFoundError:
            return False

    def add_tree(self, tree: Path, exclude: Sequence[str] = ()) -> Blob:
        """Make a layer from a directory tree. Equal trees give equal blobs, whatever the times of their files are."""
        handle, name = tempfile.mkstemp(dir=self.directory, prefix=".layer-")
        os.close(handle)
        temporary = Path(name)
        try:
            subprocess.run(
                [
                    "tar", "--create", "--file", name, "--directory", str(tree),
                    "--sort=name", "--mtime=@0", "--numeric-owner", "--one-file-system",
                    "--format=gnu", "--anchored",
                    *(f"--exclude={pattern}" for pattern in exclude),
                    ".",
                ],
                check=True,
                capture_output=True,
            )  # fmt: skip
            with temporary.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            blob = Blob(f"sha256:{digest}", temporary.stat().st_size)
            temporary.chmod(0o644)
            temporary.rename(self.path(blob))
            return blob
        finally:
            temporary.unlink(missing_ok=True)


def write_archive(path: Path, images: Iterable[Image], store: BlobStore, without: Iterable[Blob] = ()) -> None:
    """Write an archive of the images that ``ctr images import`` and ``docker load`` take.

    Layers in ``without`` are left out: the importing containerd must already have them.
    """
    left_out = {blob.digest for blob in without}
    index: list[dict[str, Any]] = []
    listing: list[dict[str, Any]] = []
    """The list of images in the older format, the only one that engines before version 25 read."""
    small: dict[str, bytes] = {}
    layers: dict[str, Blob] = {}
    for image in images:
        config, manifest = image.config(), image.manifest()
        small[blob_of(config).digest] = config
        small[blob_of(manifest).digest] = manifest
        layers |= {layer.digest: layer for layer in image.layers if layer.digest not in left_out}
        listing.append(
            {
                "Config": _blob_name(blob_of(config).digest),
                "RepoTags": [image.name],
                "Layers": [_blob_name(layer.digest) for layer in image.layers],
            }
        )
        index.append(
            blob_of(manifest).descriptor(_MANIFEST)
            | {
                "platform": {"architecture": "amd64", "os": "linux"},
                "annotations": {"io.containerd.image.name": image.name},
            }
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            for digest, layer in sorted(layers.items()):
                archive.add(store.path(layer), _blob_name(digest), filter=_anonymous)
            for digest, content in sorted(small.items()):
                _add(archive, _blob_name(digest), content)
            if not left_out:
                _add(archive, "manifest.json", _json(listing))
            _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": index}))
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def _blob_name(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime, entry.mode = 0, 0o644
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
