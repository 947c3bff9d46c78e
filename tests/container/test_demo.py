"""`make demo` in a privileged container, for real: a landscape, and a first cluster with a node that is Ready.

``make test-container``. Where no engine answers, one is run. It has no images, so debian:12 is made here, too. The
container gets this machine's caches as links and trusts its authorities; ``GARDENER_ENGINE_CACHE`` and
``GARDENER_ENGINE_ARGS`` say otherwise.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from landscape.images import trees
from landscape.plan import CACHE_HOME
from tests.compose.engine import docker, engine

pytestmark = [pytest.mark.container, pytest.mark.timeout(600, func_only=True)]

ROOT = Path(__file__).parents[2]
NAME = "test-container"
CONTAINER = f"gardener-{NAME}"
_DEMO_SECONDS = 40 * 60
"""From nothing: Kubernetes is compiled."""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_SYS_RESOURCE = 1 << 24


def make(target: str, timeout: float) -> str:
    """Output of a target, in the container."""
    command = ["make", "--no-print-directory", target, "IN_CONTAINER=1", f"NAME={NAME}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"make {target}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def inside(*arguments: str) -> str:
    return docker("exec", CONTAINER, *arguments)


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """Output of `make demo`. Afterwards nothing is left, whatever the tests did."""
    with ExitStack() as stack:
        runtime(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.enter_context(engine())
        debian(stack)
        if "GARDENER_ENGINE_CACHE" not in os.environ:
            os.environ["GARDENER_ENGINE_CACHE"] = str(caches(stack))
            stack.callback(os.environ.pop, "GARDENER_ENGINE_CACHE")
        if "GARDENER_ENGINE_ARGS" not in os.environ and _CERTIFICATES.exists():
            os.environ["GARDENER_ENGINE_ARGS"] = f"--volume {_CERTIFICATES}:{_CERTIFICATES}:ro"
            stack.callback(os.environ.pop, "GARDENER_ENGINE_ARGS")
        stack.callback(make, "down", 300)
        yield make("demo", _DEMO_SECONDS)


def runtime(directory: Path) -> None:
    """Put ``runc.py`` in front of runc, where root lacks a capability that Debian's engine hands out."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if not int(status["CapBnd"], 16) & _SYS_RESOURCE:
        (directory / "runc").write_text(
            f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("runc.py")} "$@"\n'
        )
        (directory / "runc").chmod(0o755)
        os.environ["PATH"] = f"{directory}:{os.environ['PATH']}"


def debian(stack: ExitStack) -> None:
    """Create the image debian:12, which other users pull."""
    if docker("images", "--quiet", "debian:12").strip():
        return
    tree = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tree"
    trees.debootstrap(tree, ("apt",), CACHE_HOME / "images/debs")
    tar = subprocess.Popen(["tar", "-c", "-C", tree, "."], stdout=subprocess.PIPE)
    subprocess.run(["docker", "import", "-", "debian:12"], stdin=tar.stdout, stdout=subprocess.DEVNULL, check=True)
    assert tar.wait() == 0
    stack.callback(docker, "image", "rm", "--force", "debian:12", "gardener-landscape")


def caches(stack: ExitStack) -> Path:
    """A home for the container that shares with this machine what was compiled; nothing there is written in place."""
    parent = CACHE_HOME.parents[1]
    home = Path(tempfile.mkdtemp(prefix="gardener-container-", dir=parent))
    stack.callback(shutil.rmtree, home)
    (home / ".cache").mkdir()
    subprocess.run(["cp", "--archive", "--link", CACHE_HOME.parent, home / ".cache"], check=True)
    return home


def test_the_node_of_the_first_cluster_is_ready(demo):
    [node] = json.loads(inside("kubectl", "get", "nodes", "-o", "json"))["items"]

    assert {each["type"]: each["status"] for each in node["status"]["conditions"]}["Ready"] == "True"
    assert node["metadata"]["name"] in demo


def test_the_cluster_is_reached_from_outside(demo):
    """By the kubeconfig that the user finds in the checkout, on any system that reaches a published port."""
    config = ROOT / "shoot.kubeconfig"
    kubectl = [str(Path(sys.executable).parent / "kubectl"), f"--kubeconfig={config}"]

    nodes = subprocess.run([*kubectl, "get", "nodes"], capture_output=True, text=True, check=True).stdout

    assert " Ready " in nodes
    assert yaml.safe_load(config.read_text())["clusters"][0]["cluster"]["server"].startswith("https://127.0.0.1:")


def test_the_ui_is_reached_from_outside(demo):
    [address] = [line.split()[-1] for line in demo.splitlines() if line.startswith("  Temporal UI:")]

    page = subprocess.run(["curl", "--silent", "--fail", address], capture_output=True, text=True, check=True).stdout

    assert "<html" in page


def test_status_and_flows_are_shown(demo):
    assert re.search("^seed-2 +true ", make("status", 60), re.MULTILINE)
    assert "Create" in inside("gardener", "flow", "show", "garden-local/demo")


def test_a_second_demo_only_shows_what_is_there(demo):
    before = docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", CONTAINER)

    assert "all of it in" in make("demo", 300)

    assert docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", CONTAINER) == before


def test_a_landscape_is_created_again_after_its_container_was_stopped(demo):
    """An engine stops it when the machine is shut down."""
    docker("stop", "--time", "1", CONTAINER)

    assert "it is created again" in make("demo", 600)

    [node] = json.loads(inside("kubectl", "get", "nodes", "-o", "json"))["items"]
    assert {each["type"]: each["status"] for each in node["status"]["conditions"]}["Ready"] == "True"


def test_down_leaves_nothing_but_caches(demo):
    home = Path(os.environ["GARDENER_ENGINE_CACHE"])

    printed = make("down", 300)

    assert f"container {CONTAINER} removed" in printed
    assert CONTAINER not in docker("ps", "--all", "--format", "{{.Names}}")
    assert not (ROOT / "shoot.kubeconfig").exists()
    if home.is_absolute():
        assert not (home / ".local/state/gardener/landscapes").exists()
    assert not [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(home) in line]
