"""The landscape's registry of images on loopback, and images for it."""

import asyncio
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from landscape import binaries, registry
from landscape.images.oci import BlobStore, Image, write_archive
from landscape.progress import Progress
from tests.api_servers import free_port

REPOSITORY = "team/app"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_START_SECONDS = 60.0


@cache
def program() -> str:
    """Find the registry in the cache, or compile it: a minute, once. Call it outside of an event loop."""
    return asyncio.run(binaries.ensure((binaries.registry(),), Progress(quiet=True)))["registry"]


@contextmanager
def serving(directory: Path, *, writable: bool = False) -> Iterator[str]:
    """A registry with the landscape's configuration and the images of a directory; yields its URL."""
    address = f"127.0.0.1:{free_port()}"
    file = directory / ("push.yaml" if writable else "serving.yaml")
    file.write_text(json.dumps(registry.configuration(directory / "images", {"addr": address}, writable=writable)))
    with (directory / f"{file.stem}.log").open("wb") as log:
        command = (program(), "serve", str(file))
        process = subprocess.Popen(command, env=os.environ | registry.ENVIRONMENT, stdout=log, stderr=log)
        try:
            _until_serving(f"http://{address}")
            yield f"http://{address}"
        finally:
            process.kill()
            process.wait()


def put(url: str, content: bytes, tag: str) -> str:
    """Push an image with one layer; returns the digest of its manifest."""
    described = []
    for blob in (b"{}", content):
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        _, headers, _ = ask("POST", f"{url}/v2/{REPOSITORY}/blobs/uploads/")
        assert ask("PUT", f"{headers['Location']}&digest={digest}", blob)[0] == 201
        described.append({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": len(blob)})
    config = described[0] | {"mediaType": "application/vnd.oci.image.config.v1+json"}
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": described[1:]}
    ).encode()
    status, headers, _ = ask("PUT", f"{url}/v2/{REPOSITORY}/manifests/{tag}", manifest, MANIFEST)
    assert status == 201
    return headers["Docker-Content-Digest"]


def ask(
    method: str, url: str, body: bytes = b"", kind: str = "application/octet-stream"
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content of an answer."""
    request = Request(url, data=body or None, method=method, headers={"Content-Type": kind, "Accept": MANIFEST})
    try:
        with urlopen(request, timeout=20) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except HTTPError as error:
        return error.code, dict(error.headers), error.read()


def archive(directory: Path, name: str, binary: Path) -> Path:
    """An archive with an image of one static program; the image has a layer that no other image has."""
    tree = directory / "tree"
    tree.mkdir(parents=True)
    (tree / "program").write_bytes(binary.read_bytes())
    (tree / "program").chmod(0o755)
    (tree / "name").write_text(name)
    store = BlobStore(directory / "blobs")
    made = directory / "image.tar"
    write_archive(made, [Image(name, (store.add_tree(tree),), ("/program",), user="65535")], store)
    return made


def _until_serving(url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            assert ask("GET", f"{url}/v2/")[0] == 200
        except (URLError, OSError):
            time.sleep(0.02)  # nothing tells that a process listens
        else:
            return
    raise AssertionError(f"nothing answers at {url} after {_START_SECONDS:.0f} s")
