"""A Shoot with the container runtime gVisor, whose extension the gardenlet installs only for it (GEP-10).

The extension's process is killed while the Shoot is being created.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from api import images
from tests.landscape import pods
from tests.landscape.conftest import Landscape
from tests.landscape.installations import GOOD, conditions, installations, unregister
from tests.landscape.shoots import CREATION, Shoot, eventually

# The first run compiles gVisor's shim.
pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(900)]

NAME, SEED = "runtime-gvisor", "seed-1"
LABEL = "containerruntime.worker.gardener.cloud/gvisor"
PROGRAMS = "/var/bin/containerruntimes"
RUNTIMES = "containerruntimes.extensions.gardener.cloud"


@pytest.fixture(scope="module")
def gvisor(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    landscape.gardener("gvisor", timeout=600)
    shoot = Shoot(landscape, "gvisor", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest(seedName=SEED)
    [pool] = manifest["spec"]["provider"]["workers"]
    pool["cri"] = {"name": "containerd", "containerRuntimes": [{"type": "gvisor"}]}
    shoot.apply(manifest)
    try:
        killed = eventually(lambda: _kill_the_extension(landscape), "a process of the extension", 120)
        shoot.wait_for_state("Succeeded", CREATION)
        print(f"killed {killed}; created with gVisor")
        yield shoot
    finally:
        shoot.remove()
        unregister(landscape, NAME)


def _kill_the_extension(landscape: Landscape) -> list[int]:
    """Kill the processes of the extension's pods, as soon as there are some; returns their ids."""
    killed = []
    for installation in installations(landscape, NAME):
        place = ("-n", f"extension-{installation['metadata']['name']}")
        found = json.loads(landscape.kubectl(SEED, *place, "get", "pods", "-o", "json"))["items"]
        for uid in (each["metadata"]["uid"] for each in found):
            for pid in pods.processes_of(uid):
                with open(f"/proc/{pid}/cmdline", "rb") as command:
                    if NAME.encode() in command.read():
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
    return killed


def test_the_extension_is_installed_where_the_shoot_needs_it(landscape: Landscape, gvisor: Shoot) -> None:
    [installation] = installations(landscape, NAME)

    assert installation["spec"]["seedRef"]["name"] == SEED
    eventually(lambda: GOOD.items() <= conditions(installations(landscape, NAME)[0]).items(), "its conditions", 60)
    runtime = json.loads(gvisor.control_plane("get", RUNTIMES, "gvisor-pool", "-o", "json"))
    assert runtime["status"]["lastOperation"]["state"] == "Succeeded"


def test_a_pod_in_gvisor_sees_its_kernel_and_a_plain_pod_on_the_node_sees_that_of_the_host(gvisor: Shoot) -> None:
    [nodes] = gvisor.nodes().values()
    labelled = gvisor.kubectl("get", "nodes", "-l", f"{LABEL}=true", "-o", "jsonpath={.items[*].metadata.name}")
    assert set(labelled.split()) == nodes

    begun = time.monotonic()
    gvisor.kubectl("apply", "-f", "-", stdin=json.dumps(_pod("sandboxed", "gvisor")))
    sandboxed = _said(gvisor, "sandboxed")
    print(f"a pod in gVisor has run after {time.monotonic() - begun:.1f} s")
    begun = time.monotonic()
    gvisor.kubectl("apply", "-f", "-", stdin=json.dumps(_pod("plain")))
    plain = _said(gvisor, "plain")
    print(f"a plain pod has run after {time.monotonic() - begun:.1f} s")

    assert "Starting gVisor" in sandboxed
    assert os.uname().release in plain
    assert os.uname().release not in sandboxed
    assert "resolved" in sandboxed, "it reaches the cluster's DNS"
    gvisor.kubectl("delete", "pod", "sandboxed", "plain", "--grace-period=1")


def _pod(name: str, runtime: str = "") -> dict[str, Any]:
    ask = 'python3 -c \'import socket; print("resolved", socket.gethostbyname("kubernetes.default.svc"))\''
    command = ["sh", "-c", f"cat /proc/version; dmesg | head -n 1; {ask}; sleep 3600"]
    spec: dict[str, Any] = {"containers": [{"name": "a", "image": images.GARDENER, "command": command}]}
    if runtime:
        spec["runtimeClassName"] = runtime
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def _said(shoot: Shoot, pod: str) -> str:
    shoot.kubectl("wait", "--for=jsonpath={.status.phase}=Running", f"pod/{pod}", "--timeout=90s")
    return eventually(lambda: _whole(shoot.kubectl("logs", pod)), f"the output of {pod}", 60)


def _whole(text: str) -> str:
    return text if "resolved" in text else ""


@pytest.mark.timeout(2 * CREATION, func_only=True)
def test_a_pool_without_gvisor_has_nothing_of_it_left(landscape: Landscape, gvisor: Shoot) -> None:
    [before] = gvisor.nodes().values()
    [pool] = gvisor.get()["spec"]["provider"]["workers"]
    gvisor.change({"provider": {"workers": [{**pool, "cri": {"name": "containerd"}}]}})
    gvisor.wait_until_reconciled(CREATION)

    assert not gvisor.control_plane("get", RUNTIMES, "-o", "name")
    assert not gvisor.kubectl("get", "runtimeclasses", "-o", "name")
    assert gvisor.nodes() == {"pool": before}, "no node was replaced"
    command = f"ls {PROGRAMS} /etc/containerd; grep -c runsc /etc/containerd/config.toml || true"
    infrastructure = ("-n", f"infra-{gvisor.technical_id}")
    machine = landscape.kubectl("cloud", *infrastructure, "get", "pods", "-o", "name").strip()
    assert "runsc" not in landscape.kubectl("cloud", *infrastructure, "exec", machine, "--", "sh", "-c", command)
    labels = ("get", "nodes", "-l", LABEL, "-o", "name")
    eventually(lambda: not gvisor.kubectl(*labels), "the end of the node's label", 60)
    eventually(lambda: not installations(landscape, NAME), "the end of the installation", 60)
