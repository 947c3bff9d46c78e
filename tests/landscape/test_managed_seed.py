"""A Shoot of namespace garden becomes a seed: a gardenlet runs in it, and registers a Seed that gets ready."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from landscape import plan as plans
from tests.landscape.conftest import Landscape, run
from tests.landscape.shoots import CREATION, Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

NAME = "nested"
GARDEN = "garden"
_SECONDS = 120.0
PROJECT = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "Project",
    "metadata": {"name": GARDEN},
    "spec": {"namespace": GARDEN},
}
BINDING = {
    "apiVersion": "security.gardener.cloud/v1alpha1",
    "kind": "CredentialsBinding",
    "metadata": {"name": "local", "namespace": GARDEN},
    "provider": {"type": "local"},
    "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "namespace": "garden-local", "name": "local"},
}
MANAGED_SEED = {
    "apiVersion": "seedmanagement.gardener.cloud/v1alpha1",
    "kind": "ManagedSeed",
    "metadata": {"name": NAME, "namespace": GARDEN},
    "spec": {"shoot": {"name": NAME}, "gardenlet": {"deployment": {"replicaCount": 1}}},
}


class SeedShoot(Shoot):
    """A Shoot of namespace garden."""

    def __post_init__(self) -> None:
        self.reference = f"{GARDEN}/{self.name}"
        self.technical_id = f"shoot--garden--{self.name}"

    def manifest(self, *, machines: int = 2, **spec: Any) -> dict[str, Any]:
        manifest = super().manifest(machines=machines, **spec)
        manifest["metadata"]["namespace"] = GARDEN
        return manifest

    def garden(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        return self.landscape.kubectl(GARDEN, "-n", GARDEN, *arguments, stdin=stdin, timeout=timeout)

    def find(self, *what: str) -> dict[str, Any]:
        """An object of the garden; empty if there is none."""
        text = self.garden("get", *what, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def condition(self, kind: str, type_: str) -> str:
        conditions = (self.find(kind, self.name).get("status") or {}).get("conditions") or ()
        return next((each["status"] for each in conditions if each["type"] == type_), "")


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeedShoot]:
    made = SeedShoot(landscape, NAME, tmp_path_factory.mktemp("kubeconfigs"))
    labels = ("gardener.cloud/role=project", "project.gardener.cloud/name=garden")
    landscape.kubectl(GARDEN, "label", "namespace", GARDEN, *labels)
    for each in (PROJECT, BINDING):
        landscape.kubectl(GARDEN, "apply", "-f", "-", stdin=json.dumps(each))
    let_machines_reach_the_garden(landscape)
    with made.created():
        yield made


def let_machines_reach_the_garden(landscape: Landscape) -> None:
    """Open the cloud's firewall, as an operator does for the machines of a seed."""
    plan = plans.load(landscape.name)
    assert plan is not None
    port = plan.temporal_address.rsplit(":", 1)[1]
    rule = f"-d {plan.central_address}/32 -p tcp -m multiport --dports 6443,{port} -j ACCEPT"
    run("ip", "netns", "exec", plan.cloud.netns, "iptables", "-I", "GARDENER-MACHINES", *rule.split())


def test_a_shoot_becomes_a_seed_and_a_shoot_again(shoot: SeedShoot) -> None:
    shoot.apply(MANAGED_SEED)
    eventually(lambda: shoot.condition("seed", "GardenletReady") == "True", "its gardenlet renews the lease", _SECONDS)
    eventually(lambda: shoot.condition("managedseed", "SeedRegistered") == "True", "the ManagedSeed says so", 30)
    eventually(lambda: shoot.condition("shoot", "GardenletReady") == "True", "and the Shoot does", 30)
    pods = json.loads(shoot.kubectl("-n", GARDEN, "get", "pods", "-l", "role=gardenlet", "-o", "json"))["items"]
    assert [each["status"]["phase"] for each in pods] == ["Running"]
    doomed = run_refused(shoot, "delete", "shoot", NAME)
    assert "it is a seed: delete ManagedSeed garden/nested first" in doomed

    shoot.garden("delete", "managedseed", NAME, f"--timeout={CREATION}s", timeout=CREATION + 10)
    assert not shoot.find("seed", NAME)
    assert not shoot.find("secret", f"{NAME}.managed-seed")
    assert GARDEN not in shoot.kubectl("get", "namespaces", "-o", "name")


def run_refused(shoot: SeedShoot, *arguments: str) -> str:
    """Message of kubectl, which must fail."""
    shoot.garden("annotate", "shoot", NAME, "confirmation.gardener.cloud/deletion=true")
    argv = shoot.landscape.argv(GARDEN, "-n", GARDEN, *arguments)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    return done.stderr
