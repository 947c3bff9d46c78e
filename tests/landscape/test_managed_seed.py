"""A Shoot of namespace garden becomes a seed, hosts a Shoot with a Ready node, and is a Shoot again.

The manifests are those of examples/managed-seed.
"""

import json
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from landscape import plan as plans
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import CREATION, DELETION, Shoot, eventually, refused

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(900, func_only=True)]

EXAMPLES = Path(__file__).parents[2] / "examples/managed-seed"
GARDEN, NAME, HOSTED = "garden", "nested", "on-nested"
_SECONDS = 240.0
CONDITIONS = ("GardenletReady", "ExtensionsReady", "BackupBucketsReady", "SeedSystemComponentsHealthy")


def example(name: str) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return manifest


class SeedShoot(Shoot):
    """The Shoot of namespace garden that becomes a seed."""

    def __post_init__(self) -> None:
        self.reference = f"{GARDEN}/{self.name}"
        self.technical_id = f"shoot--garden--{self.name}"

    def garden(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        return self.landscape.kubectl(GARDEN, "-n", GARDEN, *arguments, stdin=stdin, timeout=timeout)

    def find(self, *what: str) -> dict[str, Any]:
        """An object of the garden; empty if there is none."""
        text = self.garden("get", *what, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def conditions(self, kind: str) -> dict[str, str]:
        found = (self.find(kind, self.name).get("status") or {}).get("conditions") or ()
        return {each["type"]: each["status"] for each in found}

    def open_ports(self) -> list[int]:
        """Ports of the central services that a machine of this Shoot reaches."""
        plan = plans.load(self.landscape.name)
        assert plan is not None
        machine = min(name for pool in self.nodes().values() for name in pool)
        command = ("exec", machine, "--", "python3", "-c", _CONNECT, plan.central_address, *map(str, plan.seed_ports))
        said = self.landscape.kubectl("cloud", "-n", f"infra-{self.technical_id}", *command)
        return [int(line) for line in said.split()]


_CONNECT = """
import socket, sys
for port in map(int, sys.argv[2:]):
    try:
        socket.create_connection((sys.argv[1], port), 3).close()
    except OSError:
        continue
    print(port)
"""


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeedShoot]:
    made = SeedShoot(landscape, NAME, tmp_path_factory.mktemp("kubeconfigs"))
    landscape.kubectl(GARDEN, "apply", "-f", str(EXAMPLES / "project.yaml"))
    with made.created(example("shoot")):
        yield made


@pytest.fixture(scope="module")
def seed(shoot: SeedShoot) -> Iterator[SeedShoot]:
    shoot.apply(example("managed-seed"))
    try:
        yield shoot
    finally:
        delete_managed_seed(shoot)


@pytest.fixture(scope="module")
def hosted(seed: SeedShoot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    made = Shoot(seed.landscape, HOSTED, tmp_path_factory.mktemp("kubeconfigs"))
    eventually(lambda: is_ready(seed), "the Seed is ready", _SECONDS)
    with made.created(example("shoot-on-it")):
        yield made


def is_ready(seed: SeedShoot) -> bool:
    found = seed.conditions("seed")
    return all(found.get(each) == "True" for each in CONDITIONS)


def delete_managed_seed(seed: SeedShoot) -> None:
    arguments = ("delete", "managedseed", NAME, "--ignore-not-found", f"--timeout={DELETION}s")
    seed.garden(*arguments, timeout=DELETION + 10)


def test_a_shoot_becomes_a_seed(seed: SeedShoot) -> None:
    eventually(lambda: is_ready(seed), "the Seed is ready", _SECONDS)
    eventually(lambda: seed.conditions("managedseed").get("SeedRegistered") == "True", "the ManagedSeed says so", 30)
    eventually(lambda: seed.conditions("shoot").get("GardenletReady") == "True", "and the Shoot does", 30)
    pods = json.loads(seed.kubectl("-n", GARDEN, "get", "pods", "-l", "role=gardenlet", "-o", "json"))["items"]
    assert [each["status"]["phase"] for each in pods] == ["Running"]
    assert len(seed.open_ports()) == 4


def test_a_shoot_that_is_a_seed_is_not_deleted(seed: SeedShoot) -> None:
    seed.garden("annotate", "shoot", NAME, "--overwrite", "confirmation.gardener.cloud/deletion=true")

    said = refused(*seed.landscape.argv(GARDEN, "-n", GARDEN, "delete", "shoot", NAME))

    assert "it is a seed: delete ManagedSeed garden/nested first" in said


def test_a_managed_seed_hosts_a_shoot_with_a_ready_node(hosted: Shoot, seed: SeedShoot) -> None:
    assert hosted.get()["spec"]["seedName"] == NAME
    assert hosted.technical_id in seed.kubectl("get", "namespaces", "-o", "name")
    hosted.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=120s", timeout=130)
    assert len(hosted.nodes()["pool"]) == 1
    # The gateway of the seed has a load balancer of the cloud.
    plan = plans.load(seed.landscape.name)
    assert plan is not None
    assert IPv4Address(hosted.address_of(hosted.host_names[1])) in IPv4Network(plan.public_network)
    # The API server reaches the node by the tunnel, which passes through that gateway.
    assert hosted.kubectl("-n", "kube-system", "logs", "-l", "k8s-app=kube-dns", "--tail=1")


def test_a_managed_seed_with_a_shoot_is_not_deleted(hosted: Shoot, seed: SeedShoot) -> None:
    said = refused(*seed.landscape.argv(GARDEN, "-n", GARDEN, "delete", "managedseed", NAME))

    assert f"{hosted.reference}" in said


def test_a_seed_becomes_a_shoot_again(hosted: Shoot, seed: SeedShoot) -> None:
    hosted.remove()

    delete_managed_seed(seed)

    assert not seed.find("seed", NAME)
    assert not seed.find("secret", f"{NAME}.managed-seed")
    assert GARDEN not in seed.kubectl("get", "namespaces", "-o", "name")
    eventually(lambda: not seed.open_ports(), "its machines reach no central service any more", 30)
    eventually(lambda: "GardenletReady" not in seed.conditions("shoot"), "the Shoot shows no Seed", CREATION)
