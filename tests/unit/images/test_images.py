"""Images of a role: each program's under the name, path and user that manifests count on."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from landscape import binaries, images
from landscape.images import Role, conformance
from landscape.images.layers import Layers
from landscape.images.oci import Blob
from landscape.lifecycle import TOOLS
from tests.unit.components.test_manifests import IN_THE_SEED, IN_THE_SHOOT, containers, workloads

VERSION = "1.37.1"


class Programs:
    """A file for each binary that is made for images of a role."""

    def __init__(self, directory: Path, role: Role) -> None:
        self._directory, self._made = directory, {binary for tool in TOOLS[role](VERSION) for binary in tool.binaries}
        directory.mkdir(parents=True)

    def __getitem__(self, name: str) -> str:
        assert name in self._made
        path = self._directory / name
        path.write_text(name)
        return str(path)


@pytest.fixture(autouse=True)
def without_debian(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Trees of Debian and packages take minutes; here a layer of their name stands for each."""

    def small(name: str) -> Callable[[Layers], Blob]:
        def layer(self: Layers) -> Blob:
            source = tmp_path / name
            source.write_text(name)
            return self.files(name, [(source, f"/{name}")])

        return layer

    for name in ("base", "machine", "packages", "code", "conformance", "busybox"):
        monkeypatch.setattr(Layers, name, small(name))
    monkeypatch.setattr(images, "CACHE", tmp_path / "cache")


def archives(role: Role, tmp_path: Path) -> list[Path]:
    return images.archives_for(role, VERSION, Programs(tmp_path / "bin", role))


def configs(archive: Path) -> dict[str, dict[str, Any]]:
    """Configuration for a runtime of each image in an archive, by the image's name."""
    with tarfile.open(archive) as opened:

        def read(name: str) -> Any:
            return json.load(opened.extractfile(name))  # type: ignore[arg-type]

        def blob(descriptor: dict[str, str]) -> Any:
            return read("blobs/" + descriptor["digest"].replace(":", "/"))

        return {
            entry["annotations"]["io.containerd.image.name"]: blob(blob(entry)["config"])["config"]
            for entry in read("index.json")["manifests"]
        }


def names(made: list[Path]) -> set[str]:
    return {name for archive in made for name in configs(archive)}


def on_request(tmp_path: Path) -> Path:
    """The archive with the store of logs, which a seed gets only on request: its program would have to be compiled."""
    program = tmp_path / "victoria-logs"
    program.write_text("victoria-logs")
    return images.archive_of_victoria_logs({"victoria-logs": str(program)})


def test_the_store_of_logs_has_upstreams_name_and_path(tmp_path: Path) -> None:
    ((name, config),) = configs(on_request(tmp_path)).items()

    assert name == "docker.io/victoriametrics/victoria-logs:v1.52.2"
    assert config["Entrypoint"] == ["/victoria-logs-prod"]


def test_a_seed_has_prometheus_in_its_own_archive_with_upstreams_entrypoint_and_user(tmp_path: Path) -> None:
    """A new version of it is then imported without anything else, and a restricted pod may run it."""
    (archive,) = (path for path in archives("seed", tmp_path) if path.name.startswith("prometheus-"))

    found = configs(archive)

    assert list(found) == ["quay.io/prometheus/prometheus:v3.15.0"]
    (config,) = found.values()
    assert config["Entrypoint"] == ["/bin/prometheus"]
    assert config["User"] == "65534"


def test_nodes_of_a_shoot_have_all_images_of_a_seed(tmp_path: Path) -> None:
    """A Shoot can be a seed. Machines link to one store of images, so they do not grow by these."""
    of_seed, of_shoot = (names(archives(role, tmp_path / role)) for role in ("seed", "shoot"))
    assert of_seed <= of_shoot


def test_the_nodes_of_the_cloud_have_only_the_machine(tmp_path: Path) -> None:
    """The cloud starts first: each further image would delay all machines."""
    brought = {name.rpartition("/")[2].partition(":")[0] for name in names(archives("cloud", tmp_path))}
    assert brought == {"pause", "machine", "machine-ground"}


def test_a_seed_has_the_vertical_pod_autoscaler_with_upstreams_entrypoints_and_user(tmp_path: Path) -> None:
    (archive,) = (path for path in archives("seed", tmp_path) if path.name.startswith("vertical-pod-autoscaler-"))

    found = {name: (config["Entrypoint"], config["User"]) for name, config in configs(archive).items()}

    assert found == {
        f"registry.k8s.io/autoscaling/vpa-{name}:1.8.1": ([f"/{name}"], "65532")
        for name in ("recommender", "updater", "admission-controller")
    }


@pytest.mark.parametrize(("role", "components"), [("seed", IN_THE_SEED), ("shoot", IN_THE_SHOOT)])
def test_the_archives_contain_all_images_of_our_pods(role: Role, components: dict[str, Any], tmp_path: Path) -> None:
    """In whatever version: pools have other Kubernetes versions than their control plane."""
    used = {each["image"] for objects in components.values() for pod in workloads(objects) for each in containers(pod)}
    brought = {name.rpartition(":")[0] for name in names([*archives(role, tmp_path), on_request(tmp_path)])}
    assert {name.rpartition(":")[0] for name in used} - brought == set()


def test_a_seed_has_kube_state_metrics(tmp_path: Path) -> None:
    (archive,) = (path for path in archives("seed", tmp_path) if path.name.startswith("kube-state-metrics-"))

    ((name, config),) = configs(archive).items()

    assert name == "registry.k8s.io/kube-state-metrics/kube-state-metrics:v2.15.0"
    assert (config["Entrypoint"], config["User"]) == (["/kube-state-metrics"], "65534")


@pytest.mark.parametrize("role", ["seed", "cloud", "shoot"])
def test_our_code_comes_last(role: Role, tmp_path: Path) -> None:
    """Its archive holds only top layers: containerd needs those below before."""
    made = archives(role, tmp_path)

    assert made[-1].name.startswith(f"code-{role}-")
    assert len(made) == len(set(made))


@pytest.fixture
def for_conformance(tmp_path: Path) -> Path:
    """The archive of the conformance tests' images."""
    source = tmp_path / "images"
    for animal in ("kitten", "nautilus"):
        (source / animal / "html").mkdir(parents=True)
        for file in ("data.json", f"{animal}.jpg"):
            (source / animal / "html" / file).write_text(animal)
    (source / "agnhost/porter").mkdir(parents=True)
    for kind in ("crt", "key"):
        (source / f"agnhost/porter/localhost.{kind}").write_text(kind)
    made = tmp_path / "bin"
    made.mkdir()
    found = {name: str(made / name) for tool in binaries.conformance_tools() for name in tool.binaries}
    for path in found.values():
        Path(path).write_text(path)
    return images.archive_for_conformance(found, source / "agnhost")


def test_conformance_tests_have_their_images_with_upstreams_commands(for_conformance: Path) -> None:
    """Tests set arguments, or none: they count on the entrypoints and default commands."""
    found = configs(for_conformance)

    assert found.keys() == conformance.ALL
    agnhost = found["registry.k8s.io/e2e-test-images/agnhost:2.66.1"]
    assert (agnhost["Entrypoint"], agnhost["Cmd"]) == (["/agnhost"], ["pause"])
    assert found["registry.k8s.io/e2e-test-images/kitten:1.8"]["Cmd"] == ["test-webserver"]
    assert found["registry.k8s.io/e2e-test-images/nonroot:1.5"]["User"] == "1234"
    assert found["registry.k8s.io/e2e-test-images/nonewprivs:1.4"]["Cmd"] == ["nnp"]
    assert "Cmd" not in found["registry.k8s.io/pause:3.10.2"]


def test_the_program_that_must_not_become_root_would_become_root(for_conformance: Path) -> None:
    """Without the bit its test would pass on a node that allows everything."""
    modes: dict[str, int] = {}
    with tarfile.open(for_conformance) as archive:
        for blob in archive.getmembers():
            if blob.size > 10_000:  # a layer: tar pads its archives
                with tarfile.open(fileobj=archive.extractfile(blob)) as layer:
                    modes |= {entry.name.removeprefix("./"): entry.mode for entry in layer.getmembers()}

    assert modes["usr/local/bin/nnp"] == 0o4755
    assert modes["agnhost"] == 0o755
