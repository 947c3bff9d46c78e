"""A Shoot of namespace garden becomes a seed, hosts a Shoot with a Ready node, and is a Shoot again.

The manifests are those of examples/managed-seed. While the seed is made and removed, the controller-manager, the
gardenlets of the landscape and the gardenlet of the new seed are killed.
"""

import json
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

import pytest

from api.decisions.managed_seeds import identity_name, token_id
from landscape import plan as plans
from tests.landscape.conftest import Landscape
from tests.landscape.kills import CONTROLLER_MANAGER, GARDENLETS, kill
from tests.landscape.seed_shoots import EXAMPLES, GARDEN, READY_SECONDS, SeedShoot, example, objects
from tests.landscape.shoots import CREATION, DELETION, Shoot, eventually, refused

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.chaos, pytest.mark.timeout(900, func_only=True)]

NAME, HOSTED = "nested", "on-nested"


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeedShoot]:
    made = SeedShoot(landscape, NAME, tmp_path_factory.mktemp("kubeconfigs"))
    landscape.kubectl(GARDEN, "apply", "-f", str(EXAMPLES / "project.yaml"))
    with made.created(example("shoot")):
        yield made


@pytest.fixture(scope="module")
def seed(shoot: SeedShoot) -> Iterator[SeedShoot]:
    """The Shoot, on its way to a seed. All processes that make it a seed are killed at each of their steps."""
    processes = (CONTROLLER_MANAGER, *GARDENLETS)
    try:
        shoot.apply(example("managed-seed"))
        shoot.wait("create", f"secret/{identity_name(NAME)}", 60)
        kill(shoot.landscape, *processes)
        gardenlet = ("-n", GARDEN, "wait", "--for=create", "deployment/gardenlet", "--timeout=120s")
        shoot.kubectl(*gardenlet, timeout=130)
        kill(shoot.landscape, *processes)
        shoot.wait("create", f"seed/{NAME}", READY_SECONDS)
        shoot.wait("jsonpath={.status.lastOperation.state}=Processing", f"seed/{NAME}", 60)
        kill(shoot.landscape, *processes)
        shoot.kill_gardenlet()
        yield shoot
    finally:
        delete_managed_seed(shoot)


@pytest.fixture(scope="module")
def hosted(seed: SeedShoot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    made = Shoot(seed.landscape, HOSTED, tmp_path_factory.mktemp("kubeconfigs"))
    eventually(seed.is_ready, "the Seed is ready", READY_SECONDS)
    with made.created(example("shoot-on-it")):
        yield made


def delete_managed_seed(seed: SeedShoot) -> None:
    arguments = ("delete", "managedseed", NAME, "--ignore-not-found", f"--timeout={DELETION}s")
    seed.garden(*arguments, timeout=DELETION + 10)


def test_a_shoot_becomes_a_seed(seed: SeedShoot) -> None:
    eventually(seed.is_ready, "the Seed is ready", READY_SECONDS)
    eventually(lambda: seed.conditions("managedseed").get("SeedRegistered") == "True", "the ManagedSeed says so", 30)
    eventually(lambda: seed.conditions("shoot").get("GardenletReady") == "True", "and the Shoot does", 30)
    pods = json.loads(seed.kubectl("-n", GARDEN, "get", "pods", "-l", "role=gardenlet", "-o", "json"))["items"]
    assert [each["status"]["phase"] for each in pods] == ["Running"]
    assert len(seed.open_ports()) == 4


def test_a_seed_whose_processes_were_killed_has_nothing_twice(seed: SeedShoot) -> None:
    deployed = json.loads(seed.kubectl("-n", GARDEN, "get", "deployments", "-l", "role=gardenlet", "-o", "json"))
    buckets = json.loads(seed.garden("get", "backupbuckets", "-o", "json"))["items"]
    uid = seed.find("seed", NAME)["metadata"]["uid"]
    token = f"secret/bootstrap-token-{token_id(NAME)}"

    assert [each["metadata"]["name"] for each in deployed["items"]] == ["gardenlet"]
    assert [each["metadata"]["name"] for each in buckets if each["spec"]["seedName"] == NAME] == [uid]
    assert len(seed.machines()) == 2
    installed = seed.installed()
    assert "provider-local" in installed
    assert len(set(installed)) == len(installed)
    # The gardenlet has its certificate, so its token is good for nothing any more.
    seed.landscape.kubectl(GARDEN, "-n", "kube-system", "wait", "--for=delete", token, "--timeout=30s")


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
    uid = seed.find("seed", NAME)["metadata"]["uid"]
    processes = (CONTROLLER_MANAGER, *GARDENLETS)

    seed.garden("delete", "managedseed", NAME, "--wait=false")
    seed.wait("jsonpath={.metadata.deletionTimestamp}", f"seed/{NAME}", 60)
    kill(seed.landscape, *processes)
    seed.wait("jsonpath={.status.lastOperation.type}=Delete", f"seed/{NAME}", 60)
    kill(seed.landscape, *processes)
    seed.kill_gardenlet()
    seed.wait("delete", f"seed/{NAME}", DELETION)
    kill(seed.landscape, *processes)
    seed.wait("delete", f"managedseed/{NAME}", DELETION)

    assert not seed.find("seed", NAME)
    assert not seed.find("secret", identity_name(NAME))
    assert not seed.installed()
    assert not objects(seed.landscape, GARDEN, uid, f"seed-{NAME}")
    assert not list((seed.landscape.directory / "object-store/buckets").glob(f"{uid}*"))
    assert GARDEN not in seed.kubectl("get", "namespaces", "-o", "name")
    eventually(lambda: not seed.open_ports(), "its machines reach no central service any more", 30)
    eventually(lambda: "GardenletReady" not in seed.conditions("shoot"), "the Shoot shows no Seed", CREATION)
