"""A seed is used, evacuated and deleted, and nothing is left of it; then its gardenlet adds it again.

Gardenlet and controller-manager are killed while the seed is deleted, and while it is added.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import dns.message
import dns.query
import pytest

from tests.landscape.conftest import Landscape
from tests.landscape.kills import CONTROLLER_MANAGER, kill
from tests.landscape.seed_shoots import CONDITIONS
from tests.landscape.shoots import CREATION, Shoot, eventually, refused

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.chaos, pytest.mark.timeout(600, func_only=True)]

SEED, OTHER = "seed-2", "seed-1"
_GARDENLET = f"{SEED}/gardenlet"
_READY_SECONDS = 240.0
_OF_THE_GARDENLET = ("gardenlet-kubeconfig", "gardener.cloud:gardenlet-ownership")
"""Names of objects that a gardenlet keeps while it runs, also without a Seed."""
_GONE_SECONDS = 240.0
_LAST_KILL = 60
"""Percent of the deletion. A gardenlet that starts after the end of the flow would register its Seed again."""
_KILLS = 3
"""Largest number of kills. The keeper doubles the delay before a process starts again."""


@dataclass(frozen=True)
class Seed:
    """The seed that is deleted, as it was before."""

    landscape: Landscape
    before: dict[str, Any]

    @property
    def uid(self) -> str:
        return str(self.before["metadata"]["uid"])

    @property
    def ingress(self) -> str:
        return f"any.{self.before['spec']['ingress']['domain']}"

    def garden(self, *arguments: str) -> str:
        return self.landscape.kubectl("garden", *arguments)

    def live(self) -> dict[str, Any]:
        """The Seed as it is now; empty if it is gone."""
        found: dict[str, Any] = json.loads(self.garden("get", "seed", SEED, "--ignore-not-found", "-o", "json") or "{}")
        return found

    def is_ready(self) -> bool:
        live = self.live()
        status = live.get("status") or {}
        last = status.get("lastOperation") or {}
        return (status.get("observedGeneration"), last.get("state")) == (
            live.get("metadata", {}).get("generation"),
            "Succeeded",
        )

    def is_healthy(self) -> bool:
        conditions = (self.live().get("status") or {}).get("conditions") or ()
        found = {each["type"]: each["status"] for each in conditions}
        return all(found.get(each) == "True" for each in CONDITIONS)

    def eventually_with_kills(self, done: Callable[[], bool], what: str, seconds: float, last: int, least: int) -> None:
        """Wait for the end of the seed's flow. Both processes are killed after a task has ended, while others run.

        ``last``: percent of the flow from which they are not killed any more. ``least``: number of kills at the least.
        """
        killed: set[int] = set()

        def is_done() -> bool:
            progress = ((self.live().get("status") or {}).get("lastOperation") or {}).get("progress", 100)
            if progress not in killed and progress < last and len(killed) < _KILLS:
                killed.add(progress)
                kill(self.landscape, _GARDENLET, CONTROLLER_MANAGER)
            return done()

        eventually(is_done, what, seconds)
        assert len(killed) >= least, f"the processes were killed at {sorted(killed)} % alone"

    def resolves(self) -> bool:
        answer = dns.query.udp(
            dns.message.make_query(self.ingress, "A"), self.landscape.facts["dns"]["server"], timeout=5
        )
        return bool(answer.answer)

    def in_garden(self) -> list[str]:
        """Objects of the garden that have the Seed's name or uid, or are in its namespace; Events are history."""
        kinds = [
            each
            for each in self.garden("api-resources", "--verbs=list", "-o", "name").split()
            if each.partition(".")[0] != "events"
        ]
        columns = "custom-columns=:.metadata.namespace,:.kind,:.metadata.name,:.spec.seedName,:.spec.seedRef.name"
        listed = self.garden("get", ",".join(kinds), "-A", "--no-headers", "-o", columns)
        names = {SEED, self.uid, f"seed-{SEED}"}
        return [" ".join(row) for row in map(str.split, listed.splitlines()) if names & set(row)]

    def in_seed(self) -> list[str]:
        """Kinds and policies of ours, and objects outside of the namespaces that Kubernetes has itself."""
        ours = ("gardener.cloud", "machine.sapcloud.io")
        listed = self.landscape.kubectl(
            SEED, "get", "crd,validatingadmissionpolicy,validatingadmissionpolicybinding", "-o", "name"
        )
        found = [each for each in listed.split() if each.endswith(ours)]
        listed = self.landscape.kubectl(SEED, "get", "priorityclass,clusterrole,clusterrolebinding", "-o", "name")
        found += [each for each in listed.split() if "gardener" in each and "provider-local" not in each]
        namespaces = self.landscape.kubectl(SEED, "get", "namespaces", "-o", "name").split()
        found += [each for each in namespaces if each.startswith(("namespace/istio-", "namespace/shoot-"))]
        columns = "custom-columns=:.kind,:.metadata.name"
        kinds = "pods,deployments,services,secrets,configmaps,roles,rolebindings,serviceaccounts"
        listed = self.landscape.kubectl(SEED, "-n", "garden", "get", kinds, "--no-headers", "-o", columns)
        kept = {"default", "kube-root-ca.crt", *_OF_THE_GARDENLET}
        return found + [" ".join(row) for row in map(str.split, listed.splitlines()) if row[1] not in kept]

    def bucket(self) -> list[str]:
        buckets = self.landscape.directory / "object-store/buckets"
        return [str(each.relative_to(buckets)) for each in buckets.glob(f"{self.uid}*")]


@pytest.fixture(scope="module")
def seed(landscape: Landscape) -> Iterator[Seed]:
    found = Seed(landscape, json.loads(landscape.kubectl("garden", "get", "seed", SEED, "-o", "json")))
    yield found
    if not found.live():
        _add_again(found)


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, seed: Seed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A control plane in the seed."""
    shoot = Shoot(landscape, "tenant", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created(shoot.without_workers(seedName=SEED)):
        yield shoot


def test_a_seed_in_use_is_not_deleted(seed: Seed, shoot: Shoot) -> None:
    said = refused(*seed.landscape.argv("garden", "delete", "seed", SEED))
    assert f"it hosts Shoots: {shoot.reference}; move them to other seeds (`gardener seed evacuate {SEED}`)" in said


def test_nothing_is_left_of_an_evacuated_and_deleted_seed(seed: Seed, shoot: Shoot) -> None:
    assert seed.live()["metadata"]["finalizers"].count("gardener") == 1
    assert seed.resolves()
    assert seed.bucket()
    assert f"namespace/seed-{SEED}" in seed.garden("get", "namespaces", "-o", "name").split()
    shoot.gardener("seed", "evacuate", SEED, "--to", OTHER, timeout=CREATION)
    shoot.has_moved()
    eventually(lambda: not [each for each in seed.in_garden() if "BackupEntry" in each], "backups have moved", 60)

    seed.garden("delete", "seed", SEED, "--wait=false")
    seed.eventually_with_kills(lambda: not seed.live(), "the Seed is gone", _GONE_SECONDS, _LAST_KILL, _KILLS)
    shown = json.loads(shoot.gardener("seed", "show", SEED, "-o", "json"))
    assert (shown["operation"], shown["state"], shown["percent"]) == ("Delete", "Completed", 100)
    eventually(lambda: not seed.in_garden(), f"nothing of {SEED} is in the garden", 30)
    assert seed.in_seed() == []
    assert seed.bucket() == []
    assert not seed.resolves()
    assert shoot.get()["status"]["lastOperation"]["state"] == "Succeeded"


def test_a_deleted_seed_can_be_added_again_though_its_processes_are_killed(seed: Seed) -> None:
    kill(seed.landscape, _GARDENLET)  # when it starts, it registers its Seed

    # An idle machine needs a second for the rest of the flow once the gardenlet runs again.
    seed.eventually_with_kills(seed.is_ready, f"{SEED} is ready", _READY_SECONDS, 100, 1)
    live = seed.live()
    assert live["metadata"]["uid"] != seed.uid
    assert live["metadata"]["finalizers"].count("gardener") == 1
    eventually(seed.is_healthy, f"{SEED} is healthy", 120)
    assert seed.resolves()
    buckets = json.loads(seed.garden("get", "backupbuckets", "-o", "json"))["items"]
    uids = [each["metadata"]["name"] for each in buckets if each["spec"]["seedName"] == SEED]
    assert uids == [live["metadata"]["uid"]]


def _add_again(seed: Seed) -> None:
    kill(seed.landscape, _GARDENLET)
    eventually(seed.is_ready, f"{SEED} is ready", _READY_SECONDS)
