"""The picture of the packages in docs/architecture.md shows the imports of the code."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import grimp
import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "docs" / "packages" / "generate.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packages_generate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_up_to_date() -> None:
    check = subprocess.run([sys.executable, SCRIPT, "--check"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert check.returncode == 0, check.stderr


def test_the_page_has_the_picture() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()

    assert "writes this picture -->\n```mermaid\nflowchart TD\n" in page


def test_a_box_is_a_layer_or_a_package_without_layers(script: ModuleType) -> None:
    linter = {
        "root_packages": ["workers", "kube"],
        "contracts": [
            {"name": "outer", "layers": ["workers", "kube"]},
            {"name": "inner", "containers": ["workers"], "layers": ["cli", "admission | (gateway)", "lib : etcd"]},
        ],
    }

    assert script.boxes(linter) == {
        "workers1": ["workers.cli"],
        "workers2": ["workers.admission", "workers.gateway"],
        "workers3": ["workers.lib", "workers.etcd"],
        "kube": ["kube"],
    }


def test_an_arrow_is_an_import_between_modules_of_two_boxes(script: ModuleType) -> None:
    graph = grimp.ImportGraph()
    graph.add_import(importer="workers.cli.seed", imported="workers.cli.shoot")
    graph.add_import(importer="workers.cli.seed", imported="kube.client")
    graph.add_import(importer="workers.unknown", imported="kube.client")

    found = script.arrows(graph, {"workers1": ["workers.cli"], "kube": ["kube"]})

    assert found == {"workers1": {"kube"}, "kube": set()}


def test_an_arrow_beside_a_longer_way_is_left_out(script: ModuleType) -> None:
    arrows = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}

    assert script.reduced(arrows) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}
