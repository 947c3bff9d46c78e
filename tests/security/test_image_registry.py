"""A machine writes into the registry from which other Shoots pull. The registry is the real one."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.image_registries import MANIFEST, REPOSITORY, ask, program, put, serving

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(120, func_only=True)]

CONTENT, FORGED = b"the program of the team", b"a program of the attacker"
_DIGEST = f"sha256:{hashlib.sha256(FORGED).hexdigest()}"


@dataclass(frozen=True)
class Reachable:
    """The registry as machines reach it, with one image that its owner has pushed."""

    url: str
    images: Path
    digest: str

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.images.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def is_built() -> None:
    program()


@pytest.fixture
def registry(is_built: None, tmp_path: Path) -> Iterator[Reachable]:
    with serving(tmp_path, writable=True) as url:
        digest = put(url, CONTENT, "v1")
    with serving(tmp_path) as url:
        yield Reachable(url, tmp_path / "images", digest)


def test_an_image_is_pulled_by_its_name_and_by_its_digest(registry: Reachable) -> None:
    """Otherwise the attacks below would fail for another reason."""
    for name in ("v1", "v1?ns=docker.io", registry.digest):
        status, headers, _ = ask("GET", f"{registry.url}/v2/{REPOSITORY}/manifests/{name}")
        assert (status, headers["Docker-Content-Digest"]) == (200, registry.digest)
    blob = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    assert ask("GET", f"{registry.url}/v2/{REPOSITORY}/blobs/{blob}")[2] == CONTENT


@pytest.mark.attack(actor="T2", asset="A7", finding=40)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{REPOSITORY}/blobs/uploads/", b""),
        ("POST", f"{REPOSITORY}/blobs/uploads/?digest={_DIGEST}", FORGED),
        ("POST", f"attacker/app/blobs/uploads/?mount={_DIGEST}&from={REPOSITORY}", b""),
        ("PATCH", f"{REPOSITORY}/blobs/uploads/11111111-1111-1111-1111-111111111111", FORGED),
        ("PUT", f"{REPOSITORY}/blobs/uploads/11111111-1111-1111-1111-111111111111?digest={_DIGEST}", FORGED),
        ("PUT", f"{REPOSITORY}/manifests/v1", b'{"schemaVersion": 2}'),
        ("PUT", "attacker/app/manifests/v1", b'{"schemaVersion": 2}'),
        ("DELETE", f"{REPOSITORY}/manifests/v1", b""),
        ("DELETE", f"{REPOSITORY}/blobs/sha256:{hashlib.sha256(CONTENT).hexdigest()}", b""),
        ("DELETE", f"{REPOSITORY}/blobs/uploads/11111111-1111-1111-1111-111111111111", b""),
    ],
)
def test_a_machine_that_pushes_or_deletes_is_refused(registry: Reachable, method: str, path: str, body: bytes) -> None:
    before = registry.files()

    kind = MANIFEST if "manifests" in path else "application/octet-stream"

    status, _, _ = ask(method, f"{registry.url}/v2/{path}", body, kind)

    assert 400 <= status < 500
    assert registry.files() == before


@pytest.mark.attack(actor="T2", asset="A7", finding=40)
def test_a_machine_that_deletes_an_image_by_its_digest_is_refused(registry: Reachable) -> None:
    before = registry.files()

    assert ask("DELETE", f"{registry.url}/v2/{REPOSITORY}/manifests/{registry.digest}")[0] == 405

    assert registry.files() == before
