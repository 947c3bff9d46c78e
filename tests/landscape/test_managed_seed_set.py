"""A ManagedSeedSet grows to two seeds, rolls a changed template by a partition, and is scaled in to nothing.

A SeedAutoscaler makes it grow: its seed has a Shoot, and no place for another one. The manifests are those of
examples/managed-seed. The controller-manager, the gardenlets of the landscape and the gardenlet
of the new seed are killed while the set grows from one seed to two.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from api.constants import REVISION_HASH, SHOOT_NODE_JITTER
from api.decisions.managed_seeds import identity_name, token_id
from tests.landscape.conftest import Landscape
from tests.landscape.kills import CONTROLLER_MANAGER, GARDENLETS, kill
from tests.landscape.seed_shoots import EXAMPLES, GARDEN, READY_SECONDS, SeedShoot, example, objects
from tests.landscape.shoots import CREATION, DELETION, Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.chaos, pytest.mark.timeout(1800, func_only=True)]

NAME = "edge"
ROLLED = "example.org/rolled"
"""Label of nodes and Seeds that the changed templates add."""
_CREATION = 2 * CREATION
"""Limit for the Shoot of a seed: it is made beside another seed with its Shoot, while processes are killed."""
_GROWTH = _CREATION + READY_SECONDS
_REMOVAL = 1.5 * DELETION
"""Limit for one replica: the deletion of its Seed, then of its Shoot."""


@dataclass(frozen=True)
class SeedSet:
    """The ManagedSeedSet of the example."""

    landscape: Landscape
    replicas: tuple[SeedShoot, SeedShoot]
    uids: dict[str, str] = field(default_factory=dict)
    """Uids of Seeds by their names; a seed's BackupBucket has the uid as its name."""

    def kubectl(self, *arguments: str, timeout: float = 60) -> str:
        return self.landscape.kubectl(GARDEN, "-n", GARDEN, *arguments, timeout=timeout)

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "managedseedset", NAME, "-o", "json"))
        return found

    def change(self, *operations: tuple[str, str, Any]) -> None:
        """Change the set by operations of JSON Patch: operation, path and value."""
        patch = [{"op": each[0], "path": each[1], "value": each[2]} for each in operations]
        self.kubectl("patch", "managedseedset", NAME, "--type=json", "-p", json.dumps(patch))

    def scale(self, replicas: int) -> None:
        self.kubectl("scale", "managedseedset", NAME, f"--replicas={replicas}")

    def settle(self, seconds: float) -> dict[str, Any]:
        """Wait until the set has nothing left to do for its present spec; returns its status."""
        generation = self.get()["metadata"]["generation"]
        self.wait(f"jsonpath={{.status.observedGeneration}}={generation}", f"managedseedset/{NAME}", 60)
        self.wait("condition=ReplicasReady", f"managedseedset/{NAME}", seconds)
        self.wait("condition=RolledOut", f"managedseedset/{NAME}", 10)
        status: dict[str, Any] = self.get()["status"]
        self.uids.update({each.name: each.find("seed", each.name)["metadata"]["uid"] for each in self.existing()})
        return status

    def wait(self, condition: str, what: str, seconds: float) -> None:
        self.kubectl("wait", f"--for={condition}", what, f"--timeout={seconds:.0f}s", timeout=seconds + 10)

    def existing(self) -> list[SeedShoot]:
        """Replicas whose Seed exists."""
        return [each for each in self.replicas if each.find("seed", each.name)]

    def delete(self) -> None:
        self.kubectl("delete", "seedautoscaler", NAME, "--ignore-not-found")
        seconds = len(self.replicas) * _REMOVAL
        arguments = ("delete", "managedseedset", NAME, "--ignore-not-found", f"--timeout={seconds:.0f}s")
        self.kubectl(*arguments, timeout=seconds + 10)


@pytest.fixture(scope="module")
def seeds(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeedSet]:
    """The set with one ready seed."""
    directory = tmp_path_factory.mktemp("kubeconfigs")
    first, second = (SeedShoot(landscape, f"{NAME}-{ordinal}", directory) for ordinal in range(2))
    made = SeedSet(landscape, (first, second))
    manifest = example("managed-seed-set")
    # The nodes may apply a new configuration at once.
    manifest["spec"]["shootTemplate"]["metadata"]["annotations"] = {SHOOT_NODE_JITTER: "0"}
    landscape.kubectl(GARDEN, "apply", "-f", str(EXAMPLES / "project.yaml"))
    landscape.kubectl(GARDEN, "apply", "-f", "-", stdin=json.dumps(manifest))
    try:
        made.settle(_GROWTH)
        yield made
    finally:
        made.delete()


def test_a_set_of_one_grows_by_its_use_though_its_processes_are_killed(seeds: SeedSet, tmp_path: Path) -> None:
    """They are killed when the Shoot, the ManagedSeed and the Seed of the second replica have just been created."""
    first, second = seeds.replicas
    processes = (CONTROLLER_MANAGER, *GARDENLETS)
    hosted = Shoot(seeds.landscape, f"on-{NAME}", tmp_path)

    with hosted.created(hosted.without_workers(seedName=first.name)):
        seeds.kubectl("apply", "-f", str(EXAMPLES / "seed-autoscaler.yaml"))
        for created, seconds in (("shoot", 60), ("managedseed", _CREATION), ("seed", READY_SECONDS)):
            second.wait("create", f"{created}/{second.name}", seconds)
            kill(seeds.landscape, *processes)
        second.kill_gardenlet()

        status = seeds.settle(_GROWTH)
        scaler = json.loads(seeds.kubectl("get", "seedautoscaler", NAME, "-o", "json"))
        assert scaler["status"]["desiredReplicas"] == seeds.get()["spec"]["replicas"] == 2
        seeds.kubectl("delete", "seedautoscaler", NAME)  # the last test scales the set

    assert [status[each] for each in ("replicas", "readyReplicas", "nextReplicaNumber")] == [2, 2, 2]
    assert status["currentRevision"] == status["updateRevision"]
    assert revisions(seeds) == [1]
    # The second replica, which was made while processes were killed, has what the first one has, and nothing twice.
    eventually(lambda: in_garden(seeds, second) == in_garden(seeds, first), "both have the same objects", 60)
    assert Counter(second.installed()) == Counter(set(first.installed()))
    assert len(second.machines()) == len(first.machines()) == 1
    assert [each["operation"] for each in second.flows()].count("Create") == 1


def test_a_changed_template_rolls_down_to_the_partition(seeds: SeedSet) -> None:
    first, second = seeds.replicas
    machines = [each.machines() for each in seeds.replicas]
    before = seeds.get()["status"]["currentRevision"]
    workers = "/spec/shootTemplate/spec/provider/workers/0"
    seed = "/spec/template/spec/gardenlet/config/seedConfig/metadata/labels"

    seeds.change(
        ("add", "/spec/updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}),
        ("add", f"{workers}/labels", {ROLLED: "true"}),
        ("add", f"{seed}/{ROLLED.replace('/', '~1')}", "true"),
    )

    status = seeds.settle(READY_SECONDS)
    update = status["updateRevision"]
    assert (status["currentRevision"], status["currentReplicas"], status["updatedReplicas"]) == (before, 1, 1)
    assert update != before
    assert (revision(first), revision(second)) == (before, update)
    eventually(lambda: labelled(second) == (True, True), "the Seed and the node of ordinal 1 have the label", 60)
    assert labelled(first) == (False, False)

    seeds.change(("replace", "/spec/updateStrategy/rollingUpdate/partition", 0))

    status = seeds.settle(READY_SECONDS)
    assert (status["currentRevision"], status["currentReplicas"], status["updatedReplicas"]) == (update, 2, 2)
    assert (revision(first), revision(second)) == (update, update)
    eventually(lambda: labelled(first) == (True, True), "the Seed and the node of ordinal 0 have the label", 60)
    assert [each.machines() for each in seeds.replicas] == machines
    assert revisions(seeds) == [1, 2]


def test_nothing_is_left_of_a_set_that_is_scaled_in_to_nothing(seeds: SeedSet) -> None:
    replicas = seeds.existing()
    hosts = {each.seed for each in replicas}
    domains = [each.get()["spec"]["dns"]["domain"] for each in replicas]
    uids, ids = [seeds.uids[each.name] for each in replicas], [each.technical_id for each in replicas]
    tokens = [f"bootstrap-token-{token_id(each.name)}" for each in replicas]

    seeds.scale(0)

    status = seeds.settle(len(replicas) * _REMOVAL)
    assert (status["replicas"], status["nextReplicaNumber"]) == (0, len(replicas))
    seeds.delete()
    eventually(lambda: not objects(seeds.landscape, GARDEN, NAME, *uids, *tokens), "nothing is left in the garden", 60)
    for cluster in (*hosts, "cloud"):
        assert not objects(seeds.landscape, cluster, *ids)
    buckets = [str(each) for each in (seeds.landscape.directory / "object-store/buckets").glob("**/")]
    assert not [each for each in buckets if any(name in each for name in (*uids, *ids))]
    for each, domain in zip(replicas, domains, strict=True):
        assert not any(map(each.address_of, (*each.host_names, f"any.ingress.{domain}")))


def in_garden(seeds: SeedSet, replica: SeedShoot) -> Counter[tuple[str, str]]:
    """Number of the objects of a replica in the garden by kind and namespace. Names may end with random characters."""
    texts = (replica.name, seeds.uids[replica.name], f"bootstrap-token-{token_id(replica.name)}")
    found = objects(seeds.landscape, GARDEN, *texts)
    assert identity_name(replica.name) in [each[2] for each in found], found
    return Counter((each[0], each[1].replace(replica.name, "REPLICA")) for each in found)


def revisions(seeds: SeedSet) -> list[int]:
    """Numbers of the ControllerRevisions of the set."""
    found = json.loads(seeds.kubectl("get", "controllerrevisions", "-o", "json"))["items"]
    return sorted(each["revision"] for each in found if each["metadata"]["ownerReferences"][0]["name"] == NAME)


def revision(replica: SeedShoot) -> str:
    """Name of the revision that Shoot and ManagedSeed of a replica were made of."""
    labels = [replica.find(kind, replica.name)["metadata"]["labels"] for kind in ("shoot", "managedseed")]
    [hash_] = {each[REVISION_HASH] for each in labels}
    return f"{NAME}-{hash_}"


def labelled(replica: SeedShoot) -> tuple[bool, ...]:
    """Whether the changed templates have reached the Seed and each node of a replica."""
    nodes = json.loads(replica.kubectl("get", "nodes", "-o", "json"))["items"]
    return tuple(ROLLED in each["metadata"]["labels"] for each in (replica.find("seed", replica.name), *nodes))
