"""Images are written by hand, so their form is held here against what the OCI specification says."""

import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest

from landscape.images.oci import BlobStore, Image, write_archive


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def tree(root: Path, **files: str) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {entry.name: opened.extractfile(entry).read() for entry in opened if entry.isfile()}  # type: ignore[union-attr]


def test_the_same_tree_gives_the_same_layer_whenever_it_was_written(store: BlobStore, tmp_path: Path) -> None:
    """Otherwise each build would make every cluster import everything again."""
    first = tree(tmp_path / "a", bin__tool="x", etc__b="1", etc__a="2")
    second = tree(tmp_path / "b", etc__a="2", etc__b="1", bin__tool="x")
    os.utime(second / "bin/tool", (1, 1))

    assert store.add_tree(first) == store.add_tree(second)


def test_another_content_gives_another_layer(store: BlobStore, tmp_path: Path) -> None:
    first = store.add_tree(tree(tmp_path / "a", file="x"))
    assert store.add_tree(tree(tmp_path / "b", file="y")).digest != first.digest


def test_excluded_files_are_not_in_the_layer(store: BlobStore, tmp_path: Path) -> None:
    """Compilations leave files in a tree's /tmp while it may be packed."""
    blob = store.add_tree(tree(tmp_path / "a", tmp__left="x", kept="y"), exclude=["./tmp/*"])
    with tarfile.open(store.path(blob)) as layer:
        assert {"./kept", "./tmp"} <= set(layer.getnames())
        assert "./tmp/left" not in layer.getnames()


def test_an_archive_holds_each_shared_layer_once_and_all_blobs_of_its_index(store: BlobStore, tmp_path: Path) -> None:
    base, one, two = (store.add_tree(tree(tmp_path / name, file=name)) for name in ("base", "one", "two"))
    images = [Image("example.org/one:1", (base, one), ("/one",)), Image("example.org/two:1", (base, two))]
    write_archive(tmp_path / "archive.tar", images, store)

    found = members(tmp_path / "archive.tar")
    assert json.loads(found["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(found["index.json"])
    names = [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]]
    assert names == ["example.org/one:1", "example.org/two:1"]
    reached = {"oci-layout", "index.json", "manifest.json"}
    for entry in index["manifests"]:
        manifest = json.loads(found[blob_name(entry)])
        config = json.loads(found[blob_name(manifest["config"])])
        assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
        for part in (entry, manifest["config"], *manifest["layers"]):
            content = found[blob_name(part)]
            assert len(content) == part["size"]
            assert "sha256:" + hashlib.sha256(content).hexdigest() == part["digest"]
            reached.add(blob_name(part))
    assert set(found) == reached
    older = json.loads(found["manifest.json"])
    assert [entry["RepoTags"] for entry in older] == [["example.org/one:1"], ["example.org/two:1"]]
    assert {entry["Config"] for entry in older} | {layer for entry in older for layer in entry["Layers"]} <= reached


def test_layers_that_the_importer_has_are_left_out_but_still_named(store: BlobStore, tmp_path: Path) -> None:
    """This makes an archive of our code small; containerd finds the lower layers in what it imported before."""
    base, code = (store.add_tree(tree(tmp_path / name, file=name)) for name in ("base", "code"))
    image = Image("example.org/ours:1", (base, code))
    write_archive(tmp_path / "code.tar", [image], store, without=[base])

    found = members(tmp_path / "code.tar")
    assert "blobs/" + base.digest.replace(":", "/") not in found
    assert "blobs/" + code.digest.replace(":", "/") in found
    assert "manifest.json" not in found, "an engine would take it for whole"
    manifest = json.loads(found[blob_name(json.loads(found["index.json"])["manifests"][0])])
    assert [layer["digest"] for layer in manifest["layers"]] == [base.digest, code.digest]


def test_a_failed_archive_leaves_nothing_behind(store: BlobStore, tmp_path: Path) -> None:
    """A half-written archive under the final name would be imported."""
    lost = store.add_tree(tree(tmp_path / "a", file="x"))
    store.path(lost).unlink()

    with pytest.raises(FileNotFoundError):
        write_archive(tmp_path / "out" / "archive.tar", [Image("example.org/x:1", (lost,))], store)
    with pytest.raises(FileNotFoundError):
        write_archive(tmp_path / "archive.tar", [Image("example.org/x:1", (lost,))], store)
    assert not list(tmp_path.glob("*.tar*"))
    assert not list(tmp_path.glob(".*.tar*"))


def test_a_truncated_blob_is_not_taken_for_the_whole(store: BlobStore, tmp_path: Path) -> None:
    blob = store.add_tree(tree(tmp_path / "a", file="x" * 5000))
    os.truncate(store.path(blob), 100)
    assert not store.holds(blob)


def blob_name(descriptor: dict[str, str]) -> str:
    return "blobs/" + descriptor["digest"].replace(":", "/")
